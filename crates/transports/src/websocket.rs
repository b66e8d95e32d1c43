//! Conversations: messages both ways for as long as both sides stay.
//!
//! A talker says what it wants to say and hears what the client says. Pings,
//! closing, slow clients and lost ones are seen to here, in the same task,
//! while the talker is busy.

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

/// Our side of a conversation.
pub trait Talk: Send {
    /// Holds the conversation until it is over, and says why it is.
    ///
    /// When the client leaves first, the inbox and the outbox say so; a talker
    /// that does not end within `Bounds::drain` after that is dropped.
    fn talk(self: Box<Self>, socket: Socket) -> BoxFuture<'static, Close>;
}

/// What a talker holds of a client.
#[derive(Debug)]
pub struct Socket {
    /// What the client says.
    pub inbox: Inbox,
    /// What is said to it.
    pub outbox: Outbox,
    /// Cancelled when the server is to stop; who talks on is cut after `Bounds::drain`.
    pub stopping: CancellationToken,
}

/// What the client says, message by message.
///
/// While a few messages wait here nothing more is read, and so no ping is answered either.
#[derive(Debug)]
pub struct Inbox {
    queue: Arc<Queue>,
}

impl Inbox {
    /// The next message, text or binary, whole; `None` once the client left or broke the protocol.
    ///
    /// Dropped before it is done, it takes nothing.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.queue.pop().await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// What is said to the client: text messages that wait in a bounded queue to be read.
#[derive(Debug, Clone)]
pub struct Outbox {
    outbound: Arc<Outbound>,
}

/// The client is not there any more, or was dropped for being too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

impl Outbox {
    /// Says `text`, which is UTF-8, without waiting: a client whose queue is full is dropped.
    pub fn say(&self, text: Bytes) -> Result<(), Gone> {
        debug_assert!(std::str::from_utf8(&text).is_ok(), "what is said is text");
        match self.outbound.queue.offer(text) {
            Ok(()) => Ok(()),
            Err(Refused::Ended) => Err(Gone),
            Err(Refused::Full) => Err(self.outbound.too_slow()),
        }
    }

    /// Says `text`, which is UTF-8, when there is room; a client that makes none in time is dropped.
    ///
    /// Those who wait are served in their order; who does not wait may overtake them.
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

    /// Ends when the client is gone.
    pub async fn closed(&self) {
        self.outbound.gone.cancelled().await;
    }
}

/// What all outboxes of one client share.
#[derive(Debug)]
struct Outbound {
    queue: Queue,
    /// Where those stand who wait for room, so that one at a time does.
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

    /// Takes nothing more; what waits may still be sent.
    fn end(&self) {
        self.queue.end();
        self.gone.cancel();
    }
}

/// Why a conversation is over, as the client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    /// The code, of those that RFC 6455 lets be sent.
    pub code: u16,
    /// The reason, of which the first 123 bytes are sent.
    pub reason: String,
}

impl Close {
    /// All was said (1000).
    pub fn normal() -> Self {
        Self { code: 1000, reason: String::new() }
    }

    /// We go (1001).
    pub fn going_away(reason: impl Into<String>) -> Self {
        Self { code: 1001, reason: reason.into() }
    }

    /// The client broke the rules of WebSockets (1002).
    pub fn protocol(reason: impl Into<String>) -> Self {
        Self { code: 1002, reason: reason.into() }
    }

    /// The client sent what is not text as text (1007).
    pub fn not_text(reason: impl Into<String>) -> Self {
        Self { code: 1007, reason: reason.into() }
    }

    /// The client did what it may not (1008).
    pub fn policy(reason: impl Into<String>) -> Self {
        Self { code: 1008, reason: reason.into() }
    }

    /// The client sent a message that is too large (1009).
    pub fn too_large(reason: impl Into<String>) -> Self {
        Self { code: 1009, reason: reason.into() }
    }

    /// Something failed here (1011).
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { code: 1011, reason: reason.into() }
    }

    /// The client may come back later (1013).
    pub fn try_again_later(reason: impl Into<String>) -> Self {
        Self { code: 1013, reason: reason.into() }
    }
}

/// Lets `talk` talk to the client at the other end of `stream`, of which `early` was read already.
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
        // What the talker says now is sent in the same breath.
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

/// How many messages wait for a talker before no more are read.
const INBOX_MESSAGES: usize = 16;
/// How many bytes of them.
const INBOX_BYTES: usize = 64 << 10;
