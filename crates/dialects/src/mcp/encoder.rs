//! Answers, refusals and events of one MCP request.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, CallEvent, ClientAnswer, ClientQuestion, HostAnswer, JobId, JobSnapshot, LogLevel,
    MetaFields, Reply, ToolOutput, ToolPage, ToolResultFormat, ToolRunStatus, exact_json,
};

use super::content::McpContentBlock;
use super::library::{LibraryRequestKind, RARE_CHANGE_TTL_MS};
use super::message::{
    HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND,
    MISSING_CAPABILITY, McpError, RequestId, UNSUPPORTED_VERSION, success_with_capacity,
};
use super::request_notifications::RequestedNotifications;
use super::revision::{
    InvalidInputErrorForm, McpRevision, SchemaSupport, SessionModel, TaskSupport,
};
use super::tasks::{TaskEventEncoder, TaskRequest, related_task_meta};
use super::tool_list::tool_entry;
use super::{cursor, mcp_tool_name, questions, result_writer, tasks};
use crate::tool_mentions::rename_tools;
use crate::{AnswerEncoder, ClientQuestionResponse, JobEventEncoder, ServerInfo};

/// Encoder for the answer to one MCP request.
pub(crate) struct McpEncoder {
    pub(crate) id: RequestId,
    pub(crate) revision: &'static McpRevision,
    pub(crate) facts: Arc<ServerInfo>,
    pub(crate) kind: McpRequestKind,
    /// The format of results of this server's own tools.
    pub(crate) results: ToolResultFormat,
    pub(crate) notifications: RequestedNotifications,
}

/// The kind of an MCP request, which determines how the answer is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum McpRequestKind {
    /// A request for the list of tools.
    Tools,
    /// A call of a tool.
    Call,
    /// A call of a tool that may become a task.
    Task,
    /// A request about existing tasks of MCP.
    TaskRequest(TaskRequest),
    /// A request for resources, prompts, completions or skills.
    Library {
        /// The kind of request, such as a request for the list of resources.
        want: LibraryRequestKind,
        /// The URI that the request names, if it names one.
        uri: Option<String>,
    },
}

impl AnswerEncoder for McpEncoder {
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply> {
        let answer = match outcome {
            Ok(answer) => answer,
            Err(CallError::Canceled) => return None,
            Err(error) => return Some(self.error_reply(&error)),
        };
        Some(match (answer, &self.kind, self.revision.tasks) {
            (HostAnswer::Tools(page), McpRequestKind::Tools, _) => self.tool_list_reply(&page),
            (HostAnswer::Output(output), McpRequestKind::Call, _)
            | (HostAnswer::Output(output), McpRequestKind::Task, TaskSupport::Extension) => {
                self.outcome_reply(self.encode_outcome(Ok(&output)))
            }
            (HostAnswer::Job(job), McpRequestKind::Task, _) => self.task_created_reply(&job),
            (HostAnswer::Job(job), McpRequestKind::TaskRequest(about), _) => {
                self.task_reply(*about, &job)
            }
            (HostAnswer::Jobs(page), McpRequestKind::TaskRequest(TaskRequest::List), _) => {
                self.task_list_reply(&page)
            }
            (
                HostAnswer::Questions { questions, state },
                McpRequestKind::Call
                | McpRequestKind::Task
                | McpRequestKind::Library {
                    want: LibraryRequestKind::Contents | LibraryRequestKind::Prompt,
                    ..
                },
                _,
            ) => questions::questions_reply(self, &questions, &state),
            (answer, McpRequestKind::Library { want, .. }, _) => self.library_reply(*want, &answer),
            (
                HostAnswer::Tools(_)
                | HostAnswer::Everything { .. }
                | HostAnswer::Output(_)
                | HostAnswer::Job(_)
                | HostAnswer::Jobs(_)
                | HostAnswer::Artefact(_)
                | HostAnswer::Resources(_)
                | HostAnswer::Templates(_)
                | HostAnswer::Contents(_)
                | HostAnswer::Folder(..)
                | HostAnswer::Watched { .. }
                | HostAnswer::Prompts(_)
                | HostAnswer::Prompt(_)
                | HostAnswer::Completion(_)
                | HostAnswer::Skills(_)
                | HostAnswer::Skill(_)
                | HostAnswer::Questions { .. },
                McpRequestKind::Tools
                | McpRequestKind::Call
                | McpRequestKind::Task
                | McpRequestKind::TaskRequest(_),
                _,
            ) => self.mismatched_answer_reply(),
        })
    }

    fn encode_event(&self, event: &CallEvent) -> Option<Bytes> {
        if !self.encodes_events() {
            return None;
        }
        match event {
            CallEvent::Progress { done, total, message } => {
                self.notifications.encode_progress(*done, *total, message.as_deref())
            }
            CallEvent::Log { level, logger, data } => {
                self.notifications.encode_log(*level, logger.as_deref(), data)
            }
            CallEvent::VisitFinished { id } => {
                questions::encode_visit_finished(id, self.revision, self.notifications.task())
            }
            // A program's output is part of the result. MCP has no message for a produced file.
            CallEvent::ProgramOutput { .. }
            | CallEvent::FileProduced(_)
            | CallEvent::ReleaseConnection => None,
        }
    }

    fn encodes_events(&self) -> bool {
        match (&self.kind, self.revision.tasks) {
            // A created task reports its own events, and requests about tasks run nothing.
            (McpRequestKind::Task, TaskSupport::None | TaskSupport::Param)
            | (McpRequestKind::TaskRequest(_), _) => false,
            (McpRequestKind::Task, TaskSupport::Extension)
            | (McpRequestKind::Tools | McpRequestKind::Call | McpRequestKind::Library { .. }, _) => {
                self.notifications.wants_any()
            }
        }
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.notifications.log_level().filter(|_| self.encodes_events())
    }

    fn encode_question(&self, id: &str, key: &str, question: &ClientQuestion) -> Option<Bytes> {
        match self.revision.era {
            SessionModel::Session => questions::encode_question(
                (id, key),
                question,
                self.revision,
                self.notifications.task(),
            ),
            SessionModel::Stateless => None,
        }
    }

    fn encode_withdrawal(&self, id: &str) -> Option<Bytes> {
        match self.revision.era {
            SessionModel::Session => Some(questions::encode_withdrawal(id)),
            SessionModel::Stateless => None,
        }
    }

    fn parse_answer(
        &self,
        question: &ClientQuestion,
        heard: &ClientQuestionResponse,
    ) -> Result<ClientAnswer, String> {
        questions::parse_answer(question, heard, self.revision)
    }

    fn job_encoder(&self, job: &JobSnapshot) -> Option<Arc<dyn JobEventEncoder>> {
        match (&self.kind, self.revision.tasks) {
            (McpRequestKind::Task, TaskSupport::Param) => {
                let revision = self.revision;
                let notifications = self.notifications.for_task(job.id);
                Some(Arc::new(TaskEventEncoder { revision, notifications, job: job.clone() }))
            }
            (McpRequestKind::Task, TaskSupport::None | TaskSupport::Extension)
            | (
                McpRequestKind::Tools
                | McpRequestKind::Call
                | McpRequestKind::TaskRequest(_)
                | McpRequestKind::Library { .. },
                _,
            ) => None,
        }
    }
}

impl McpEncoder {
    fn tool_list_reply(&self, page: &ToolPage) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ToolListResult<'a> {
            tools: Vec<Arc<RawValue>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            next_cursor: Option<String>,
            #[serde(flatten)]
            stamp: CommonResultMembers<'a>,
        }
        let tools: Vec<_> = page
            .tools
            .iter()
            .filter(|tool| tool.spec().listed)
            .map(|tool| tool_entry(tool.as_ref(), self.revision, self.facts.results))
            .collect();
        let bytes = tools.iter().map(|tool| tool.get().len() + 1).sum();
        let next_cursor = page.next.as_ref().map(|id| cursor::encode_next("tool", id));
        let known = page.unchanged_for.map(|left| u64::try_from(left.as_millis()));
        let ttl_ms = known.map_or(RARE_CHANGE_TTL_MS, |left| left.unwrap_or(u64::MAX));
        let stamp = self.stamp(Some(ttl_ms));
        success_with_capacity(&self.id, &ToolListResult { tools, next_cursor, stamp }, bytes)
    }

    /// Encodes the outcome of a tool call as `tools/call` returns it.
    pub(crate) fn encode_outcome<'a>(
        &'a self,
        outcome: Result<&'a ToolOutput, &CallError>,
    ) -> EncodedCallOutcome<'a> {
        match outcome {
            Ok(output) => EncodedCallOutcome::Result(self.encode_output(output)),
            Err(error) => self.encode_error(error),
        }
    }

    fn encode_error(&self, error: &CallError) -> EncodedCallOutcome<'_> {
        let failed = |message| EncodedCallOutcome::Result(self.failed_result(message));
        let protocol_error = || EncodedCallOutcome::Error(self.protocol_error(error));
        match (error, self.revision.bad_input) {
            (CallError::UnknownTool { .. }, _)
            | (CallError::InvalidInput { .. }, InvalidInputErrorForm::Error)
            | (
                CallError::Mismatch { .. } | CallError::Refused { .. } | CallError::Scope { .. },
                _,
            ) => protocol_error(),
            (CallError::CannotAsk { .. }, _) => match self.revision.era {
                SessionModel::Stateless => protocol_error(),
                SessionModel::Session => failed(error_message(error)),
            },
            (CallError::NeedsJob { .. }, _) => match self.revision.tasks {
                TaskSupport::Param | TaskSupport::Extension => protocol_error(),
                TaskSupport::None => failed(error_message(error)),
            },
            (CallError::Conflict { details, .. }, _) => {
                failed(format!("{}\n{details}", error_message(error)))
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
            ) => failed(error_message(error)),
        }
    }

    fn encode_output<'a>(&'a self, output: &'a ToolOutput) -> McpCallResult<'a> {
        let ToolOutput { value, structured, text, content, meta, ending, from_upstream } = output;
        let form = if *from_upstream { ToolResultFormat::Both } else { self.results };
        let sayable = match self.revision.schemas {
            SchemaSupport::Objects => value.is_object(),
            SchemaSupport::Any => true,
        };
        let has_structure = *structured && self.revision.structured && sayable;
        let structured = has_structure && form.has_structure();
        let mut blocks = McpContentBlock::from_result_text(text, form, structured);
        blocks.extend(content.iter().map(|it| McpContentBlock::from_content(it, self.revision)));
        McpCallResult {
            content: blocks,
            structured_content: structured.then_some(value),
            is_error: *ending != ToolRunStatus::Done,
            stamp: self.stamp(None).with_meta(meta),
        }
    }

    /// Creates a result of a call with `isError`, which the model sees.
    fn failed_result(&self, message: String) -> McpCallResult<'_> {
        McpCallResult {
            content: vec![McpContentBlock::text(message)],
            structured_content: None,
            is_error: true,
            stamp: self.stamp(None),
        }
    }

    fn outcome_reply(&self, spelled: EncodedCallOutcome<'_>) -> Reply {
        match spelled {
            EncodedCallOutcome::Result(result) => {
                Reply::json(result_writer::serialize_answer(&self.id, &result))
            }
            EncodedCallOutcome::Error(failure) => self.failure_reply(failure),
        }
    }

    fn error_reply(&self, error: &CallError) -> Reply {
        if let CallError::Scope { needs, .. } = error {
            return self.missing_scope_reply(error, needs);
        }
        match (&self.kind, self.revision.tasks) {
            (McpRequestKind::Call, _) | (McpRequestKind::Task, TaskSupport::Extension) => {
                self.outcome_reply(self.encode_error(error))
            }
            // A request for a task cannot be answered with a call's result.
            (McpRequestKind::Tools, _)
            | (McpRequestKind::Task, TaskSupport::None | TaskSupport::Param) => {
                self.protocol_error_reply(error)
            }
            (McpRequestKind::TaskRequest(about), _) => self.task_refusal(*about, error),
            (McpRequestKind::Library { uri, .. }, _) => self.library_refusal(uri.as_deref(), error),
        }
    }

    /// Encodes the error about missing OAuth scopes. `needs` lists all required scopes. Over HTTP,
    /// the status 403 and `WWW-Authenticate` make clients request a token with these scopes.
    fn missing_scope_reply(&self, error: &CallError, needs: &[String]) -> Reply {
        let scope = needs.join(" ");
        let why = error_message(error).replace(['"', '\\'], "'");
        let challenge = format!(
            "Bearer error=\"insufficient_scope\", scope=\"{scope}\", error_description=\"{why}\""
        );
        let failure = self.protocol_error(error).with_status(403);
        let reply = failure.reply(self.revision.anonymous_errors);
        reply.with_header("www-authenticate", challenge)
    }

    /// Encodes the refusal of an MCP request that is not a call.
    pub(crate) fn protocol_error_reply(&self, error: &CallError) -> Reply {
        self.failure_reply(self.protocol_error(error))
    }

    fn protocol_error(&self, error: &CallError) -> McpError {
        let code = match error {
            CallError::UnknownTool { .. }
            | CallError::InvalidInput { .. }
            | CallError::NotAllowed { .. }
            | CallError::NotFound { .. }
            | CallError::Conflict { .. }
            | CallError::TooLarge { .. } => INVALID_PARAMS,
            CallError::CannotAsk { .. } => match self.revision.era {
                SessionModel::Stateless => MISSING_CAPABILITY,
                SessionModel::Session => INVALID_REQUEST,
            },
            CallError::NeedsJob { .. } => match self.revision.tasks {
                TaskSupport::Extension => MISSING_CAPABILITY,
                TaskSupport::Param => METHOD_NOT_FOUND,
                TaskSupport::None => INVALID_REQUEST,
            },
            CallError::NoJob { .. } => METHOD_NOT_FOUND,
            CallError::Scope { .. } => INVALID_REQUEST,
            CallError::Mismatch { .. } => HEADER_MISMATCH,
            CallError::Refused { code, .. } => self.revision.refusal_code(*code),
            CallError::Limited { .. }
            | CallError::Unavailable { .. }
            | CallError::TimedOut { .. }
            | CallError::Canceled
            | CallError::Interrupted
            | CallError::Asks { .. }
            | CallError::Failed { .. }
            | CallError::InvalidOutput { .. } => INTERNAL_ERROR,
        };
        let failure = McpError::new(Some(self.id.clone()), code, error_message(error));
        let lacking = |failure: McpError, required: Value| {
            failure.with_data(json!({ "requiredCapabilities": required }))
        };
        match (error, code) {
            (CallError::InvalidInput { problems }, _) => {
                failure.with_data(json!({ "problems": problems }))
            }
            (CallError::Conflict { details, .. }, _) => failure.with_data(details.clone()),
            (CallError::Refused { data: Some(data), .. }, _) => failure.with_data(data.clone()),
            (CallError::CannotAsk { kind, .. }, MISSING_CAPABILITY) => {
                lacking(failure, questions::required_capability(*kind))
            }
            (CallError::NeedsJob { .. }, MISSING_CAPABILITY) => {
                lacking(failure, tasks::required_capability())
            }
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

    /// Encodes the internal error that is sent if the host's answer does not fit its request.
    pub(crate) fn mismatched_answer_reply(&self) -> Reply {
        let why = crate::MISMATCHED_ANSWER;
        self.failure_reply(McpError::new(Some(self.id.clone()), INTERNAL_ERROR, why))
    }

    /// Encodes a protocol error. The HTTP status is 200, because some clients do not read the body
    /// of a 400. Exceptions are the codes for which the specification requires 400.
    pub(crate) fn failure_reply(&self, failure: McpError) -> Reply {
        let status = match (self.revision.era, failure.code) {
            (
                SessionModel::Stateless,
                HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION,
            ) => 400,
            (SessionModel::Stateless | SessionModel::Session, _) => 200,
        };
        failure.with_status(status).reply(self.revision.anonymous_errors)
    }

    pub(crate) fn stamp(&self, ttl_ms: Option<u64>) -> CommonResultMembers<'_> {
        CommonResultMembers::new(self.revision, &self.facts, ttl_ms)
    }
}

/// Returns the message of the host's error, with tool names as MCP clients spell them.
pub(crate) fn error_message(error: &CallError) -> String {
    match error {
        CallError::UnknownTool { name, nearest: Some(nearest), unavailable: None } => {
            format!("no tool is named `{name}`; did you mean `{}`?", mcp_tool_name(nearest))
        }
        CallError::NeedsJob { tool } => {
            CallError::NeedsJob { tool: mcp_tool_name(tool) }.to_string()
        }
        CallError::NoJob { tool } => CallError::NoJob { tool: mcp_tool_name(tool) }.to_string(),
        // The gate writes tool ids in its messages. The tools write MCP's names in theirs.
        CallError::NotAllowed { .. } | CallError::Scope { .. } | CallError::Limited { .. } => {
            rename_tools(&error.to_string(), None, |id| Some(mcp_tool_name(id)))
        }
        other => other.to_string(),
    }
}

/// An encoded outcome of `tools/call`.
pub(crate) enum EncodedCallOutcome<'a> {
    /// A result of the call, which the model sees.
    Result(McpCallResult<'a>),
    /// A JSON-RPC error, which the model does not see.
    Error(McpError),
}

/// MCP's JSON for the result of a call, as `tools/call` returns it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct McpCallResult<'a> {
    pub(crate) content: Vec<McpContentBlock<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) structured_content: Option<&'a Value>,
    pub(crate) is_error: bool,
    #[serde(flatten)]
    pub(crate) stamp: CommonResultMembers<'a>,
}

impl McpCallResult<'_> {
    /// Returns the approximate length of the result in bytes. Structured results count twice.
    pub(crate) fn bytes_estimate(&self) -> usize {
        let texts: usize = self.content.iter().map(McpContentBlock::bytes_estimate).sum();
        let times = 1 + usize::from(self.structured_content.is_some());
        texts * times + texts / 16
    }
}

impl McpCallResult<'_> {
    /// Returns the result of the call with a reference to its task.
    pub(crate) fn with_task(mut self, task: JobId) -> Self {
        let meta = self.stamp.meta.take().and_then(|meta| exact_json::to_value(&meta).ok());
        let task_meta = Some(ResultMetadata::All(related_task_meta(task)));
        self.stamp.meta = Some(ResultMetadata::merge(task_meta, meta.unwrap_or_default()));
        self
    }
}

/// The members that every result of a stateless revision has. Empty for session revisions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommonResultMembers<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_scope: Option<&'static str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ResultMetadata<'a>>,
}

/// The metadata of a result: the server's identity, and what the tool added.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum ResultMetadata<'a> {
    /// Metadata that contains only the server's name and version.
    Server {
        #[serde(rename = "io.modelcontextprotocol/serverInfo")]
        server_info: ServerIdentity<'a>,
    },
    /// All metadata of a result, as one JSON object.
    All(Value),
}

impl ResultMetadata<'_> {
    /// Merges two sets of `_meta` of a result. On a conflict, `first` wins.
    fn merge(first: Option<Self>, more: Value) -> Self {
        let first = first.and_then(|first| exact_json::to_value(&first).ok());
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

/// The name and version of the server, which each result of a stateless revision repeats.
#[derive(Serialize)]
pub(crate) struct ServerIdentity<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
}

impl<'a> CommonResultMembers<'a> {
    /// Creates the members that every result of the protocol revision `revision` has. `ttl_ms` is
    /// the cache time in milliseconds, if a client may cache the result. The scope is `private`,
    /// because results may depend on the caller.
    pub(crate) fn new(revision: &McpRevision, facts: &'a ServerInfo, ttl_ms: Option<u64>) -> Self {
        match revision.era {
            SessionModel::Session => {
                Self { result_type: None, ttl_ms: None, cache_scope: None, meta: None }
            }
            SessionModel::Stateless => Self {
                result_type: Some("complete"),
                ttl_ms,
                cache_scope: ttl_ms.map(|_| "private"),
                meta: Some(ResultMetadata::Server {
                    server_info: ServerIdentity { name: &facts.name, version: &facts.version },
                }),
            },
        }
    }

    /// Returns the common members of a result, with the metadata `more` in `_meta`.
    fn with_meta(self, more: &MetaFields) -> Self {
        if more.is_empty() {
            return self;
        }
        let meta = Some(ResultMetadata::merge(self.meta, Value::Object(more.clone())));
        Self { meta, ..self }
    }

    /// Returns the common members of a result, changed for the answer to a call that became a task.
    pub(crate) fn for_task_creation(self) -> Self {
        Self { result_type: self.result_type.map(|_| "task"), ..self }
    }
}

/// Returns the server's description of itself in the protocol revision `revision`.
pub(crate) fn server_info(revision: &McpRevision, facts: &ServerInfo) -> Value {
    let mut about = json!({ "name": facts.name, "version": facts.version });
    if revision.structured {
        about["title"] = json!(facts.title);
    }
    if revision.describes_itself {
        about["description"] = json!(facts.description);
    }
    about
}
