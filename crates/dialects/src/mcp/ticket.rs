//! Spells answers, refusals and events for one MCP request.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, AnyTool, CallError, Effects, Ending, Event, Level, Output, Reply, ToolPage, ToolSpec,
};

use super::message::{Failure, INVALID_PARAMS, Id, notification, success};
use super::revision::{BadInput, Era, Revision, Shapes};
use super::{cursor, spell};
use crate::{Facts, Ticket};

/// How long a client may keep a list, in milliseconds. The catalog is fixed while the process lives.
const LIST_TTL_MS: u64 = 300_000;

/// What is needed to answer one request.
pub(crate) struct McpTicket {
    pub(crate) id: Id,
    pub(crate) revision: &'static Revision,
    pub(crate) facts: Arc<Facts>,
    /// What the client calls this request's progress, if it wants any.
    pub(crate) progress_token: Option<Value>,
    /// The least level of log line it wants.
    pub(crate) log_level: Option<Level>,
    /// The bits of the last progress sent, which only grows.
    pub(crate) progress: AtomicU64,
}

impl Ticket for McpTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        match outcome {
            Ok(Answer::Tools(page)) => Some(self.tools(&page)),
            Ok(Answer::Output(output)) => Some(self.output(&output)),
            Err(CallError::Canceled) => None,
            Err(error) => Some(self.refusal(&error)),
        }
    }

    fn event(&self, event: &Event) -> Option<Bytes> {
        match event {
            Event::Progress { done, total, message } => {
                self.progress_event(*done, *total, message.as_deref())
            }
            Event::Log { level, message } => {
                let wanted = self.log_level.is_some_and(|least| *level >= least);
                let params = json!({ "level": level, "logger": self.facts.name, "data": message });
                wanted.then(|| notification("notifications/message", &params))
            }
            // What a program prints is in its result; while it runs, its last line is the progress message.
            Event::Chunk { .. } => None,
        }
    }

    fn listens(&self) -> bool {
        self.progress_token.is_some() || self.log_level.is_some()
    }
}

impl McpTicket {
    fn tools(&self, page: &ToolPage) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct List<'a> {
            tools: Vec<Listed<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        let tools =
            page.tools.iter().map(|tool| Listed::new(tool.as_ref(), self.revision)).collect();
        let next_cursor = page.next.as_ref().map(cursor::write);
        let stamp = self.stamp(Some(LIST_TTL_MS));
        success(&self.id, &List { tools, next_cursor, stamp })
    }

    fn output(&self, output: &Output) -> Reply {
        let Output { value, text, ending } = output;
        // Some model APIs refuse an empty block.
        let body = Some(text.body.as_str()).filter(|body| !body.is_empty());
        let content = body.into_iter().chain(text.note.as_deref()).map(Content::text).collect();
        let sayable = match self.revision.shapes {
            Shapes::Objects => value.is_object(),
            Shapes::Any => true,
        };
        let structured = (self.revision.structured && sayable).then_some(value);
        self.result(content, structured, *ending == Ending::ProgramFailed)
    }

    fn refusal(&self, error: &CallError) -> Reply {
        let message = self.wording(error);
        match error {
            CallError::UnknownTool { .. } => self.protocol_error(&message, None),
            CallError::InvalidInput { problems } => match self.revision.bad_input {
                BadInput::Error => {
                    self.protocol_error(&message, Some(json!({ "problems": problems })))
                }
                BadInput::Result => self.told(&message),
            },
            CallError::Conflict { details, .. } => self.told(&format!("{message}\n{details}")),
            CallError::NotAllowed { .. }
            | CallError::Limited { .. }
            | CallError::NotFound { .. }
            | CallError::TooLarge { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => self.told(&message),
        }
    }

    /// The refusal's sentence, with tools named as this wire names them.
    fn wording(&self, error: &CallError) -> String {
        match error {
            CallError::UnknownTool { name, nearest: Some(nearest) } => {
                format!("no tool is named `{name}`; did you mean `{}`?", spell(nearest))
            }
            other => other.to_string(),
        }
    }

    /// A failure the model is to see.
    fn told(&self, message: &str) -> Reply {
        self.result(vec![Content::text(message)], None, true)
    }

    fn result(
        &self,
        content: Vec<Content<'_>>,
        structured: Option<&Value>,
        is_error: bool,
    ) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct CallResult<'a> {
            content: Vec<Content<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            structured_content: Option<&'a Value>,
            is_error: bool,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        let stamp = self.stamp(None);
        success(&self.id, &CallResult { content, structured_content: structured, is_error, stamp })
    }

    fn protocol_error(&self, message: &str, data: Option<Value>) -> Reply {
        Failure {
            data: data.map(Box::new),
            ..Failure::new(Some(self.id.clone()), INVALID_PARAMS, message)
        }
        .with_status(200)
        .reply(self.revision.anonymous_errors)
    }

    fn progress_event(
        &self,
        done: f64,
        total: Option<f64>,
        message: Option<&str>,
    ) -> Option<Bytes> {
        let token = self.progress_token.as_ref()?;
        let grows =
            |last: u64| (done.is_finite() && done > f64::from_bits(last)).then(|| done.to_bits());
        self.progress.fetch_update(Ordering::AcqRel, Ordering::Acquire, grows).ok()?;
        let mut params = json!({ "progressToken": token, "progress": done });
        if let Some(total) = total.filter(|total| total.is_finite()) {
            params["total"] = json!(total);
        }
        if let Some(message) = message.filter(|_| self.revision.annotations) {
            params["message"] = json!(message);
        }
        Some(notification("notifications/progress", &params))
    }

    fn stamp(&self, ttl_ms: Option<u64>) -> Stamp<'_> {
        Stamp::new(self.revision, &self.facts, ttl_ms)
    }
}

/// What every result of the stateless era carries, and none of the era before.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stamp<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_scope: Option<&'static str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<ResultMeta<'a>>,
}

#[derive(Serialize)]
struct ResultMeta<'a> {
    #[serde(rename = "io.modelcontextprotocol/serverInfo")]
    server_info: Named<'a>,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    version: &'a str,
}

impl<'a> Stamp<'a> {
    /// `ttl_ms` is given for results a client may keep. They are `private`: what is on offer can
    /// depend on the caller.
    pub(crate) fn new(revision: &Revision, facts: &'a Facts, ttl_ms: Option<u64>) -> Self {
        match revision.era {
            Era::Session => Self { result_type: None, ttl_ms: None, cache_scope: None, meta: None },
            Era::Stateless => Self {
                result_type: Some("complete"),
                ttl_ms,
                cache_scope: ttl_ms.map(|_| "private"),
                meta: Some(ResultMeta {
                    server_info: Named { name: &facts.name, version: &facts.version },
                }),
            },
        }
    }
}

/// What the server says it is, as far as the revision has words for it.
pub(crate) fn server_info(revision: &Revision, facts: &Facts) -> Value {
    let mut about = json!({ "name": facts.name, "version": facts.version });
    if revision.structured {
        about["title"] = json!(facts.title);
    }
    if revision.describes_itself {
        about["description"] = json!(facts.about);
    }
    about
}

#[derive(Serialize)]
struct Content<'a> {
    r#type: &'static str,
    text: &'a str,
}

impl<'a> Content<'a> {
    fn text(text: &'a str) -> Self {
        Self { r#type: "text", text }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<Cow<'a, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations<'a>>,
}

impl<'a> Listed<'a> {
    fn new(tool: &'a dyn AnyTool, revision: &Revision) -> Self {
        let spec = tool.spec();
        Self {
            name: spell(spec.id.as_str()),
            title: revision.structured.then_some(&spec.title),
            description: &spec.about,
            input_schema: worded(&spec.input_schema, revision.shapes),
            output_schema: spec
                .output_schema
                .as_ref()
                .filter(|schema| revision.structured && sayable(schema, revision.shapes))
                .map(|schema| worded(schema, revision.shapes)),
            annotations: revision.annotations.then(|| Annotations::new(spec)),
        }
    }
}

/// Whether a revision has words for results of `schema`.
fn sayable(schema: &Value, shapes: Shapes) -> bool {
    match shapes {
        Shapes::Objects => schema["type"] == "object",
        Shapes::Any => true,
    }
}

/// `schema` in the words a revision has: where properties have only objects for schemas, `true`
/// is `{}`: a client of that time may refuse the whole list over a `true`.
fn worded(schema: &Value, shapes: Shapes) -> Cow<'_, Value> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let odd = properties.is_some_and(|all| all.values().any(Value::is_boolean));
    match shapes {
        Shapes::Objects if odd => {
            let mut schema = schema.clone();
            if let Some(properties) = schema["properties"].as_object_mut() {
                for property in properties.values_mut() {
                    match property {
                        Value::Bool(true) => *property = json!({}),
                        Value::Bool(false) => *property = json!({ "not": {} }),
                        _ => {}
                    }
                }
            }
            Cow::Owned(schema)
        }
        Shapes::Objects | Shapes::Any => Cow::Borrowed(schema),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations<'a> {
    title: &'a str,
    read_only_hint: bool,
    destructive_hint: bool,
    idempotent_hint: bool,
    open_world_hint: bool,
}

impl<'a> Annotations<'a> {
    fn new(spec: &'a ToolSpec) -> Self {
        Self {
            title: &spec.title,
            read_only_hint: spec.effects == Effects::Reads,
            destructive_hint: matches!(spec.effects, Effects::Changes | Effects::Runs),
            idempotent_hint: spec.idempotent,
            open_world_hint: spec.effects == Effects::Runs,
        }
    }
}
