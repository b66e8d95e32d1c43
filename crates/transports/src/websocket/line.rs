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

use super::queue::{Queue, State};
use super::{Close, Outbound};
use crate::http::{Bounds, Patient};

/// Socket between the inbound and the outbound queue.
pub(super) struct Line {
    socket: WebSocketStream<Patient>,
    inbound: Arc<Queue>,
    outbound: Arc<Outbound>,
    /// Unsent rest of the current message.
    rest: Option<Bytes>,
    /// True if written data may not be flushed yet.
    unflushed: bool,
    pulse: Pulse,
    message_bytes_max: usize,
}

/// Reason why a socket is not read any more.
pub(super) enum End {
    /// All messages are sent, and no more will come.
    Said,
    /// The client sent a close frame.
    Left,
    /// The connection is lost.
    Lost,
    /// The server closes the connection.
    Dismissed(Close),
}

/// Keep-alive of a client.
///
/// A client is dropped if it sends nothing for several intervals, although each brought a ping that
/// it must answer. Times in which the server does not read do not count.
struct Pulse {
    keep_alive: Duration,
    /// Time of the last ping.
    pinged: Instant,
    /// Time since which the client is read, or `None` while it is not.
    listening: Option<Instant>,
    /// Timer for the next check.
    timer: Pin<Box<Sleep>>,
}

/// Silent intervals after which a client is dropped.
const SILENCES_MAX: u32 = 3;
/// Time for a client to answer a close frame.
const FAREWELL: Duration = Duration::from_secs(2);
/// Largest frame, in bytes. Larger messages are split, to save memory and let pings through.
const FRAME_BYTES: usize = 256 << 10;
/// Size of one read, in bytes.
const READ_BYTES: usize = 8 << 10;
/// Size of the write buffer, in bytes.
const WRITE_BYTES: usize = 16 << 10;
/// Longest reason that fits into a close frame, in bytes.
const REASON_BYTES: usize = 123;

impl Line {
    /// Opens a socket on `stream`, of which `early` was read already.
    pub(super) async fn open(
        stream: Patient,
        early: Vec<u8>,
        inbound: Arc<Queue>,
        outbound: Arc<Outbound>,
        bounds: &Bounds,
    ) -> Self {
        let message_bytes_max = bounds.body_bytes_max;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(WRITE_BYTES)
            .max_message_size(Some(message_bytes_max))
            .max_frame_size(Some(message_bytes_max));
        let role = Role::Server;
        let socket = WebSocketStream::from_partially_read(stream, early, role, Some(config)).await;
        let pulse = Pulse::new(bounds.keep_alive);
        let rest = None;
        let unflushed = false;
        Self { socket, inbound, outbound, rest, unflushed, pulse, message_bytes_max }
    }

    /// Transfers messages in both directions until the conversation ends.
    pub(super) async fn run(&mut self) -> End {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Ends both queues. Queued messages may still be sent.
    pub(super) fn end(&self) {
        self.inbound.end();
        self.outbound.end();
    }

    /// Sends the queued messages, then closes.
    pub(super) async fn finish(&mut self, close: Close) {
        self.end();
        match self.run().await {
            End::Said => self.hang_up(End::Dismissed(close)).await,
            end @ (End::Left | End::Lost | End::Dismissed(_)) => self.hang_up(end).await,
        }
    }

    /// Sends a close frame that fits `end`, and waits up to 2 s for the client's.
    pub(super) async fn hang_up(&mut self, end: End) {
        let close = match end {
            End::Lost => return,
            End::Said => Some(Close::normal()),
            End::Dismissed(close) => Some(close),
            End::Left => None,
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
        let _ = timeout(FAREWELL, farewell).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let end = self.poll_all(cx);
        match (&end, self.outbound.queue.watch(cx)) {
            (Poll::Pending | Poll::Ready(End::Said), State::Overflown { waiting }) => {
                let reason = format!("too slow: {waiting} messages were waiting");
                Poll::Ready(End::Dismissed(Close::try_again_later(reason)))
            }
            (_, State::Open | State::Ended | State::Overflown { .. }) => end,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(end) = self.poll_read(cx) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(end) = self.poll_write(cx) {
            return Poll::Ready(end);
        }
        self.poll_pulse(cx)
    }

    /// Reads while the inbound queue has room.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let room = self.inbound.poll_room(cx);
            self.pulse.listens(room.is_ready());
            ready!(room);
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Text(text))) => self.take(text.into()),
                Some(Ok(Message::Binary(bytes))) => self.take(bytes),
                // tungstenite has queued the pong, which may still need a flush.
                Some(Ok(Message::Ping(_))) => self.unflushed = true,
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) => return Poll::Ready(End::Left),
                Some(Err(err)) => return Poll::Ready(self.broken(&err)),
                None => return Poll::Ready(End::Lost),
            }
        }
    }

    fn take(&self, message: Bytes) {
        // There is room, unless the consumer is gone.
        let _ = self.inbound.offer(message);
    }

    /// Writes while the socket accepts frames.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if let Err(err) = ready!(Pin::new(&mut self.socket).poll_ready(cx)) {
                return Poll::Ready(self.broken(&err));
            }
            let said = match self.poll_frame(cx) {
                Poll::Ready(Some(frame)) => {
                    if let Err(err) = self.write(Message::Frame(frame)) {
                        return Poll::Ready(self.broken(&err));
                    }
                    continue;
                }
                Poll::Ready(None) => Poll::Ready(End::Said),
                Poll::Pending => Poll::Pending,
            };
            if self.unflushed {
                if let Err(err) = ready!(Pin::new(&mut self.socket).poll_flush(cx)) {
                    return Poll::Ready(self.broken(&err));
                }
                self.unflushed = false;
            }
            return said;
        }
    }

    fn write(&mut self, message: Message) -> Result<(), Error> {
        self.unflushed = true;
        Pin::new(&mut self.socket).start_send(message)
    }

    /// Returns the next outbound frame, or `None` when no more will come.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        let (mut text, code) = match self.rest.take() {
            Some(rest) => (rest, Data::Continue),
            None => match ready!(self.outbound.queue.poll_pop(cx)) {
                Some(text) => (text, Data::Text),
                None => return Poll::Ready(None),
            },
        };
        let piece = text.split_to(text.len().min(FRAME_BYTES));
        let last = text.is_empty();
        self.rest = (!last).then_some(text);
        Poll::Ready(Some(Frame::message(piece, OpCode::Data(code), last)))
    }

    /// Pings a silent client, and drops one that was silent for too long.
    fn poll_pulse(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            ready!(self.pulse.timer.as_mut().poll(cx));
            let heard = self.socket.get_ref().heard();
            match self.pulse.due(heard, Instant::now()) {
                Due::Nothing => {}
                Due::GivingUp => {
                    tracing::debug!("a client was silent for too long");
                    return Poll::Ready(End::Lost);
                }
                // If the client does not read, the write timeout applies instead.
                Due::Ping => match Pin::new(&mut self.socket).poll_ready(cx) {
                    Poll::Pending => {}
                    Poll::Ready(ready) => {
                        let sent = ready.and_then(|()| self.write(Message::Ping(Bytes::new())));
                        if let Err(err) = sent {
                            return Poll::Ready(self.broken(&err));
                        }
                        if let Poll::Ready(end) = self.poll_write(cx) {
                            return Poll::Ready(end);
                        }
                    }
                },
            }
        }
    }

    /// Translates an error of the socket.
    fn broken(&self, err: &Error) -> End {
        match err {
            Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Lost,
            Error::Protocol(err) => End::Dismissed(Close::protocol(err.to_string())),
            Error::Capacity(_) => {
                let max = self.message_bytes_max;
                let reason = format!("a message may have {max} bytes");
                End::Dismissed(Close::too_large(reason))
            }
            Error::Utf8(_) => End::Dismissed(Close::not_text("this is not UTF-8")),
            err => {
                tracing::debug!("a conversation broke off: {err}");
                End::Lost
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end();
        // An outbox may outlive the socket, so the queued messages are dropped now.
        self.outbound.queue.abandon();
    }
}

/// Action that the keep-alive requires.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Ping,
    GivingUp,
}

impl Pulse {
    fn new(keep_alive: Duration) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep(keep_alive));
        Self { keep_alive, pinged: now, listening: Some(now), timer }
    }

    /// Records if the client is being read. Silence counts only while it is.
    fn listens(&mut self, listens: bool) {
        match (listens, self.listening) {
            (true, None) => self.listening = Some(Instant::now()),
            (false, Some(_)) => self.listening = None,
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Returns the action that is due `now`, and sets the timer for the next check.
    fn due(&mut self, heard: Instant, now: Instant) -> Due {
        let silent_since = self.listening.map(|listening| listening.max(heard));
        let next = heard.max(self.pinged) + self.keep_alive;
        if silent_since.is_some_and(|since| now >= since + self.keep_alive * SILENCES_MAX) {
            Due::GivingUp
        } else if now >= next {
            self.pinged = now;
            self.timer.as_mut().reset(now + self.keep_alive);
            Due::Ping
        } else {
            self.timer.as_mut().reset(next);
            Due::Nothing
        }
    }
}

impl From<Close> for CloseFrame {
    fn from(close: Close) -> Self {
        let Close { code, mut reason } = close;
        debug_assert!(CloseCode::from(code).is_allowed(), "{code} is never sent");
        reason.truncate(reason.floor_char_boundary(REASON_BYTES));
        CloseFrame { code: CloseCode::from(code), reason: reason.into() }
    }
}
