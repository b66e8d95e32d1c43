//! Dialects: how each protocol writes requests, results, errors and tool names.
//!
//! A dialect is pure: it converts bytes to requests and answers to bytes, without I/O, clock or
//! async. A conversation keeps the state of one client between its frames.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use toolgate_contract::{
    CallEnvelope, CallError, CallEvent, CallMetadata, Caller, ChangeFilter, ClientAnswer,
    ClientAnswers, ClientQuestion, EnvelopeRequestInfo, FrameMetadata, HostAnswer, HostRequest,
    JobSnapshot, JobStreamItem, LogLevel, MessageFrame, QuestionSupport, Reply, ReplyBody,
    ServerChange, ToolResultFormat,
};

mod json;
mod rpc;
mod tool_mentions;
pub mod mcp;
mod sandbox_warning;
pub mod zyra;
pub mod synesthetic;

pub mod workstation;
pub mod mira;
mod envelope_data;
pub mod rest;
pub mod envelope;
mod instructions;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use instructions::AgentInstructions;

/// Error message for an answer of the host that does not match the client's request.
pub(crate) const MISMATCHED_ANSWER: &str =
    "the server's answer does not match the request; this is a bug in toolgate";

/// Returns all dialects for the server that `facts` describe.
pub fn all_dialects(facts: &Arc<ServerInfo>) -> Vec<Arc<dyn Dialect>> {
    vec![
        Arc::new(mcp::McpDialect::new(facts.clone())),
        Arc::new(zyra::ZyraDialect { facts: facts.clone() }),
        Arc::new(mira::MiraDialect { facts: facts.clone() }),
        Arc::new(synesthetic::SynestheticDialect),
        Arc::new(workstation::WorkstationDialect { facts: facts.clone() }),
        Arc::new(envelope::EnvelopeDialect),
    ]
}

/// A protocol by which clients use the server, such as MCP.
pub trait Dialect: Send + Sync + 'static {
    /// Returns the name of the dialect, for settings and audit records.
    fn name(&self) -> &'static str;
    /// Returns the HTTP paths of the dialect. A path that ends in `/` includes everything below it.
    fn paths(&self) -> &'static [&'static str];
    /// Returns true if this dialect must answer the request, although the path of the request
    /// belongs to another dialect.
    fn claims(&self, _head: &FrameMetadata) -> bool {
        false
    }
    /// Starts a conversation with a client that acts for `caller`.
    fn start_conversation(&self, caller: &Caller) -> Box<dyn ClientConversation>;
    /// Returns the session id in a client's message, or `None` if the message contains none. By
    /// default, the dialect has no sessions.
    fn session<'h>(&self, _head: &'h FrameMetadata) -> Option<&'h str> {
        None
    }
    /// Returns the reply to a client's message that names an unknown session.
    fn unknown_session(&self) -> Reply;
    /// Adds the `id` of the new session to `reply`, if the dialect has sessions.
    fn open_session(&self, reply: Reply, _id: &str) -> Reply {
        reply
    }
    /// Returns the reply to a client's message that the transport or the server rejected.
    fn refuse(&self, why: &FrameRefusal) -> Reply;
    /// Returns the reaction to a client's message that was rejected. By default, the reaction is
    /// the reply of [`Dialect::refuse`]. The body of an oversized message is empty.
    fn reject_frame(&self, _frame: &MessageFrame, why: &FrameRefusal) -> ParsedFrame {
        ParsedFrame::Reply(self.refuse(why))
    }
    /// Returns the reaction to an HTTP request whose body was unreadable, if the dialect has a
    /// reply for such a request.
    fn reject_unreadable(&self, _head: &FrameMetadata, _why: &str) -> Option<ParsedFrame> {
        None
    }
    /// Returns the reaction to a WebSocket that was rejected. By default, the reaction is the reply
    /// of [`Dialect::refuse`].
    fn reject_socket(
        &self,
        _head: &FrameMetadata,
        why: &FrameRefusal,
    ) -> Result<WebSocketPurpose, Reply> {
        Err(self.refuse(why))
    }
    /// Returns the HTTP paths on the dialect's own listener. By default, these are
    /// [`Dialect::paths`].
    fn own_paths(&self) -> &'static [&'static str] {
        self.paths()
    }
    /// Returns the maximum number of bytes of a line, if the dialect sets a limit.
    fn line_bytes_max(&self) -> Option<usize> {
        None
    }
    /// Returns true if each line of a client is answered before the next is read.
    fn answers_in_order(&self) -> bool {
        false
    }
    /// Returns the client's API key or token from a part of the request that only this dialect uses
    /// for credentials, such as the query.
    fn credential(&self, _head: &FrameMetadata) -> Option<String> {
        None
    }
    /// Returns true if the request needs no authentication.
    fn is_public(&self, _head: &FrameMetadata) -> bool {
        false
    }
    /// Returns the kind of an HTTP request in an HTTP+SSE conversation (MCP 2024-11-05), in which
    /// one request opens a stream and further requests send messages. Returns `None` for all other
    /// requests.
    fn duplex(&self, _head: &FrameMetadata) -> Option<HttpSseRequestKind> {
        None
    }
    /// Returns the path to which the client of the HTTP+SSE conversation `id` posts its messages.
    fn duplex_endpoint(&self, _id: &str) -> String {
        String::new()
    }
    /// Returns the reply to a message for an unknown HTTP+SSE conversation.
    fn unknown_duplex(&self) -> Reply {
        Reply::empty(404)
    }
    /// Returns the reply to a client that wants to resume an event stream after the event `_id`, if
    /// the server does not know this event.
    fn unknown_event(&self, _id: &str) -> Reply {
        Reply::empty(400)
    }
    /// Returns the purpose of a WebSocket at the request's path, or the reply that refuses the
    /// WebSocket. By default, the dialect has no WebSockets.
    fn upgrade(&self, _head: &FrameMetadata) -> Result<WebSocketPurpose, Reply> {
        Err(Reply::empty(426))
    }
}

/// The kind of an HTTP request in an HTTP+SSE conversation, in which each direction has its own
/// requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpSseRequestKind {
    /// The request opens the stream of messages to the client.
    Open,
    /// The request carries one message of the client.
    Message {
        /// The id of the HTTP+SSE conversation.
        id: String,
    },
}

/// The purpose for which a client opened a WebSocket.
pub enum WebSocketPurpose {
    /// The client and the server exchange messages of the dialect, one per WebSocket message.
    Converse,
    /// The WebSocket streams a job's events to the client.
    Watch(JobWatchRequest),
    /// The server sends a message and closes the WebSocket at once. The values are the message and
    /// the close code (RFC 6455).
    Close(Bytes, u16),
}

/// The reason why a client's message was rejected before its dialect read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameRefusal {
    /// The message exceeds the transport's limit.
    TooLarge {
        /// The limit of the transport in bytes.
        limit: usize,
    },
    /// The server is at a limit, such as the number of sessions.
    Busy {
        /// A sentence that names the limit.
        message: String,
    },
    /// The sender of the message is not authenticated.
    Unauthorized {
        /// True if the sender sent a credential that the server does not know.
        had_credential: bool,
    },
    /// The request contains more than one credential, for example two `Authorization` headers.
    SeveralCredentials,
    /// The sender of the message failed to authenticate too often.
    Throttled {
        /// The time to wait before a retry.
        retry_after: Duration,
    },
    /// An earlier request with the same key is still in flight.
    DuplicateId {
        /// Key that two requests in flight have in common.
        key: InFlightRequestKey,
    },
}

/// A conversation: reads the messages of one client in order, and keeps the state between them.
pub trait ClientConversation: Send {
    /// Reads one message of the client.
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame;
    /// Joins the replies to a batch of messages into one reply, in order. A dialect without batches
    /// returns the only reply.
    fn join_replies(&self, replies: Vec<Reply>) -> Reply {
        let mut bodies =
            replies.into_iter().filter(|reply| !matches!(reply.body, ReplyBody::Empty));
        bodies.next().unwrap_or(Reply::empty(204))
    }
    /// Returns the encoder for notifications, if the conversation has begun and its client receives
    /// notifications.
    fn notification_encoder(&self) -> Option<Arc<dyn ChangeNotificationEncoder>> {
        None
    }
}

/// The meaning of a client's message, as its dialect reads it.
#[allow(clippy::large_enum_variant, reason = "most frames are asks, and a box would cost each")]
pub enum ParsedFrame {
    /// An immediate reply, without a request to the host.
    Reply(Reply),
    /// Several immediate replies, in this order. Only a message that is a line may have several
    /// replies.
    Replies(Vec<Reply>),
    /// A message that changed a part of the conversation's state, with the reply.
    StateChange {
        /// Name of the part. A server that continues the conversation needs only the last message
        /// of each part.
        part: &'static str,
        /// The reply to the message.
        reply: Reply,
    },
    /// A request that the host answers.
    Request(PendingHostRequest),
    /// The cancellation of an earlier request of the client.
    Cancel {
        /// The key of the request to cancel.
        key: InFlightRequestKey,
        /// The reply to the message.
        reply: Reply,
    },
    /// The messages of a batch, which the client sent as one message, as in JSON-RPC.
    Batch(Vec<ParsedFrame>),
    /// A request to stream the events of a job.
    Watch(JobWatchRequest),
    /// A subscription to changes, until the client cancels it or leaves.
    Subscribe(ChangeSubscription),
    /// A request for the stream of notifications, or for the rest of a stream that was interrupted.
    OpenNotifications {
        /// The id of the last event that the client received, if the client resumes a stream.
        after: Option<String>,
    },
    /// The end of the client's subscription to the resource `uri`.
    Unwatch {
        /// The URI of the resource.
        uri: String,
        /// The reply to the message.
        reply: Reply,
    },
    /// The client's answer to a question of the server.
    Response {
        /// The id of the question.
        id: String,
        /// Client's response to the question.
        heard: ClientQuestionResponse,
        /// The reply to the message.
        reply: Reply,
    },
    /// The start of the conversation, with the reply. If the transport has no connections, the
    /// server opens a session for the conversation.
    OpenSession(Reply),
    /// The end of the conversation, with the reply.
    CloseSession(Reply),
}

/// A request to the host, with the encoder for its answer.
pub struct PendingHostRequest {
    /// The key by which the client may cancel the request, unique in the conversation.
    pub key: InFlightRequestKey,
    /// The request to the host.
    pub request: HostRequest,
    /// The encoder for the answer to the request.
    pub encoder: Arc<dyn AnswerEncoder>,
    /// The effect of a lost connection on the request.
    pub on_disconnect: DisconnectEffect,
    /// The response mode that the client accepts: one message or a stream.
    pub answer_form: AcceptedResponseMode,
    /// Channel by which the client is asked questions while the request runs.
    pub question_mode: QuestionChannel,
    /// Metadata that the client sent with the request.
    pub metadata: CallMetadata,
    /// The longest duration of the request that the dialect allows, if it is shorter than the
    /// tool's deadline.
    pub time_limit: Option<Duration>,
    /// Data about the request for the envelope, if the answer is an envelope.
    pub origin: Option<Box<EnvelopeRequestInfo>>,
}

impl PendingHostRequest {
    /// Creates a request that a lost connection cancels and one message answers, without questions.
    pub(crate) fn new(
        key: InFlightRequestKey,
        request: HostRequest,
        encoder: impl AnswerEncoder,
    ) -> Self {
        Self {
            key,
            request,
            encoder: Arc::new(encoder),
            on_disconnect: DisconnectEffect::Cancels,
            answer_form: AcceptedResponseMode::Message,
            question_mode: QuestionChannel::Nobody,
            metadata: CallMetadata::default(),
            time_limit: None,
            origin: None,
        }
    }
}

/// The channel by which a client is asked questions about its request.
#[derive(Debug, Clone, PartialEq)]
pub enum QuestionChannel {
    /// The client cannot be asked questions.
    Nobody,
    /// The request ends with the questions, and the client makes the request again with the
    /// answers.
    OnRepeat {
        /// The kinds of question that the client supports.
        can: QuestionSupport,
        /// The answers that the client sent with this request.
        given: ClientAnswers,
        /// The host's state of the request, which the client got with the questions and sent back.
        state: Option<String>,
    },
    /// The client answers questions while its request runs. The value is the kinds of question that
    /// the client supports.
    DuringCall(QuestionSupport),
}

/// A client's response to a question of the server, before it is parsed.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientQuestionResponse {
    /// The result with the client's answer.
    Result(Value),
    /// The message of the client's error.
    Error(String),
}

/// The id of a request, unique among those in flight in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InFlightRequestKey(pub String);

/// The effect of a lost connection on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisconnectEffect {
    /// The request is cancelled when the connection is lost.
    Cancels,
    /// The request keeps running after the connection is lost.
    Continues,
}

/// The response mode that a client accepts: one message, a stream, or a stream that can be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedResponseMode {
    /// The answer is one message, not a stream.
    Message,
    /// The answer is a stream of events, whose last event is the message that answers the request.
    Stream,
    /// The answer is a stream that the client can resume after an interruption.
    Resumable,
}

/// The encoder for the answer to one request.
pub trait AnswerEncoder: Send + Sync + 'static {
    /// Encodes the answer to the request. `None` if the dialect sends none, for example to a
    /// cancelled request.
    fn encode_reply(&self, outcome: Result<HostAnswer, CallError>) -> Option<Reply>;
    /// Encodes `answer` as the data of an envelope; by default the plain answer. `time_limit` is
    /// the time limit of the called tool, or the default one.
    fn envelope_data(&self, answer: &HostAnswer, _time_limit: Duration) -> Value {
        envelope_data::answer_data(answer)
    }
    /// Returns `error` with the dialect's names of tools, for an envelope; by default unchanged.
    fn envelope_error(&self, error: CallError) -> CallError {
        error
    }
    /// Encodes the answer to the request in its envelope. The server calls this if
    /// [`PendingHostRequest::origin`] is set.
    fn encode_envelope(&self, _envelope: &CallEnvelope) -> Option<Reply> {
        None
    }
    /// Encodes an event of a running call. `None` if the dialect or the client does not support
    /// such events.
    fn encode_event(&self, _event: &CallEvent) -> Option<Bytes> {
        None
    }
    /// Returns true if [`AnswerEncoder::encode_event`] can ever return a message.
    fn encodes_events(&self) -> bool {
        false
    }
    /// Returns the lowest level of log lines that [`AnswerEncoder::encode_event`] encodes. `None`
    /// if it encodes none.
    fn log_level(&self) -> Option<LogLevel> {
        None
    }
    /// Encodes a question to the client under the id `id`. `None` if the dialect cannot express the
    /// question.
    fn encode_question(&self, _id: &str, _key: &str, _question: &ClientQuestion) -> Option<Bytes> {
        None
    }
    /// Encodes the withdrawal of the question `id`. `None` if the dialect has no withdrawals.
    fn encode_withdrawal(&self, _id: &str) -> Option<Bytes> {
        None
    }
    /// Parses the client's response to a question that `encode_question` encoded.
    ///
    /// # Errors
    /// Fails if the response does not answer the question.
    fn parse_answer(
        &self,
        _question: &ClientQuestion,
        _response: &ClientQuestionResponse,
    ) -> Result<ClientAnswer, String> {
        Err("this dialect does not support questions".to_owned())
    }
    /// Returns an encoder for the events of `job`, if the answer to the request was this job and
    /// the client wants its events on the same connection.
    fn job_encoder(&self, _job: &JobSnapshot) -> Option<Arc<dyn JobEventEncoder>> {
        None
    }
}

/// A client's subscription to changes of lists, resources and jobs.
pub struct ChangeSubscription {
    /// The key of the request that subscribed, unique in the conversation.
    pub key: InFlightRequestKey,
    /// The changes that the client subscribed to.
    pub filter: ChangeFilter,
    /// The encoder for the notifications of changes.
    pub encoder: Arc<dyn ChangeNotificationEncoder>,
}

/// The encoder for notifications of changes. Each method returns `None` if the dialect cannot
/// express the notification.
pub trait ChangeNotificationEncoder: Send + Sync + 'static {
    /// Encodes the first message of a subscription, which confirms `heard`, the changes that the
    /// subscription covers.
    fn encode_start(&self, heard: &ChangeFilter) -> Option<Bytes>;
    /// Encodes the notification of a change.
    fn encode_change(&self, change: &ServerChange) -> Option<Bytes>;
    /// Encodes the notification of a watched job's state after an event.
    fn encode_job(&self, job: &JobSnapshot) -> Option<Bytes>;
    /// Encodes the last messages of a subscription that the server ends.
    fn encode_end(&self) -> Vec<Bytes>;
    /// Encodes the refusal of the subscription. Returns `None` if the client sent no request for
    /// the subscription that could be answered.
    fn encode_refusal(&self, _why: &CallError) -> Option<Reply> {
        None
    }
}

/// A client's request to watch a job.
pub struct JobWatchRequest {
    /// The job's id as the client sent it.
    pub id: String,
    /// Schedule by which the client receives messages about the job.
    pub schedule: JobWatchSchedule,
    /// The encoder for the messages about the job.
    pub encoder: Arc<dyn JobEventEncoder>,
}

/// The schedule of the messages that a client receives about a watched job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobWatchSchedule {
    /// The client receives all events of the job from its start, with keep-alive messages after
    /// quiet periods.
    Events {
        /// The time without events after which a keep-alive message is sent.
        quiet: Duration,
    },
    /// The client receives snapshots at an interval, until the job ends or `at_most` has passed.
    Snapshots {
        /// The interval between two snapshots of the job.
        every: Duration,
        /// The longest duration of the stream of snapshots.
        at_most: Duration,
    },
}

/// The encoder for the messages about a watched job. Each method returns `None` if there is nothing
/// to send.
pub trait JobEventEncoder: Send + Sync + 'static {
    /// Encodes the first message about a watched job. `job` is `None` if the caller has no such
    /// job. The stream then ends, unless it sends snapshots.
    fn encode_start(&self, job: Option<&JobSnapshot>) -> Option<Bytes>;
    /// Encodes an event of the watched job, or its end.
    fn encode_item(&self, what: &JobStreamItem) -> Option<Bytes>;
    /// Encodes a snapshot of the watched job.
    fn encode_snapshot(&self, _job: Option<&JobSnapshot>) -> Option<Bytes> {
        None
    }
    /// Encodes a keep-alive message of the stream about a job.
    fn encode_keep_alive(&self) -> Option<Bytes> {
        None
    }
}

/// Description of the server, by which it introduces itself to clients.
#[derive(Debug, Clone)]
pub struct ServerInfo {
    /// The name of the server for programs.
    pub name: String,
    /// The name of the server for people.
    pub title: String,
    /// The version of the server.
    pub version: String,
    /// A description of the server in one sentence.
    pub description: String,
    /// Instructions of the server for agents.
    pub instructions: AgentInstructions,
    /// True if the server supports jobs.
    pub jobs: bool,
    /// True if the server has resources.
    pub resources: bool,
    /// True if the server has prompts.
    pub prompts: bool,
    /// True if the server has skills.
    pub skills: bool,
    /// True if the HTTP+SSE transport of MCP 2024-11-05 is served.
    pub http_sse: bool,
    /// The server card for clients that have not connected yet. With `None`, no card is published.
    pub card: Option<ServerCard>,
    /// The maximum number of bytes of a Zyra request over HTTP, if lower than the general limit.
    pub zyra_body_bytes_max: Option<usize>,
    /// True if callers over HTTP must authenticate.
    pub requires_auth: bool,
    /// True if HTTP uses TLS.
    pub tls: bool,
    /// The format in which MCP clients get the results of this server's own tools, unless a request
    /// names a different one.
    pub results: ToolResultFormat,
}

/// The server card: a description for clients that have not connected yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCard {
    /// The globally unique name of the server, e.g. `com.example/tools`.
    pub name: String,
    /// The URL under which clients reach the server.
    pub url: String,
}
