//! Serves WebSocket clients: conversations, and watchers of jobs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolgate_contract::BoxFuture;
use toolgate_dialects::Watching;
use toolgate_transports::websocket::{Close, Outbox, Socket, Talk};

use crate::client::Client;
use crate::lines::LineBounds;
use crate::session::Session;

/// Job events that may wait for a watcher.
const WORDS: usize = 2;

/// WebSocket client that holds a conversation.
pub(crate) struct Conversing {
    pub(crate) session: Arc<Session>,
    pub(crate) bounds: LineBounds,
}

/// WebSocket client that watches one job.
pub(crate) struct Viewing {
    pub(crate) session: Arc<Session>,
    pub(crate) job: Watching,
}

/// WebSocket client that gets one message and is then disconnected.
pub(crate) struct Closing {
    pub(crate) message: Bytes,
    pub(crate) code: u16,
}

impl Talk for Closing {
    fn talk(self: Box<Self>, socket: Socket) -> BoxFuture<'static, Close> {
        Box::pin(async move {
            // The client may have left already.
            let _ = socket.outbox.send(self.message).await;
            Close { code: self.code, reason: String::new() }
        })
    }
}

impl Talk for Conversing {
    fn talk(self: Box<Self>, mut socket: Socket) -> BoxFuture<'static, Close> {
        Box::pin(async move {
            let Self { session, bounds } = *self;
            let (client, queue) = Client::new(session, bounds.in_flight_max);
            let writing = tokio::spawn(write(queue, socket.outbox.clone()));
            let read = async {
                while let Some(message) = socket.inbox.next().await {
                    client.clone().take(message).await;
                }
            };
            let stopped = tokio::select! {
                () = read => false,
                () = socket.stopping.cancelled() => true,
            };
            let (patience, why) = if stopped {
                (bounds.drain, "the server is stopping")
            } else {
                (bounds.eof_grace, "the client has left")
            };
            client.stop(patience, why).await;
            drop(client);
            // Ends with its queue, or sooner if the client has left.
            let _ = writing.await;
            if stopped { Close::going_away(why) } else { Close::normal() }
        })
    }
}

impl Talk for Viewing {
    fn talk(self: Box<Self>, mut socket: Socket) -> BoxFuture<'static, Close> {
        Box::pin(async move {
            let Self { session, job } = *self;
            let (words, queue) = mpsc::channel(WORDS);
            session.watch(job, words);
            // A watcher sends nothing, but its disconnect shows only while the socket is read.
            let left = CancellationToken::new();
            let listening = async {
                while socket.inbox.next().await.is_some() {}
                left.cancel();
            };
            let told = async {
                tokio::select! {
                    () = write(queue, socket.outbox.clone()) => Close::normal(),
                    () = left.cancelled() => Close::normal(),
                    () = socket.stopping.cancelled() => Close::going_away("the server is stopping"),
                }
            };
            let mut told = std::pin::pin!(told);
            let close = tokio::select! {
                close = &mut told => close,
                () = listening => told.await,
            };
            session.end("the client has left");
            close
        })
    }
}

/// Sends the messages of `queue` until it ends or the client leaves.
async fn write(mut queue: mpsc::Receiver<Bytes>, outbox: Outbox) {
    while let Some(message) = queue.recv().await {
        if outbox.send(message).await.is_err() {
            return;
        }
    }
}
