//! The Model Context Protocol: five revisions, with and without sessions, on one endpoint.

mod dialect;
mod revision;
mod id_recovery;
mod message;
mod http_paths;
mod headers;
mod stateless;
mod requests;
mod methods;
mod cursor;
mod encoder;
mod result_writer;
mod content;
mod listed_schema;
mod tool_list;
mod library;
mod request_notifications;
mod tasks;
mod questions;
mod subscriptions;
pub mod upstream;

#[cfg(any(fuzzing, test))]
pub(crate) use cursor::check_canonical as check_cursor;

use std::sync::Arc;

use http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{
    CallMetadata, Caller, ClientProfile, FrameMetadata, HostRequest, LogLevel, MessageFrame,
    QuestionSupport, Reply,
};

pub use dialect::McpDialect;
pub use requests::META_RESULTS;
pub use revision::{
    BatchSupport, ContentBlockSupport, InvalidInputErrorForm, McpRevision, NEWEST_SESSION,
    REVISIONS, RevisionQuestionSupport, SchemaSupport, SessionModel, TaskSupport,
};
pub use tool_list::model_text;

use self::encoder::{CommonResultMembers, McpEncoder, McpRequestKind, server_info};
use self::message::{
    McpError, McpMessage, RequestId, cancelled_key, join_batch, read_id, success, wrong_type,
};
use self::request_notifications::RequestedNotifications;
use self::requests::{answer_form, read_level, request_kind};
use self::subscriptions::SessionNotificationEncoder;
use self::tasks::TaskRequest;
use crate::json::{RpcMessageMembers, RpcParams, parse_members};
use crate::{
    AcceptedResponseMode, ChangeNotificationEncoder, ClientConversation, ClientQuestionResponse,
    DisconnectEffect, ParsedFrame, PendingHostRequest, QuestionChannel, ServerInfo,
};

/// The time for which clients may cache the answer to `server/discover`, in milliseconds.
const DISCOVER_TTL_MS: u64 = 300_000;
/// The maximum number of messages in one JSON-RPC batch.
const BATCH_MAX: usize = 100;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Converts a tool id to the characters `[A-Za-z0-9_-]`, which model APIs accept in tool names.
pub(crate) fn mcp_tool_name(id: &str) -> String {
    id.replace('.', "_")
}

/// The conversation of one MCP client, with the session that `initialize` opened.
struct McpConversation {
    facts: Arc<ServerInfo>,
    caller: Caller,
    session: Option<McpSession>,
}

/// The settings of an MCP session, or of one stateless request.
#[derive(Clone, Copy)]
struct McpSession {
    revision: &'static McpRevision,
    /// The lowest level of log lines that the client wants. `None` if it wants no log lines.
    log_level: Option<LogLevel>,
    /// The kinds of question that the client declared in `initialize`.
    question_support: QuestionSupport,
    /// The profile of the client that sent `initialize`, if there is a profile for this client.
    client: Option<&'static ClientProfile>,
}

impl ClientConversation for McpConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        if let Some(page) = http_paths::document(&self.facts, &frame.head) {
            return ParsedFrame::Reply(page);
        }
        match &frame.head {
            FrameMetadata::Http { method, .. } if *method != Method::POST => {
                self.read_verb(method, &frame.head)
            }
            FrameMetadata::Line | FrameMetadata::Http { .. } => self.read_body(frame),
        }
    }

    fn join_replies(&self, replies: Vec<Reply>) -> Reply {
        join_batch(replies)
    }

    fn notification_encoder(&self) -> Option<Arc<dyn ChangeNotificationEncoder>> {
        let McpSession { revision, .. } = self.session?;
        Some(Arc::new(SessionNotificationEncoder::new(revision, self.facts.clone())))
    }
}

impl McpConversation {
    /// Reads an HTTP request of an MCP client that is not a POST, and so contains no message.
    fn read_verb(&mut self, method: &Method, head: &FrameMetadata) -> ParsedFrame {
        let Some(McpSession { revision, .. }) = self.session else {
            if let Some(greeting) = http_paths::greeting(&self.facts, head) {
                return ParsedFrame::Reply(greeting);
            }
            let why = match *method {
                _ if stateless::has_stateless_header(head) => {
                    "this revision supports only POST; to receive notifications, send \
                     `subscriptions/listen`"
                }
                Method::GET | Method::DELETE => {
                    "this request needs the `Mcp-Session-Id` from `initialize`; send messages by \
                     POST"
                }
                _ => "this path accepts only POST; send each message in a POST request",
            };
            let failure = McpError::invalid_request(None, why).with_status(405);
            return ParsedFrame::Reply(failure.reply(true).with_header("allow", "POST"));
        };
        let is_stream = answer_form(head, revision) != AcceptedResponseMode::Message;
        let reading = match *method {
            Method::DELETE => self
                .check_version_header(head, None)
                .map(|()| ParsedFrame::CloseSession(Reply::empty(204))),
            Method::GET if is_stream => self
                .check_version_header(head, None)
                .and_then(|()| last_event(head, revision))
                .map(|after| ParsedFrame::OpenNotifications { after }),
            Method::GET => {
                let why = "send `Accept: text/event-stream`; the answer is an event stream";
                Err(McpError::invalid_request(None, why).with_status(406))
            }
            _ => {
                let reply = Reply::empty(405).with_header("allow", "GET, POST, DELETE");
                Ok(ParsedFrame::Reply(reply))
            }
        };
        reading.unwrap_or_else(|failure| self.failure_reading(&failure))
    }

    fn read_body(&mut self, frame: &MessageFrame) -> ParsedFrame {
        match parse_members(&frame.body) {
            Ok(Ok(members)) => self.read_message(frame, members),
            Ok(Err(Value::Array(items))) => self.read_batch(frame, items),
            Ok(Err(other)) => self.read_value(frame, other),
            Err(why) => {
                self.failure_reading(&McpError::not_json(why, id_recovery::recover_id(&frame.body)))
            }
        }
    }

    fn read_batch(&mut self, frame: &MessageFrame, items: Vec<Value>) -> ParsedFrame {
        match self.session.map(|session| session.revision.batches) {
            Some(BatchSupport::Accepted) => {}
            Some(BatchSupport::Refused) | None => {
                let why = "this revision does not support batches; send one message at a time";
                return self.failure_reading(&McpError::invalid_request(None, why));
            }
        }
        if items.is_empty() || items.len() > BATCH_MAX {
            let why = format!(
                "a batch may have 1 to {BATCH_MAX} messages; this batch has {}",
                items.len()
            );
            return self.failure_reading(&McpError::invalid_request(None, why));
        }
        let read_item = |item: Value| {
            let id = item.get("id").and_then(read_id);
            let alone = |method: &str| {
                let why = format!("`{method}` must not be part of a batch");
                McpError::invalid_request(id.clone(), why)
            };
            if item.get("method").is_some_and(|method| method == "initialize") {
                return self.failure_reading(&alone("initialize"));
            }
            // The answers to a batch are one array, which has no place for streams and questions.
            match self.read_value(frame, item) {
                ParsedFrame::Subscribe(_) => self.failure_reading(&alone("subscriptions/listen")),
                ParsedFrame::Request(
                    ask @ PendingHostRequest {
                        question_mode: QuestionChannel::DuringCall(_), ..
                    },
                ) => ParsedFrame::Request(PendingHostRequest {
                    question_mode: QuestionChannel::Nobody,
                    ..ask
                }),
                reading => reading,
            }
        };
        ParsedFrame::Batch(items.into_iter().map(read_item).collect())
    }

    fn read_value(&mut self, frame: &MessageFrame, value: Value) -> ParsedFrame {
        match value {
            Value::Object(map) => self.read_message(frame, map.into()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => self.failure_reading(&McpError::invalid_request(
                None,
                "a message must be a JSON object",
            )),
        }
    }

    fn read_message(&mut self, frame: &MessageFrame, members: RpcMessageMembers) -> ParsedFrame {
        let read = McpMessage::parse(members).and_then(|message| match message {
            McpMessage::Request { id, method, params } => {
                self.read_request(frame, id, &method, params)
            }
            McpMessage::Notification { method, params } => {
                self.check_version_header(&frame.head, None)?;
                Ok(self.read_notification(&frame.head, &method, &params))
            }
            McpMessage::Response { id, heard } => {
                self.check_version_header(&frame.head, None)?;
                if stateless::has_stateless_header(&frame.head) {
                    let why = "in this revision, a client may send only requests and notifications";
                    return Err(McpError::invalid_request(None, why));
                }
                Ok(self.read_response(id, heard))
            }
        });
        read.unwrap_or_else(|failure| self.failure_reading(&failure))
    }

    fn read_notification(
        &self,
        head: &FrameMetadata,
        method: &str,
        params: &RpcParams,
    ) -> ParsedFrame {
        let reply = Reply::empty(202);
        // A POST without a session is a conversation of its own, with no other request to cancel.
        let alone = matches!(head, FrameMetadata::Http { .. }) && self.session.is_none();
        match (method, cancelled_key(params)) {
            ("notifications/cancelled", Some(key)) if !alone => ParsedFrame::Cancel { key, reply },
            // Unknown notifications are accepted and ignored.
            _ => ParsedFrame::Reply(reply),
        }
    }

    fn read_response(&self, id: Option<String>, heard: ClientQuestionResponse) -> ParsedFrame {
        let reply = Reply::empty(202);
        match (self.session, id) {
            (Some(_), Some(id)) => ParsedFrame::Response { id, heard, reply },
            // The response matches no question. It is ignored, because responses are never
            // answered.
            (None, _) | (_, None) => ParsedFrame::Reply(reply),
        }
    }

    /// Reads a client's request. Determines first whether the request belongs to a session or is
    /// stateless, then its method.
    fn read_request(
        &mut self,
        frame: &MessageFrame,
        id: RequestId,
        method: &str,
        params: RpcParams,
    ) -> Result<ParsedFrame, McpError> {
        let meta = params.get("_meta").and_then(Value::as_object);
        let stateless_body = meta.is_some_and(|meta| meta.contains_key(META_VERSION));
        if stateless_body || stateless::has_stateless_header(&frame.head) {
            return self.read_stateless(frame, id, method, params);
        }
        self.check_version_header(&frame.head, Some(&id))?;
        match (method, self.session) {
            // A second id for the same session would outlive the end of the first.
            ("initialize", Some(_)) if matches!(frame.head, FrameMetadata::Http { .. }) => {
                let why = "this session is already initialized; to start another session, send \
                     `initialize` without `Mcp-Session-Id`";
                Err(McpError::invalid_request(Some(id), why))
            }
            ("initialize", _) => self.initialize(&id, &params),
            ("ping", Some(_)) => Ok(ParsedFrame::Reply(success(&id, &json!({})))),
            ("ping", None) if matches!(frame.head, FrameMetadata::Line) => {
                Ok(ParsedFrame::Reply(success(&id, &json!({}))))
            }
            // Some clients do not read the body of a 400, so errors get the status 200.
            (_, Some(session)) => self
                .read_in_session(frame, id, method, params, session)
                .map_err(|failure| failure.with_status(200)),
            (_, None) => Err(McpError::invalid_params(
                Some(id),
                format!(
                    "the request has no protocol revision; send `initialize` first, or \
                     `params._meta` with `{META_VERSION}` and `{META_CAPABILITIES}`{}",
                    methods::zyra_hint(method, &params)
                ),
            )),
        }
    }

    /// Reads a request of a stateless revision, which contains all settings of the client.
    fn read_stateless(
        &self,
        frame: &MessageFrame,
        id: RequestId,
        method: &str,
        params: RpcParams,
    ) -> Result<ParsedFrame, McpError> {
        let revision =
            self.supported_revision(stateless::parse_revision(&frame.head, &id, &params)?);
        if matches!(frame.head, FrameMetadata::Http { .. }) {
            headers::check_headers(&frame.head, &id, method, &params)?;
        }
        let log_level = params
            .get("_meta")
            .and_then(|meta| meta.get(META_LOG_LEVEL))
            .map(|level| read_level(&id, level))
            .transpose()?;
        match (method, request_kind(method, revision, &self.facts)) {
            ("server/discover", _) => Ok(ParsedFrame::Reply(self.discover(&id, revision))),
            ("subscriptions/listen", _) => self.listen(frame, &id, &params, revision),
            (_, Some(asked)) => {
                let session = McpSession {
                    revision,
                    log_level,
                    question_support: QuestionSupport::default(),
                    client: None,
                };
                self.request_reading(frame, id, asked, params, session)
            }
            (_, None) => {
                Err(methods::unknown_method(id, method, revision, &self.facts).with_status(404))
            }
        }
    }

    /// Reads a request of a session, after `initialize`.
    fn read_in_session(
        &mut self,
        frame: &MessageFrame,
        id: RequestId,
        method: &str,
        params: RpcParams,
        session: McpSession,
    ) -> Result<ParsedFrame, McpError> {
        match (method, request_kind(method, session.revision, &self.facts)) {
            ("logging/setLevel", _) => {
                let level = params.get("level");
                let level =
                    level.ok_or_else(|| wrong_type("a string", &id, "params.level", None))?;
                let log_level = Some(read_level(&id, level)?);
                self.session = Some(McpSession { log_level, ..session });
                let reply = success(&id, &json!({}));
                Ok(ParsedFrame::StateChange { part: "log level", reply })
            }
            ("resources/unsubscribe", _) if self.facts.resources => {
                let uri = library::parse_uri(&id, &params)?;
                Ok(ParsedFrame::Unwatch { uri, reply: success(&id, &json!({})) })
            }
            (_, Some(asked)) => self.request_reading(frame, id, asked, params, session),
            (_, None) => Err(methods::unknown_method(id, method, session.revision, &self.facts)),
        }
    }

    /// Returns the protocol revision `revision` without features that this server lacks.
    fn supported_revision(&self, revision: &'static McpRevision) -> &'static McpRevision {
        if self.facts.jobs { revision } else { revision.without_tasks() }
    }

    fn initialize(&mut self, id: &RequestId, params: &RpcParams) -> Result<ParsedFrame, McpError> {
        let requested = match params.get("protocolVersion") {
            Some(Value::String(requested)) => requested.as_str(),
            other => return Err(wrong_type("a string", id, "params.protocolVersion", other)),
        };
        let revision = McpRevision::find(requested, SessionModel::Session)
            .unwrap_or_else(|| McpRevision::newest(SessionModel::Session));
        let revision = self.supported_revision(revision);
        let client_capabilities = params.get("capabilities").unwrap_or(&Value::Null);
        let support = questions::question_support(client_capabilities, revision);
        let client_name = params.get("clientInfo").and_then(|info| info.get("name"));
        let client_name = client_name.and_then(Value::as_str);
        self.session = Some(McpSession {
            revision,
            log_level: Some(LogLevel::Warning),
            question_support: support,
            client: client_name.and_then(ClientProfile::find),
        });
        let result = json!({
            "protocolVersion": revision.name,
            "capabilities": capabilities(revision, &self.facts),
            "serverInfo": server_info(revision, &self.facts),
            "instructions": self.facts.instructions.for_caller(&self.caller),
        });
        Ok(ParsedFrame::OpenSession(success(id, &result)))
    }

    fn discover(&self, id: &RequestId, revision: &McpRevision) -> Reply {
        /// Result of `server/discover`.
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct DiscoverResult<'a> {
            supported_versions: Vec<&'static str>,
            capabilities: Value,
            instructions: &'a str,
            #[serde(flatten)]
            stamp: CommonResultMembers<'a>,
        }
        let result = DiscoverResult {
            supported_versions: McpRevision::names(SessionModel::Stateless),
            capabilities: capabilities(revision, &self.facts),
            instructions: &self.facts.instructions.for_caller(&self.caller),
            stamp: CommonResultMembers::new(revision, &self.facts, Some(DISCOVER_TTL_MS)),
        };
        success(id, &result)
    }

    fn listen(
        &self,
        frame: &MessageFrame,
        id: &RequestId,
        params: &RpcParams,
        revision: &'static McpRevision,
    ) -> Result<ParsedFrame, McpError> {
        if answer_form(&frame.head, revision) == AcceptedResponseMode::Message {
            let why = "the answer is an event stream; send `Accept: text/event-stream`";
            return Err(McpError::invalid_request(Some(id.clone()), why).with_status(406));
        }
        let line = matches!(frame.head, FrameMetadata::Line);
        subscriptions::parse_listen(id, params, revision, self.facts.clone(), line)
            .map(ParsedFrame::Subscribe)
    }

    fn request_reading(
        &self,
        frame: &MessageFrame,
        id: RequestId,
        kind: McpRequestKind,
        mut params: RpcParams,
        session: McpSession,
    ) -> Result<ParsedFrame, McpError> {
        let McpSession { revision, log_level, question_support, client } = session;
        let facts = self.facts.clone();
        let notifications =
            RequestedNotifications::parse(&id, &params, revision, facts.clone(), log_level)?;
        let (kind, request) = requests::parse_request(&id, kind, revision, &mut params)?;
        let notifications = match &request {
            // The client that waits for a task also gets its questions.
            HostRequest::AwaitJob { id: task } => match task.parse() {
                Ok(task) => notifications.for_task(task),
                Err(_) => notifications,
            },
            _ => notifications,
        };
        let results = requests::result_form(&id, &params)?.unwrap_or(facts.results);
        let metadata = requests::call_metadata(&frame.head, &kind, revision, &params);
        let metadata = CallMetadata { client, ..metadata };
        let on_disconnect = match (&kind, revision.era) {
            // A client that cancels a task need not wait for its end.
            (McpRequestKind::TaskRequest(TaskRequest::Cancel), _) => DisconnectEffect::Continues,
            // The task continues if a client stops waiting for it.
            (McpRequestKind::TaskRequest(TaskRequest::Result), _) => DisconnectEffect::Cancels,
            (_, SessionModel::Stateless) => DisconnectEffect::Cancels,
            (_, SessionModel::Session) => DisconnectEffect::Continues,
        };
        let answer_form = match kind {
            // A status request is answered at once, so a stream is useless.
            McpRequestKind::TaskRequest(TaskRequest::Get) => AcceptedResponseMode::Message,
            McpRequestKind::Tools
            | McpRequestKind::Call
            | McpRequestKind::Task
            | McpRequestKind::TaskRequest(_)
            | McpRequestKind::Library { .. } => answer_form(&frame.head, revision),
        };
        let question_mode = match (revision.era, answer_form) {
            _ if !requests::may_ask(&kind, revision.era) => QuestionChannel::Nobody,
            (SessionModel::Stateless, _) => questions::parse_question_mode(&id, &params, revision)?,
            (
                SessionModel::Session,
                AcceptedResponseMode::Stream | AcceptedResponseMode::Resumable,
            ) => QuestionChannel::DuringCall(question_support),
            // A question needs a stream.
            (SessionModel::Session, AcceptedResponseMode::Message) => QuestionChannel::Nobody,
        };
        Ok(ParsedFrame::Request(PendingHostRequest {
            key: id.key(),
            request,
            encoder: Arc::new(McpEncoder { id, revision, facts, kind, results, notifications }),
            on_disconnect,
            answer_form,
            question_mode,
            metadata,
            time_limit: None,
            origin: None,
        }))
    }

    /// Checks that the header with the protocol version, if sent, names a known revision.
    fn check_version_header(
        &self,
        head: &FrameMetadata,
        id: Option<&RequestId>,
    ) -> Result<(), McpError> {
        let invalid = |why| McpError::invalid_request(id.cloned(), why);
        match headers::single_value(head, headers::VERSION).map_err(invalid)? {
            Some(name) if REVISIONS.iter().all(|row| row.name != name) => {
                let all = REVISIONS.each_ref().map(|row| row.name);
                Err(McpError::unsupported(id.cloned(), name, &all))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn failure_reading(&self, failure: &McpError) -> ParsedFrame {
        let anonymous = self.session.is_none_or(|session| session.revision.anonymous_errors);
        ParsedFrame::Reply(failure.reply(anonymous))
    }
}

/// Returns the server's capabilities in the protocol revision `revision`.
fn capabilities(revision: &McpRevision, facts: &ServerInfo) -> Value {
    let mut capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
    tasks::declare_capabilities(revision, &mut capabilities);
    library::declare_capabilities(revision, facts, &mut capabilities);
    capabilities
}

/// Returns the id of the last event that a client received, if the client resumes an event stream.
fn last_event(head: &FrameMetadata, revision: &McpRevision) -> Result<Option<String>, McpError> {
    let last = headers::single_value(head, headers::LAST_EVENT)
        .map_err(|why| McpError::invalid_request(None, why))?;
    Ok(last.filter(|id| revision.resumes && !id.is_empty()).map(str::to_owned))
}
