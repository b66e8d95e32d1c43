//! Tests of responses with files and events.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use toolgate_contract::{OutgoingFile, Reply, ReplyBody};
use toolgate_transports::http::{HttpServerLimits, OutgoingResponse, ServerSentEvent};

use crate::served::{TestTransportServer, bounds, read_head, within_timeout};

/// Returns a reply with a file of `length` letters, whose declared length is `bytes`.
fn file(length: usize, bytes: u64) -> Reply {
    let mut handle: File = tempfile::tempfile().expect("a file");
    handle.write_all(&letters(length)).expect("written");
    let file = OutgoingFile {
        handle: Arc::new(handle),
        bytes,
        media_type: "image/png".to_owned(),
        guard: None,
    };
    Reply { body: ReplyBody::File(file), ..Reply::empty(200) }
}

fn letters(length: usize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(length).collect()
}

/// Sends a request with the request line `line`. Returns the head and the body of the response,
/// which `reply` determines.
async fn ask(line: &str, reply: Reply) -> (String, String) {
    let server =
        TestTransportServer::start(bounds(), move |_| OutgoingResponse::Single(reply.clone()))
            .await;
    let answer = server.ask(line, "").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// Returns the bytes of a response with two server-sent events, which `new_event` creates.
async fn events(new_event: fn(Bytes) -> ServerSentEvent) -> String {
    let server = TestTransportServer::start(bounds(), move |_| {
        OutgoingResponse::AnswerStream(
            stream::iter(["{}", "[1]"]).map(Bytes::from).map(new_event).boxed(),
        )
    })
    .await;
    let answer = server.ask("GET /talk", "").await;
    assert!(answer.contains("content-type: text/event-stream\r\n"), "{answer}");
    answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

#[tokio::test]
async fn a_file_is_sent_with_its_length_and_media_type() {
    for length in [0, 1, 64 << 10, (64 << 10) + 1, 1_000_000] {
        let (head, body) = ask("GET /file", file(length, length as u64)).await;
        assert!(head.contains("content-type: image/png"), "{head}");
        assert!(head.contains(&format!("content-length: {length}")), "{head}");
        assert!(body.as_bytes() == letters(length), "{length}");
    }
}

#[tokio::test]
async fn a_file_that_grew_is_sent_up_to_the_declared_length() {
    let (head, body) = ask("GET /file", file(100_000, 70_000)).await;
    assert!(head.contains("content-length: 70000"), "{head}");
    assert!(body.as_bytes() == letters(70_000));
}

#[tokio::test]
async fn a_file_that_shrank_aborts_the_connection() {
    for length in [0, 10, 100_000] {
        let server = TestTransportServer::start(bounds(), move |_| {
            OutgoingResponse::Single(file(length, 200_000))
        })
        .await;
        let answer = server.ask("GET /file", "").await;
        // The head may be cut off with the rest.
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.is_empty() || head.contains("content-length: 200000"), "{head}");
        assert!(body.len() <= length && letters(length).starts_with(body.as_bytes()));
    }
}

#[tokio::test]
async fn a_content_type_of_the_reply_replaces_the_media_type_of_the_file() {
    let (head, _) = ask("GET /file", file(5, 5).with_header("content-type", "text/html")).await;
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(!head.contains("image/png"), "{head}");
}

#[tokio::test]
async fn a_head_request_for_a_file_gets_no_body() {
    let (head, body) = ask("HEAD /file", file(100_000, 100_000)).await;
    assert!(head.contains("content-length: 100000"), "{head}");
    assert!(head.contains("content-type: image/png"), "{head}");
    assert_eq!(body, "");
}

#[tokio::test]
async fn named_events_include_their_name() {
    let all =
        "19\r\nevent: message\ndata: {}\n\n\r\n1A\r\nevent: message\ndata: [1]\n\n\r\n0\r\n\r\n";
    assert_eq!(events(ServerSentEvent::message).await, all);
}

#[tokio::test]
async fn plain_events_contain_only_data() {
    assert_eq!(
        events(ServerSentEvent::plain).await,
        "A\r\ndata: {}\n\n\r\nB\r\ndata: [1]\n\n\r\n0\r\n\r\n"
    );
}

#[tokio::test]
async fn a_quiet_event_stream_sends_keep_alive_comments() {
    let brief = HttpServerLimits { keep_alive: Duration::from_millis(20), ..bounds() };
    let server = TestTransportServer::start(brief, |_| {
        OutgoingResponse::AnswerStream(stream::pending().boxed())
    })
    .await;
    let mut answer = server.send_head("GET /talk", "").await;
    read_head(&mut answer).await;
    let mut comments = [0; 16];
    within_timeout(answer.read_exact(&mut comments)).await.expect("comments");
    assert_eq!(&comments, b"3\r\n:\n\n\r\n3\r\n:\n\n\r\n");
}

#[tokio::test]
async fn an_event_can_have_an_id_and_a_retry_delay() {
    let new_event = |data| ServerSentEvent {
        id: Some("7-0".to_owned()),
        retry: Some(Duration::from_millis(1500)),
        ..ServerSentEvent::plain(data)
    };
    let all = "1e\r\nid: 7-0\nretry: 1500\ndata: {}\n\n\r\n1f\r\nid: 7-0\nretry: 1500\ndata: [1]\n\n\r\n0\r\n\r\n";
    assert_eq!(events(new_event).await.to_lowercase(), all.to_lowercase());
}

#[tokio::test]
async fn waiting_requests_without_a_body_use_no_body_budget() {
    let server =
        TestTransportServer::start(bounds(), |_| OutgoingResponse::Single(Reply::json("{}"))).await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(server.send_head("GET /never", "").await);
    }
    let json = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    let mut posting = server.send_head("POST /talk", json).await;
    posting.write_all(b"2\r\n{}\r\n0\r\n\r\n").await.expect("sent");
    assert!(read_head(&mut posting).await.starts_with("HTTP/1.1 200 "));
}
