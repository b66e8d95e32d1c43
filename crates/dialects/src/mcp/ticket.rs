//! Answers, refusals and events of one MCP request.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, CallError, Ending, Event, Job, JobId, Level, MetaFields, Output, Question, Reply, Told,
    ToolPage,
};

use super::content::Block;
use super::hearing::Hearing;
use super::library::{SELDOM_TTL_MS, Want};
use super::listed::listed;
use super::message::{
    Failure, HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Id,
    METHOD_NOT_FOUND, MISSING_CAPABILITY, UNSUPPORTED_VERSION, success_of_about,
};
use super::revision::{BadInput, Era, Revision, Shapes, Tasks};
use super::tasks::{About, TaskWatch, related};
use super::{asking, cursor, spell, spelling, tasks};
use crate::{Facts, Heard, Ticket, WatchTicket};

/// The data needed to answer one request.
pub(crate) struct McpTicket {
    pub(crate) id: Id,
    pub(crate) revision: &'static Revision,
    pub(crate) facts: Arc<Facts>,
    pub(crate) asked: Asked,
    pub(crate) hearing: Hearing,
}

/// A kind of request, which determines the form of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A list of tools.
    Tools,
    /// A call.
    Call,
    /// A call that is or may become a task.
    Task,
    /// A request about existing tasks.
    About(About),
    /// A request for resources, prompts, completion or skills.
    Library {
        /// The kind of library request.
        want: Want,
        /// The URI that the request names, if it names one.
        uri: Option<String>,
    },
}

impl Ticket for McpTicket {
    fn reply(&self, outcome: Result<Answer, CallError>) -> Option<Reply> {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(CallError::Canceled) => return None,
            Err(error) => return Some(self.refusal(&error)),
        };
        Some(match (answer, &self.asked, self.revision.tasks) {
            (Answer::Tools(page), Asked::Tools, _) => self.tools(&page),
            (Answer::Output(output), Asked::Call, _)
            | (Answer::Output(output), Asked::Task, Tasks::Extension) => {
                self.said(self.spelled(Ok(&output)))
            }
            (Answer::Job(job), Asked::Task, _) => self.created(&job),
            (Answer::Job(job), Asked::About(about), _) => self.about(*about, &job),
            (Answer::Jobs(page), Asked::About(About::List), _) => self.tasks(&page),
            (
                Answer::Asks { questions, state },
                Asked::Call
                | Asked::Task
                | Asked::Library { want: Want::Contents | Want::Prompt, .. },
                _,
            ) => asking::asks(self, &questions, &state),
            (answer, Asked::Library { want, .. }, _) => self.shelved(*want, &answer),
            (
                Answer::Tools(_)
                | Answer::Everything { .. }
                | Answer::Output(_)
                | Answer::Job(_)
                | Answer::Jobs(_)
                | Answer::Artefact(_)
                | Answer::Resources(_)
                | Answer::Templates(_)
                | Answer::Contents(_)
                | Answer::Folder(..)
                | Answer::Watched { .. }
                | Answer::Prompts(_)
                | Answer::Prompt(_)
                | Answer::Completion(_)
                | Answer::Skills(_)
                | Answer::Skill(_)
                | Answer::Asks { .. },
                Asked::Tools | Asked::Call | Asked::Task | Asked::About(_),
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
            Event::Log { level, logger, data } => self.hearing.log(*level, logger.as_deref(), data),
            Event::Visited { id } => asking::visited(id, self.revision, self.hearing.task()),
            // A program's output is part of the result. MCP has no message for a produced file.
            Event::Chunk { .. } | Event::Left(_) | Event::LetGo => None,
        }
    }

    fn listens(&self) -> bool {
        match (&self.asked, self.revision.tasks) {
            // A created task reports its own events, and requests about tasks run nothing.
            (Asked::Task, Tasks::None | Tasks::Param) | (Asked::About(_), _) => false,
            (Asked::Task, Tasks::Extension)
            | (Asked::Tools | Asked::Call | Asked::Library { .. }, _) => self.hearing.wants_any(),
        }
    }

    fn lines(&self) -> Option<Level> {
        self.hearing.lines().filter(|_| self.listens())
    }

    fn question(&self, id: &str, key: &str, question: &Question) -> Option<Bytes> {
        match self.revision.era {
            Era::Session => {
                asking::request((id, key), question, self.revision, self.hearing.task())
            }
            Era::Stateless => None,
        }
    }

    fn unasked(&self, id: &str) -> Option<Bytes> {
        match self.revision.era {
            Era::Session => Some(asking::withdrawn(id)),
            Era::Stateless => None,
        }
    }

    fn told(&self, question: &Question, heard: &Heard) -> Result<Told, String> {
        asking::told(question, heard, self.revision)
    }

    fn follow(&self, job: &Job) -> Option<Arc<dyn WatchTicket>> {
        match (&self.asked, self.revision.tasks) {
            (Asked::Task, Tasks::Param) => {
                let revision = self.revision;
                let hearing = self.hearing.of_task(job.id);
                Some(Arc::new(TaskWatch { revision, hearing, job: job.clone() }))
            }
            (Asked::Task, Tasks::None | Tasks::Extension)
            | (Asked::Tools | Asked::Call | Asked::About(_) | Asked::Library { .. }, _) => None,
        }
    }
}

impl McpTicket {
    fn tools(&self, page: &ToolPage) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct List<'a> {
            tools: Vec<Arc<RawValue>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        let tools: Vec<_> =
            page.tools.iter().map(|tool| listed(tool.as_ref(), self.revision)).collect();
        let bytes = tools.iter().map(|tool| tool.get().len() + 1).sum();
        let next_cursor = page.next.as_ref().map(|id| cursor::next("tool", id));
        let stamp = self.stamp(Some(SELDOM_TTL_MS));
        success_of_about(&self.id, &List { tools, next_cursor, stamp }, bytes)
    }

    /// Encodes the outcome of a call as `tools/call` returns it.
    pub(crate) fn spelled<'a>(&'a self, outcome: Result<&'a Output, &CallError>) -> Spelled<'a> {
        match outcome {
            Ok(output) => Spelled::Result(self.result(output)),
            Err(error) => self.spelled_error(error),
        }
    }

    fn spelled_error(&self, error: &CallError) -> Spelled<'_> {
        let told = |message| Spelled::Result(self.failure(message));
        let refused = || Spelled::Error(self.protocol_error(error));
        match (error, self.revision.bad_input) {
            (CallError::UnknownTool { .. }, _)
            | (CallError::InvalidInput { .. }, BadInput::Error)
            | (
                CallError::Mismatch { .. } | CallError::Refused { .. } | CallError::Scope { .. },
                _,
            ) => refused(),
            (CallError::CannotAsk { .. }, _) => match self.revision.era {
                Era::Stateless => refused(),
                Era::Session => told(wording(error)),
            },
            (CallError::NeedsJob { .. }, _) => match self.revision.tasks {
                Tasks::Param | Tasks::Extension => refused(),
                Tasks::None => told(wording(error)),
            },
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
                | CallError::Asks { .. }
                | CallError::NoJob { .. }
                | CallError::Failed { .. }
                | CallError::InvalidOutput { .. },
                _,
            ) => told(wording(error)),
        }
    }

    fn result<'a>(&'a self, output: &'a Output) -> CallResult<'a> {
        let Output { value, structured, text, content, meta, ending } = output;
        // Some model APIs refuse an empty block.
        let body = Some(text.body.as_str()).filter(|body| !body.is_empty());
        let texts = body.into_iter().chain(text.note.as_deref()).map(Block::text);
        let blocks = content.iter().map(|content| Block::of(content, self.revision));
        let sayable = match self.revision.shapes {
            Shapes::Objects => value.is_object(),
            Shapes::Any => true,
        };
        let structured = *structured && self.revision.structured && sayable;
        CallResult {
            content: texts.chain(blocks).collect(),
            structured_content: structured.then_some(value),
            is_error: *ending != Ending::Done,
            stamp: self.stamp(None).and(meta),
        }
    }

    /// Creates a failed result, which the model sees.
    fn failure(&self, message: String) -> CallResult<'_> {
        CallResult {
            content: vec![Block::text(message)],
            structured_content: None,
            is_error: true,
            stamp: self.stamp(None),
        }
    }

    fn said(&self, spelled: Spelled<'_>) -> Reply {
        match spelled {
            Spelled::Result(result) => Reply::json(spelling::answer(&self.id, &result)),
            Spelled::Error(failure) => self.failed(failure),
        }
    }

    fn refusal(&self, error: &CallError) -> Reply {
        if let CallError::Scope { needs, .. } = error {
            return self.lacks_scope(error, needs);
        }
        match (&self.asked, self.revision.tasks) {
            (Asked::Call, _) | (Asked::Task, Tasks::Extension) => {
                self.said(self.spelled_error(error))
            }
            // A request for a task cannot be answered with a call's result.
            (Asked::Tools, _) | (Asked::Task, Tasks::None | Tasks::Param) => self.refused(error),
            (Asked::About(about), _) => self.refused_about(*about, error),
            (Asked::Library { uri, .. }, _) => self.unshelved(uri.as_deref(), error),
        }
    }

    /// Encodes the error about a missing scope. Over HTTP, the status 403 and `WWW-Authenticate`
    /// make clients request another token.
    fn lacks_scope(&self, error: &CallError, needs: &[String]) -> Reply {
        let scope = needs.join(" ");
        let why = wording(error).replace(['"', '\\'], "'");
        let challenge = format!(
            "Bearer error=\"insufficient_scope\", scope=\"{scope}\", error_description=\"{why}\""
        );
        let failure = self.protocol_error(error).with_status(403);
        let reply = failure.reply(self.revision.anonymous_errors);
        reply.with_header("www-authenticate", challenge)
    }

    /// Encodes the refusal of a request that is not a call.
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
            CallError::CannotAsk { .. } => match self.revision.era {
                Era::Stateless => MISSING_CAPABILITY,
                Era::Session => INVALID_REQUEST,
            },
            CallError::NeedsJob { .. } => match self.revision.tasks {
                Tasks::Extension => MISSING_CAPABILITY,
                Tasks::Param => METHOD_NOT_FOUND,
                Tasks::None => INVALID_REQUEST,
            },
            CallError::NoJob { .. } => METHOD_NOT_FOUND,
            CallError::Scope { .. } => INVALID_REQUEST,
            CallError::Mismatch { .. } => HEADER_MISMATCH,
            CallError::Refused { code, .. } => self.revision.refusal(*code),
            CallError::Limited { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => INTERNAL_ERROR,
        };
        let failure = Failure::new(Some(self.id.clone()), code, wording(error));
        let lacking = |failure: Failure, required: Value| {
            failure.with_data(json!({ "requiredCapabilities": required }))
        };
        match (error, code) {
            (CallError::InvalidInput { problems }, _) => {
                failure.with_data(json!({ "problems": problems }))
            }
            (CallError::Conflict { details, .. }, _) => failure.with_data(details.clone()),
            (CallError::Refused { data: Some(data), .. }, _) => failure.with_data(data.clone()),
            (CallError::CannotAsk { kind, .. }, MISSING_CAPABILITY) => {
                lacking(failure, asking::required(*kind))
            }
            (CallError::NeedsJob { .. }, MISSING_CAPABILITY) => lacking(failure, tasks::required()),
            (CallError::Scope { needs, .. }, _) => {
                failure.with_data(json!({ "requiredScopes": needs }))
            }
            (
                CallError::UnknownTool { .. }
                | CallError::NotAllowed { .. }
                | CallError::NotFound { .. }
                | CallError::TooLarge { .. }
                | CallError::Limited { .. }
                | CallError::Unavailable { .. }
                | CallError::TimedOut { .. }
                | CallError::Canceled
                | CallError::Interrupted
                | CallError::Asks { .. }
                | CallError::CannotAsk { .. }
                | CallError::NeedsJob { .. }
                | CallError::NoJob { .. }
                | CallError::Mismatch { .. }
                | CallError::Refused { .. }
                | CallError::Failed { .. }
                | CallError::InvalidOutput { .. },
                _,
            ) => failure,
        }
    }

    /// Encodes the internal error for an answer that does not fit its request.
    pub(crate) fn astray(&self) -> Reply {
        let why = "the server's answer was to another question";
        self.failed(Failure::new(Some(self.id.clone()), INTERNAL_ERROR, why))
    }

    /// Encodes a protocol error. The HTTP status is 200, because some clients do not read the body
    /// of a 400. Exceptions are the codes for which the specification requires 400.
    pub(crate) fn failed(&self, failure: Failure) -> Reply {
        let status = match (self.revision.era, failure.code) {
            (Era::Stateless, HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => 400,
            (Era::Stateless | Era::Session, _) => 200,
        };
        failure.with_status(status).reply(self.revision.anonymous_errors)
    }

    pub(crate) fn stamp(&self, ttl_ms: Option<u64>) -> Stamp<'_> {
        Stamp::new(self.revision, &self.facts, ttl_ms)
    }
}

/// Returns the message of an error, with tool names in MCP's form.
pub(crate) fn wording(error: &CallError) -> String {
    match error {
        CallError::UnknownTool { name, nearest: Some(nearest) } => {
            format!("no tool is named `{name}`; did you mean `{}`?", spell(nearest))
        }
        CallError::NeedsJob { tool } => CallError::NeedsJob { tool: spell(tool) }.to_string(),
        CallError::NoJob { tool } => CallError::NoJob { tool: spell(tool) }.to_string(),
        other => other.to_string(),
    }
}

/// An encoded outcome of `tools/call`.
pub(crate) enum Spelled<'a> {
    /// A result, which the model sees.
    Result(CallResult<'a>),
    /// A protocol error, which the model does not see.
    Error(Failure),
}

/// The result of `tools/call`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallResult<'a> {
    pub(crate) content: Vec<Block<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) structured_content: Option<&'a Value>,
    pub(crate) is_error: bool,
    #[serde(flatten)]
    pub(crate) stamp: Stamp<'a>,
}

impl CallResult<'_> {
    /// Returns the approximate length in bytes. Texts count twice if there is a structured result,
    /// plus a share for escapes.
    pub(crate) fn about(&self) -> usize {
        let texts: usize = self.content.iter().map(Block::about).sum();
        let times = 1 + usize::from(self.structured_content.is_some());
        texts * times + texts / 16
    }
}

impl CallResult<'_> {
    /// Returns the result with a reference to its task.
    pub(crate) fn of_task(mut self, task: JobId) -> Self {
        let said = self.stamp.meta.take().and_then(|meta| serde_json::to_value(meta).ok());
        let ours = Some(ResultMeta::All(related(task)));
        self.stamp.meta = Some(ResultMeta::of(ours, said.unwrap_or_default()));
        self
    }
}

/// The members that every result has in the stateless era. It is empty in the session era.
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
    /// Any other metadata.
    All(Value),
}

impl ResultMeta<'_> {
    /// Merges two sets of metadata. On a conflict, `first` wins.
    fn of(first: Option<Self>, more: Value) -> Self {
        let first = first.and_then(|first| serde_json::to_value(first).ok());
        match (first, more) {
            (Some(Value::Object(first)), Value::Object(mut all)) => {
                all.extend(first);
                Self::All(Value::Object(all))
            }
            (Some(first), _) => Self::All(first),
            (None, more) => Self::All(more),
        }
    }
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    version: &'a str,
}

impl<'a> Stamp<'a> {
    /// Creates the members. `ttl_ms` is the cache time in milliseconds, for results that a client
    /// may cache. The scope is `private`, because results may depend on the caller.
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

    /// Returns the stamp with the metadata `more`.
    fn and(self, more: &MetaFields) -> Self {
        if more.is_empty() {
            return self;
        }
        let meta = Some(ResultMeta::of(self.meta, Value::Object(more.clone())));
        Self { meta, ..self }
    }

    /// Returns true if no member is set.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { result_type, ttl_ms, cache_scope, meta } = self;
        result_type.is_none() && ttl_ms.is_none() && cache_scope.is_none() && meta.is_none()
    }

    /// Returns the stamp for a result that is a task.
    pub(crate) fn of_task(self) -> Self {
        Self { result_type: self.result_type.map(|_| "task"), ..self }
    }
}

/// Returns the server's description of itself in `revision`.
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
