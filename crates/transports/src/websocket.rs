//! WebSocket conversations.
//!
//! The application sends and receives messages. This module handles pings, closing, and slow or
//! lost clients in the same task, while the application is busy.

mod line;
mod queue;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::Mutex as Turnstile;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolgate_contract::BoxFuture;

use crate::http::{Bounds, Patient};
use line::Line;
use queue::{Queue, Refused};

/// Application side of a conversation.
pub trait Talk: Send {
    /// Runs the conversation until it ends, and returns the reason for the close.
    ///
    /// The inbox and outbox report when the client leaves. The future is dropped if it does not end
    /// within `Bounds::drain` after that.
    fn talk(self: Box<Self>, socket: Socket) -> BoxFuture<'static, Close>;
}

/// Connection to a client.
#[derive(Debug)]
pub struct Socket {
    /// Messages from the client.
    pub inbox: Inbox,
    /// Messages to the client.
    pub outbox: Outbox,
    /// Cancelled when shutdown starts. The conversation is cut after `Bounds::drain`.
    pub stopping: CancellationToken,
}

/// Queue of messages from the client.
///
/// While it is full, nothing is read from the client, and so pings are not answered.
#[derive(Debug)]
pub struct Inbox {
    queue: Arc<Queue>,
}

impl Inbox {
    /// Returns the next complete message, text or binary. Returns `None` after the client left or
    /// broke the protocol.
    ///
    /// Cancel safe: no message is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.queue.pop().await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// Sender of text messages to the client, over a bounded queue.
#[derive(Debug, Clone)]
pub struct Outbox {
    outbound: Arc<Outbound>,
}

/// Error for a client that has left or was dropped as too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl Outbox {
    /// Queues `text`, which must be UTF-8, without waiting. A client whose queue is full is
    /// dropped.
    ///
    /// # Errors
    /// When the client is gone or was dropped.
    pub fn say(&self, text: Bytes) -> Result<(), Gone> {
        debug_assert!(std::str::from_utf8(&text).is_ok(), "what is said is text");
        match self.outbound.queue.offer(text) {
            Ok(()) => Ok(()),
            Err(Refused::Ended) => Err(Gone),
            Err(Refused::Full) => Err(self.outbound.too_slow()),
        }
    }

    /// Queues `text`, which must be UTF-8, and waits for room. A client that makes none in time is
    /// dropped.
    ///
    /// Waiting senders are served in order, but [`say`](Self::say) may overtake them.
    ///
    /// # Errors
    /// When the client is gone or was dropped.
    pub async fn send(&self, text: Bytes) -> Result<(), Gone> {
        debug_assert!(std::str::from_utf8(&text).is_ok(), "what is said is text");
        let outbound = &self.outbound;
        let said = async {
            let _turn = outbound.turnstile.lock().await;
            outbound.queue.push(text).await
        };
        match timeout(outbound.patience, said).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_ended)) => Err(Gone),
            Err(_elapsed) => Err(outbound.too_slow()),
        }
    }

    /// Waits until the client is gone.
    pub async fn closed(&self) {
        self.outbound.gone.cancelled().await;
    }
}

/// State that all outboxes of one client share.
#[derive(Debug)]
struct Outbound {
    queue: Queue,
    /// Lock that lets one sender at a time wait for room.
    turnstile: Turnstile<()>,
    gone: CancellationToken,
    patience: Duration,
}

impl Outbound {
    fn too_slow(&self) -> Gone {
        self.queue.overflow();
        self.gone.cancel();
        Gone
    }

    /// Accepts no more messages. Queued ones may still be sent.
    fn end(&self) {
        self.queue.end();
        self.gone.cancel();
    }
}

/// Reason for closing a conversation, as sent to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// Status code that RFC 6455 allows to be sent.
    pub code: u16,
    /// Explanation, of which the first 123 bytes are sent.
    pub reason: String,
}

impl Close {
    /// Creates a normal closure (1000).
    pub fn normal() -> Self {
        Self { code: 1000, reason: String::new() }
    }

    /// Creates a closure because the server stops (1001).
    pub fn going_away(reason: impl Into<String>) -> Self {
        Self { code: 1001, reason: reason.into() }
    }

    /// Creates a closure because of a protocol error (1002).
    pub fn protocol(reason: impl Into<String>) -> Self {
        Self { code: 1002, reason: reason.into() }
    }

    /// Creates a closure because of invalid text (1007).
    pub fn not_text(reason: impl Into<String>) -> Self {
        Self { code: 1007, reason: reason.into() }
    }

    /// Creates a closure because of a policy violation (1008).
    pub fn policy(reason: impl Into<String>) -> Self {
        Self { code: 1008, reason: reason.into() }
    }

    /// Creates a closure because of a message beyond the size limit (1009).
    pub fn too_large(reason: impl Into<String>) -> Self {
        Self { code: 1009, reason: reason.into() }
    }

    /// Creates a closure because of an internal error (1011).
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { code: 1011, reason: reason.into() }
    }

    /// Creates a closure that invites the client to try again later (1013).
    pub fn try_again_later(reason: impl Into<String>) -> Self {
        Self { code: 1013, reason: reason.into() }
    }
}

/// Runs the conversation `talk` over `stream`, of which `early` was read already.
pub(crate) async fn converse(
    stream: Patient,
    early: Vec<u8>,
    talk: Box<dyn Talk>,
    bounds: &Bounds,
    stopping: CancellationToken,
) {
    let inbound = Arc::new(Queue::new(INBOX_MESSAGES, INBOX_BYTES));
    let outbound = Arc::new(Outbound {
        queue: Queue::new(bounds.socket_waiting_messages, bounds.socket_waiting_bytes),
        turnstile: Turnstile::default(),
        gone: CancellationToken::new(),
        patience: bounds.write_time_max,
    });
    let inbox = Inbox { queue: inbound.clone() };
    let outbox = Outbox { outbound: outbound.clone() };
    let mut line = Line::open(stream, early, inbound, outbound, bounds).await;
    let talking = async move { talk.talk(Socket { inbox, outbox, stopping }).await };
    let mut talking = std::pin::pin!(AssertUnwindSafe(talking).catch_unwind());
    tokio::select! {
        // A close that is ready now is sent together with the last messages.
        biased;
        close = &mut talking => {
            let close = close.unwrap_or_else(|_panic| {
                tracing::error!("a talker panicked");
                Close::failed("the conversation failed here")
            });
            line.finish(close).await;
        }
        end = line.run() => {
            line.end();
            let left = timeout(bounds.drain, talking);
            let (_, left) = tokio::join!(line.hang_up(end), left);
            if left.is_err() {
                tracing::warn!("a talker did not end after its client had left, and was dropped");
            }
        }
    }
}

/// Messages that may wait for the application before reading stops.
const INBOX_MESSAGES: usize = 16;
/// Bytes of messages that may wait for the application before reading stops.
const INBOX_BYTES: usize = 64 << 10;
