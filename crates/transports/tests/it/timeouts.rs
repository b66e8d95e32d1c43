//! Tests of clients that send slowly, read slowly, or are silent.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use toolgate_contract::Reply;
use toolgate_transports::http::{HttpServerLimits, OutgoingResponse, ServerSentEvent};

use crate::served::{TestTransportServer, bounds, read_head, within_timeout};

const JSON: &str = "content-type: application/json\r\n";

/// Starts a server with the time limits `head_time_max` and `body_time_max` for requests. It
/// answers each request with `{}`.
async fn start(head_time_max: Duration, body_time_max: Duration) -> TestTransportServer {
    let bounds = HttpServerLimits { head_time_max, body_time_max, ..bounds() };
    TestTransportServer::start(bounds, |_| OutgoingResponse::Single(Reply::json("{}"))).await
}

/// Checks that `server` still answers.
async fn check_answers(server: &TestTransportServer) {
    let answer = server.ask("POST /talk", &format!("{JSON}content-length: 0\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

async fn connect(server: &TestTransportServer) -> TcpStream {
    TcpStream::connect(server.addr).await.expect("a connection")
}

/// Returns all bytes that arrive on `stream` until the server closes it.
async fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset also closes it.
    let _ = within_timeout(stream.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn a_connection_without_a_complete_head_is_closed_in_time() {
    let server = start(Duration::from_millis(200), Duration::from_secs(10)).await;
    let silent = connect(&server).await;
    let mut half = connect(&server).await;
    half.write_all(b"POST /talk HTTP/1.1\r\nhost: ").await.expect("sent");
    let mut kept = server.send_head("POST /talk", &format!("{JSON}content-length: 0\r\n")).await;
    assert!(read_head(&mut kept).await.starts_with("HTTP/1.1 200 "));
    let started = Instant::now();
    for stream in [silent, half, kept] {
        until_closed(stream).await;
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    check_answers(&server).await;
}

#[tokio::test]
async fn a_head_that_arrives_too_slowly_is_closed_in_time() {
    let server = start(Duration::from_millis(300), Duration::from_secs(10)).await;
    let mut stream = connect(&server).await;
    stream.write_all(b"POST /talk HTTP/1.1\r\n").await.expect("sent");
    within_timeout(async {
        while stream.write_all(b"x: y\r\n").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    check_answers(&server).await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_a_timeout() {
    let server = start(Duration::from_secs(10), Duration::from_millis(200)).await;
    let mut stream =
        server.send_head("POST /talk", &format!("{JSON}content-length: 100\r\n")).await;
    stream.write_all(b"{").await.expect("sent");
    let answer = until_closed(stream).await;
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
    check_answers(&server).await;
}

#[tokio::test]
async fn an_answer_may_take_longer_than_the_head_and_body_times() {
    let short = Duration::from_millis(100);
    let bounds = HttpServerLimits { head_time_max: short, body_time_max: short, ..bounds() };
    let server = TestTransportServer::start(bounds, |_| {
        let late = async {
            sleep(Duration::from_millis(600)).await;
            ServerSentEvent::plain(Bytes::from("late"))
        };
        OutgoingResponse::AnswerStream(stream::once(late).boxed())
    })
    .await;
    let answer = server.ask("GET /talk", "").await;
    assert!(answer.contains("data: late"), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_disconnected() {
    let bounds = HttpServerLimits {
        connections_max: 1,
        write_time_max: Duration::from_millis(300),
        ..bounds()
    };
    let page = Bytes::from(vec![b' '; 1 << 20]);
    let server = TestTransportServer::start(bounds, move |_| {
        OutgoingResponse::Single(Reply::json(page.clone()))
    })
    .await;
    let mut greedy = connect(&server).await;
    let request = format!("GET /talk HTTP/1.1\r\nhost: {}\r\n\r\n", server.addr);
    // The answers exceed the socket buffers, so the server waits for the client to read.
    greedy.write_all(request.repeat(64).as_bytes()).await.expect("sent");
    sleep(Duration::from_millis(100)).await;
    check_answers(&server).await;
    drop(greedy);
}
