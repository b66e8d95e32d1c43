//! HTTP transport: receives requests, and sends responses with messages, files or event streams,
//! and WebSocket messages.

mod admission;
mod cors;
mod request_handler;
mod head_checks;
mod occupancy;
mod write_timeout;
mod connection_slots;
mod listener;
mod response_body;
mod unsent;
mod upgrade;
mod refusal_examples;
pub mod websocket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::header::CONNECTION;
use http::{HeaderValue, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_budget::{InputMemoryBudget, InputMemoryOwner, InputMemoryReservation};
use toolgate_contract::{BoxFuture, Caller, FrameMetadata, MessageFrame, Reply, lock_mutex};
use toolgate_net::WorkerPool;

use crate::http::websocket::{WebSocketApplication, run_conversation};
pub use admission::RequestOriginRules;
use connection_slots::{ConnectionSlot, LongStreamSlot};
use head_checks::RequestHeadCheckedStream;
#[cfg(any(fuzzing, test))]
pub(crate) use head_checks::check as check_heads;
pub use listener::HttpListener;
use listener::{ClientByteStream, TlsHandshaker};
pub use occupancy::OpenConnectionCounter;
pub use refusal_examples::{RefusalResponseExample, refusal_examples};
use request_handler::{ClientConnection, RequestHandler};
pub(crate) use write_timeout::WriteTimeoutStream;

/// Application that answers the requests of an HTTP server.
pub trait HttpApplication: Send + Sync + 'static {
    /// Returns true if the application serves the URL path `path`.
    fn serves(&self, path: &str) -> bool;
    /// Returns all URL paths that the application serves.
    fn paths(&self) -> Vec<&str>;
    /// Returns the served URL path that is similar to `path`, if there is one.
    fn nearest_path(&self, _path: &str) -> Option<&str> {
        None
    }
    /// Authenticates the sender of the request `head` at the address `peer`, before the body is
    /// read. By default, accepts everyone as an anonymous caller.
    fn authenticate<'a>(
        &'a self,
        _head: &'a FrameMetadata,
        _peer: SocketAddr,
    ) -> BoxFuture<'a, RequestSenderIdentity> {
        Box::pin(async { RequestSenderIdentity::Known(Caller::anonymous()) })
    }
    /// Returns true if the body of a message to `path` may be a form of a web page
    /// (`application/x-www-form-urlencoded`) instead of JSON.
    fn accepts_form(&self, _path: &str) -> bool {
        false
    }
    /// Answers one HTTP request. If the client disconnects first, the server drops the future.
    fn handle<'a>(&'a self, incoming: &'a ReceivedRequest) -> BoxFuture<'a, OutgoingResponse>;
    /// Returns the answer to a request that could not be read, or `None` to use the transport's
    /// default answer.
    fn answer_unread<'a>(
        &'a self,
        head: &'a FrameMetadata,
        why: &'a UnreadableRequestReason,
    ) -> BoxFuture<'a, Option<Reply>>;
    /// Returns true if the application answers `/healthz` itself. Otherwise the transport answers
    /// this path.
    fn answers_health(&self) -> bool {
        false
    }
}

/// Reason why an HTTP request cannot be read or answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreadableRequestReason {
    /// The body is larger than the limit.
    TooLarge {
        /// The size limit that the body exceeds, in bytes.
        limit: usize,
    },
    /// The body did not arrive in time.
    TimedOut,
    /// The connection ended within the body.
    Incomplete,
    /// The content type or encoding is not supported. The text explains the problem.
    Unsupported(String),
    /// The request asks for an event stream or a WebSocket, but the maximum number of those is
    /// open.
    TooManyStreams,
    /// The memory budget for request bodies has too little free memory for this body.
    NoBodyRoom,
}

impl UnreadableRequestReason {
    /// Returns a message that explains the problem to the sender of the request.
    pub fn message(&self) -> String {
        match self {
            Self::TooLarge { limit } => format!("the request body is larger than {limit} bytes"),
            Self::TimedOut => "the request body did not arrive in time".to_owned(),
            Self::Incomplete => "the request body is incomplete".to_owned(),
            Self::Unsupported(why) => why.clone(),
            Self::TooManyStreams => {
                "too many event streams and WebSockets are open; close one, or try again later"
                    .to_owned()
            }
            Self::NoBodyRoom => {
                "the server has no memory for the request body now; send the request again in a \
                 moment"
                    .to_owned()
            }
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TimedOut => StatusCode::REQUEST_TIMEOUT,
            Self::Incomplete => StatusCode::BAD_REQUEST,
            Self::Unsupported(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooManyStreams | Self::NoBodyRoom => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The sender of an HTTP request, according to its authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestSenderIdentity {
    /// The sender of the request is this authenticated caller.
    Known(Caller),
    /// The sender of the request is anonymous, and the request needs no authentication.
    Anonymous,
    /// The request has no valid credential.
    Unauthenticated {
        /// True if the request contained a credential.
        had_credential: bool,
    },
    /// The request has several credentials in one header.
    MultipleCredentials,
    /// Too many attempts to authenticate from the sender's address have failed.
    Throttled {
        /// Time to wait before the next attempt to authenticate.
        retry_after: Duration,
    },
}

/// HTTP request with its sender, as the application receives it.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// Head and body of the request. The body may be missing if the sender is not authenticated.
    pub frame: MessageFrame,
    /// True if the client requests a WebSocket. Only then may the response be a WebSocket.
    pub upgrade: bool,
    /// Sender of the request.
    pub sender: RequestSenderIdentity,
    /// Address of the client's connection, which may be that of a proxy.
    pub peer: SocketAddr,
    /// Reservation of memory for the request. `None` if the request is small. Tasks that use the
    /// request after the connection has ended must keep this reservation.
    pub memory: Option<Arc<InputMemoryReservation>>,
}

/// Response of the application to an HTTP request.
pub enum OutgoingResponse {
    /// Response that consists of one message or file.
    Single(Reply),
    /// Event stream that ends with the answer. The stream is dropped if the client disconnects.
    AnswerStream(Pin<Box<dyn Stream<Item = ServerSentEvent> + Send>>),
    /// Event stream that lasts until the client disconnects. Such streams count towards
    /// `HttpServerLimits::streams_max`, as WebSockets do.
    LongStream(Pin<Box<dyn Stream<Item = ServerSentEvent> + Send>>),
    /// WebSocket conversation, for a client that requested one.
    Socket(Box<dyn WebSocketApplication>),
}

/// Server-sent event in a stream to the client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerSentEvent {
    /// Event type. If absent, browsers use `message`.
    pub name: Option<&'static str>,
    /// Event id, without line breaks. A client that reconnects sends the last id that it received.
    pub id: Option<String>,
    /// Time after which the client reconnects if the connection is lost.
    pub retry: Option<Duration>,
    /// Content of the event, without line breaks.
    pub data: Bytes,
}

impl ServerSentEvent {
    /// Creates an event of the type `message`.
    pub fn message(data: Bytes) -> Self {
        Self { name: Some("message"), ..Self::plain(data) }
    }

    /// Creates an event that has only data, without a type, an id or a reconnection delay.
    pub fn plain(data: Bytes) -> Self {
        Self { name: None, id: None, retry: None, data }
    }
}

/// Limits of the HTTP server.
#[derive(Debug, Clone)]
pub struct HttpServerLimits {
    /// Largest request body or WebSocket message, in bytes.
    pub body_bytes_max: usize,
    /// Memory budget for all request bodies and WebSocket messages that arrive. All listeners share
    /// this budget.
    pub input_memory: InputMemoryBudget,
    /// Time limit for a request body to arrive completely.
    pub body_time_max: Duration,
    /// Maximum number of bytes of answers that wait to be sent, over all connections. Above this
    /// limit, the server disconnects the client with the most unsent bytes, stuck clients first.
    pub unsent_bytes_max: usize,
    /// Time limit for the headers of a request to arrive, and maximum idle time of a connection.
    pub head_time_max: Duration,
    /// Time limit for a client to read the next part of a response.
    pub write_time_max: Duration,
    /// Maximum number of connections at once, including WebSockets. At the limit, a new connection
    /// replaces the connection that has waited longest for its client. If all connections are busy,
    /// the new connection waits.
    pub connections_max: usize,
    /// Maximum number of long-lived event streams and WebSockets at once.
    pub streams_max: usize,
    /// Maximum number of long-lived event streams and WebSockets of one authenticated caller.
    pub streams_each: usize,
    /// Pause after which an event stream sends a comment, and a WebSocket sends a ping. A WebSocket
    /// client that stays silent for three such pauses is dropped.
    pub keep_alive: Duration,
    /// Time limit for requests and conversations to finish after shutdown starts.
    pub drain: Duration,
    /// Maximum number of messages that may wait for a WebSocket client before it is dropped as too
    /// slow.
    pub socket_waiting_messages: usize,
    /// Maximum number of bytes of messages that may wait for a WebSocket client. At this limit, the
    /// next message causes the server to drop the client.
    pub socket_waiting_bytes: usize,
    /// Counter of current connections and streams.
    pub occupancy: OpenConnectionCounter,
}

/// Time after the start of a shutdown for which connections still accept a request. A load balancer
/// may have sent a request already, and does not repeat this request if the connection is closed.
const LATE_REQUEST_GRACE: Duration = Duration::from_millis(100);
/// Time after the start of a shutdown for which connections without any request so far still accept
/// one. Clients opened them for a request, which may be late if the client's machine is busy.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);
/// Maximum number of waiting connections that are accepted after shutdown starts.
const LATE_CONNECTIONS_MAX: usize = 1024;

/// Serves the application `exchange` at the listener `entrance`, which may be a `TcpListener`.
/// After `shutdown` is cancelled, finishes requests in flight, and serves requests on connections
/// that clients had opened before.
///
/// # Errors
/// Fails if the listener fails.
pub async fn serve(
    entrance: impl Into<HttpListener>,
    exchange: Arc<dyn HttpApplication>,
    admission: RequestOriginRules,
    bounds: HttpServerLimits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let HttpListener { listener, tls: secure, workers } = entrance.into();
    let accepter = ConnectionAcceptor {
        door: Arc::new(RequestHandler::new(exchange, admission, bounds)),
        secure,
        workers,
        connections: TaskTracker::new(),
        shutdown,
        abort: CancellationToken::new(),
    };
    let ConnectionAcceptor { door, connections, shutdown, abort, .. } = &accepter;
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let seat = tokio::select! {
                    biased;
                    seat = door.slots.take() => Arc::new(seat),
                    () = shutdown.cancelled() => break,
                };
                accepter.start_serving(stream, peer, seat);
            }
            Err(err) => {
                // Out of file descriptors, or the client has left already. The next attempt may
                // succeed.
                tracing::warn!("cannot accept a connection: {err}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    accepter.accept_waiting(listener).await;
    connections.close();
    if timeout(door.bounds.drain, connections.wait()).await.is_err() {
        abort.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// Acceptor of connections, which starts a task for each connection.
struct ConnectionAcceptor {
    door: Arc<RequestHandler>,
    secure: Option<TlsHandshaker>,
    workers: Option<WorkerPool>,
    connections: TaskTracker,
    shutdown: CancellationToken,
    /// Token that ends all connections when it is cancelled.
    abort: CancellationToken,
}

impl ConnectionAcceptor {
    /// Accepts and serves the connections that wait at the listener, and closes the listener. The
    /// system has already told these clients that their connections are open.
    async fn accept_waiting(&self, listener: TcpListener) {
        // The runtime may not know yet that a connection waits, so the system is asked.
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..LATE_CONNECTIONS_MAX {
            let Ok((stream, peer)) = listener.accept() else { return };
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            let Ok(stream) = stream else { return };
            let seat = timeout(LATE_REQUEST_GRACE, self.door.slots.take()).await;
            let Ok(seat) = seat else { return };
            self.start_serving(stream, peer, Arc::new(seat));
        }
    }

    fn start_serving(&self, stream: TcpStream, peer: SocketAddr, slot: Arc<ConnectionSlot>) {
        let door = self.door.clone();
        let shutdown = self.shutdown.clone();
        let abort = self.abort.clone();
        let secure = self.secure.clone();
        let unsent = door.unsent.open_account();
        let serve = async move |stream| {
            let client = Arc::new(ClientConnection {
                peer,
                slot: slot.clone(),
                unsent: unsent.clone(),
                doubt: Arc::default(),
                pending_socket: Mutex::default(),
            });
            tokio::select! {
                () = serve_connection(door, secure, stream, client.clone(), shutdown) => {}
                () = client.slot.wait_evicted() => {}
                () = client.unsent.wait_disconnected() => {}
                () = abort.cancelled() => {}
            }
        };
        match &self.workers {
            None => drop(self.connections.spawn(serve(stream))),
            Some(workers) => {
                if let Err(err) = workers.serve(stream, &self.connections, serve) {
                    tracing::warn!("cannot accept a connection: {err}");
                }
            }
        }
    }
}

/// Serves the requests of one connection, and its WebSocket conversation if there is one.
async fn serve_connection(
    door: Arc<RequestHandler>,
    secure: Option<TlsHandshaker>,
    stream: TcpStream,
    client: Arc<ClientConnection>,
    shutdown: CancellationToken,
) {
    // Without this, an answer in two writes waits for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = match secure {
        None => ClientByteStream::Plain(stream),
        Some(secure) => {
            let pending = secure.accept(stream, door.bounds.head_time_max);
            let Some(wire) = shutdown.run_until_cancelled(pending).await.flatten() else { return };
            wire
        }
    };
    let write_timeout = door.bounds.write_time_max;
    let owed = client.unsent.clone();
    let stream = WriteTimeoutStream::new(stream, write_timeout, owed);
    let pending = serve_requests(&door, stream, client.clone(), &shutdown).await;
    let Some(PendingWebSocket { talk, upgrade, stream_slot: lasting, owner }) = pending else {
        return;
    };
    let turn = client.slot.begin_turn();
    if lasting.is_authenticated() {
        turn.mark_authenticated();
    }
    let parts = match upgrade.await.map(|upgraded| {
        upgraded.downcast::<TokioIo<RequestHeadCheckedStream<WriteTimeoutStream>>>()
    }) {
        Ok(Ok(parts)) => parts,
        Ok(Err(_)) | Err(_) => {
            return tracing::debug!("a client left before its WebSocket conversation started");
        }
    };
    let stream = parts.io.into_inner().into_inner();
    let early = parts.read_buf.to_vec();
    Box::pin(run_conversation(stream, early, (talk, owner), &door.bounds, shutdown)).await;
}

async fn serve_requests(
    door: &Arc<RequestHandler>,
    stream: WriteTimeoutStream,
    client: Arc<ClientConnection>,
    shutdown: &CancellationToken,
) -> Option<PendingWebSocket> {
    let stream = RequestHeadCheckedStream::new(stream, client.doubt.clone());
    let has_requested = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_requested.store(true, Ordering::Relaxed);
        let door = door.clone();
        let client = client.clone();
        async move {
            let mut response = door.answer(request, &client).await;
            if shutdown.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.bounds.head_time_max)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = &mut connection => result,
        () = shutdown.cancelled() => {
            let grace = match has_requested.load(Ordering::Relaxed) {
                true => LATE_REQUEST_GRACE,
                false => FIRST_REQUEST_GRACE,
            };
            // An answer that is sent from now on closes the connection.
            match timeout(grace, &mut connection).await {
                Ok(result) => result,
                Err(_) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(err) = result {
        tracing::debug!("a connection ended: {err}");
        return None;
    }
    lock_mutex(&client.pending_socket).take()
}

/// WebSocket conversation that starts after the last HTTP response of its connection has been sent.
struct PendingWebSocket {
    talk: Box<dyn WebSocketApplication>,
    upgrade: OnUpgrade,
    stream_slot: LongStreamSlot,
    /// Owner of the WebSocket connection, to whom the memory of the client's messages is charged.
    owner: InputMemoryOwner,
}
