//! Spells answers, refusals and events for one MCP request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    Answer, AnyTool, CallError, Effects, Ending, Event, Level, Output, Reply, ToolPage, ToolSpec,
};

use super::message::{Failure, INVALID_PARAMS, Id, notification, success};
use super::revision::{BadInput, Era, Revision};
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
            stamp: Map<String, Value>,
        }
        let tools =
            page.tools.iter().map(|tool| Listed::new(tool.as_ref(), self.revision)).collect();
        let next_cursor = page.next.as_ref().map(cursor::write);
        let stamp = self.stamp(Some(LIST_TTL_MS));
        success(&self.id, &List { tools, next_cursor, stamp })
    }

    fn output(&self, output: &Output) -> Reply {
        let Output { value, text, ending } = output;
        let mut content = vec![Content::text(&text.body)];
        content.extend(text.note.as_deref().map(Content::text));
        let structured = self.revision.structured.then_some(value);
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
            stamp: Map<String, Value>,
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
        let grows = |last: u64| (done > f64::from_bits(last)).then(|| done.to_bits());
        self.progress.fetch_update(Ordering::AcqRel, Ordering::Acquire, grows).ok()?;
        let mut params = json!({ "progressToken": token, "progress": done });
        if let Some(total) = total {
            params["total"] = json!(total);
        }
        if let Some(message) = message.filter(|_| self.revision.annotations) {
            params["message"] = json!(message);
        }
        Some(notification("notifications/progress", &params))
    }

    /// What every result of the stateless era carries, and none of the era before.
    pub(crate) fn stamp(&self, ttl_ms: Option<u64>) -> Map<String, Value> {
        stamp(self.revision, &self.facts, ttl_ms)
    }
}

/// What every result of the stateless era carries, and none of the era before.
///
/// `ttl_ms` is given for results a client may keep. They are `private`: what is
/// on offer can depend on the caller.
pub(crate) fn stamp(revision: &Revision, facts: &Facts, ttl_ms: Option<u64>) -> Map<String, Value> {
    let mut stamp = Map::new();
    match revision.era {
        Era::Session => {}
        Era::Stateless => {
            stamp.insert("resultType".into(), "complete".into());
            if let Some(ttl_ms) = ttl_ms {
                stamp.insert("ttlMs".into(), ttl_ms.into());
                stamp.insert("cacheScope".into(), "private".into());
            }
            let server = json!({ "name": facts.name, "version": facts.version });
            stamp.insert("_meta".into(), json!({ "io.modelcontextprotocol/serverInfo": server }));
        }
    }
    stamp
}

/// What the server says it is, as far as the revision has words for it.
pub(crate) fn server_info(revision: &Revision, facts: &Facts) -> Value {
    let mut about = json!({ "name": facts.name, "version": facts.version });
    if revision.structured {
        about["title"] = json!(facts.title);
    }
    if revision.describes_itself {
        about["description"] = json!("Serves a workspace's files and commands to agents.");
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
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a Value>,
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
            input_schema: &spec.input_schema,
            output_schema: spec.output_schema.as_ref().filter(|_| revision.structured),
            annotations: revision.annotations.then(|| Annotations::new(spec)),
        }
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
