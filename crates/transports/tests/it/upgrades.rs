//! Who gets a WebSocket, and what the others are told.

use toolgate_contract::{FrameHead, Reply};
use toolgate_transports::http::OutgoingResponse;

use crate::served::{ASKING, Server, bounds, echo, read_head, socket};

/// The answer to `line` with `headers`, where a WebSocket is granted to who asks for one.
async fn check(line: &str, headers: &str) -> String {
    let server = Server::start(bounds(), |incoming| match incoming.upgrade {
        true => socket(echo),
        false => OutgoingResponse::Single(Reply::json("{}")),
    })
    .await;
    let mut stream = server.send_head(line, headers).await;
    read_head(&mut stream).await
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).expect("a status")
}

fn without(header: &str) -> String {
    let kept = ASKING.split_inclusive("\r\n").filter(|line| !line.starts_with(header));
    kept.collect()
}

#[tokio::test]
async fn who_asks_for_a_websocket_gets_one() {
    let head = check("GET /talk", ASKING).await;
    assert_eq!(status(&head), "101");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
}

#[tokio::test]
async fn another_version_is_told_which_is_spoken() {
    let headers = without("sec-websocket-version");
    for version in ["", "sec-websocket-version: 8\r\n", "sec-websocket-version: 8, 13\r\n"] {
        let head = check("GET /talk", &format!("{headers}{version}")).await;
        assert_eq!(status(&head), "426", "{version}");
        assert!(head.contains("sec-websocket-version: 13\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_request_without_one_good_key_is_malformed() {
    let headers = without("sec-websocket-key");
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for key in ["", "sec-websocket-key: short\r\n", &format!("{key}{key}")] {
        assert_eq!(status(&check("GET /talk", &format!("{headers}{key}")).await), "400", "{key}");
    }
}

#[tokio::test]
async fn what_does_not_ask_for_a_websocket_is_a_request() {
    for header in ["connection", "upgrade"] {
        assert_eq!(status(&check("GET /talk", &without(header)).await), "200", "{header}");
    }
    let json = format!("{ASKING}content-type: application/json\r\ncontent-length: 0\r\n");
    assert_eq!(status(&check("POST /talk", &json).await), "200");
    assert_eq!(status(&check("DELETE /talk", ASKING).await), "200");
}

#[tokio::test]
async fn a_page_from_elsewhere_gets_no_websocket() {
    let foreign = format!("{ASKING}origin: http://evil.example\r\n");
    assert_eq!(status(&check("GET /talk", &foreign).await), "403");
    let null = format!("{ASKING}origin: null\r\n");
    assert_eq!(status(&check("GET /talk", &null).await), "403");
}

#[tokio::test]
async fn a_foreign_host_gets_no_websocket() {
    let second = format!("{ASKING}host: evil.example\r\n");
    assert_eq!(status(&check("GET /talk", &second).await), "400");
}

#[tokio::test]
async fn where_nothing_is_served_there_is_no_websocket() {
    assert_eq!(status(&check("GET /nowhere", ASKING).await), "404");
}

#[tokio::test]
async fn the_room_may_refuse_and_its_status_is_heard() {
    for refused in [401, 404] {
        let server = Server::start(bounds(), move |incoming| {
            assert!(incoming.upgrade);
            OutgoingResponse::Single(
                Reply::empty(refused).with_header("www-authenticate", "Bearer"),
            )
        })
        .await;
        let mut stream = server.send_head("GET /talk", ASKING).await;
        let head = read_head(&mut stream).await;
        assert_eq!(status(&head), refused.to_string());
        assert!(head.contains("www-authenticate: Bearer"), "{head}");
    }
}

#[tokio::test]
async fn a_conversation_nobody_asked_for_is_a_fault_of_the_server() {
    let server = Server::talking(bounds(), echo).await;
    let answer = server.ask("GET /talk", "").await;
    assert_eq!(status(&answer), "500");
}

#[tokio::test]
async fn the_room_is_told_the_path_and_the_query_as_they_came() {
    let server = Server::start(bounds(), |incoming| {
        let FrameHead::Http { method, path, query, .. } = &incoming.frame.head else {
            panic!("this is HTTP")
        };
        OutgoingResponse::Single(Reply::json(format!("{method} {path} {query}")))
    })
    .await;
    let answer = server.ask("GET /a%20b/c?d=%2F&e", "").await;
    assert!(answer.ends_with("GET /a%20b/c d=%2F&e"), "{answer}");
    let answer = server.ask("GET /a", "").await;
    assert!(answer.ends_with("GET /a "), "{answer}");
}
