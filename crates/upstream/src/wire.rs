//! A connection to an upstream, whatever it is made of.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{BoxFuture, Kind};
use toolgate_dialects::mcp::upstream::Revision;

use crate::message::RpcError;

/// What is asked to hear of changes where there is no session.
pub(crate) const LISTEN: &str = "subscriptions/listen";

/// A message that is sent, and what wires say beside it.
#[derive(Clone)]
pub(crate) struct Sent {
    /// Its id, if it is a request.
    pub(crate) id: Option<u64>,
    pub(crate) method: String,
    /// What a request is about: a tool, a prompt, a URI.
    pub(crate) name: Option<String>,
    /// Arguments that are said in headers, too.
    pub(crate) mirrored: Vec<(String, String)>,
    /// The whole message.
    pub(crate) body: Bytes,
}

impl Sent {
    /// Whether it only listens, and is answered when nobody does any more.
    pub(crate) fn listens(&self) -> bool {
        self.method == LISTEN
    }
}

/// Hears what comes beside answers: for one request, or for what belongs to none.
pub(crate) trait Hears: Send + Sync + 'static {
    /// Whose call it hears for, if it is one.
    fn caller(&self) -> Option<Arc<str>> {
        None
    }
    /// What whoever called cannot be asked of what is asked, if it cannot.
    fn cannot(&self, _method: &str, _params: &Value) -> Option<Kind> {
        None
    }
    /// Questions of `kind` were asked, which it may be that asked.
    fn lacks(&self, _kind: Kind) {}
    /// Somebody is asked while a request is worked on.
    fn asks(&self) {}
    /// What is said to nobody in particular may have been missed.
    fn missed(&self) {}
    /// What is said to nobody in particular is not heard from now on.
    fn unheard(&self) {}
    /// Something is said.
    fn said(&self, method: &str, params: &Value);
    /// Something is asked.
    fn asked(
        self: Arc<Self>,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>>;
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Trouble {
    /// The other side refused.
    Refused(RpcError),
    /// The session is not known there any more; nothing was done.
    SessionGone,
    /// It never got there.
    NotSent(String),
    /// It may have got there.
    Lost(String),
    /// Over HTTP: who asks is not let in, and why.
    Unauthorized(String),
}

/// A connection. Drop it and it ends, with what serves it.
pub(crate) trait Wire: Send + Sync + 'static {
    /// Sends a request and waits for its answer; `hears` what comes with it.
    fn request(
        &self,
        message: Sent,
        hears: Arc<dyn Hears>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, Trouble>>;
    /// Says something.
    fn say(&self, message: Sent) -> BoxFuture<'_, Result<(), Trouble>>;
    /// Learns which revision is spoken from now on, or that none is agreed on.
    fn agreed(&self, _revision: Option<&'static Revision>) {}
    /// Hears from now on what is said to nobody in particular, where that needs a stream.
    fn listen(&self) {}
    /// Whether what is asked says which request asks it.
    fn tells_who_asks(&self) -> bool;
    /// Cancelled when it is gone.
    fn gone(&self) -> &CancellationToken;
    /// Why it is gone, as far as that is known.
    fn why(&self) -> String;
}
