//! Messages as HTTP requests; answers as one message, a file, server-sent events or a conversation.

mod admission;
mod cors;
mod door;
mod heads;
mod keen;
mod occupancy;
mod patience;
mod quiet;
mod room;
mod seats;
mod secure;
mod sent;
mod unsent;
mod upgrade;
mod workers;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{BoxFuture, Caller, Frame, Head, Reply};

use crate::websocket::{Talk, converse};
pub use admission::Admission;
use door::{Client, Door};
use heads::Heeded;
#[cfg(any(fuzzing, test))]
pub(crate) use heads::check as check_heads;
pub use occupancy::Occupancy;
pub(crate) use patience::Patient;
use quiet::Quiet;
use seats::Lasting;
pub use secure::Entrance;
use secure::{Secure, Wire};
pub use workers::Workers;

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
    fn exchange<'a>(&'a self, incoming: &'a Incoming) -> BoxFuture<'a, Outgoing>;
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
    /// It asks for a feed or a conversation where there are as many as there may be.
    Crowded,
    /// So much is being read of others', or of other messages of whoever sent it, that it must wait.
    Full,
}

impl Unread {
    /// A sentence for whoever sent it.
    pub fn told(&self) -> String {
        match self {
            Self::TooLarge { limit } => format!("the body is larger than {limit} bytes"),
            Self::Late => "the body did not arrive in time".to_owned(),
            Self::Broken => "the body did not arrive whole".to_owned(),
            Self::Unfit(why) => why.clone(),
            Self::Crowded => {
                "as many streams and conversations as may be are open; close one, or come back later"
                    .to_owned()
            }
            Self::Full => {
                "as much is being read as there is room for; send it again in a moment".to_owned()
            }
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::Unfit(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Crowded | Self::Full => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Who sent a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// Somebody who may.
    Known(Caller),
    /// Whoever it is, where anybody may ask.
    Anybody,
    /// Nobody known.
    Nobody {
        /// Whether they said who they are.
        said: bool,
    },
    /// Somebody who says in one place several times who they are.
    Several,
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
    /// What is said until the answer, and the answer; dropped when the client goes away.
    Events(Pin<Box<dyn Stream<Item = SentEvent> + Send>>),
    /// Events for as long as the client likes; dropped when it goes away. There may be
    /// `Bounds::streams_max` of these and of conversations.
    Feed(Pin<Box<dyn Stream<Item = SentEvent> + Send>>),
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
    /// How much of answers may wait to be sent over all connections: beyond, whoever does not read
    /// and is owed most is cut off.
    pub unsent_bytes_max: usize,
    /// How long headers may take to arrive, and a connection may idle.
    pub head_time_max: Duration,
    /// How long a client may take to read the next piece of what it is sent.
    pub write_time_max: Duration,
    /// The most connections at once, WebSockets among them; for one more, the one goes that has
    /// waited for its client for longest, and while all are being answered it waits.
    pub connections_max: usize,
    /// The most that feeds and conversations may keep of them.
    pub streams_max: usize,
    /// The most of these for one caller who says who it is.
    pub streams_each: usize,
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
    /// Where it is said how many connections there are.
    pub occupancy: Occupancy,
}

/// Serves `exchange` at `entrance` (a `TcpListener` is enough) until `shutdown`, then lets requests
/// in flight finish.
pub async fn serve(
    entrance: impl Into<Entrance>,
    exchange: Arc<dyn Exchange>,
    admission: Admission,
    bounds: Bounds,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let Entrance { listener, secure, workers } = entrance.into();
    let door = Arc::new(Door::new(exchange, admission, bounds));
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let seat = tokio::select! {
                    seat = door.seats.take() => Arc::new(seat),
                    () = shutdown.cancelled() => break,
                };
                let (door, shutdown, abort) = (door.clone(), shutdown.clone(), abort.clone());
                let (secure, owed) = (secure.clone(), door.unsent.owed());
                let serve = async move |stream| {
                    let (doubt, agreed) = (Arc::default(), Mutex::default());
                    let (seat, owed) = (seat.clone(), owed.clone());
                    let client = Arc::new(Client { peer, seat, owed, doubt, agreed });
                    tokio::select! {
                        () = serve_connection(door, secure, stream, client.clone(), shutdown) => {}
                        () = client.seat.given_up() => {}
                        () = client.owed.cut_off() => {}
                        () = abort.cancelled() => {}
                    }
                };
                match &workers {
                    None => drop(connections.spawn(serve(stream))),
                    Some(workers) => {
                        if let Err(err) = workers.take(stream, &connections, serve) {
                            tracing::warn!("a connection was not accepted: {err}");
                        }
                    }
                }
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
    secure: Option<Secure>,
    stream: TcpStream,
    client: Arc<Client>,
    shutdown: CancellationToken,
) {
    // Without this an answer in two writes waits for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = match secure {
        None => Wire::Plain(stream),
        Some(secure) => {
            let agreed = secure.over(stream, door.bounds.head_time_max);
            let Some(wire) = shutdown.run_until_cancelled(agreed).await.flatten() else { return };
            wire
        }
    };
    let (patience, owed) = (door.bounds.write_time_max, client.owed.clone());
    let stream = Patient::new(stream, patience, owed, door.lookout.clone());
    let agreed = serve_requests(&door, stream, client.clone(), &shutdown).await;
    let Some(Agreed { talk, upgrade, lasting }) = agreed else { return };
    let turn = client.seat.turn();
    if lasting.is_of_somebody() {
        turn.is_of_somebody();
    }
    let parts = match upgrade.await.map(|upgraded| upgraded.downcast::<TokioIo<Heeded<Patient>>>())
    {
        Ok(Ok(parts)) => parts,
        Ok(Err(_)) | Err(_) => return tracing::debug!("a client left before it was talked with"),
    };
    let (stream, early) = (parts.io.into_inner().into_inner(), parts.read_buf.to_vec());
    Box::pin(converse(stream, early, talk, &door.bounds, shutdown)).await;
}

async fn serve_requests(
    door: &Arc<Door>,
    stream: Patient,
    client: Arc<Client>,
    shutdown: &CancellationToken,
) -> Option<Agreed> {
    let stream = Heeded::new(stream, client.doubt.clone());
    let service = service_fn(|request| {
        let (door, client) = (door.clone(), client.clone());
        async move { Ok::<_, Infallible>(door.answer(request, &client).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.bounds.head_time_max)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let connection = std::pin::pin!(connection);
    let mut connection = Quiet::new(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown.cancelled() => {
            connection.future.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = ended {
        tracing::debug!("a connection ended: {err}");
        return None;
    }
    client.agreed.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The conversation a client is to have once its last answer has left.
struct Agreed {
    talk: Box<dyn Talk>,
    upgrade: OnUpgrade,
    lasting: Lasting,
}
