//! Response bodies: empty, one message, a file in pieces, or an event stream.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use toolgate_budget::InputMemoryReservation;
use toolgate_contract::{OutgoingFile, Reply, ReplyBody};

use super::ServerSentEvent;
use super::connection_slots::{LongStreamSlot, OpenHttpRequest};
use super::unsent::UnsentBytesAccount;

/// Body of an HTTP response.
pub(super) struct ResponseBody {
    content: ResponseBodyContent,
    /// The request that ends when this body is sent, and the account of the connection's unsent
    /// bytes.
    turn: Option<(OpenHttpRequest, Arc<UnsentBytesAccount>)>,
}

/// Content of a response body: bytes, a file or an event stream.
enum ResponseBodyContent {
    Whole(Option<Bytes>),
    File(FileBodyPieces),
    Events(Box<EventStreamBody>),
}

impl ResponseBody {
    fn new(content: ResponseBodyContent) -> Self {
        Self { content, turn: None }
    }

    /// Attaches the request `turn`, which ends once this body is sent, and the connection's account
    /// of unsent bytes `owed`.
    pub(super) fn with_turn(self, turn: OpenHttpRequest, owed: Arc<UnsentBytesAccount>) -> Self {
        if let ResponseBodyContent::Whole(Some(bytes)) = &self.content {
            owed.add(bytes.len());
        }
        Self { turn: Some((turn, owed)), ..self }
    }
}

/// Converts `reply` to an HTTP response.
pub(super) fn reply_response(reply: Reply) -> Response<ResponseBody> {
    let Reply { status, headers, body } = reply;
    let (sent, kind) = match body {
        ReplyBody::Empty => (ResponseBodyContent::Whole(None), None),
        ReplyBody::Json(bytes) => (
            ResponseBodyContent::Whole(Some(bytes)),
            Some(HeaderValue::from_static("application/json")),
        ),
        ReplyBody::File(file) => {
            let kind = HeaderValue::from_str(&file.media_type).ok();
            (ResponseBodyContent::File(FileBodyPieces::new(file)), kind)
        }
    };
    let mut response = Response::new(ResponseBody::new(sent));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Creates an HTTP response with plain text.
pub(super) fn text_response(status: StatusCode, text: &str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::new(ResponseBodyContent::Whole(Some(
        Bytes::copy_from_slice(text.as_bytes()),
    ))));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// Creates an event stream response. `lasting` counts the stream towards the limit of streams, and
/// `input` is the memory of the request. The stream keeps both until it ends.
pub(super) fn event_stream_response(
    events: Pin<Box<dyn Stream<Item = ServerSentEvent> + Send>>,
    keep_alive: Duration,
    lasting: Option<LongStreamSlot>,
    input: Option<Arc<InputMemoryReservation>>,
) -> Response<ResponseBody> {
    let keep_alive = keep_alive_interval(keep_alive);
    let events = Box::new(EventStreamBody { events, keep_alive, _lasting: lasting, _input: input });
    let mut response = Response::new(ResponseBody::new(ResponseBodyContent::Events(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// File in a response body that is read in pieces while the client receives it.
pub(super) struct FileBodyPieces {
    handle: Arc<File>,
    /// Number of bytes of the file that have been passed on to the connection.
    offset: u64,
    /// Size of the file in bytes.
    bytes: u64,
    /// Pending read of the file's next piece.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Guard that the body holds until the whole file is sent.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

/// Size of one piece of a file, in bytes.
const PIECE_BYTES: usize = 64 << 10;

impl FileBodyPieces {
    fn new(file: OutgoingFile) -> Self {
        let OutgoingFile { handle, bytes, media_type: _, guard: held } = file;
        Self { handle, offset: 0, bytes, reading: None, _held: held }
    }

    /// Returns the next piece of the file, or an error if the file is shorter than announced. The
    /// error closes the connection.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.offset == self.bytes {
            return Poll::Ready(None);
        }
        let reading = match &mut self.reading {
            Some(reading) => reading,
            None => {
                let handle = self.handle.clone();
                let offset = self.offset;
                let left = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
                let read = move || {
                    let mut piece = vec![0; left.min(PIECE_BYTES)];
                    handle.read_exact_at(&mut piece, offset)?;
                    Ok(piece.into())
                };
                self.reading.insert(spawn_blocking(read))
            }
        };
        let piece = ready!(Pin::new(reading).poll(cx)).map_err(io::Error::other).flatten();
        self.reading = None;
        match &piece {
            Ok(piece) => self.offset += piece.len() as u64,
            Err(err) => tracing::warn!("a file was not sent completely: {err}"),
        }
        Poll::Ready(Some(piece))
    }
}

/// Stream of server-sent events in a response body, with comments as keep-alive.
pub(super) struct EventStreamBody {
    events: Pin<Box<dyn Stream<Item = ServerSentEvent> + Send>>,
    keep_alive: Interval,
    _lasting: Option<LongStreamSlot>,
    _input: Option<Arc<InputMemoryReservation>>,
}

impl EventStreamBody {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.events.as_mut().poll_next(cx) {
            Poll::Ready(Some(message)) => {
                self.keep_alive.reset();
                Poll::Ready(Some(event_bytes(&message)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                self.keep_alive.poll_tick(cx).map(|_| Some(Bytes::from_static(b":\n\n")))
            }
        }
    }
}

fn keep_alive_interval(every: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns `event` in the wire format of server-sent events.
fn event_bytes(event: &ServerSentEvent) -> Bytes {
    let ServerSentEvent { name, id, retry, data } = event;
    let mut bytes = Vec::with_capacity(data.len() + 64);
    if let Some(name) = name {
        bytes.extend_from_slice(b"event: ");
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'\n');
    }
    if let Some(id) = id {
        bytes.extend_from_slice(b"id: ");
        bytes.extend_from_slice(id.as_bytes());
        bytes.push(b'\n');
    }
    if let Some(retry) = retry {
        bytes.extend_from_slice(format!("retry: {}\n", retry.as_millis()).as_bytes());
    }
    bytes.extend_from_slice(b"data: ");
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { content: what, turn: of } = self.get_mut();
        let bytes = match what {
            // Already counted when the body was created.
            ResponseBodyContent::Whole(bytes) => {
                return Poll::Ready(bytes.take().map(|it| Ok(Frame::data(it))));
            }
            ResponseBodyContent::File(pieces) => ready!(pieces.poll_piece(cx)),
            ResponseBodyContent::Events(events) => ready!(events.poll_event(cx)).map(Ok),
        };
        if let (Some(Ok(bytes)), Some((_, owed))) = (&bytes, of) {
            owed.add(bytes.len());
        }
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            ResponseBodyContent::Whole(bytes) => bytes.is_none(),
            ResponseBodyContent::File(pieces) => pieces.offset == pieces.bytes,
            ResponseBodyContent::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            ResponseBodyContent::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            ResponseBodyContent::File(pieces) => SizeHint::with_exact(pieces.bytes - pieces.offset),
            ResponseBodyContent::Events(_) => SizeHint::default(),
        }
    }
}
