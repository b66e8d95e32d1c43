//! Messages as HTTP requests; answers as one message, a file, server-sent events or a conversation.

mod admission;
mod cors;
mod upgrade;
mod sent;
mod patience;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming as IncomingBody;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{BoxFuture, Caller, Frame, Head, Reply};

use crate::websocket::{Talk, converse};
pub use admission::Admission;
use cors::Visitor;
pub(crate) use patience::Patient;
use sent::{Sent, plain, streamed, whole};
use upgrade::{Asked, switching};

/// The room behind HTTP.
pub trait Exchange: Send + Sync + 'static {
    /// Whether anything is served at `path`.
    fn serves(&self, path: &str) -> bool;
    /// Where something is served.
    fn paths(&self) -> Vec<&str>;
    /// Who sends what begins with `head`, from `peer`; by default whoever reaches the address may.
    /// Asked before the body is read.
    fn sender<'a>(&'a self, _head: &'a Head, _peer: SocketAddr) -> BoxFuture<'a, Sender> {
        Box::pin(async { Sender::Known(Caller::http()) })
    }
    /// Answers one message. Dropped when the client goes away first.
    fn exchange(&self, incoming: Incoming) -> BoxFuture<'_, Outgoing>;
    /// What to answer to a message that did not come as one that can be read; `None` leaves it to
    /// the transport.
    fn unread<'a>(&'a self, head: &'a Head, why: &'a Unread) -> BoxFuture<'a, Option<Reply>>;
    /// Whether `/healthz` is answered like any other path; else the transport answers it.
    fn answers_health(&self) -> bool {
        false
    }
}

/// Why a message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// It is larger than it may be.
    TooLarge {
        /// The cap in bytes.
        limit: usize,
    },
    /// It did not arrive in time.
    Late,
    /// It did not arrive whole.
    Broken,
    /// It is not of a kind that is read here.
    Unfit(String),
}

impl Unread {
    /// A sentence for whoever sent it.
    pub fn told(&self) -> String {
        match self {
            Self::TooLarge { limit } => format!("the body is larger than {limit} bytes"),
            Self::Late => "the body did not arrive in time".to_owned(),
            Self::Broken => "the body did not arrive whole".to_owned(),
            Self::Unfit(why) => why.clone(),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::Unfit(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// Who sent a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// Somebody who may.
    Known(Caller),
    /// Nobody known.
    Nobody {
        /// Whether they said who they are.
        said: bool,
    },
    /// Somewhere that has said too often who it is not.
    Guesser {
        /// How long it is to wait.
        retry_after: Duration,
    },
}

/// One message as it came.
#[derive(Debug)]
pub struct Incoming {
    /// The message; of one from nobody known without its body, where that is long or cannot be read.
    pub frame: Frame,
    /// Whether the client asks for a conversation (a WebSocket), and so may be answered with one.
    pub upgrade: bool,
    /// Who sent it.
    pub sender: Sender,
}

/// What goes back.
pub enum Outgoing {
    /// One message.
    Whole(Reply),
    /// A stream of events; dropped when the client goes away.
    Events(Pin<Box<dyn Stream<Item = SentEvent> + Send>>),
    /// A conversation, for a client that asked for one.
    Socket(Box<dyn Talk>),
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SentEvent {
    /// What kind it is of; without, a browser takes it for a `message`.
    pub name: Option<&'static str>,
    /// What a client that comes back says it heard last; no line breaks.
    pub id: Option<String>,
    /// How long a client that loses the connection should wait before it comes back.
    pub retry: Option<Duration>,
    /// What it says; no line breaks.
    pub data: Bytes,
}

impl SentEvent {
    /// A message, which says that it is one.
    pub fn message(data: Bytes) -> Self {
        Self { name: Some("message"), ..Self::plain(data) }
    }

    /// A message and nothing else.
    pub fn plain(data: Bytes) -> Self {
        Self { name: None, id: None, retry: None, data }
    }
}

/// What a server bears.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The largest body, and the largest message of a conversation, in bytes.
    pub body_bytes_max: usize,
    /// How long a body may take to arrive.
    pub body_time_max: Duration,
    /// How long headers may take to arrive, and a connection may idle.
    pub head_time_max: Duration,
    /// How long a client may take to read the next piece of what it is sent.
    pub write_time_max: Duration,
    /// The most connections at once, WebSockets among them; more wait to be accepted.
    pub connections_max: usize,
    /// How often a quiet event stream says that it lives, and a quiet WebSocket client is asked
    /// whether it does; silent for three times as long, it is given up.
    pub keep_alive: Duration,
    /// How long requests and conversations may go on once the server is to stop, before they are
    /// cut.
    pub drain: Duration,
    /// How many messages may wait for a WebSocket client before it is too slow.
    pub socket_waiting_messages: usize,
    /// How many bytes of them: it is too slow when as many wait and one more message comes.
    pub socket_waiting_bytes: usize,
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
            Ok((stream, peer)) => {
                let (door, shutdown, abort) = (door.clone(), shutdown.clone(), abort.clone());
                connections.spawn(async move {
                    let served = serve_connection(door, stream, peer, shutdown);
                    abort.run_until_cancelled(served).await;
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

/// Answers the requests of one client, and talks with it if that is what they come to.
async fn serve_connection(
    door: Arc<Door>,
    stream: TcpStream,
    peer: SocketAddr,
    shutdown: CancellationToken,
) {
    // Without this an answer in two writes waits for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = Patient::new(stream, door.bounds.write_time_max);
    let Some(Agreed { talk, upgrade }) = serve_requests(&door, stream, peer, &shutdown).await
    else {
        return;
    };
    let parts = match upgrade.await.map(|upgraded| upgraded.downcast::<TokioIo<Patient>>()) {
        Ok(Ok(parts)) => parts,
        Ok(Err(_)) | Err(_) => return tracing::debug!("a client left before it was talked with"),
    };
    let (stream, early) = (parts.io.into_inner(), parts.read_buf.to_vec());
    Box::pin(converse(stream, early, talk, &door.bounds, shutdown)).await;
}

async fn serve_requests(
    door: &Arc<Door>,
    stream: Patient,
    peer: SocketAddr,
    shutdown: &CancellationToken,
) -> Option<Agreed> {
    let agreed = Arc::new(Mutex::new(None));
    let service = {
        let agreed = agreed.clone();
        service_fn(move |request| {
            let (door, agreed) = (door.clone(), agreed.clone());
            async move { Ok::<_, Infallible>(door.answer(request, peer, &agreed).await) }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.bounds.head_time_max)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = ended {
        tracing::debug!("a connection ended: {err}");
        return None;
    }
    agreed.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The conversation a client is to have once its last answer has left.
struct Agreed {
    talk: Box<dyn Talk>,
    upgrade: OnUpgrade,
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
    async fn answer(
        &self,
        request: Request<IncomingBody>,
        peer: SocketAddr,
        agreed: &Mutex<Option<Agreed>>,
    ) -> Response<Sent> {
        if let Err(refusal) = self.admission.check(&request) {
            return plain(refusal.status, &refusal.why);
        }
        let visitor = Visitor::of(&request);
        let mut response = match &visitor {
            Some(visitor) if visitor.only_asks() => whole(Reply::empty(204)),
            Some(_) | None => self.answer_admitted(request, peer, agreed).await,
        };
        if let Some(visitor) = visitor {
            visitor.allow(response.headers_mut());
        }
        response
    }

    async fn answer_admitted(
        &self,
        mut request: Request<IncomingBody>,
        peer: SocketAddr,
        agreed: &Mutex<Option<Agreed>>,
    ) -> Response<Sent> {
        let path = request.uri().path();
        if path == "/healthz" && !self.exchange.answers_health() {
            return plain(StatusCode::OK, "ok\n");
        }
        if !self.exchange.serves(path) {
            let paths = self.exchange.paths().join(", ");
            let why = format!("nothing is served at {path}; what is: {paths}\n");
            return plain(StatusCode::NOT_FOUND, &why);
        }
        let asked = match Asked::by(&request) {
            Ok(asked) => asked,
            Err(misasked) => return misasked.refusal(),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let unfit = unreadable(&parts.method, &parts.headers);
        let head = head(parts);
        let sender = self.exchange.sender(&head, peer).await;
        let (body, _room) = match (&sender, unfit) {
            (Sender::Known(_), Some(unfit)) => return self.refuse(&head, &unfit).await,
            (Sender::Known(_), None) => match self.read(body).await {
                Ok((body, room)) => (body, Some(room)),
                Err(unread) => return self.refuse(&head, &unread).await,
            },
            (Sender::Nobody { .. } | Sender::Guesser { .. }, Some(_)) => (Bytes::new(), None),
            (Sender::Nobody { .. } | Sender::Guesser { .. }, None) => {
                (self.glance(body).await, None)
            }
        };
        let frame = Frame { head, body };
        let incoming = Incoming { frame, upgrade: asked.is_some(), sender };
        match (self.exchange.exchange(incoming).await, asked) {
            (Outgoing::Whole(reply), _) => whole(reply),
            (Outgoing::Events(events), _) => streamed(events, self.bounds.keep_alive),
            (Outgoing::Socket(talk), Some(asked)) => {
                let mut agreed = agreed.lock().unwrap_or_else(PoisonError::into_inner);
                *agreed = Some(Agreed { talk, upgrade });
                switching(&asked)
            }
            (Outgoing::Socket(_), None) => {
                tracing::error!("a conversation was offered to a client that asked for none");
                plain(StatusCode::INTERNAL_SERVER_ERROR, "the server is at fault\n")
            }
        }
    }

    async fn refuse(&self, head: &Head, unread: &Unread) -> Response<Sent> {
        match self.exchange.unread(head, unread).await {
            Some(reply) => whole(reply),
            None => plain(unread.status(), &format!("{}\n", unread.told())),
        }
    }

    /// The body, and the room it takes; `room` is to be held until it is done with.
    async fn read(&self, body: IncomingBody) -> Result<(Bytes, SemaphorePermit<'_>), Unread> {
        let max = self.bounds.body_bytes_max;
        // A body that does not say how long it is may be as long as any.
        let length = body.size_hint().exact().map_or(Ok(max), usize::try_from);
        let length = length.unwrap_or(usize::MAX);
        if length > max {
            return Err(Unread::TooLarge { limit: max });
        }
        let room = u32::try_from(kib(length)).unwrap_or(u32::MAX);
        let whole = async {
            let room = self.room.acquire_many(room).await.map_err(|_| Unread::Broken)?;
            match Limited::new(body, max).collect().await {
                Ok(body) => Ok((body.to_bytes(), room)),
                Err(err) if err.is::<LengthLimitError>() => Err(Unread::TooLarge { limit: max }),
                Err(_) => Err(Unread::Broken),
            }
        };
        timeout(self.bounds.body_time_max, whole).await.unwrap_or(Err(Unread::Late))
    }

    /// The body of a message from nobody known, if it is short; it takes no room from others.
    async fn glance(&self, body: IncomingBody) -> Bytes {
        let max = GLANCE_BYTES_MAX.min(self.bounds.body_bytes_max);
        if body.size_hint().lower() > max as u64 {
            return Bytes::new();
        }
        let whole = timeout(self.bounds.body_time_max, Limited::new(body, max).collect()).await;
        whole.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
    }
}

/// How much of a body is read that comes from nobody known: enough to find its id.
const GLANCE_BYTES_MAX: usize = 64 << 10;

/// How many bodies of the largest size there is room for at once.
const BODIES_IN_ROOM: usize = 8;

fn kib(bytes: usize) -> usize {
    bytes / 1024 + 1
}

fn head(parts: Parts) -> Head {
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    Head::Http { method: parts.method, path, query, headers: parts.headers }
}

/// The refusal of a body that is not plain JSON.
fn unreadable(method: &Method, headers: &HeaderMap) -> Option<Unread> {
    if method != Method::POST {
        return None;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = format!("the content type is `{kind}`; send application/json");
        return Some(Unread::Unfit(why));
    }
    let encoding = text(CONTENT_ENCODING).unwrap_or("identity");
    (!encoding.eq_ignore_ascii_case("identity")).then(|| {
        Unread::Unfit(format!("the content encoding is `{encoding}`; send the body as it is"))
    })
}
