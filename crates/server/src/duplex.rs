//! Conversations of two halves over HTTP: what is said to the client is a stream of events, what
//! it says are requests of their own.

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

/// The conversations that are open, by what they are called.
#[derive(Default, Clone)]
pub(crate) struct Duplexes(Arc<Mutex<HashMap<String, Arc<Client>>>>);

impl Duplexes {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        locked(&self.0).len()
    }

    /// Opens one called `id`, until its stream is dropped or the server stops; `first` is said
    /// before anything else.
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
        let (duplexes, drain) = (self.clone(), bounds.drain);
        tokio::spawn(async move {
            let (patience, why) = tokio::select! {
                () = left.cancelled() => (Duration::ZERO, "the client has left"),
                () = closing.cancelled() => (drain, "the server is stopping"),
            };
            // Gone from the list, its stream ends once its answers are out.
            let client = locked(&duplexes.0).remove(&id);
            if let Some(client) = client {
                client.stop(patience, why).await;
            }
        });
        Outgoing::Feed(Box::pin(half))
    }

    /// Takes what the client of the conversation `id` says; `None` if `caller` has none.
    pub(crate) async fn say(&self, id: &str, caller: &Caller, message: Bytes) -> Option<Reply> {
        let client = locked(&self.0).get(id).cloned();
        let client = client.filter(|client| client.session.caller == *caller);
        client?.take_from(caller, message).await;
        Some(Reply::empty(202))
    }
}

/// What is said to the client.
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
