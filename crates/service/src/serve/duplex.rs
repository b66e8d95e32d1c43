//! Duplex conversations over HTTP (the HTTP+SSE transport of MCP): an event stream to the client,
//! and one HTTP request for each message of the client.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{Caller, Reply, lock_mutex};
use toolgate_transports::http::{OutgoingResponse, ReceivedRequest, ServerSentEvent};

use crate::serve::lines::LineStreamLimits;
use crate::sessions::client::ConnectedClient;
use crate::sessions::session::ClientSession;

/// Open duplex conversations (the HTTP+SSE transport of MCP), by id. Clones share the
/// conversations.
#[derive(Default, Clone)]
pub(crate) struct DuplexConversations(Arc<Mutex<HashMap<String, Arc<ConnectedClient>>>>);

impl DuplexConversations {
    /// Returns the number of open duplex conversations.
    pub(crate) fn len(&self) -> usize {
        lock_mutex(&self.0).len()
    }

    /// Opens the duplex conversation `id` with a client, and sends `first` as the first event of
    /// its stream.
    ///
    /// The conversation ends when its stream is dropped or the server stops.
    pub(crate) fn open(
        &self,
        id: String,
        session: Arc<ClientSession>,
        first: ServerSentEvent,
        bounds: &LineStreamLimits,
    ) -> OutgoingResponse {
        let closing = session.closing_token();
        let (client, queue) = ConnectedClient::new(session, bounds.in_flight_max);
        lock_mutex(&self.0).insert(id.clone(), client);
        let left = CancellationToken::new();
        let stream =
            DuplexEventStream { first: Some(first), queue, _left: left.clone().drop_guard() };
        let conversations = self.clone();
        let drain = bounds.drain;
        toolgate_net::spawn_task(async move {
            let (grace, why) = tokio::select! {
                () = left.cancelled() => (Duration::ZERO, "the client has disconnected"),
                () = closing.cancelled() => (drain, "the server is stopping"),
            };
            // Once it is removed, the stream ends after the remaining answers.
            let client = lock_mutex(&conversations.0).remove(&id);
            if let Some(client) = client {
                client.stop(grace, why).await;
            }
        });
        OutgoingResponse::LongStream(Box::pin(stream))
    }

    /// Passes a client's message to the duplex conversation `id`, and returns the HTTP reply. The
    /// memory reserved for the request is released once the message is answered. Returns `None` if
    /// `caller` has no such conversation.
    pub(crate) async fn receive(
        &self,
        id: &str,
        caller: &Caller,
        incoming: &ReceivedRequest,
    ) -> Option<Reply> {
        let client = lock_mutex(&self.0).get(id).cloned();
        let client = client.filter(|client| client.session.caller == *caller);
        let (message, memory) = (incoming.frame.body.clone(), incoming.memory.clone().into());
        client?.receive_from(caller, message, memory).await;
        Some(Reply::empty(202))
    }
}

/// Event stream to the client of one duplex conversation.
struct DuplexEventStream {
    first: Option<ServerSentEvent>,
    queue: mpsc::Receiver<Bytes>,
    _left: DropGuard,
}

impl Stream for DuplexEventStream {
    type Item = ServerSentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerSentEvent>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        self.queue.poll_recv(cx).map(|next| next.map(ServerSentEvent::message))
    }
}
