//! HTTP server with an application that a test defines, and clients for this server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::sync::CancellationToken;
use toolgate_budget::InputMemoryBudget;
use toolgate_contract::{BoxFuture, FrameMetadata, Reply};
use toolgate_transports::http::websocket::{
    WebSocketApplication, WebSocketCloseReason, WebSocketHandle,
};
use toolgate_transports::http::{
    HttpApplication, HttpServerLimits, OutgoingResponse, ReceivedRequest, RequestOriginRules,
    UnreadableRequestReason, serve,
};

/// Returns HTTP limits so high that a test exceeds them only on purpose.
pub(crate) fn bounds() -> HttpServerLimits {
    HttpServerLimits {
        occupancy: toolgate_transports::http::OpenConnectionCounter::default(),
        body_bytes_max: 64 << 10,
        input_memory: InputMemoryBudget::new(64 << 10),
        body_time_max: Duration::from_secs(10),
        unsent_bytes_max: 32 << 20,
        head_time_max: Duration::from_secs(10),
        write_time_max: Duration::from_secs(10),
        connections_max: 64,
        streams_max: 32,
        streams_each: 32,
        keep_alive: Duration::from_secs(60),
        drain: Duration::from_secs(10),
        socket_waiting_messages: 1024,
        socket_waiting_bytes: 1 << 20,
    }
}

/// Returns the result of `future`, which must complete within 20 s.
pub(crate) async fn within_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("it completes within 20 s")
}

/// Returns `true` if `future` does not complete within 300 ms.
pub(crate) async fn is_pending(future: impl Future) -> bool {
    timeout(Duration::from_millis(300), future).await.is_err()
}

/// Server on the loopback interface. It refuses requests to `/nowhere`, and never answers `/never`.
pub(crate) struct TestTransportServer {
    pub(crate) addr: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl TestTransportServer {
    /// Starts a server that calls `answer` to answer each HTTP request.
    pub(crate) async fn start(
        bounds: HttpServerLimits,
        answer: impl Fn(&ReceivedRequest) -> OutgoingResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let room = Arc::new(TestApplication(Box::new(answer)));
        let admission = RequestOriginRules::new(addr, &[], &[]);
        let serving = serve(listener, room, admission, bounds, shutdown.clone());
        let task = tokio::spawn(async move { serving.await.expect("served") });
        Self { addr, shutdown, task }
    }

    /// Starts a server that runs `talk` for every WebSocket client.
    pub(crate) async fn talking<Talking>(
        bounds: HttpServerLimits,
        talk: impl Fn(WebSocketHandle) -> Talking + Clone + Send + Sync + 'static,
    ) -> Self
    where
        Talking: Future<Output = WebSocketCloseReason> + Send + 'static,
    {
        Self::start(bounds, move |_| socket(talk.clone())).await
    }

    pub(crate) async fn connect(&self) -> TestWebSocketClient {
        let stream = TcpStream::connect(self.addr).await.expect("a connection");
        let url = format!("ws://{}/talk", self.addr);
        TestWebSocketClient(client_async(url, stream).await.expect("a WebSocket").0)
    }

    /// Opens a connection and sends the request line `line`, the `Host` header and `headers`.
    pub(crate) async fn send_head(&self, line: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.addr).await.expect("a connection");
        let head = format!("{line} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.addr);
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream
    }

    /// Opens a WebSocket over which the test writes raw frames.
    pub(crate) async fn connect_raw(&self) -> TcpStream {
        let mut stream = self.send_head("GET /talk", UPGRADE_HEADERS).await;
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        stream
    }

    /// Sends a request and returns all bytes until the server closes the connection.
    pub(crate) async fn ask(&self, line: &str, headers: &str) -> String {
        let mut stream = self.send_head(line, &format!("{headers}connection: close\r\n")).await;
        let mut answer = Vec::new();
        within_timeout(stream.read_to_end(&mut answer)).await.expect("an answer");
        String::from_utf8(answer).expect("text")
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        within_timeout(self.task).await.expect("the server stops");
    }
}

/// The headers of a WebSocket request.
pub(crate) const UPGRADE_HEADERS: &str = "connection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Reads the head of a response.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within_timeout(stream.read_u8()).await.expect("a head"));
    }
    String::from_utf8(head).expect("text")
}

/// Returns a response that opens a WebSocket and runs the conversation `talk`.
pub(crate) fn socket<Talking>(
    talk: impl FnOnce(WebSocketHandle) -> Talking + Send + 'static,
) -> OutgoingResponse
where
    Talking: Future<Output = WebSocketCloseReason> + Send + 'static,
{
    OutgoingResponse::Socket(Box::new(TestConversation(
        move |socket| -> BoxFuture<'static, WebSocketCloseReason> { Box::pin(talk(socket)) },
    )))
}

/// Sends every message back to its client.
pub(crate) async fn echo(mut socket: WebSocketHandle) -> WebSocketCloseReason {
    loop {
        tokio::select! {
            message = socket.inbox.next() => match message {
                Some(message) => drop(socket.outbox.send(message).await),
                None => return WebSocketCloseReason::normal(),
            },
            () = socket.stopping.cancelled() => return WebSocketCloseReason::going_away("the server is stopping"),
        }
    }
}

/// Conversation over a WebSocket that a test function runs.
struct TestConversation<F>(F);

impl<F: FnOnce(WebSocketHandle) -> BoxFuture<'static, WebSocketCloseReason> + Send>
    WebSocketApplication for TestConversation<F>
{
    fn run(self: Box<Self>, socket: WebSocketHandle) -> BoxFuture<'static, WebSocketCloseReason> {
        (self.0)(socket)
    }
}

/// Function that answers a request of a test.
type TestAnswerFn = Box<dyn Fn(&ReceivedRequest) -> OutgoingResponse + Send + Sync>;

/// HTTP application that answers by a test function.
struct TestApplication(TestAnswerFn);

impl HttpApplication for TestApplication {
    fn serves(&self, path: &str) -> bool {
        path != "/nowhere"
    }

    fn paths(&self) -> Vec<&str> {
        vec!["/talk"]
    }

    fn handle<'a>(&'a self, incoming: &'a ReceivedRequest) -> BoxFuture<'a, OutgoingResponse> {
        Box::pin(async {
            match &incoming.frame.head {
                FrameMetadata::Http { path, .. } if path == "/never" => {
                    std::future::pending().await
                }
                FrameMetadata::Http { .. } | FrameMetadata::Line => (self.0)(incoming),
            }
        })
    }

    fn answer_unread<'a>(
        &'a self,
        _head: &'a FrameMetadata,
        _why: &'a UnreadableRequestReason,
    ) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async { None })
    }
}

/// WebSocket client that follows the protocol.
pub(crate) struct TestWebSocketClient(pub(crate) WebSocketStream<TcpStream>);

/// The close frame that a client received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedCloseFrame {
    pub(crate) code: u16,
    pub(crate) reason: String,
}

pub(crate) fn close(code: u16, reason: &str) -> ReceivedCloseFrame {
    ReceivedCloseFrame { code, reason: reason.to_owned() }
}

impl TestWebSocketClient {
    pub(crate) async fn send(&mut self, text: &str) {
        within_timeout(self.0.send(Message::text(text))).await.expect("sent");
    }

    /// Receives the next text. Pings are answered meanwhile.
    pub(crate) async fn receive(&mut self) -> String {
        match self.next().await {
            Ok(text) => text,
            Err(received_close) => panic!("expected a text, not {received_close:?}"),
        }
    }

    /// Receives texts until the server closes the WebSocket. Returns the texts and the close frame.
    pub(crate) async fn receive_all(&mut self) -> (Vec<String>, ReceivedCloseFrame) {
        let mut texts = Vec::new();
        loop {
            match self.next().await {
                Ok(text) => texts.push(text),
                Err(received_close) => return (texts, received_close),
            }
        }
    }

    async fn next(&mut self) -> Result<String, ReceivedCloseFrame> {
        loop {
            match within_timeout(self.0.next()).await.expect("a close frame").expect("a message") {
                Message::Text(text) => return Ok(text.to_string()),
                Message::Close(Some(frame)) => {
                    let code = CloseCode::into(frame.code);
                    let received_close =
                        ReceivedCloseFrame { code, reason: frame.reason.to_string() };
                    // The connection also ends properly.
                    while let Some(rest) = within_timeout(self.0.next()).await {
                        assert!(rest.is_ok(), "{rest:?}");
                    }
                    return Err(received_close);
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("expected a text, not {other:?}"),
            }
        }
    }
}
