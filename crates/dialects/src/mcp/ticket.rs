//! Spells answers, refusals and events for one MCP request.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, AnyTool, CallError, Effects, Ending, Event, Job, JobId, Output, Reply, ToolPage,
    ToolSpec,
};

use super::hearing::Hearing;
use super::message::{Failure, INTERNAL_ERROR, INVALID_PARAMS, Id, success};
use super::revision::{BadInput, Era, Revision, Shapes, Tasks};
use super::tasks::{About, TaskWatch, related};
use super::{cursor, spell};
use crate::{Facts, Ticket, WatchTicket};

/// How long a client may keep a list, in milliseconds. The catalog is fixed while the process lives.
const LIST_TTL_MS: u64 = 300_000;

/// What is needed to answer one request.
pub(crate) struct McpTicket {
    pub(crate) id: Id,
    pub(crate) revision: &'static Revision,
    pub(crate) facts: Arc<Facts>,
    pub(crate) asked: Asked,
    pub(crate) hearing: Hearing,
}

/// What a request asks for, and so what can answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The tools.
    Tools,
    /// A call's result.
    Call,
    /// A call that is or becomes a task.
    Task,
    /// Something of tasks that are there.
    About(About),
}

impl Ticket for McpTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(CallError::Canceled) => return None,
            Err(error) => return Some(self.refusal(&error)),
        };
        Some(match (answer, self.asked, self.revision.tasks) {
            (Answer::Tools(page), Asked::Tools, _) => self.tools(&page),
            (Answer::Output(output), Asked::Call, _)
            | (Answer::Output(output), Asked::Task, Tasks::Extension) => {
                self.said(self.spelled(Ok(&output)))
            }
            (Answer::Job(job), Asked::Task, _) => self.created(&job),
            (Answer::Job(job), Asked::About(about), _) => self.about(about, &job),
            (Answer::Jobs(page), Asked::About(About::List), _) => self.tasks(&page),
            (
                Answer::Tools(_)
                | Answer::Output(_)
                | Answer::Job(_)
                | Answer::Jobs(_)
                | Answer::Artefact(_),
                _,
                _,
            ) => self.astray(),
        })
    }

    fn event(&self, event: &Event) -> Option<Bytes> {
        if !self.listens() {
            return None;
        }
        match event {
            Event::Progress { done, total, message } => {
                self.hearing.progress(*done, *total, message.as_deref())
            }
            Event::Log { level, message } => self.hearing.log(*level, message),
            // What a program prints is in its result; while it runs, its last line is the progress
            // message. MCP has no words for a file that is left.
            Event::Chunk { .. } | Event::Left(_) => None,
        }
    }

    fn listens(&self) -> bool {
        match (self.asked, self.revision.tasks) {
            // A task is told on its own, after it was the answer; asking of one runs nothing.
            (Asked::Task, Tasks::None | Tasks::Param) | (Asked::About(_), _) => false,
            (Asked::Task, Tasks::Extension) | (Asked::Tools | Asked::Call, _) => {
                self.hearing.wants_any()
            }
        }
    }

    fn follow(&self, job: &Job) -> Option<Arc<dyn WatchTicket>> {
        match (self.asked, self.revision.tasks) {
            (Asked::Task, Tasks::Param) => {
                let (revision, hearing) = (self.revision, self.hearing.of_task(job.id));
                Some(Arc::new(TaskWatch { revision, hearing }))
            }
            (Asked::Task, Tasks::None | Tasks::Extension)
            | (Asked::Tools | Asked::Call | Asked::About(_), _) => None,
        }
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

    /// What `tools/call` says of a call's outcome.
    pub(crate) fn spelled<'a>(&'a self, outcome: Result<&'a Output, &CallError>) -> Spelled<'a> {
        match outcome {
            Ok(output) => Spelled::Result(self.result(output)),
            Err(error) => self.spelled_error(error),
        }
    }

    fn spelled_error(&self, error: &CallError) -> Spelled<'_> {
        let told = |message| Spelled::Result(self.told(message));
        match (error, self.revision.bad_input) {
            (CallError::UnknownTool { .. }, _)
            | (CallError::InvalidInput { .. }, BadInput::Error) => {
                Spelled::Error(self.protocol_error(error))
            }
            (CallError::Conflict { details, .. }, _) => {
                told(format!("{}\n{details}", wording(error)))
            }
            (
                CallError::InvalidInput { .. }
                | CallError::NotAllowed { .. }
                | CallError::Limited { .. }
                | CallError::NotFound { .. }
                | CallError::TooLarge { .. }
                | CallError::Unavailable { .. }
                | CallError::TimedOut { .. }
                | CallError::Canceled
                | CallError::Interrupted
                | CallError::Failed { .. }
                | CallError::InvalidOutput { .. },
                _,
            ) => told(wording(error)),
        }
    }

    fn result<'a>(&'a self, output: &'a Output) -> CallResult<'a> {
        let Output { value, text, ending } = output;
        // Some model APIs refuse an empty block.
        let body = Some(text.body.as_str()).filter(|body| !body.is_empty());
        let content = body.into_iter().chain(text.note.as_deref()).map(Content::text).collect();
        let sayable = match self.revision.shapes {
            Shapes::Objects => value.is_object(),
            Shapes::Any => true,
        };
        CallResult {
            content,
            structured_content: (self.revision.structured && sayable).then_some(value),
            is_error: *ending == Ending::ProgramFailed,
            stamp: self.stamp(None),
        }
    }

    /// A failure the model is to see.
    fn told(&self, message: String) -> CallResult<'_> {
        CallResult {
            content: vec![Content::text(message)],
            structured_content: None,
            is_error: true,
            stamp: self.stamp(None),
        }
    }

    fn said(&self, spelled: Spelled<'_>) -> Reply {
        match spelled {
            Spelled::Result(result) => success(&self.id, &result),
            Spelled::Error(failure) => self.failed(failure),
        }
    }

    fn refusal(&self, error: &CallError) -> Reply {
        match (self.asked, self.revision.tasks) {
            (Asked::Call, _) | (Asked::Task, Tasks::Extension) => {
                self.said(self.spelled_error(error))
            }
            // Whoever asked for a task has no place for a call's result.
            (Asked::Tools, _) | (Asked::Task, Tasks::None | Tasks::Param) => self.refused(error),
            (Asked::About(about), _) => self.refused_about(about, error),
        }
    }

    /// The answer to what is no call and was refused.
    pub(crate) fn refused(&self, error: &CallError) -> Reply {
        self.failed(self.protocol_error(error))
    }

    fn protocol_error(&self, error: &CallError) -> Failure {
        let code = match error {
            CallError::UnknownTool { .. }
            | CallError::InvalidInput { .. }
            | CallError::NotAllowed { .. }
            | CallError::NotFound { .. }
            | CallError::Conflict { .. }
            | CallError::TooLarge { .. } => INVALID_PARAMS,
            CallError::Limited { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => INTERNAL_ERROR,
        };
        let failure = Failure::new(Some(self.id.clone()), code, wording(error));
        match error {
            CallError::InvalidInput { problems } => {
                failure.with_data(json!({ "problems": problems }))
            }
            CallError::Conflict { details, .. } => failure.with_data(details.clone()),
            CallError::UnknownTool { .. }
            | CallError::NotAllowed { .. }
            | CallError::NotFound { .. }
            | CallError::TooLarge { .. }
            | CallError::Limited { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => failure,
        }
    }

    /// The answer when the host's does not answer what was asked.
    pub(crate) fn astray(&self) -> Reply {
        let why = "the server's answer was to another question";
        self.failed(Failure::new(Some(self.id.clone()), INTERNAL_ERROR, why))
    }

    /// An error is an answer like another: some clients do not read the body of a 400.
    pub(crate) fn failed(&self, failure: Failure) -> Reply {
        failure.with_status(200).reply(self.revision.anonymous_errors)
    }

    pub(crate) fn stamp(&self, ttl_ms: Option<u64>) -> Stamp<'_> {
        Stamp::new(self.revision, &self.facts, ttl_ms)
    }
}

/// A refusal's sentence, with tools named as this wire names them.
pub(crate) fn wording(error: &CallError) -> String {
    match error {
        CallError::UnknownTool { name, nearest: Some(nearest) } => {
            format!("no tool is named `{name}`; did you mean `{}`?", spell(nearest))
        }
        other => other.to_string(),
    }
}

/// What `tools/call` says of an outcome.
pub(crate) enum Spelled<'a> {
    /// A result, which the model sees.
    Result(CallResult<'a>),
    /// A protocol error, which it does not.
    Error(Failure),
}

/// What comes of `tools/call`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallResult<'a> {
    content: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a Value>,
    is_error: bool,
    #[serde(flatten)]
    stamp: Stamp<'a>,
}

impl CallResult<'_> {
    /// The same, saying which task it is the result of.
    pub(crate) fn of_task(mut self, task: JobId) -> Self {
        self.stamp.meta = Some(ResultMeta::Task(related(task)));
        self
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
#[serde(untagged)]
enum ResultMeta<'a> {
    Server {
        #[serde(rename = "io.modelcontextprotocol/serverInfo")]
        server_info: Named<'a>,
    },
    Task(Value),
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
                meta: Some(ResultMeta::Server {
                    server_info: Named { name: &facts.name, version: &facts.version },
                }),
            },
        }
    }

    /// The same for a result that is a task instead of what was asked for.
    pub(crate) fn of_task(self) -> Self {
        Self { result_type: self.result_type.map(|_| "task"), ..self }
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
    text: Cow<'a, str>,
}

impl<'a> Content<'a> {
    fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self { r#type: "text", text: text.into() }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<Execution>,
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
            execution: match revision.tasks {
                Tasks::None | Tasks::Extension => None,
                Tasks::Param => Some(Execution { task_support: "optional" }),
            },
        }
    }
}

/// How a tool may be called.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    task_support: &'static str,
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
