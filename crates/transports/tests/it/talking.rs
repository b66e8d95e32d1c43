//! Tests of WebSocket messages in both directions, and of pings between messages.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use toolgate_transports::http::HttpServerLimits;
use toolgate_transports::http::websocket::WebSocketCloseReason;

use crate::served::{TestTransportServer, bounds, close, echo, is_pending, within_timeout};

#[tokio::test]
async fn messages_are_echoed() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let mut client = server.connect().await;
    for text in ["one", "", "zwölf", &"x".repeat(64 << 10)] {
        client.send(text).await;
        assert_eq!(client.receive().await, text);
    }
    within_timeout(client.0.send(Message::binary(&b"as bytes"[..]))).await.expect("sent");
    assert_eq!(client.receive().await, "as bytes");
}

#[tokio::test]
async fn a_large_message_arrives_complete_and_in_order() {
    let large = "x".repeat(3 << 20);
    let text = large.clone();
    let server = TestTransportServer::talking(bounds(), move |socket| {
        let large = text.clone();
        async move {
            socket.outbox.try_send("before".into()).expect("the client is connected");
            socket.outbox.try_send(large.into()).expect("the client is connected");
            WebSocketCloseReason::normal()
        }
    })
    .await;
    let received = server.connect().await.receive_all().await;
    assert!(received == (vec!["before".to_owned(), large], close(1000, "")));
}

#[tokio::test]
async fn a_fragmented_message_is_joined_even_with_a_ping_between() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let mut client = server.connect().await;
    let piece = |bytes: &'static [u8], code, last| {
        Message::Frame(Frame::message(bytes, OpCode::Data(code), last))
    };
    // The `ö` is split between two fragments.
    client.0.feed(piece(b"zw\xc3", Data::Text, false)).await.expect("sent");
    client.0.feed(Message::Ping(Bytes::from_static(b"there?"))).await.expect("sent");
    client.0.feed(piece(b"\xb6l", Data::Continue, false)).await.expect("sent");
    client.0.send(piece(b"f", Data::Continue, true)).await.expect("sent");
    let pong = within_timeout(client.0.next()).await.expect("a pong").expect("a pong");
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"there?")));
    assert_eq!(client.receive().await, "zwölf");
}

#[tokio::test]
async fn a_ping_is_answered_while_the_conversation_is_busy() {
    let done = Arc::new(Notify::new());
    let work = done.clone();
    let server = TestTransportServer::talking(bounds(), move |socket| {
        let work = work.clone();
        async move {
            let _inbox = socket.inbox;
            work.notified().await;
            WebSocketCloseReason::normal()
        }
    })
    .await;
    let mut client = server.connect().await;
    client.send("work").await;
    client.0.send(Message::Ping(Bytes::from_static(b"1"))).await.expect("sent");
    let pong = within_timeout(client.0.next()).await.expect("a pong").expect("a pong");
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"1")));
    done.notify_one();
    assert_eq!(client.receive_all().await, (vec![], close(1000, "")));
}

#[tokio::test]
async fn no_message_is_lost_if_waiting_for_it_is_cancelled() {
    let server = TestTransportServer::talking(bounds(), |mut socket| async move {
        loop {
            tokio::select! {
                biased;
                message = socket.inbox.next() => match message {
                    Some(message) => drop(socket.outbox.send(message).await),
                    None => return WebSocketCloseReason::normal(),
                },
                () = tokio::task::yield_now() => {}
            }
        }
    })
    .await;
    let mut client = server.connect().await;
    for n in 0..200 {
        client.send(&n.to_string()).await;
        assert_eq!(client.receive().await, n.to_string());
    }
}

#[tokio::test]
async fn reading_stops_while_the_inbox_is_full() {
    let go = Arc::new(Notify::new());
    let notify = go.clone();
    let server = TestTransportServer::talking(bounds(), move |socket| {
        let go = notify.clone();
        async move {
            go.notified().await;
            echo(socket).await
        }
    })
    .await;
    let (mut writer, mut reader) = server.connect().await.0.split();
    // Far more than sockets hold.
    let texts = || (0..400).map(|n| format!("{n:060000}"));
    let mut saying = tokio::spawn(async move {
        for text in texts() {
            writer.send(Message::text(text)).await.expect("sent");
        }
    });
    assert!(
        is_pending(&mut saying).await,
        "24 MB were read although the conversation reads nothing"
    );
    go.notify_one();
    for text in texts() {
        let message = within_timeout(reader.next()).await.expect("a message").expect("a message");
        assert!(message == Message::text(text));
    }
    within_timeout(saying).await.expect("everything was sent");
}

#[tokio::test]
async fn a_quiet_client_that_answers_pings_stays() {
    let keep_alive = Duration::from_millis(300);
    let server =
        TestTransportServer::talking(HttpServerLimits { keep_alive, ..bounds() }, echo).await;
    let mut client = server.connect().await;
    for _ in 0..5 {
        let message = within_timeout(client.0.next()).await.expect("a ping").expect("a ping");
        assert!(message.is_ping(), "{message:?}");
    }
    client.send("still there").await;
    assert_eq!(client.receive().await, "still there");
}

#[tokio::test]
async fn a_client_that_answers_no_pings_is_dropped() {
    let keep_alive = Duration::from_millis(60);
    let (ended, mut over) = mpsc::channel(1);
    let server = TestTransportServer::talking(
        HttpServerLimits { keep_alive, ..bounds() },
        move |mut socket| {
            let ended = ended.clone();
            async move {
                assert_eq!(socket.inbox.next().await, None);
                socket.outbox.wait_closed().await;
                ended.send(()).await.expect("the test listens");
                WebSocketCloseReason::normal()
            }
        },
    )
    .await;
    let started = std::time::Instant::now();
    let _silent = server.connect_raw().await;
    within_timeout(over.recv()).await.expect("the conversation ends");
    assert!(started.elapsed() >= keep_alive * 3, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_client_that_is_not_read_does_not_count_as_silent() {
    let keep_alive = Duration::from_millis(300);
    let go = Arc::new(Notify::new());
    let notify = go.clone();
    let server =
        TestTransportServer::talking(HttpServerLimits { keep_alive, ..bounds() }, move |socket| {
            let go = notify.clone();
            async move {
                go.notified().await;
                echo(socket).await
            }
        })
        .await;
    let mut client = server.connect().await;
    for n in 0..20 {
        client.send(&n.to_string()).await;
    }
    // Its pongs are not read either.
    for _ in 0..5 {
        let message = within_timeout(client.0.next()).await.expect("a ping").expect("a ping");
        assert!(message.is_ping(), "{message:?}");
    }
    go.notify_one();
    for n in 0..20 {
        assert_eq!(client.receive().await, n.to_string());
    }
}
