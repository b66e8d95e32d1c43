//! Tests the memory of many idle clients. The test has a process of its own, because it measures
//! the memory of the complete process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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

const SOCKETS: usize = 1_000;
const KIB_EACH_MAX: usize = 40;

/// HTTP application that opens a WebSocket for each client and sends each message back.
struct EchoApplication;

impl WebSocketApplication for EchoApplication {
    fn run(
        self: Box<Self>,
        mut socket: WebSocketHandle,
    ) -> BoxFuture<'static, WebSocketCloseReason> {
        Box::pin(async move {
            while let Some(message) = socket.inbox.next().await {
                let _ = socket.outbox.try_send(message);
            }
            WebSocketCloseReason::normal()
        })
    }
}

impl HttpApplication for EchoApplication {
    fn serves(&self, _path: &str) -> bool {
        true
    }

    fn paths(&self) -> Vec<&str> {
        Vec::new()
    }

    fn handle<'a>(&'a self, _incoming: &'a ReceivedRequest) -> BoxFuture<'a, OutgoingResponse> {
        Box::pin(async { OutgoingResponse::Socket(Box::new(Self)) })
    }

    fn answer_unread<'a>(
        &'a self,
        _head: &'a FrameMetadata,
        _why: &'a UnreadableRequestReason,
    ) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async { None })
    }
}

/// Connects a WebSocket client, exchanges one message, and then sends nothing more.
async fn connect_and_greet(addr: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {addr}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let packet = [head.as_bytes(), b"\x81\x82\0\0\0\0hi"].concat();
    stream.write_all(&packet).await.expect("sent");
    let mut received = Vec::new();
    while !received.ends_with(b"\x81\x02hi") {
        received.push(stream.read_u8().await.expect("a greeting"));
    }
    stream
}

/// Returns the resident memory of this process, in KiB.
#[allow(clippy::disallowed_methods, reason = "the test reads its own process status")]
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn a_thousand_quiet_clients_use_little_memory() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let minute = Duration::from_secs(60);
    let bounds = HttpServerLimits {
        occupancy: toolgate_transports::http::OpenConnectionCounter::default(),
        body_bytes_max: 4 << 20,
        input_memory: InputMemoryBudget::new(4 << 20),
        body_time_max: minute,
        unsent_bytes_max: 32 << 20,
        head_time_max: minute,
        write_time_max: minute,
        connections_max: SOCKETS + 8,
        streams_max: SOCKETS + 8,
        streams_each: SOCKETS + 8,
        keep_alive: minute,
        drain: minute,
        socket_waiting_messages: 1024,
        socket_waiting_bytes: 1 << 20,
    };
    let admission = RequestOriginRules::new(addr, &[], &[]);
    let server = tokio::spawn(serve(
        listener,
        Arc::new(EchoApplication),
        admission,
        bounds,
        shutdown.clone(),
    ));
    // The first client also pays for everything that is shared.
    let mut clients = vec![connect_and_greet(addr).await];
    let before = resident_kib();
    while clients.len() <= SOCKETS {
        clients.push(connect_and_greet(addr).await);
    }
    let each = (resident_kib() - before) as f64 / SOCKETS as f64;
    println!("{each:.1} KiB a socket, both ends");
    assert!(each < KIB_EACH_MAX as f64, "{each:.1} KiB a socket");
    drop(clients);
    shutdown.cancel();
    server.await.expect("no panic").expect("served");
}
