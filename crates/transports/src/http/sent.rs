//! What is sent back: nothing, one message, a file piece by piece, or events as they come.

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
use toolgate_contract::{Body, OpenFile, Reply};

use super::SentEvent;
use super::seats::{Lasting, Turn};
use super::unsent::Owed;

/// A response's body.
pub(super) struct Sent {
    what: What,
    /// Over once this is sent, and whom it is owed to.
    of: Option<(Turn, Arc<Owed>)>,
}

enum What {
    Whole(Option<Bytes>),
    File(Pieces),
    Events(Box<Events>),
}

impl Sent {
    fn new(what: What) -> Self {
        Self { what, of: None }
    }

    /// The answer of `turn`, which lasts until this is sent, to whom it is `owed`.
    pub(super) fn of(self, turn: Turn, owed: Arc<Owed>) -> Self {
        if let What::Whole(Some(bytes)) = &self.what {
            owed.more(bytes.len());
        }
        Self { of: Some((turn, owed)), ..self }
    }
}

/// `reply` as a response.
pub(super) fn whole(reply: Reply) -> Response<Sent> {
    let Reply { status, headers, body } = reply;
    let (sent, kind) = match body {
        Body::Empty => (What::Whole(None), None),
        Body::Json(bytes) => {
            (What::Whole(Some(bytes)), Some(HeaderValue::from_static("application/json")))
        }
        Body::File(file) => {
            let kind = HeaderValue::from_str(&file.media_type).ok();
            (What::File(Pieces::of(file)), kind)
        }
    };
    let mut response = Response::new(Sent::new(sent));
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

/// `text` as a response.
pub(super) fn plain(status: StatusCode, text: &str) -> Response<Sent> {
    let mut response =
        Response::new(Sent::new(What::Whole(Some(Bytes::copy_from_slice(text.as_bytes())))));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// `events` as a response, which keeps the room that lasts.
pub(super) fn streamed(
    events: Pin<Box<dyn Stream<Item = SentEvent> + Send>>,
    keep_alive: Duration,
    lasting: Option<Lasting>,
) -> Response<Sent> {
    let keep_alive = ticks(keep_alive);
    let events = Box::new(Events { events, keep_alive, _lasting: lasting });
    let mut response = Response::new(Sent::new(What::Events(events)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A file, read piece by piece as the client takes them.
pub(super) struct Pieces {
    handle: Arc<File>,
    /// How much was handed over.
    offset: u64,
    /// How much is owed.
    bytes: u64,
    /// The piece being read.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    /// Given back once the file is sent.
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

/// How much of a file is read at once.
const PIECE_BYTES: usize = 64 << 10;

impl Pieces {
    fn of(file: OpenFile) -> Self {
        let OpenFile { handle, bytes, media_type: _, held } = file;
        Self { handle, offset: 0, bytes, reading: None, _held: held }
    }

    /// The next piece; a failure, by which the connection is cut, if the file is shorter than said.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.offset == self.bytes {
            return Poll::Ready(None);
        }
        let reading = match &mut self.reading {
            Some(reading) => reading,
            None => {
                let (handle, offset) = (self.handle.clone(), self.offset);
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
            Err(err) => tracing::warn!("a file was not sent whole: {err}"),
        }
        Poll::Ready(Some(piece))
    }
}

/// Messages as server-sent events, with a comment now and then while it is quiet.
pub(super) struct Events {
    events: Pin<Box<dyn Stream<Item = SentEvent> + Send>>,
    keep_alive: Interval,
    _lasting: Option<Lasting>,
}

impl Events {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.events.as_mut().poll_next(cx) {
            Poll::Ready(Some(message)) => {
                self.keep_alive.reset();
                Poll::Ready(Some(written(&message)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                self.keep_alive.poll_tick(cx).map(|_| Some(Bytes::from_static(b":\n\n")))
            }
        }
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// An event as bytes.
fn written(event: &SentEvent) -> Bytes {
    let SentEvent { name, id, retry, data } = event;
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

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Self { what, of } = self.get_mut();
        let bytes = match what {
            // It is owed since it was there.
            What::Whole(bytes) => return Poll::Ready(bytes.take().map(|it| Ok(Frame::data(it)))),
            What::File(pieces) => ready!(pieces.poll_piece(cx)),
            What::Events(events) => ready!(events.poll_event(cx)).map(Ok),
        };
        if let (Some(Ok(bytes)), Some((_, owed))) = (&bytes, of) {
            owed.more(bytes.len());
        }
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.what {
            What::Whole(bytes) => bytes.is_none(),
            What::File(pieces) => pieces.offset == pieces.bytes,
            What::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.what {
            What::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            What::File(pieces) => SizeHint::with_exact(pieces.bytes - pieces.offset),
            What::Events(_) => SizeHint::default(),
        }
    }
}
