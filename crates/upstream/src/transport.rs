//! Transports: connections to an upstream, and the receivers of its messages.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, QuestionKind};
use toolgate_dialects::mcp::upstream::Revision;

use crate::message::UpstreamRpcError;

/// Method that asks for notifications in the stateless protocol.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// An outgoing message, with details that some transports repeat in headers.
#[derive(Clone)]
pub(crate) struct OutgoingMessage {
    /// Id of the message, if it is a request.
    pub(crate) id: Option<u64>,
    pub(crate) method: String,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) target: Option<String>,
    /// Arguments that are repeated in headers.
    pub(crate) header_params: Vec<(String, String)>,
    /// Encoded message.
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
    /// support it.
    fn unsupported_kind(&self, _method: &str, _params: &Value) -> Option<QuestionKind> {
        None
    }
    /// Records that a question of `kind`, which the caller does not support, was asked, possibly by
    /// this call.
    fn record_missing(&self, _kind: QuestionKind) {}
    /// Records that the upstream asks questions during calls.
    fn record_question(&self) {}
    /// Records that notifications may have been missed.
    fn record_missed(&self) {}
    /// Records that no notifications will arrive from now on.
    fn record_unheard(&self) {}
    /// Records that requests are delivered again, or the reason why the last one was not.
    fn record_delivery(&self, _delivered: Result<(), &str>) {}
    /// Records a request of the handshake, and its outcome once it is known.
    fn record_exchange(&self, _asked: &str, _outcome: Option<&str>) {}
    /// Records output that is not a message.
    fn record_output(&self, _output: &[u8]) {}
    /// Records error output of the program.
    fn record_error_output(&self, _output: &[u8]) {}
    /// Records that requests are redirected to `location`.
    fn record_redirect(&self, _location: &str) {}
    /// Handles a notification.
    fn notify(&self, method: &str, params: &Value);
    /// Answers a request of the server.
    fn answer_request(
        self: Arc<Self>,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, UpstreamRpcError>>;
}

/// Reason why a request has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RequestFailure {
    /// The server answered with an error.
    Refused(UpstreamRpcError),
    /// The server does not know the session. Nothing was done.
    SessionGone(String),
    /// The request was not delivered.
    NotSent(String),
    /// The request may have been delivered.
    Lost(String),
    /// The server did not authorize the request (HTTP).
    Unauthorized(String),
}

/// A connection over some transport. Dropping it closes the connection and stops its program.
pub(crate) trait TransportConnection: Send + Sync + 'static {
    /// Sends a request and waits for its answer. `receiver` gets the upstream's messages about the
    /// request.
    fn request(
        &self,
        message: OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, RequestFailure>>;
    /// Sends a notification.
    fn send_notification(
        &self,
        message: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), RequestFailure>>;
    /// Sets the agreed protocol revision, or none.
    fn set_revision(&self, _revision: Option<&'static Revision>) {}
    /// Starts receiving notifications, if the transport needs a stream for them.
    fn start_listening(&self) {}
    /// Returns true if the server can lose the session, for example in a restart.
    fn may_lose_session(&self) -> bool;
    /// Returns true if a closed connection was closed because its session has ended.
    fn has_lost_session(&self) -> bool;
    /// Returns a token that is cancelled when the connection is closed.
    fn closed(&self) -> &CancellationToken;
    /// Returns the reason why the connection is closed, if it is known.
    fn closed_reason(&self) -> String;
}

/// Returns `failure` as a sentence.
pub(crate) fn describe_failure(failure: &RequestFailure) -> String {
    match failure {
        RequestFailure::Refused(error) => format!("it refused: {} ({})", error.message, error.code),
        RequestFailure::SessionGone(why) => format!("its session has ended: {why}"),
        RequestFailure::NotSent(why)
        | RequestFailure::Lost(why)
        | RequestFailure::Unauthorized(why) => why.clone(),
    }
}
