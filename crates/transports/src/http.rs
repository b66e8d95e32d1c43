//! Messages as HTTP requests; answers as one message or as server-sent events.

mod admission;
mod cors;
mod patience;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame as BodyFrame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming as IncomingBody;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Interval, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{Body, BoxFuture, Frame, Head, Reply};

pub use admission::Admission;
use cors::Visitor;
use patience::Patient;

/// The room behind HTTP.
pub trait Exchange: Send + Sync + 'static {
    /// Whether anything is served at `path`.
    fn serves(&self, path: &str) -> bool;
    /// Where something is served.
    fn paths(&self) -> Vec<&str>;
    /// Answers one message. Dropped when the client goes away first.
    fn exchange(&self, incoming: Incoming) -> BoxFuture<'_, Outgoing>;
    /// What to answer at `path` to a message of more than `limit` bytes.
    fn too_large(&self, path: &str, limit: usize) -> Reply;
}

/// One message as it came.
#[derive(Debug)]
pub struct Incoming {
    /// Where to.
    pub path: String,
    /// The message.
    pub frame: Frame,
}

/// What goes back.
pub enum Outgoing {
    /// One message.
    Whole(Reply),
    /// A stream of events, each a message; dropped when the client goes away.
    Events(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

/// What a server bears.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The largest body, in bytes.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_time_max: Duration,
    /// How long headers may take to arrive, and a connection may idle.
    pub head_time_max: Duration,
    /// How long a client may take to read the next piece of an answer.
    pub write_time_max: Duration,
    /// The most connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// How often a quiet event stream says that it lives.
    pub keep_alive: Duration,
    /// How long requests in flight may take once the server is to stop, before they are cut.
    pub drain: Duration,
}

/// Serves `exchange` on `listener` until `shutdown`, then lets requests in flight finish.
pub async fn serve(
    listener: TcpListener,
    exchange: Arc<dyn Exchange>,
    admission: Admission,
    bounds: Bounds,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let room = Semaphore::new(kib(bounds.body_bytes_max) * BODIES_IN_ROOM);
    let door = Arc::new(Door { exchange, admission, room, bounds });
    let places = Arc::new(Semaphore::new(door.bounds.connections_max));
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place.map_err(io::Error::other)?,
            () = shutdown.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (door, shutdown, abort) = (door.clone(), shutdown.clone(), abort.clone());
                connections.spawn(async move {
                    serve_connection(door, stream, shutdown, abort).await;
                    drop(place);
                });
            }
            Err(err) => {
                // Out of descriptors, or the client left already: the next may fare better.
                tracing::warn!("a connection was not accepted: {err}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if timeout(door.bounds.drain, connections.wait()).await.is_err() {
        abort.cancel();
        connections.wait().await;
    }
    Ok(())
}

async fn serve_connection(
    door: Arc<Door>,
    stream: TcpStream,
    shutdown: CancellationToken,
    abort: CancellationToken,
) {
    // Without this an answer in two writes waits for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let (head_time_max, write_time_max) = (door.bounds.head_time_max, door.bounds.write_time_max);
    let service = service_fn(move |request| {
        let door = door.clone();
        async move { Ok::<_, Infallible>(door.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time_max)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(Patient::new(stream, write_time_max)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = &mut connection => return log_end(ended),
        () = shutdown.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = connection => log_end(ended),
        () = abort.cancelled() => {}
    }
}

fn log_end(ended: Result<(), hyper::Error>) {
    if let Err(err) = ended {
        tracing::debug!("a connection ended: {err}");
    }
}

/// Where requests come in: admitted, read whole, passed on.
struct Door {
    exchange: Arc<dyn Exchange>,
    admission: Admission,
    /// Room for bodies, in KiB. Each takes its own until it is answered.
    room: Semaphore,
    bounds: Bounds,
}

impl Door {
    async fn answer(&self, request: Request<IncomingBody>) -> Response<Sent> {
        if let Err(refusal) = self.admission.check(&request) {
            return plain(refusal.status, &refusal.why);
        }
        let visitor = Visitor::of(&request);
        let mut response = match &visitor {
            Some(visitor) if visitor.only_asks() => whole(Reply::empty(204)),
            Some(_) | None => self.answer_admitted(request).await,
        };
        if let Some(visitor) = visitor {
            visitor.allow(response.headers_mut());
        }
        response
    }

    async fn answer_admitted(&self, request: Request<IncomingBody>) -> Response<Sent> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if path == "/healthz" {
            return plain(StatusCode::OK, "ok\n");
        }
        if !self.exchange.serves(path) {
            let paths = self.exchange.paths().join(", ");
            let why = format!("nothing is served at {path}; what is: {paths}\n");
            return plain(StatusCode::NOT_FOUND, &why);
        }
        if let Some(refusal) = unreadable(&parts.method, &parts.headers) {
            return refusal;
        }
        let (body, _room) = match self.read(&parts.headers, body).await {
            Ok(read) => read,
            Err(Unread::TooLarge) => {
                return whole(self.exchange.too_large(path, self.bounds.body_bytes_max));
            }
            Err(Unread::Late) => {
                return plain(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n");
            }
            Err(Unread::Broken) => {
                return plain(StatusCode::BAD_REQUEST, "the body did not arrive whole\n");
            }
        };
        let path = path.to_owned();
        let frame =
            Frame { head: Head::Http { method: parts.method, headers: parts.headers }, body };
        match self.exchange.exchange(Incoming { path, frame }).await {
            Outgoing::Whole(reply) => whole(reply),
            Outgoing::Events(events) => self.events(events),
        }
    }

    /// The body, and the room it takes; `room` is to be held until it is done with.
    async fn read(
        &self,
        headers: &HeaderMap,
        body: IncomingBody,
    ) -> Result<(Bytes, SemaphorePermit<'_>), Unread> {
        let max = self.bounds.body_bytes_max;
        let declared =
            headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        // A body that does not say how long it is may be as long as any.
        let length: usize = declared.unwrap_or(max);
        if length > max {
            return Err(Unread::TooLarge);
        }
        let room = u32::try_from(kib(length)).unwrap_or(u32::MAX);
        let whole = async {
            let room = self.room.acquire_many(room).await.map_err(|_| Unread::Broken)?;
            match Limited::new(body, max).collect().await {
                Ok(body) => Ok((body.to_bytes(), room)),
                Err(err) if err.is::<LengthLimitError>() => Err(Unread::TooLarge),
                Err(_) => Err(Unread::Broken),
            }
        };
        timeout(self.bounds.body_time_max, whole).await.unwrap_or(Err(Unread::Late))
    }

    fn events(&self, events: Pin<Box<dyn Stream<Item = Bytes> + Send>>) -> Response<Sent> {
        let mut response = Response::new(Sent::Events(Box::new(Events {
            events,
            keep_alive: keep_alive(self.bounds.keep_alive),
        })));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

/// How many bodies of the largest size there is room for at once.
const BODIES_IN_ROOM: usize = 8;

fn kib(bytes: usize) -> usize {
    bytes / 1024 + 1
}

enum Unread {
    TooLarge,
    Late,
    Broken,
}

/// The refusal of a body that is not plain JSON.
fn unreadable(method: &Method, headers: &HeaderMap) -> Option<Response<Sent>> {
    if method != Method::POST {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = format!("the content type is `{kind}`; send application/json\n");
        return Some(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, &why));
    }
    let encoding = text(CONTENT_ENCODING).unwrap_or("identity");
    (!encoding.eq_ignore_ascii_case("identity")).then(|| {
        let why = format!("the content encoding is `{encoding}`; send the body as it is\n");
        plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, &why)
    })
}

fn whole(reply: Reply) -> Response<Sent> {
    let Reply { status, headers, body } = reply;
    let mut response = match body {
        Body::Empty => Response::new(Sent::Whole(None)),
        Body::Json(bytes) => {
            let mut response = Response::new(Sent::Whole(Some(bytes)));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
    };
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Sent> {
    let mut response = Response::new(Sent::Whole(Some(Bytes::copy_from_slice(text.as_bytes()))));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// A response's body.
enum Sent {
    Whole(Option<Bytes>),
    Events(Box<Events>),
}

/// Messages as server-sent events, with a comment now and then while it is quiet.
struct Events {
    events: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    keep_alive: Interval,
}

fn keep_alive(every: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(BodyFrame::data(bytes)))),
            Self::Events(stream) => match stream.events.as_mut().poll_next(cx) {
                Poll::Ready(Some(message)) => {
                    stream.keep_alive.reset();
                    Poll::Ready(Some(Ok(BodyFrame::data(event(&message)))))
                }
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => {
                    let comment = || Some(Ok(BodyFrame::data(Bytes::from_static(b":\n\n"))));
                    stream.keep_alive.poll_tick(cx).map(|_| comment())
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// `message`, which holds no line break, as one event.
fn event(message: &[u8]) -> Bytes {
    [b"event: message\ndata: ", message, b"\n\n"].concat().into()
}
