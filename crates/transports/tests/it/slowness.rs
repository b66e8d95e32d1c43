//! Clients that do not keep up, and those that must not suffer from them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use toolgate_contract::Reply;
use toolgate_transports::http::websocket::{ClientGone, CloseReason, SocketHandle, SocketOutbox};
use toolgate_transports::http::{HttpBounds, OutgoingResponse};

use crate::served::{Client, Goodbye, Server, bounds, goodbye, soon};

/// A server where everybody hears what the test says.
struct Lectern {
    server: Server,
    audience: Arc<Mutex<Vec<SocketOutbox>>>,
}

impl Lectern {
    async fn start(bounds: HttpBounds) -> Self {
        let audience = Arc::new(Mutex::new(Vec::new()));
        let seats = audience.clone();
        let listen = move |mut socket: SocketHandle| {
            let seats = seats.clone();
            async move {
                seats.lock().expect("seats").push(socket.outbox.clone());
                socket.outbox.try_send("welcome".into()).expect("there");
                while socket.inbox.next().await.is_some() {}
                CloseReason::normal()
            }
        };
        Self { server: Server::talking(bounds, listen).await, audience }
    }

    /// A client, and how it is spoken to.
    async fn seat(&self) -> (Client, SocketOutbox) {
        let mut client = self.server.connect().await;
        assert_eq!(client.hear().await, "welcome");
        (client, self.audience.lock().expect("seats").pop().expect("a seat"))
    }
}

/// What a client that reads nothing is told at last, while one that reads misses nothing.
async fn check(socket_waiting_messages: usize, socket_waiting_bytes: usize) -> Goodbye {
    let bounds = HttpBounds { socket_waiting_messages, socket_waiting_bytes, ..bounds() };
    let lectern = Lectern::start(bounds).await;
    let (mut slow, to_slow) = lectern.seat().await;
    let (mut fast, to_fast) = lectern.seat().await;
    let mut said = Vec::new();
    let mut dropped = false;
    while !dropped || said.len() < 200 {
        assert!(said.len() < 5_000, "a client that reads nothing is still there");
        let text = format!("{:060000}", said.len());
        dropped = to_slow.try_send(text.clone().into()) == Err(ClientGone);
        to_fast.try_send(text.clone().into()).expect("there");
        assert!(fast.hear().await == text);
        said.push(text);
    }
    soon(to_slow.wait_closed()).await;
    let (heard, goodbye) = slow.hear_out().await;
    assert!(said.starts_with(&heard), "what is heard is heard in order");
    goodbye
}

#[tokio::test]
async fn a_client_for_whom_too_many_messages_wait_is_dropped_and_the_others_are_not() {
    let told = check(16, 1 << 30).await;
    assert_eq!(told, goodbye(1013, "too slow: 16 messages were waiting"));
}

#[tokio::test]
async fn a_client_for_whom_too_many_bytes_wait_is_dropped_and_the_others_are_not() {
    let told = check(1 << 20, 600_000).await;
    assert_eq!(told, goodbye(1013, "too slow: 10 messages were waiting"));
}

#[tokio::test]
async fn a_client_that_is_dropped_ends_its_talk_though_it_never_reads() {
    let minute = Duration::from_secs(60);
    let patient = HttpBounds { write_time_max: minute, drain: minute, ..bounds() };
    let lectern = Lectern::start(patient).await;
    let (_slow, to_slow) = lectern.seat().await;
    while to_slow.try_send("x".repeat(60_000).into()).is_ok() {
        tokio::task::yield_now().await;
    }
    // Nothing else would end before a minute.
    lectern.server.stop().await;
}

#[tokio::test]
async fn an_answer_waits_for_a_slow_client() {
    let narrow = HttpBounds { socket_waiting_messages: 2, socket_waiting_bytes: 1000, ..bounds() };
    let text = |n: usize| format!("{n:050000}");
    let server = Server::talking(narrow, move |socket| async move {
        let sends = |n: usize| {
            let outbox = socket.outbox.clone();
            async move { outbox.send(Bytes::from(text(n))).await }
        };
        for n in 0..400 {
            sends(n).await.expect("there");
        }
        CloseReason::normal()
    })
    .await;
    let heard = server.connect().await.hear_out().await;
    assert!(heard == ((0..400).map(text).collect(), goodbye(1000, "")));
}

#[tokio::test]
async fn answers_of_many_that_wait_all_arrive() {
    let narrow = HttpBounds { socket_waiting_messages: 1, ..bounds() };
    let server = Server::talking(narrow, move |socket| async move {
        let sends = (0..100).map(|n: usize| {
            let outbox = socket.outbox.clone();
            tokio::spawn(async move { outbox.send(n.to_string().into()).await })
        });
        for sent in sends.collect::<Vec<_>>() {
            sent.await.expect("no panic").expect("there");
        }
        CloseReason::normal()
    })
    .await;
    let (mut heard, told) = server.connect().await.hear_out().await;
    heard.sort_by_key(|text| text.parse::<usize>().expect("a number"));
    assert_eq!(heard, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(told, goodbye(1000, ""));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_in_the_end() {
    let impatient = HttpBounds { write_time_max: Duration::from_millis(200), ..bounds() };
    let (ended, mut over) = mpsc::channel(1);
    let server = Server::talking(impatient, move |mut socket| {
        let ended = ended.clone();
        async move {
            let text = Bytes::from("x".repeat(100_000));
            while socket.outbox.send(text.clone()).await.is_ok() {}
            while socket.inbox.next().await.is_some() {}
            ended.send(()).await.expect("the test listens");
            CloseReason::normal()
        }
    })
    .await;
    let _client = server.connect().await;
    soon(over.recv()).await.expect("the talk ends");
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_a_message_is_cut() {
    let impatient = HttpBounds { write_time_max: Duration::from_millis(200), ..bounds() };
    let (ended, mut over) = mpsc::channel(1);
    let server = Server::talking(impatient, move |mut socket| {
        let ended = ended.clone();
        async move {
            // More than sockets hold, and nothing after it.
            socket.outbox.try_send("x".repeat(30 << 20).into()).expect("there");
            while socket.inbox.next().await.is_some() {}
            ended.send(()).await.expect("the test listens");
            CloseReason::normal()
        }
    })
    .await;
    let _client = server.connect().await;
    soon(over.recv()).await.expect("the talk ends");
}

#[tokio::test]
async fn who_asks_and_does_not_read_is_cut_off_when_others_need_the_room() {
    const ANSWER: usize = 16 << 20;
    let whole = Bytes::from(vec![b' '; ANSWER]);
    let server =
        Server::start(bounds(), move |_| OutgoingResponse::Single(Reply::json(whole.clone())))
            .await;
    let ask = async || server.send_head("GET /talk", "connection: close\r\n").await;
    let mut crowd = Vec::new();
    for _ in 0..8 {
        crowd.push(ask().await);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let read = async |mut stream: TcpStream| {
        let mut heard = Vec::new();
        // Who is cut off may hear so as an error.
        let _ = soon(stream.read_to_end(&mut heard)).await;
        heard.len()
    };
    assert!(read(ask().await).await > ANSWER, "who reads hears all");
    let mut cut_off = 0;
    for stream in crowd {
        cut_off += usize::from(read(stream).await < ANSWER);
    }
    assert!((5..8).contains(&cut_off), "{cut_off}");
    server.stop().await;
}
