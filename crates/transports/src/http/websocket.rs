//! WebSocket conversations.
//!
//! The application sends and receives messages. This module handles pings, closing, and slow or
//! lost clients in the same task, while the application is busy.

mod client_socket;
mod incoming;
mod queue;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::Mutex as Turnstile;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolgate_budget::{
    InputMemoryFull, InputMemoryOwner, InputMemoryReservation, UNCOUNTED_BYTES, parsed_json_bytes,
};
use toolgate_contract::BoxFuture;

use crate::http::{HttpServerLimits, WriteTimeoutStream};
use client_socket::ClientWebSocket;
use incoming::IncomingMessageMemory;
use queue::{QueuePushRefusal, WebSocketMessageQueue};

/// Memory in bytes, of text and parsed values, up to which a message is not charged to the memory
/// budget, because many such messages may be in flight on one connection.
const SMALL_MESSAGE_BYTES_MAX: usize = 48 << 10;

/// Application that exchanges messages with one WebSocket client.
pub trait WebSocketApplication: Send {
    /// Runs the conversation until it ends, and returns the reason for closing the WebSocket.
    ///
    /// The inbox and outbox report when the client leaves. If the future does not end within
    /// `HttpServerLimits::drain` after that, the server drops the future.
    fn run(self: Box<Self>, socket: WebSocketHandle) -> BoxFuture<'static, WebSocketCloseReason>;
}

/// WebSocket connection to a client, as the application uses it.
#[derive(Debug)]
pub struct WebSocketHandle {
    /// Messages from the client.
    pub inbox: WebSocketInbox,
    /// Messages to the client.
    pub outbox: WebSocketOutbox,
    /// Token that is cancelled when shutdown starts. The server aborts the conversation if it does
    /// not end within `HttpServerLimits::drain` after that.
    pub stopping: CancellationToken,
}

/// Queue of messages that the client has sent over the WebSocket.
///
/// While the queue is full, the server reads nothing from the client and therefore answers no
/// pings.
#[derive(Debug)]
pub struct WebSocketInbox {
    queue: Arc<WebSocketMessageQueue>,
    /// Account of the memory of the messages that the client has sent.
    memory: Arc<IncomingMessageMemory>,
    message_bytes_max: usize,
}

/// Memory of one message of a client. The memory is free again when this value is dropped.
#[derive(Debug, Default)]
pub struct WebSocketMessageMemory(
    #[expect(dead_code, reason = "held until it is dropped")] Option<Arc<InputMemoryReservation>>,
);

impl From<Option<Arc<InputMemoryReservation>>> for WebSocketMessageMemory {
    fn from(memory: Option<Arc<InputMemoryReservation>>) -> Self {
        Self(memory)
    }
}

impl WebSocketInbox {
    /// Returns the next complete message of the client, text or binary. Returns `None` after the
    /// client left or broke the protocol.
    ///
    /// The memory of a message is freed when the next message is requested, unless
    /// [`take_memory`](Self::take_memory) was called for it. Cancel safe: no message is lost if the
    /// future is dropped.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.memory.release_taken();
        let message = self.queue.pop().await;
        if message.is_some() {
            self.memory.note_taken();
        }
        message
    }

    /// Returns the memory reservation of `message`, the last one that [`next`](Self::next)
    /// returned, and reserves memory for the JSON values that exist beside the message after
    /// parsing. Keep the result until the message is answered.
    ///
    /// # Errors
    /// There is no memory for the JSON values.
    pub fn take_memory(
        &mut self,
        message: &[u8],
    ) -> Result<WebSocketMessageMemory, InputMemoryFull> {
        // The rest of the text was counted when it arrived.
        let text = message.len().min(UNCOUNTED_BYTES);
        let bytes = text + parsed_json_bytes(message, self.message_bytes_max);
        let counted = if bytes > SMALL_MESSAGE_BYTES_MAX { bytes } else { 0 };
        self.memory.take_counted(counted).map(|memory| WebSocketMessageMemory(memory.map(Arc::new)))
    }
}

impl Drop for WebSocketInbox {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// Sender of text messages to the client, over a bounded queue.
#[derive(Debug, Clone)]
pub struct WebSocketOutbox {
    outbound: Arc<SharedWebSocketOutbox>,
}

/// Error for a client that has left, or that the server dropped as too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientGoneError;

impl WebSocketOutbox {
    /// Queues `text`, which must be UTF-8, for the client without waiting. A client whose queue is
    /// full is dropped.
    ///
    /// # Errors
    /// The client is gone or was dropped.
    pub fn try_send(&self, text: Bytes) -> Result<(), ClientGoneError> {
        debug_assert!(std::str::from_utf8(&text).is_ok(), "messages are UTF-8");
        match self.outbound.queue.try_push(text) {
            Ok(()) => Ok(()),
            Err(QueuePushRefusal::Ended) => Err(ClientGoneError),
            Err(QueuePushRefusal::Full) => Err(self.outbound.drop_slow_client()),
        }
    }

    /// Queues `text`, which must be UTF-8, for the client. Waits while the queue is full. A client
    /// that does not read in time is dropped.
    ///
    /// Waiting senders are served in order, but [`try_send`](Self::try_send) may overtake them.
    ///
    /// # Errors
    /// The client is gone or was dropped.
    pub async fn send(&self, text: Bytes) -> Result<(), ClientGoneError> {
        debug_assert!(std::str::from_utf8(&text).is_ok(), "messages are UTF-8");
        let outbound = &self.outbound;
        let push = async {
            let _turn = outbound.send_lock.lock().await;
            outbound.queue.push(text).await
        };
        match timeout(outbound.send_timeout, push).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_ended)) => Err(ClientGoneError),
            Err(_elapsed) => Err(outbound.drop_slow_client()),
        }
    }

    /// Waits until the WebSocket client is gone.
    pub async fn wait_closed(&self) {
        self.outbound.gone.cancelled().await;
    }
}

/// State that all senders of messages to one client share.
#[derive(Debug)]
struct SharedWebSocketOutbox {
    queue: WebSocketMessageQueue,
    /// Lock that lets one sender at a time wait until the queue is not full.
    send_lock: Turnstile<()>,
    gone: CancellationToken,
    send_timeout: Duration,
}

impl SharedWebSocketOutbox {
    fn drop_slow_client(&self) -> ClientGoneError {
        self.queue.overflow();
        self.gone.cancel();
        ClientGoneError
    }

    /// Closes the queue for new messages. The server still sends the messages that are queued.
    fn end(&self) {
        self.queue.end();
        self.gone.cancel();
    }
}

/// Reason for closing a WebSocket, which the close frame contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebSocketCloseReason {
    /// Status code of the close frame. RFC 6455 allows only some codes to be sent.
    pub code: u16,
    /// Explanation in the close frame, of which the first 123 bytes are sent.
    pub reason: String,
}

impl WebSocketCloseReason {
    /// Creates the reason for a normal closure (1000).
    pub fn normal() -> Self {
        Self { code: 1000, reason: String::new() }
    }

    /// Creates the reason for a closure because the server stops (1001).
    pub fn going_away(reason: impl Into<String>) -> Self {
        Self { code: 1001, reason: reason.into() }
    }

    /// Creates the reason for a closure because of a protocol error (1002).
    pub fn protocol_error(reason: impl Into<String>) -> Self {
        Self { code: 1002, reason: reason.into() }
    }

    /// Creates the reason for a closure because of invalid text (1007).
    pub fn not_text(reason: impl Into<String>) -> Self {
        Self { code: 1007, reason: reason.into() }
    }

    /// Creates the reason for a closure because of a policy violation (1008).
    pub fn policy_violation(reason: impl Into<String>) -> Self {
        Self { code: 1008, reason: reason.into() }
    }

    /// Creates the reason for a closure because of a message beyond the size limit (1009).
    pub fn too_large(reason: impl Into<String>) -> Self {
        Self { code: 1009, reason: reason.into() }
    }

    /// Creates the reason for a closure because of an internal error (1011).
    pub fn internal_error(reason: impl Into<String>) -> Self {
        Self { code: 1011, reason: reason.into() }
    }

    /// Creates the reason for a closure that invites the client to try again later (1013).
    pub fn try_again_later(reason: impl Into<String>) -> Self {
        Self { code: 1013, reason: reason.into() }
    }
}

/// Runs the WebSocket conversation `talk` over `stream`. The bytes `early` were already read from
/// `stream`. The memory of the client's messages is charged to `owner`.
pub(crate) async fn run_conversation(
    stream: WriteTimeoutStream,
    early: Vec<u8>,
    (talk, owner): (Box<dyn WebSocketApplication>, InputMemoryOwner),
    bounds: &HttpServerLimits,
    stopping: CancellationToken,
) {
    let inbound = Arc::new(WebSocketMessageQueue::new(INBOX_MESSAGES_MAX, INBOX_BYTES_MAX));
    let outbound = Arc::new(SharedWebSocketOutbox {
        queue: WebSocketMessageQueue::new(
            bounds.socket_waiting_messages,
            bounds.socket_waiting_bytes,
        ),
        send_lock: Turnstile::default(),
        gone: CancellationToken::new(),
        send_timeout: bounds.write_time_max,
    });
    let memory = Arc::new(IncomingMessageMemory::new(bounds.input_memory.clone(), owner));
    let message_bytes_max = bounds.body_bytes_max;
    let inbox =
        WebSocketInbox { queue: inbound.clone(), memory: memory.clone(), message_bytes_max };
    let outbox = WebSocketOutbox { outbound: outbound.clone() };
    let mut socket =
        ClientWebSocket::open(stream, early, (inbound, memory), outbound, bounds).await;
    let talking = async move { talk.run(WebSocketHandle { inbox, outbox, stopping }).await };
    let mut talking = std::pin::pin!(AssertUnwindSafe(talking).catch_unwind());
    tokio::select! {
        // A close that is ready now is sent together with the last messages.
        biased;
        close = &mut talking => {
            let close = close.unwrap_or_else(|_panic| {
                tracing::error!("a WebSocket conversation panicked");
                WebSocketCloseReason::internal_error("the conversation failed on the server")
            });
            socket.finish(close).await;
        }
        end = socket.run() => {
            socket.end();
            let ended = timeout(bounds.drain, talking);
            // The socket's memory is free before the conversation has ended.
            let closing = async move { socket.close(end).await };
            let ((), ended) = tokio::join!(closing, ended);
            if ended.is_err() {
                tracing::warn!("a WebSocket conversation did not end after its client had left, \
                     so the server dropped it");
            }
        }
    }
}

/// Maximum number of a client's messages that may wait for the application before reading stops.
const INBOX_MESSAGES_MAX: usize = 16;
/// Maximum number of bytes of a client's messages that may wait for the application before reading
/// stops.
const INBOX_BYTES_MAX: usize = 64 << 10;
