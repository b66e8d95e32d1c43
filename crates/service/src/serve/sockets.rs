//! Serves WebSocket clients: conversations, and streams of a job's events.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolgate_budget::InputMemoryFull;
use toolgate_contract::BoxFuture;
use toolgate_dialects::{FrameRefusal, JobWatchRequest};
use toolgate_transports::http::websocket::{
    WebSocketApplication, WebSocketCloseReason, WebSocketHandle, WebSocketOutbox,
};

use crate::serve::lines::LineStreamLimits;
use crate::sessions::client::ConnectedClient;
use crate::sessions::session::ClientSession;

/// Maximum number of job events that wait for a WebSocket client which watches a job.
const WATCH_EVENTS_MAX: usize = 2;

/// WebSocket connection on which a client sends messages and gets answers.
pub(crate) struct ConversationWebSocket {
    pub(crate) session: Arc<ClientSession>,
    pub(crate) bounds: LineStreamLimits,
}

/// WebSocket connection on which a client gets the events of one job.
pub(crate) struct JobWatchWebSocket {
    pub(crate) session: Arc<ClientSession>,
    pub(crate) job: JobWatchRequest,
}

/// WebSocket connection on which a client gets one message and is then disconnected.
pub(crate) struct RejectionWebSocket {
    pub(crate) message: Bytes,
    pub(crate) code: u16,
}

impl WebSocketApplication for RejectionWebSocket {
    fn run(self: Box<Self>, socket: WebSocketHandle) -> BoxFuture<'static, WebSocketCloseReason> {
        Box::pin(async move {
            // The client may have left already.
            let _ = socket.outbox.send(self.message).await;
            WebSocketCloseReason { code: self.code, reason: String::new() }
        })
    }
}

impl WebSocketApplication for ConversationWebSocket {
    fn run(
        self: Box<Self>,
        mut socket: WebSocketHandle,
    ) -> BoxFuture<'static, WebSocketCloseReason> {
        Box::pin(async move {
            let Self { session, bounds } = *self;
            let (client, queue) = ConnectedClient::new(session, bounds.in_flight_max);
            let writing = toolgate_net::spawn_task(forward_messages(queue, socket.outbox.clone()));
            let read = async {
                while let Some(message) = socket.inbox.next().await {
                    match socket.inbox.take_memory(&message) {
                        Ok(memory) => client.clone().receive_counted(message, memory).await,
                        Err(InputMemoryFull) => {
                            client.answer_refused(message, &no_memory()).await;
                        }
                    }
                }
            };
            let stopped = tokio::select! {
                () = read => false,
                () = socket.stopping.cancelled() => true,
            };
            let (grace, why) = if stopped {
                (bounds.drain, "the server is stopping")
            } else {
                (bounds.eof_grace, "the client has disconnected")
            };
            client.stop(grace, why).await;
            drop(client);
            // Ends with its queue, or sooner if the client has left.
            let _ = writing.await;
            if stopped {
                WebSocketCloseReason::going_away(why)
            } else {
                WebSocketCloseReason::normal()
            }
        })
    }
}

/// Returns the refusal of a message for which no memory is free, because other messages in flight
/// use too much.
fn no_memory() -> FrameRefusal {
    let message = "the messages in flight take too much memory; try again later".to_owned();
    FrameRefusal::Busy { message }
}

impl WebSocketApplication for JobWatchWebSocket {
    fn run(
        self: Box<Self>,
        mut socket: WebSocketHandle,
    ) -> BoxFuture<'static, WebSocketCloseReason> {
        Box::pin(async move {
            let Self { session, job } = *self;
            let (sender, queue) = mpsc::channel(WATCH_EVENTS_MAX);
            session.watch_job(job, sender);
            // A watcher sends nothing, but its disconnect shows only while the socket is read.
            let left = CancellationToken::new();
            let listening = async {
                while socket.inbox.next().await.is_some() {}
                left.cancel();
            };
            let forwarding = async {
                tokio::select! {
                    () = forward_messages(queue, socket.outbox.clone()) => WebSocketCloseReason::normal(),
                    () = left.cancelled() => WebSocketCloseReason::normal(),
                    () = socket.stopping.cancelled() => WebSocketCloseReason::going_away("the server is stopping"),
                }
            };
            let mut forwarding = std::pin::pin!(forwarding);
            let close = tokio::select! {
                close = &mut forwarding => close,
                () = listening => forwarding.await,
            };
            session.end("the client has disconnected");
            close
        })
    }
}

/// Sends the messages of `queue` to a WebSocket client until the queue ends or the client
/// disconnects.
async fn forward_messages(mut queue: mpsc::Receiver<Bytes>, outbox: WebSocketOutbox) {
    while let Some(message) = queue.recv().await {
        if outbox.send(message).await.is_err() {
            return;
        }
    }
}
