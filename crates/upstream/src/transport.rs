//! Transports: connections to an upstream, and the receivers of its messages.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, QuestionKind};
use toolgate_dialects::mcp::upstream::McpRevision;

use crate::message::UpstreamRpcError;
use crate::world::UpstreamRefusedHost;

/// Method with which the client asks for notifications in the stateless protocol.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// A message to an upstream, with details that some transports repeat in headers.
#[derive(Clone)]
pub(crate) struct OutgoingMessage {
    /// JSON-RPC id of the message. `None` for a notification.
    pub(crate) id: Option<u64>,
    pub(crate) method: String,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) target: Option<String>,
    /// Arguments of the tool that are repeated in HTTP headers.
    pub(crate) header_params: Vec<(String, String)>,
    /// The JSON-RPC message as bytes.
    pub(crate) body: Bytes,
}

impl OutgoingMessage {
    /// Returns true if the request only listens for notifications and gets no answer until it ends.
    pub(crate) fn is_listen(&self) -> bool {
        self.method == LISTEN
    }
}

/// Receiver of an upstream's notifications and requests, for one request to the upstream or for the
/// whole connection.
pub(crate) trait MessageReceiver: Send + Sync + 'static {
    /// Returns the caller's name, if the receiver belongs to a call.
    fn caller(&self) -> Option<Arc<str>> {
        None
    }
    /// Returns the kind of the question in a request of the upstream, if the caller does not
    /// support such questions.
    fn unsupported_kind(&self, _method: &str, _params: &Value) -> Option<QuestionKind> {
        None
    }
    /// Records that the upstream asked a question of `kind`, which the caller does not support.
    /// Another call may have caused the question.
    fn record_missing(&self, _kind: QuestionKind) {}
    /// Records that the upstream asks questions during calls.
    fn record_question(&self) {}
    /// Records that notifications of the upstream may have been missed.
    fn record_missed(&self) {}
    /// Records that the upstream will send no notifications from now on.
    fn record_unheard(&self) {}
    /// Records that a request reached the upstream, or the reason why it did not.
    fn record_delivery(&self, _delivered: Result<(), &str>) {}
    /// Records a request of the handshake, and its outcome once it is known.
    fn record_exchange(&self, _asked: &str, _outcome: Option<&str>) {}
    /// Records output of the upstream's program that is not an MCP message.
    fn record_output(&self, _output: &[u8]) {}
    /// Records output of the upstream's program on its standard error.
    fn record_error_output(&self, _output: &[u8]) {}
    /// Records that the upstream redirects requests to `location`.
    fn record_redirect(&self, _location: &str) {}
    /// Records that a host was refused to the upstream's program during this request.
    fn record_refused_host(&self, _refused: &UpstreamRefusedHost) {}
    /// Handles a notification of the upstream. By default, ignores it.
    fn notify(&self, _method: &str, _params: &Value) {}
    /// Answers a request of the upstream. By default, refuses it.
    fn answer_request(self: Arc<Self>, method: String, _params: Value) -> AnswerFuture {
        Box::pin(async move {
            Err(UpstreamRpcError::new(-32601, format!("`{method}` is not supported here")))
        })
    }
}

/// The future answer to a request of an upstream.
pub(crate) type AnswerFuture = BoxFuture<'static, Result<Value, UpstreamRpcError>>;

/// Reason why a request to an upstream has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum UpstreamRequestFailure {
    /// The server answered the request with a JSON-RPC error.
    Refused(UpstreamRpcError),
    /// The server does not know the session of the request, and has not acted on the request. The
    /// text is the reason.
    SessionGone(String),
    /// The request was not delivered to the server. The text is the reason.
    NotSent(String),
    /// The answer got lost. The server may have received the request. The text is the reason.
    Lost(String),
    /// The server did not authorize the HTTP request. The text is the reason.
    Unauthorized(String),
}

/// A connection to an upstream over some transport. Dropping the value closes the connection and
/// stops the upstream's program.
pub(crate) trait TransportConnection: Send + Sync + 'static {
    /// Sends a request and waits for its answer. `receiver` gets the upstream's messages about the
    /// request.
    fn request(
        &self,
        message: OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, UpstreamRequestFailure>>;
    /// Sends a notification to the upstream.
    fn send_notification(
        &self,
        message: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), UpstreamRequestFailure>>;
    /// Sets the protocol revision on which both sides agreed, or none.
    fn set_revision(&self, _revision: Option<&'static McpRevision>) {}
    /// Starts to receive notifications, if the transport needs a separate stream for them.
    fn start_listening(&self) {}
    /// Returns true if the server can lose the session, for example in a restart.
    fn may_lose_session(&self) -> bool;
    /// Returns true if the connection was closed because its session has ended at the server.
    fn has_lost_session(&self) -> bool;
    /// Returns a token that is cancelled when the connection is closed.
    fn closed(&self) -> &CancellationToken;
    /// Returns the reason why the connection is closed, if it is known.
    fn closed_reason(&self) -> String;
    /// Returns the hosts that were refused to the upstream's program since it started. None by
    /// default.
    fn refused_hosts(&self) -> Vec<UpstreamRefusedHost> {
        Vec::new()
    }
}

/// Describes the failure of a request in a sentence.
pub(crate) fn describe_failure(failure: &UpstreamRequestFailure) -> String {
    match failure {
        UpstreamRequestFailure::Refused(error) => {
            format!("it refused: {} ({})", error.message, error.code)
        }
        UpstreamRequestFailure::SessionGone(why) => format!("its session has ended: {why}"),
        UpstreamRequestFailure::NotSent(why)
        | UpstreamRequestFailure::Lost(why)
        | UpstreamRequestFailure::Unauthorized(why) => why.clone(),
    }
}
