//! Conversations over HTTP with separate directions: an event stream to the client, and one request
//! for each client message.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{Caller, Reply};
use toolgate_transports::http::{Outgoing, SentEvent};

use crate::client::Client;
use crate::lines::LineBounds;
use crate::session::{Session, locked};

/// Open duplex conversations, by id.
#[derive(Default, Clone)]
pub(crate) struct Duplexes(Arc<Mutex<HashMap<String, Arc<Client>>>>);

impl Duplexes {
    /// Returns the number of open conversations.
    pub(crate) fn len(&self) -> usize {
        locked(&self.0).len()
    }

    /// Opens the conversation `id`, which sends `first` before any other event.
    ///
    /// It ends when its stream is dropped or the server stops.
    pub(crate) fn open(
        &self,
        id: String,
        session: Arc<Session>,
        first: SentEvent,
        bounds: &LineBounds,
    ) -> Outgoing {
        let closing = session.closing();
        let (client, queue) = Client::new(session, bounds.in_flight_max);
        locked(&self.0).insert(id.clone(), client);
        let left = CancellationToken::new();
        let half = Half { first: Some(first), queue, _left: left.clone().drop_guard() };
        let duplexes = self.clone();
        let drain = bounds.drain;
        tokio::spawn(async move {
            let (patience, why) = tokio::select! {
                () = left.cancelled() => (Duration::ZERO, "the client has left"),
                () = closing.cancelled() => (drain, "the server is stopping"),
            };
            // Once it is removed, the stream ends after the remaining answers.
            let client = locked(&duplexes.0).remove(&id);
            if let Some(client) = client {
                client.stop(patience, why).await;
            }
        });
        Outgoing::Feed(Box::pin(half))
    }

    /// Passes a client message to the conversation `id`. Returns `None` if `caller` has no such
    /// conversation.
    pub(crate) async fn say(&self, id: &str, caller: &Caller, message: Bytes) -> Option<Reply> {
        let client = locked(&self.0).get(id).cloned();
        let client = client.filter(|client| client.session.caller == *caller);
        client?.take_from(caller, message).await;
        Some(Reply::empty(202))
    }
}

/// Event stream to the client of one duplex conversation.
struct Half {
    first: Option<SentEvent>,
    queue: mpsc::Receiver<Bytes>,
    _left: DropGuard,
}

impl Stream for Half {
    type Item = SentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SentEvent>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        self.queue.poll_recv(cx).map(|next| next.map(SentEvent::message))
    }
}
