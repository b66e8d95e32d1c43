//! How conversations end.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use toolgate_transports::http::HttpBounds;
use toolgate_transports::http::websocket::{ClientGone, CloseReason};

use crate::served::{ASKING, Goodbye, Server, bounds, echo, goodbye, read_head, soon, waits};

/// What a client is told by a talker that ends with `close`.
async fn told(close: CloseReason) -> Goodbye {
    let server = Server::talking(bounds(), move |_| std::future::ready(close.clone())).await;
    server.connect().await.hear_out().await.1
}

/// A server whose talkers report what they find once their client is gone.
async fn reporting() -> (Server, mpsc::Receiver<&'static str>) {
    let (report, reports) = mpsc::channel(8);
    let server = Server::talking(bounds(), move |mut socket| {
        let report = report.clone();
        async move {
            while let Some(message) = socket.inbox.next().await {
                assert_eq!(message, "here");
                report.send("came").await.expect("the test listens");
            }
            socket.outbox.wait_closed().await;
            assert_eq!(socket.outbox.try_send("are you there?".into()), Err(ClientGone));
            assert_eq!(socket.outbox.send("are you there?".into()).await, Err(ClientGone));
            report.send("left").await.expect("the test listens");
            CloseReason::normal()
        }
    })
    .await;
    (server, reports)
}

#[tokio::test]
async fn a_client_is_told_why_a_talk_ended() {
    assert_eq!(told(CloseReason::normal()).await, goodbye(1000, ""));
    assert_eq!(told(CloseReason::policy_violation("not you")).await, goodbye(1008, "not you"));
    assert_eq!(told(CloseReason::internal_error("oh")).await, goodbye(1011, "oh"));
}

#[tokio::test]
async fn a_long_reason_is_cut_between_letters() {
    let reason = "ö".repeat(100);
    assert_eq!(told(CloseReason::policy_violation(reason)).await, goodbye(1008, &"ö".repeat(61)));
}

#[tokio::test]
async fn a_client_that_says_goodbye_is_answered_and_the_talk_ends() {
    let (server, mut reports) = reporting().await;
    let mut client = server.connect().await;
    client.say("here").await;
    assert_eq!(soon(reports.recv()).await, Some("came"));
    soon(client.0.close(None)).await.expect("closed");
    assert_eq!(soon(reports.recv()).await, Some("left"));
    let answer = soon(client.0.next()).await.expect("an answer").expect("an answer");
    assert_eq!(answer, Message::Close(None));
    assert!(soon(client.0.next()).await.is_none());
}

#[tokio::test]
async fn a_client_that_vanishes_ends_the_talk() {
    let (server, mut reports) = reporting().await;
    let mut client = server.connect().await;
    client.say("here").await;
    assert_eq!(soon(reports.recv()).await, Some("came"));
    drop(client);
    assert_eq!(soon(reports.recv()).await, Some("left"));
}

#[tokio::test]
async fn what_a_client_said_before_it_vanished_is_heard() {
    let (server, mut reports) = reporting().await;
    let mut client = server.connect().await;
    for _ in 0..5 {
        client.say("here").await;
    }
    drop(client);
    for _ in 0..5 {
        assert_eq!(soon(reports.recv()).await, Some("came"));
    }
    assert_eq!(soon(reports.recv()).await, Some("left"));
}

#[tokio::test]
async fn a_talker_that_stays_after_its_client_left_is_dropped() {
    let dropped = CancellationToken::new();
    let tells = dropped.clone();
    let brief = HttpBounds { drain: Duration::from_millis(50), ..bounds() };
    let server = Server::talking(brief, move |_socket| {
        let guard = tells.clone().drop_guard();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    })
    .await;
    let client = server.connect().await;
    assert!(waits(dropped.cancelled()).await, "its client is there");
    drop(client);
    soon(dropped.cancelled()).await;
}

#[tokio::test]
async fn a_talker_that_panics_closes_its_own_conversation_only() {
    let server = Server::talking(bounds(), |mut socket| async move {
        match socket.inbox.next().await {
            Some(message) if message == "panic" => panic!("as the test wants"),
            Some(message) => socket.outbox.try_send(message).expect("there"),
            None => {}
        }
        CloseReason::normal()
    })
    .await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    first.say("panic").await;
    assert_eq!(first.hear_out().await.1, goodbye(1011, "the conversation failed here"));
    second.say("hello").await;
    assert_eq!(second.hear().await, "hello");
}

#[tokio::test]
async fn a_server_that_stops_says_so() {
    let server = Server::talking(bounds(), echo).await;
    let mut client = server.connect().await;
    client.say("hello").await;
    assert_eq!(client.hear().await, "hello");
    server.shutdown.cancel();
    assert_eq!(client.hear_out().await, (vec![], goodbye(1001, "the server is stopping")));
    server.stop().await;
}

#[tokio::test]
async fn who_talks_on_while_the_server_stops_is_cut() {
    let brief = HttpBounds { drain: Duration::from_millis(50), ..bounds() };
    let server = Server::talking(brief, |_socket| std::future::pending()).await;
    let mut client = server.connect().await;
    server.stop().await;
    let last = soon(client.0.next()).await.expect("an end");
    assert!(last.is_err(), "{last:?}");
}

#[tokio::test]
async fn a_client_that_does_not_say_goodbye_is_not_waited_for_long() {
    let server = Server::talking(bounds(), echo).await;
    let mut client = server.connect_raw().await;
    let since = std::time::Instant::now();
    server.shutdown.cancel();
    let mut last = Vec::new();
    soon(client.read_to_end(&mut last)).await.expect("an end");
    assert_eq!(last, b"\x88\x18\x03\xe9the server is stopping");
    server.stop().await;
    assert!(since.elapsed() < bounds().drain, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_websocket_takes_the_place_of_a_connection() {
    let server = Server::talking(HttpBounds { connections_max: 1, ..bounds() }, echo).await;
    let mut client = server.connect().await;
    let mut second = server.send_head("GET /talk", ASKING).await;
    assert!(waits(second.readable()).await, "there is room for one");
    soon(client.0.close(None)).await.expect("closed");
    while soon(client.0.next()).await.is_some() {}
    assert!(read_head(&mut second).await.starts_with("HTTP/1.1 101 "));
}

#[tokio::test]
async fn what_comes_with_the_request_is_heard() {
    let server = Server::talking(bounds(), echo).await;
    let head = format!("GET /talk HTTP/1.1\r\nhost: {}\r\n{ASKING}\r\n", server.addr);
    let packet = [head.as_bytes(), b"\x81\x82\0\0\0\0hi"].concat();
    let mut client = TcpStream::connect(server.addr).await.expect("a connection");
    client.write_all(&packet).await.expect("sent");
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 101 "));
    let mut echoed = [0; 4];
    soon(client.read_exact(&mut echoed)).await.expect("an echo");
    assert_eq!(&echoed, b"\x81\x02hi");
}

#[tokio::test]
async fn a_close_while_messages_come_is_still_heard() {
    let server =
        Server::talking(bounds(), |_| std::future::ready(CloseReason::policy_violation("enough")))
            .await;
    let mut client = server.connect().await;
    for _ in 0..50 {
        if client.0.send(Message::text("x".repeat(10_000))).await.is_err() {
            break;
        }
    }
    assert_eq!(client.hear_out().await.1, goodbye(1008, "enough"));
}
