//! Socket of one WebSocket client: reads, writes and pings in one task without blocking on any of
//! them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, Frame};
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::incoming::IncomingMessageMemory;
use super::queue::{WebSocketMessageQueue, WebSocketMessageQueueStatus};
use super::{SharedWebSocketOutbox, WebSocketCloseReason};
use crate::http::{HttpServerLimits, WriteTimeoutStream};

/// WebSocket of one client, which passes messages between the network and two queues.
pub(super) struct ClientWebSocket {
    socket: WebSocketStream<WriteTimeoutStream>,
    inbound: Arc<WebSocketMessageQueue>,
    /// Account of the memory of the messages that the client has sent.
    memory: Arc<IncomingMessageMemory>,
    /// Future that completes when the message that is arriving must give its memory to other
    /// messages.
    eviction: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    outbound: Arc<SharedWebSocketOutbox>,
    /// Part of the current message that has not been sent to the client yet.
    unsent_text: Option<Bytes>,
    /// True if data was written to the connection and may not be flushed yet.
    needs_flush: bool,
    keep_alive: WebSocketKeepAlive,
    message_bytes_max: usize,
}

/// Reason why a WebSocket is no longer read.
pub(super) enum WebSocketEndReason {
    /// All queued messages have been sent to the client, and no more will follow.
    Drained,
    /// The client sent a close frame.
    ClientClosed,
    /// The connection to the client was lost.
    Lost,
    /// The server closes the WebSocket for this reason.
    Closing(WebSocketCloseReason),
    /// The server has no memory for the message that is arriving.
    NoMemory,
}

/// Keep-alive state of a WebSocket client.
///
/// The server sends a ping in each silent interval, which the client must answer. A client that
/// stays silent for several intervals is dropped. Time in which the server does not read does not
/// count.
struct WebSocketKeepAlive {
    interval: Duration,
    /// Time of the last ping to the client.
    last_ping: Instant,
    /// Time since which the server reads from the client. `None` while the server does not read.
    reading_since: Option<Instant>,
    /// Timer for the next check of the client's silence.
    timer: Pin<Box<Sleep>>,
}

/// Number of silent intervals after which a client is dropped.
const SILENT_INTERVALS_MAX: u32 = 3;
/// Time limit for sending a close frame to a client whose message is dropped for lack of memory.
const NO_MEMORY_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time limit for a client to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest WebSocket frame, in bytes. Larger messages are split, to save memory and let pings
/// through.
const FRAME_BYTES_MAX: usize = 256 << 10;
/// Size of one read from a WebSocket, in bytes.
const READ_BYTES: usize = 8 << 10;
/// Size of the write buffer of a WebSocket, in bytes.
const WRITE_BYTES: usize = 16 << 10;
/// Longest reason that fits into the close frame of a WebSocket, in bytes.
const REASON_BYTES_MAX: usize = 123;

impl ClientWebSocket {
    /// Opens a WebSocket on `stream`. The bytes `early` were already read from `stream`.
    pub(super) async fn open(
        stream: WriteTimeoutStream,
        early: Vec<u8>,
        (inbound, memory): (Arc<WebSocketMessageQueue>, Arc<IncomingMessageMemory>),
        outbound: Arc<SharedWebSocketOutbox>,
        bounds: &HttpServerLimits,
    ) -> Self {
        let message_bytes_max = bounds.body_bytes_max;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(WRITE_BYTES)
            .max_message_size(Some(message_bytes_max))
            .max_frame_size(Some(message_bytes_max));
        let role = Role::Server;
        let socket = WebSocketStream::from_partially_read(stream, early, role, Some(config)).await;
        let keep_alive = WebSocketKeepAlive::new(bounds.keep_alive);
        let unsent_text = None;
        let needs_flush = false;
        Self {
            socket,
            inbound,
            memory,
            eviction: None,
            outbound,
            unsent_text,
            needs_flush,
            keep_alive,
            message_bytes_max,
        }
    }

    /// Transfers messages in both directions until the conversation ends.
    pub(super) async fn run(&mut self) -> WebSocketEndReason {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Closes both message queues for new messages. The server still sends the messages that are
    /// queued.
    pub(super) fn end(&self) {
        self.inbound.end();
        self.outbound.end();
    }

    /// Sends the queued messages, then closes the WebSocket.
    pub(super) async fn finish(&mut self, close: WebSocketCloseReason) {
        self.end();
        match self.run().await {
            WebSocketEndReason::Drained => self.close(WebSocketEndReason::Closing(close)).await,
            end @ (WebSocketEndReason::ClientClosed
            | WebSocketEndReason::Lost
            | WebSocketEndReason::Closing(_)
            | WebSocketEndReason::NoMemory) => self.close(end).await,
        }
    }

    /// Sends a close frame with the reason for `end`, and waits up to 2 s for the client's close
    /// frame.
    pub(super) async fn close(&mut self, end: WebSocketEndReason) {
        let close = match end {
            WebSocketEndReason::Lost => return,
            WebSocketEndReason::Drained => Some(WebSocketCloseReason::normal()),
            WebSocketEndReason::Closing(close) => Some(close),
            WebSocketEndReason::ClientClosed => None,
            // The memory of the message is needed now, so the client's answer is not awaited.
            WebSocketEndReason::NoMemory => {
                let reason =
                    "the server has no memory for the message now; send it again in a moment";
                let close = WebSocketCloseReason::try_again_later(reason);
                let sent = self.socket.close(Some(close.into()));
                let _ = timeout(NO_MEMORY_CLOSE_TIMEOUT, sent).await;
                return;
            }
        };
        let farewell = async {
            if let Some(close) = close {
                let _ = self.socket.close(Some(close.into())).await;
            }
            let _ = poll_fn(|cx| Pin::new(&mut self.socket).poll_flush(cx)).await;
            let stream = self.socket.get_mut();
            stream.shutdown().await?;
            // Closing with unread data would reset the connection, and the client might miss the
            // close frame.
            let mut unread = vec![0; READ_BYTES];
            while stream.read(&mut unread).await? > 0 {}
            std::io::Result::Ok(())
        };
        let _ = timeout(CLOSE_TIMEOUT, farewell).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        let end = self.poll_all(cx);
        match (&end, self.outbound.queue.poll_status(cx)) {
            (
                Poll::Pending | Poll::Ready(WebSocketEndReason::Drained),
                WebSocketMessageQueueStatus::Overflowed { waiting },
            ) => {
                let reason = format!("the client reads too slowly: {waiting} messages are waiting");
                Poll::Ready(WebSocketEndReason::Closing(WebSocketCloseReason::try_again_later(
                    reason,
                )))
            }
            (
                _,
                WebSocketMessageQueueStatus::Open
                | WebSocketMessageQueueStatus::Ended
                | WebSocketMessageQueueStatus::Overflowed { .. },
            ) => end,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        if let Poll::Ready(end) = self.poll_read(cx) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(end) = self.poll_write(cx) {
            return Poll::Ready(end);
        }
        self.poll_keep_alive(cx)
    }

    /// Reads messages of the client while the queue for the application is not full.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        loop {
            let room = self.inbound.poll_room(cx);
            self.keep_alive.set_reading(room.is_ready());
            if room.is_pending() {
                return self.poll_evicted(cx);
            }
            let received = Pin::new(&mut self.socket).poll_next(cx);
            let bytes_read = self.socket.get_ref().bytes_read();
            if self.memory.count_arriving(bytes_read).is_err() {
                return Poll::Ready(WebSocketEndReason::NoMemory);
            }
            if received.is_pending() {
                return self.poll_evicted(cx);
            }
            match ready!(received) {
                Some(Ok(Message::Text(text))) => self.queue_message(text.into()),
                Some(Ok(Message::Binary(bytes))) => self.queue_message(bytes),
                // tungstenite has queued the pong, which may still need a flush.
                Some(Ok(Message::Ping(_))) => {
                    self.memory.note_control(bytes_read);
                    self.needs_flush = true;
                }
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {
                    self.memory.note_control(bytes_read);
                }
                Some(Ok(Message::Close(_))) => {
                    return Poll::Ready(WebSocketEndReason::ClientClosed);
                }
                Some(Err(err)) => return Poll::Ready(self.end_for_error(&err)),
                None => return Poll::Ready(WebSocketEndReason::Lost),
            }
        }
    }

    /// Ends the WebSocket if other messages need the memory of the message that is arriving.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        ready!(self.memory.poll_evicted(cx, &mut self.eviction));
        Poll::Ready(WebSocketEndReason::NoMemory)
    }

    fn queue_message(&mut self, message: Bytes) {
        self.eviction = None;
        // The memory of a message that was just dropped is not needed any more.
        let bytes_read = self.socket.get_ref().bytes_read();
        let _ = self.memory.note_complete(bytes_read);
        // There is room, unless the consumer is gone.
        let _ = self.inbound.try_push(message);
    }

    /// Writes queued messages while the WebSocket accepts frames.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        loop {
            if let Err(err) = ready!(Pin::new(&mut self.socket).poll_ready(cx)) {
                return Poll::Ready(self.end_for_error(&err));
            }
            let message = match self.poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    if let Err(err) = self.write(Message::Frame(frame)) {
                        return Poll::Ready(self.end_for_error(&err));
                    }
                    continue;
                }
                Poll::Ready(None) => Poll::Ready(WebSocketEndReason::Drained),
                Poll::Pending => Poll::Pending,
            };
            if self.needs_flush {
                if let Err(err) = ready!(Pin::new(&mut self.socket).poll_flush(cx)) {
                    return Poll::Ready(self.end_for_error(&err));
                }
                self.needs_flush = false;
            }
            return message;
        }
    }

    fn write(&mut self, message: Message) -> Result<(), Error> {
        self.needs_flush = true;
        Pin::new(&mut self.socket).start_send(message)
    }

    /// Returns the next frame for the client, or `None` if no more will follow.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        let (mut text, code) = match self.unsent_text.take() {
            Some(rest) => (rest, Data::Continue),
            None => match ready!(self.outbound.queue.poll_pop(cx)) {
                Some(text) => (text, Data::Text),
                None => return Poll::Ready(None),
            },
        };
        let piece = text.split_to(text.len().min(FRAME_BYTES_MAX));
        let last = text.is_empty();
        self.unsent_text = (!last).then_some(text);
        Poll::Ready(Some(Frame::message(piece, OpCode::Data(code), last)))
    }

    /// Pings a silent client. Drops a client that was silent for too long.
    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<WebSocketEndReason> {
        loop {
            ready!(self.keep_alive.timer.as_mut().poll(cx));
            let last_read = self.socket.get_ref().last_read();
            match self.keep_alive.next_action(last_read, Instant::now()) {
                WebSocketKeepAliveAction::Nothing => {}
                WebSocketKeepAliveAction::GiveUp => {
                    tracing::debug!("a client was silent for too long");
                    return Poll::Ready(WebSocketEndReason::Lost);
                }
                // If the client does not read, the write timeout applies instead.
                WebSocketKeepAliveAction::Ping => match Pin::new(&mut self.socket).poll_ready(cx) {
                    Poll::Pending => {}
                    Poll::Ready(ready) => {
                        let sent = ready.and_then(|()| self.write(Message::Ping(Bytes::new())));
                        if let Err(err) = sent {
                            return Poll::Ready(self.end_for_error(&err));
                        }
                        if let Poll::Ready(end) = self.poll_write(cx) {
                            return Poll::Ready(end);
                        }
                    }
                },
            }
        }
    }

    /// Converts an error of the WebSocket to the reason why the WebSocket ends.
    fn end_for_error(&self, err: &Error) -> WebSocketEndReason {
        match err {
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                WebSocketEndReason::Lost
            }
            Error::Protocol(err) => {
                WebSocketEndReason::Closing(WebSocketCloseReason::protocol_error(err.to_string()))
            }
            Error::Capacity(_) => {
                let max = self.message_bytes_max;
                let reason = format!("a message may have at most {max} bytes");
                WebSocketEndReason::Closing(WebSocketCloseReason::too_large(reason))
            }
            Error::Utf8(_) => WebSocketEndReason::Closing(WebSocketCloseReason::not_text(
                "the message is not UTF-8",
            )),
            err => {
                tracing::debug!("a WebSocket connection failed: {err}");
                WebSocketEndReason::Lost
            }
        }
    }
}

impl Drop for ClientWebSocket {
    fn drop(&mut self) {
        self.end();
        // An outbox may outlive the socket, so the queued messages are dropped now.
        self.outbound.queue.abandon();
    }
}

/// Action that the keep-alive of a WebSocket requires.
#[derive(Debug, PartialEq, Eq)]
enum WebSocketKeepAliveAction {
    Nothing,
    Ping,
    GiveUp,
}

impl WebSocketKeepAlive {
    fn new(interval: Duration) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep(interval));
        Self { interval, last_ping: now, reading_since: Some(now), timer }
    }

    /// Records whether the server reads from the client. Silence of the client counts only while
    /// the server reads.
    fn set_reading(&mut self, listens: bool) {
        match (listens, self.reading_since) {
            (true, None) => self.reading_since = Some(Instant::now()),
            (false, Some(_)) => self.reading_since = None,
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Returns the keep-alive action that is due `now`, and sets the timer for the next check.
    fn next_action(&mut self, last_read: Instant, now: Instant) -> WebSocketKeepAliveAction {
        let silent_since = self.reading_since.map(|listening| listening.max(last_read));
        let next = last_read.max(self.last_ping) + self.interval;
        if silent_since.is_some_and(|since| now >= since + self.interval * SILENT_INTERVALS_MAX) {
            WebSocketKeepAliveAction::GiveUp
        } else if now >= next {
            self.last_ping = now;
            self.timer.as_mut().reset(now + self.interval);
            WebSocketKeepAliveAction::Ping
        } else {
            self.timer.as_mut().reset(next);
            WebSocketKeepAliveAction::Nothing
        }
    }
}

impl From<WebSocketCloseReason> for CloseFrame {
    fn from(close: WebSocketCloseReason) -> Self {
        let WebSocketCloseReason { code, mut reason } = close;
        debug_assert!(CloseCode::from(code).is_allowed(), "{code} is never sent");
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        CloseFrame { code: CloseCode::from(code), reason: reason.into() }
    }
}
