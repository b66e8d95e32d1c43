//! Transports: connections to an upstream, and the receivers of its messages.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, Kind};
use toolgate_dialects::mcp::upstream::Revision;

use crate::message::RpcError;

/// Method that asks for notifications in the stateless protocol.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// An outgoing message with the details that transports repeat.
#[derive(Clone)]
pub(crate) struct Sent {
    /// Id of the message, if it is a request.
    pub(crate) id: Option<u64>,
    pub(crate) method: String,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) name: Option<String>,
    /// Arguments that are repeated in headers.
    pub(crate) mirrored: Vec<(String, String)>,
    /// Encoded message.
    pub(crate) body: Bytes,
}

impl Sent {
    /// Returns true if the request only listens and is never answered while it lasts.
    pub(crate) fn listens(&self) -> bool {
        self.method == LISTEN
    }
}

/// Receiver of notifications and requests, for one request of ours or for the connection.
pub(crate) trait Hears: Send + Sync + 'static {
    /// Returns the caller's name, if the receiver belongs to a call.
    fn caller(&self) -> Option<Arc<str>> {
        None
    }
    /// Returns the kind of the question if the caller does not support it.
    fn cannot(&self, _method: &str, _params: &Value) -> Option<Kind> {
        None
    }
    /// Records that a question of `kind` was asked, possibly by this call.
    fn lacks(&self, _kind: Kind) {}
    /// Records that the server asks questions while it works.
    fn asks(&self) {}
    /// Records that notifications may have been missed.
    fn missed(&self) {}
    /// Records that notifications will not arrive from now on.
    fn unheard(&self) {}
    /// Handles a notification.
    fn said(&self, method: &str, params: &Value);
    /// Answers a request of the server.
    fn asked(
        self: Arc<Self>,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>>;
}

/// Reason why a request has no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Trouble {
    /// The server answered with an error.
    Refused(RpcError),
    /// The server does not know the session. Nothing was done.
    SessionGone,
    /// The request was not delivered.
    NotSent(String),
    /// The request may have been delivered.
    Lost(String),
    /// The server did not authorize us (HTTP).
    Unauthorized(String),
}

/// A connection over some transport. Dropping it closes the connection and stops its program.
pub(crate) trait Wire: Send + Sync + 'static {
    /// Sends a request and waits for its answer. `hears` receives related messages.
    fn request(
        &self,
        message: Sent,
        hears: Arc<dyn Hears>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, Trouble>>;
    /// Sends a notification.
    fn say(&self, message: Sent) -> BoxFuture<'_, Result<(), Trouble>>;
    /// Sets the agreed protocol revision, or none.
    fn agreed(&self, _revision: Option<&'static Revision>) {}
    /// Starts receiving notifications, if the transport needs a stream for them.
    fn listen(&self) {}
    /// Returns true if the server's requests show which of our requests they belong to.
    fn tells_who_asks(&self) -> bool;
    /// Returns a token that is cancelled when the connection is closed.
    fn gone(&self) -> &CancellationToken;
    /// Returns the reason why the connection is closed, as far as it is known.
    fn why(&self) -> String;
}
