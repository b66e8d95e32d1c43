//! Tests of invalid and ambiguous HTTP requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, structured,
};

/// Sends `bytes`, with `HOST` replaced by the server's address, and returns the status of the
/// response, or 0 if there is none.
///
/// Checks that the server does not answer the rest of `bytes` as a second request. If `leaves` is
/// true, the client closes its sending side after the last byte.
#[track_caller]
fn status(served: &HttpServerProcess, bytes: &str, leaves: bool) -> u16 {
    let mut connection = served.connect();
    let bytes = bytes.replace("HOST", &served.addr.to_string());
    // The server may have closed before all is written.
    let _ = connection.stream.write_all(bytes.as_bytes());
    if leaves {
        let _ = connection.stream.shutdown(Shutdown::Write);
    }
    let answer = until_closed(&mut connection.stream);
    let answers = answer.matches("HTTP/1.").count();
    assert!(answers <= 1, "{answers} answers to {bytes:?}: {answer}");
    answer.split(' ').nth(1).map_or(0, |status| status.parse().unwrap())
}

/// Returns all bytes that the server sends until it closes the connection. After a complete
/// response, the client closes its sending side, so that the server does not wait for another
/// request.
#[track_caller]
fn until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let mut bytes = [0; 8192];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                panic!("the connection stays open: {answer:?}")
            }
            Err(_) => break,
        }
        if is_whole(&String::from_utf8_lossy(&answer)) {
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns true if `answer` begins with a complete HTTP response.
fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    match head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()) {
        Some(length) => body.len() >= length.trim().parse().unwrap(),
        None => !head.contains("transfer-encoding: chunked") || body.ends_with("0\r\n\r\n"),
    }
}

/// Checks that the server refuses each request with one of the statuses in `expected`, and still
/// answers afterwards. If `leaves` is true, the client closes its sending side after each request.
#[track_caller]
fn check(expected: &[u16], requests: &[&str], leaves: bool) {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for request in requests {
        let status = status(&served, request, leaves);
        let shown: String = request.chars().take(200).collect();
        assert!(expected.contains(&status), "{shown:?}: {status}, not {expected:?}");
    }
    let read =
        served.send(&TestHttpRequest::mcp(&call(1, "files_read", json!({ "path": "README.md" }))));
    assert_eq!(structured(&read.json())["content"], TempWorkspace::README);
}

#[test]
fn a_request_that_is_not_http_is_a_bad_request() {
    check(
        &[400],
        &[
            "GARBAGE\r\n\r\n",
            "\u{0}\u{1}\u{2}\r\n\r\n",
            "POST /mcp\r\nhost: HOST\r\n\r\n",
            "POST /mcp HTTP/9.9\r\nhost: HOST\r\n\r\n",
            "POST  /mcp HTTP/1.1\r\nhost: HOST\r\n\r\n",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n\r\n",
        ],
        false,
    );
}

#[test]
fn another_protocol_is_refused_or_disconnected() {
    check(
        &[0, 400],
        &[
            "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "SSH-2.0-OpenSSH_9.2\r\n",
        ],
        true,
    );
}

#[test]
fn an_invalid_header_is_a_bad_request() {
    check(
        &[400],
        &[
            "POST /mcp HTTP/1.1\r\nhost: HOST\r\nx: a\r\n folded: b\r\n\r\n",
            "POST /mcp HTTP/1.1\r\nhost : HOST\r\n\r\n",
            "POST /mcp HTTP/1.1\r\nhost: HOST\r\nno colon\r\n\r\n",
            "POST /mcp HTTP/1.1\r\nhost: HOST\r\nx: a\u{0}b\r\n\r\n",
            "POST /mcp HTTP/1.1\r\nhost: HOST\r\n: nameless\r\n\r\n",
        ],
        false,
    );
}

#[test]
fn a_request_without_exactly_one_host_is_a_bad_request() {
    check(
        &[400],
        &[
            "POST /mcp HTTP/1.1\r\n\r\n",
            "POST /mcp HTTP/1.0\r\n\r\n",
            "POST /mcp HTTP/1.1\r\nhost: HOST\r\nhost: HOST\r\n\r\n",
        ],
        false,
    );
}

/// Returns a request whose remaining headers and body are `length`, followed by another request. In
/// `length`, `BODY` stands for a valid message, and `SIZE` and `HEX` for its length.
fn two_requests(length: &str) -> String {
    let message = call(1, "files_read", json!({ "path": "README.md" }));
    let body = message.to_string();
    let head = "POST /mcp HTTP/1.1\r\nhost: HOST\r\ncontent-type: application/json\r\n\
                accept: application/json\r\nmcp-protocol-version: 2026-07-28\r\n\
                mcp-method: tools/call\r\nmcp-name: files_read\r\n";
    let length = length.replace("SIZE", &body.len().to_string());
    let length = length.replace("HEX", &format!("{:x}", body.len())).replace("BODY", &body);
    format!("{head}{length}GET /healthz HTTP/1.1\r\nhost: HOST\r\n\r\n")
}

#[track_caller]
fn check_lengths(expected: &[u16], lengths: &[&str]) {
    let requests: Vec<String> = lengths.iter().map(|length| two_requests(length)).collect();
    check(expected, &requests.iter().map(String::as_str).collect::<Vec<_>>(), false);
}

#[test]
fn a_body_with_an_invalid_length_is_a_bad_request() {
    check_lengths(
        &[400],
        &[
            "content-length: SIZE\r\ncontent-length: 6\r\n\r\nBODY",
            "content-length: SIZE, 6\r\n\r\nBODY",
            "content-length: -1\r\n\r\nBODY",
            "content-length: +SIZE\r\n\r\nBODY",
            "content-length: 0xHEX\r\n\r\nBODY",
            "content-length: SIZE.0\r\n\r\nBODY",
            "content-length: \r\n\r\nBODY",
            "content-length: 99999999999999999999\r\n\r\nBODY",
            "transfer-encoding: gzip\r\n\r\nBODY",
            "transfer-encoding: chunked, gzip\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: xchunked\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\nzz\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n-HEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\nffffffffffffffffHEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\nHEX\r\nBODYxx0\r\n\r\n",
        ],
    );
}

#[test]
fn a_body_with_two_lengths_is_a_bad_request() {
    check_lengths(
        &[400],
        &[
            "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked\r\ncontent-length: SIZE\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n",
            "transfer-encoding: chunked, chunked\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n",
            "content-length: SIZE\r\ncontent-length: SIZE\r\n\r\nBODY",
        ],
    );
}

#[test]
fn a_request_after_a_chunked_body_is_not_read() {
    // `check` verifies that the second request is not answered.
    check_lengths(&[200], &["transfer-encoding: chunked\r\n\r\nHEX\r\nBODY\r\n0\r\n\r\n"]);
}

#[test]
fn a_head_line_without_cr_and_lf_is_a_bad_request() {
    check(
        &[400],
        &[
            "GET /healthz HTTP/1.1\nhost: HOST\n\n",
            "GET /healthz HTTP/1.1\r\nhost: HOST\n\r\n",
            "GET /healthz HTTP/1.1\r\nhost: HOST\r\n\n",
            "\nGET /healthz HTTP/1.1\r\nhost: HOST\r\n\r\n",
            "GET /healthz HTTP/1.1\r\nhost: HOST\r\nx: a\rtransfer-encoding: chunked\r\n\r\n",
        ],
        false,
    );
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let long = format!("GET /healthz HTTP/1.1\r\nhost: HOST\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let many = format!("GET /healthz HTTP/1.1\r\nhost: HOST\r\n{}\r\n", "x: y\r\n".repeat(5_000));
    let path = format!("GET /{} HTTP/1.1\r\nhost: HOST\r\n\r\n", "y".repeat(200_000));
    check(&[400, 414, 431], &[&long, &many, &path], false);
}

#[test]
fn a_body_that_ends_early_is_a_bad_request_or_disconnected() {
    let head = "POST /mcp HTTP/1.1\r\nhost: HOST\r\ncontent-type: application/json\r\n";
    check(
        &[0, 400],
        &[
            &format!("{head}content-length: 50\r\n\r\n{{"),
            &format!("{head}transfer-encoding: chunked\r\n\r\n5\r\nhe"),
        ],
        true,
    );
}
