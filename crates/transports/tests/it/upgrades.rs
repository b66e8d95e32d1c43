//! Tests of WebSocket requests and their refusals.

use toolgate_contract::{FrameMetadata, Reply};
use toolgate_transports::http::OutgoingResponse;

use crate::served::{TestTransportServer, UPGRADE_HEADERS, bounds, echo, read_head, socket};

/// Sends a request with `line` and `headers` to a server that accepts WebSockets, and returns the
/// response head.
async fn check(line: &str, headers: &str) -> String {
    let server = TestTransportServer::start(bounds(), |incoming| match incoming.upgrade {
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
    let lines = UPGRADE_HEADERS.split_inclusive("\r\n").filter(|line| !line.starts_with(header));
    lines.collect()
}

#[tokio::test]
async fn a_websocket_request_is_accepted() {
    let head = check("GET /talk", UPGRADE_HEADERS).await;
    assert_eq!(status(&head), "101");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
}

#[tokio::test]
async fn another_version_is_refused_with_the_supported_one() {
    let headers = without("sec-websocket-version");
    for version in ["", "sec-websocket-version: 8\r\n", "sec-websocket-version: 8, 13\r\n"] {
        let head = check("GET /talk", &format!("{headers}{version}")).await;
        assert_eq!(status(&head), "426", "{version}");
        assert!(head.contains("sec-websocket-version: 13\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_request_without_exactly_one_valid_key_is_malformed() {
    let headers = without("sec-websocket-key");
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for key in ["", "sec-websocket-key: short\r\n", &format!("{key}{key}")] {
        assert_eq!(status(&check("GET /talk", &format!("{headers}{key}")).await), "400", "{key}");
    }
}

#[tokio::test]
async fn a_request_without_the_upgrade_headers_is_plain_http() {
    for header in ["connection", "upgrade"] {
        assert_eq!(status(&check("GET /talk", &without(header)).await), "200", "{header}");
    }
    let json = format!("{UPGRADE_HEADERS}content-type: application/json\r\ncontent-length: 0\r\n");
    assert_eq!(status(&check("POST /talk", &json).await), "200");
    assert_eq!(status(&check("DELETE /talk", UPGRADE_HEADERS).await), "200");
}

#[tokio::test]
async fn a_foreign_page_gets_no_websocket() {
    let foreign = format!("{UPGRADE_HEADERS}origin: http://evil.example\r\n");
    assert_eq!(status(&check("GET /talk", &foreign).await), "403");
    let null = format!("{UPGRADE_HEADERS}origin: null\r\n");
    assert_eq!(status(&check("GET /talk", &null).await), "403");
}

#[tokio::test]
async fn a_foreign_host_gets_no_websocket() {
    let second = format!("{UPGRADE_HEADERS}host: evil.example\r\n");
    assert_eq!(status(&check("GET /talk", &second).await), "400");
}

#[tokio::test]
async fn an_unknown_path_gets_no_websocket() {
    assert_eq!(status(&check("GET /nowhere", UPGRADE_HEADERS).await), "404");
}

#[tokio::test]
async fn the_application_may_refuse_with_its_own_status() {
    for refused in [401, 404] {
        let server = TestTransportServer::start(bounds(), move |incoming| {
            assert!(incoming.upgrade);
            OutgoingResponse::Single(
                Reply::empty(refused).with_header("www-authenticate", "Bearer"),
            )
        })
        .await;
        let mut stream = server.send_head("GET /talk", UPGRADE_HEADERS).await;
        let head = read_head(&mut stream).await;
        assert_eq!(status(&head), refused.to_string());
        assert!(head.contains("www-authenticate: Bearer"), "{head}");
    }
}

#[tokio::test]
async fn a_websocket_that_was_not_requested_is_an_internal_error() {
    let server = TestTransportServer::talking(bounds(), echo).await;
    let answer = server.ask("GET /talk", "").await;
    assert_eq!(status(&answer), "500");
}

#[tokio::test]
async fn the_application_gets_the_path_and_query_unchanged() {
    let server = TestTransportServer::start(bounds(), |incoming| {
        let FrameMetadata::Http { method, path, query, .. } = &incoming.frame.head else {
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
