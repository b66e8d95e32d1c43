//! Tests of the ways in which conversations end.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use toolgate_transports::http::HttpServerLimits;
use toolgate_transports::http::websocket::{ClientGoneError, WebSocketCloseReason};

use crate::served::{
    ReceivedCloseFrame, TestTransportServer, UPGRADE_HEADERS, bounds, close, echo, is_pending,
    read_head, within_timeout,
};

/// Returns the close frame that a client receives if the conversation ends with `close`.
async fn close_received(close: WebSocketCloseReason) -> ReceivedCloseFrame {
    let server =
        TestTransportServer::talking(bounds(), move |_| std::future::ready(close.clone())).await;
    server.connect().await.receive_all().await.1
}

/// Returns a server whose WebSocket conversations report each message, and also when their client
/// has disconnected.
async fn start_reporting() -> (TestTransportServer, mpsc::Receiver<&'static str>) {
    let (report, reports) = mpsc::channel(8);
    let server = TestTransportServer::talking(bounds(), move |mut socket| {
        let report = report.clone();
        async move {
            while let Some(message) = socket.inbox.next().await {
                assert_eq!(message, "here");
                report.send("came").await.expect("the test listens");
            }
            socket.outbox.wait_closed().await;
            assert_eq!(socket.outbox.try_send("are you there?".into()), Err(ClientGoneError));
            assert_eq!(socket.outbox.send("are you there?".into()).await, Err(ClientGoneError));
            report.send("left").await.expect("the test listens");
            WebSocketCloseReason::normal()
        }
    })
    .await;
    (server, reports)
}

#[tokio::test]
async fn a_client_receives_the_reason_of_the_close() {
    assert_eq!(close_received(WebSocketCloseReason::normal()).await, close(1000, ""));
    assert_eq!(
        close_received(WebSocketCloseReason::policy_violation("not you")).await,
        close(1008, "not you")
    );
    assert_eq!(close_received(WebSocketCloseReason::internal_error("oh")).await, close(1011, "oh"));
}

#[tokio::test]
async fn a_long_close_reason_is_cut_between_characters() {
    let reason = "ö".repeat(100);
    assert_eq!(
        close_received(WebSocketCloseReason::policy_violation(reason)).await,
        close(1008, &"ö".repeat(61))
    );
}

#[tokio::test]
async fn a_close_from_the_client_is_answered_and_ends_the_conversation() {
    let (server, mut reports) = start_reporting().await;
    let mut client = server.connect().await;
    client.send("here").await;
    assert_eq!(within_timeout(reports.recv()).await, Some("came"));
    within_timeout(client.0.close(None)).await.expect("closed");
    assert_eq!(within_timeout(reports.recv()).await, Some("left"));
    let answer = within_timeout(client.0.next()).await.expect("an answer").expect("an answer");
    assert_eq!(answer, Message::Close(None));
    assert!(within_timeout(client.0.next()).await.is_none());
}

#[tokio::test]
async fn a_lost_connection_ends_the_conversation() {
    let (server, mut reports) = start_reporting().await;
    let mut client = server.connect().await;
    client.send("here").await;
    assert_eq!(within_timeout(reports.recv()).await, Some("came"));
    drop(client);
    assert_eq!(within_timeout(reports.recv()).await, Some("left"));
}

#[tokio::test]
async fn messages_before_a_lost_connection_are_delivered() {
    let (server, mut reports) = start_reporting().await;
    let mut client = server.connect().await;
    for _ in 0..5 {
        client.send("here").await;
    }
    drop(client);
    for _ in 0..5 {
        assert_eq!(within_timeout(reports.recv()).await, Some("came"));
    }
    assert_eq!(within_timeout(reports.recv()).await, Some("left"));
}

#[tokio::test]
async fn a_conversation_that_outlasts_its_client_is_dropped() {
    let dropped = CancellationToken::new();
    let on_drop = dropped.clone();
    let brief = HttpServerLimits { drain: Duration::from_millis(50), ..bounds() };
    let server = TestTransportServer::talking(brief, move |_socket| {
        let guard = on_drop.clone().drop_guard();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    })
    .await;
    let client = server.connect().await;
    assert!(is_pending(dropped.cancelled()).await, "the client is still connected");
    drop(client);
    within_timeout(dropped.cancelled()).await;
}

#[tokio::test]
async fn a_panic_closes_only_its_own_conversation() {
    let server = TestTransportServer::talking(bounds(), |mut socket| async move {
        match socket.inbox.next().await {
            Some(message) if message == "panic" => panic!("the test requests a panic"),
            Some(message) => socket.outbox.try_send(message).expect("the client is connected"),
            None => {}
        }
        WebSocketCloseReason::normal()
    })
    .await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    first.send("panic").await;
    assert_eq!(first.receive_all().await.1, close(1011, "the conversation failed on the server"));
    second.send("hello").await;
    assert_eq!(second.receive().await, "hello");
}

#[tokio::test]
async fn a_stopping_server_sends_a_close() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let mut client = server.connect().await;
    client.send("hello").await;
    assert_eq!(client.receive().await, "hello");
    server.shutdown.cancel();
    assert_eq!(client.receive_all().await, (vec![], close(1001, "the server is stopping")));
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_that_ignores_the_shutdown_is_cut() {
    let brief = HttpServerLimits { drain: Duration::from_millis(50), ..bounds() };
    let server = TestTransportServer::talking(brief, |_socket| std::future::pending()).await;
    let mut client = server.connect().await;
    server.stop().await;
    let last = within_timeout(client.0.next()).await.expect("an end");
    assert!(last.is_err(), "{last:?}");
}

#[tokio::test]
async fn a_client_that_sends_no_close_delays_the_shutdown_only_briefly() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let mut client = server.connect_raw().await;
    let started = std::time::Instant::now();
    server.shutdown.cancel();
    let mut last = Vec::new();
    within_timeout(client.read_to_end(&mut last)).await.expect("an end");
    assert_eq!(last, b"\x88\x18\x03\xe9the server is stopping");
    server.stop().await;
    assert!(started.elapsed() < bounds().drain, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_websocket_occupies_a_connection_slot() {
    let server =
        TestTransportServer::talking(HttpServerLimits { connections_max: 1, ..bounds() }, echo)
            .await;
    let mut client = server.connect().await;
    let mut second = server.send_head("GET /talk", UPGRADE_HEADERS).await;
    assert!(is_pending(second.readable()).await, "there is only one slot");
    within_timeout(client.0.close(None)).await.expect("closed");
    while within_timeout(client.0.next()).await.is_some() {}
    assert!(read_head(&mut second).await.starts_with("HTTP/1.1 101 "));
}

#[tokio::test]
async fn a_message_sent_with_the_request_is_delivered() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let head = format!("GET /talk HTTP/1.1\r\nhost: {}\r\n{UPGRADE_HEADERS}\r\n", server.addr);
    let packet = [head.as_bytes(), b"\x81\x82\0\0\0\0hi"].concat();
    let mut client = TcpStream::connect(server.addr).await.expect("a connection");
    client.write_all(&packet).await.expect("sent");
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 101 "));
    let mut echoed = [0; 4];
    within_timeout(client.read_exact(&mut echoed)).await.expect("an echo");
    assert_eq!(&echoed, b"\x81\x02hi");
}

#[tokio::test]
async fn a_close_is_received_although_the_client_still_sends() {
    let server = TestTransportServer::talking(bounds(), |_| {
        std::future::ready(WebSocketCloseReason::policy_violation("enough"))
    })
    .await;
    let mut client = server.connect().await;
    for _ in 0..50 {
        if client.0.send(Message::text("x".repeat(10_000))).await.is_err() {
            break;
        }
    }
    assert_eq!(client.receive_all().await.1, close(1008, "enough"));
}
