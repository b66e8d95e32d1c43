//! Tests of slow WebSocket clients, and of other clients that must not suffer from them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use toolgate_contract::Reply;
use toolgate_transports::http::websocket::{
    ClientGoneError, WebSocketCloseReason, WebSocketHandle, WebSocketOutbox,
};
use toolgate_transports::http::{HttpServerLimits, OutgoingResponse};

use crate::served::{
    ReceivedCloseFrame, TestTransportServer, TestWebSocketClient, bounds, close, within_timeout,
};

/// WebSocket server that gives the outbox of each client to the test.
struct BroadcastServer {
    server: TestTransportServer,
    outboxes: Arc<Mutex<Vec<WebSocketOutbox>>>,
}

impl BroadcastServer {
    async fn start(bounds: HttpServerLimits) -> Self {
        let outboxes = Arc::new(Mutex::new(Vec::new()));
        let shared = outboxes.clone();
        let listen = move |mut socket: WebSocketHandle| {
            let shared = shared.clone();
            async move {
                shared.lock().expect("the lock").push(socket.outbox.clone());
                socket.outbox.try_send("welcome".into()).expect("the client is connected");
                while socket.inbox.next().await.is_some() {}
                WebSocketCloseReason::normal()
            }
        };
        Self { server: TestTransportServer::talking(bounds, listen).await, outboxes }
    }

    /// Connects a client, and returns it with the outbox by which the test sends messages to it.
    async fn connect_client(&self) -> (TestWebSocketClient, WebSocketOutbox) {
        let mut client = self.server.connect().await;
        assert_eq!(client.receive().await, "welcome");
        (client, self.outboxes.lock().expect("the lock").pop().expect("an outbox"))
    }
}

/// Sends texts to a client that reads nothing and to one that reads everything. Returns the close
/// frame of the first client, and checks that the second client receives all texts.
async fn check(socket_waiting_messages: usize, socket_waiting_bytes: usize) -> ReceivedCloseFrame {
    let bounds = HttpServerLimits { socket_waiting_messages, socket_waiting_bytes, ..bounds() };
    let broadcast = BroadcastServer::start(bounds).await;
    let (mut slow, to_slow) = broadcast.connect_client().await;
    let (mut fast, to_fast) = broadcast.connect_client().await;
    let mut sent_texts = Vec::new();
    let mut dropped = false;
    while !dropped || sent_texts.len() < 200 {
        assert!(sent_texts.len() < 5_000, "the client that reads nothing is still connected");
        let text = format!("{:060000}", sent_texts.len());
        dropped = to_slow.try_send(text.clone().into()) == Err(ClientGoneError);
        to_fast.try_send(text.clone().into()).expect("the client is connected");
        assert!(fast.receive().await == text);
        sent_texts.push(text);
    }
    within_timeout(to_slow.wait_closed()).await;
    let (received, received_close) = slow.receive_all().await;
    assert!(sent_texts.starts_with(&received), "messages arrive in order");
    received_close
}

#[tokio::test]
async fn a_client_with_too_many_waiting_messages_is_dropped_and_others_stay() {
    let received_close = check(16, 1 << 30).await;
    assert_eq!(received_close, close(1013, "the client reads too slowly: 16 messages are waiting"));
}

#[tokio::test]
async fn a_client_with_too_many_waiting_bytes_is_dropped_and_others_stay() {
    let received_close = check(1 << 20, 600_000).await;
    assert_eq!(received_close, close(1013, "the client reads too slowly: 10 messages are waiting"));
}

#[tokio::test]
async fn dropping_a_client_that_never_reads_ends_its_conversation() {
    let minute = Duration::from_secs(60);
    let patient = HttpServerLimits { write_time_max: minute, drain: minute, ..bounds() };
    let broadcast = BroadcastServer::start(patient).await;
    let (_slow, to_slow) = broadcast.connect_client().await;
    while to_slow.try_send("x".repeat(60_000).into()).is_ok() {
        tokio::task::yield_now().await;
    }
    // Without the drop, the server would wait for a minute.
    broadcast.server.stop().await;
}

#[tokio::test]
async fn sending_waits_for_a_slow_client() {
    let narrow =
        HttpServerLimits { socket_waiting_messages: 2, socket_waiting_bytes: 1000, ..bounds() };
    let text = |n: usize| format!("{n:050000}");
    let server = TestTransportServer::talking(narrow, move |socket| async move {
        let sends = |n: usize| {
            let outbox = socket.outbox.clone();
            async move { outbox.send(Bytes::from(text(n))).await }
        };
        for n in 0..400 {
            sends(n).await.expect("the client is connected");
        }
        WebSocketCloseReason::normal()
    })
    .await;
    let received = server.connect().await.receive_all().await;
    assert!(received == ((0..400).map(text).collect(), close(1000, "")));
}

#[tokio::test]
async fn messages_of_many_waiting_senders_all_arrive() {
    let narrow = HttpServerLimits { socket_waiting_messages: 1, ..bounds() };
    let server = TestTransportServer::talking(narrow, move |socket| async move {
        let sends = (0..100).map(|n: usize| {
            let outbox = socket.outbox.clone();
            tokio::spawn(async move { outbox.send(n.to_string().into()).await })
        });
        for sent in sends.collect::<Vec<_>>() {
            sent.await.expect("no panic").expect("the client is connected");
        }
        WebSocketCloseReason::normal()
    })
    .await;
    let (mut received, received_close) = server.connect().await.receive_all().await;
    received.sort_by_key(|text| text.parse::<usize>().expect("a number"));
    assert_eq!(received, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(received_close, close(1000, ""));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let impatient = HttpServerLimits { write_time_max: Duration::from_millis(200), ..bounds() };
    let (ended, mut over) = mpsc::channel(1);
    let server = TestTransportServer::talking(impatient, move |mut socket| {
        let ended = ended.clone();
        async move {
            let text = Bytes::from("x".repeat(100_000));
            while socket.outbox.send(text.clone()).await.is_ok() {}
            while socket.inbox.next().await.is_some() {}
            ended.send(()).await.expect("the test listens");
            WebSocketCloseReason::normal()
        }
    })
    .await;
    let _client = server.connect().await;
    within_timeout(over.recv()).await.expect("the conversation ends");
}

#[tokio::test]
async fn a_client_that_stops_within_a_message_is_disconnected() {
    let impatient = HttpServerLimits { write_time_max: Duration::from_millis(200), ..bounds() };
    let (ended, mut over) = mpsc::channel(1);
    let server = TestTransportServer::talking(impatient, move |mut socket| {
        let ended = ended.clone();
        async move {
            // More than sockets hold, and nothing after it.
            socket.outbox.try_send("x".repeat(30 << 20).into()).expect("the client is connected");
            while socket.inbox.next().await.is_some() {}
            ended.send(()).await.expect("the test listens");
            WebSocketCloseReason::normal()
        }
    })
    .await;
    let _client = server.connect().await;
    within_timeout(over.recv()).await.expect("the conversation ends");
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected_if_others_need_the_room() {
    const ANSWER: usize = 16 << 20;
    let full = Bytes::from(vec![b' '; ANSWER]);
    let server = TestTransportServer::start(bounds(), move |_| {
        OutgoingResponse::Single(Reply::json(full.clone()))
    })
    .await;
    let ask = async || server.send_head("GET /talk", "connection: close\r\n").await;
    let mut crowd = Vec::new();
    for _ in 0..8 {
        crowd.push(ask().await);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let read = async |mut stream: TcpStream| {
        let mut received = Vec::new();
        // Who is cut off may hear so as an error.
        let _ = within_timeout(stream.read_to_end(&mut received)).await;
        received.len()
    };
    assert!(read(ask().await).await > ANSWER, "a client that reads gets everything");
    let mut cut_off = 0;
    for stream in crowd {
        cut_off += usize::from(read(stream).await < ANSWER);
    }
    assert!((5..8).contains(&cut_off), "{cut_off}");
    server.stop().await;
}
