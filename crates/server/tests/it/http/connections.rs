//! Tests of connections that are reused, slow or too many.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, PATIENCE, ProcessMarker, ServerLaunchOptions, TempWorkspace,
    TestHttpRequest, call, initialize, modern, structured, wait_until,
};

fn served() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).served()
}

fn read(id: u64) -> Value {
    call(id, "files_read", json!({ "path": "README.md" }))
}

#[track_caller]
fn check_serves(served: &HttpServerProcess) {
    assert_eq!(structured(&served.ask(&read(1)))["content"], TempWorkspace::README);
}

#[test]
fn one_connection_serves_request_after_request() {
    let served = served();
    let mut connection = served.connect();
    for id in 0..100 {
        connection.post(&TestHttpRequest::mcp(&read(id)));
        let answer = connection.response().json();
        assert_eq!(
            (answer["id"].as_u64(), &structured(&answer)["content"]),
            (Some(id), &json!(TempWorkspace::README))
        );
        // A refusal does not close the connection either.
        connection.post(&TestHttpRequest::bytes(b"{"));
        assert_eq!(connection.response().status, 400);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let served = served();
    let mut connection = served.connect();
    let requests: Vec<u8> =
        (0..50).flat_map(|id| TestHttpRequest::mcp(&read(id)).to_bytes(served.addr)).collect();
    connection.write(&requests);
    for id in 0..50 {
        assert_eq!(connection.response().json()["id"], id);
    }
}

#[test]
fn a_request_that_arrives_byte_by_byte_is_answered() {
    let served = served();
    let mut connection = served.connect();
    for byte in TestHttpRequest::mcp(&modern(1, "tools/list", json!({}))).to_bytes(served.addr) {
        connection.write(&[byte]);
    }
    assert_eq!(connection.response().status, 200);
}

#[test]
fn a_chunked_request_is_read_whole() {
    let served = served();
    let body = read(1).to_string();
    let (one, two) = body.split_at(30);
    let post = TestHttpRequest::mcp(&read(1))
        .without("content-length")
        .with("transfer-encoding", "chunked");
    let text = String::from_utf8(post.to_bytes(served.addr)).unwrap();
    let head = text.split_once("\r\n\r\n").unwrap().0;
    let mut connection = served.connect();
    connection.write(
        format!("{head}\r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", one.len(), two.len())
            .as_bytes(),
    );
    assert_eq!(structured(&connection.response().json())["content"], TempWorkspace::README);
}

#[test]
fn expect_100_continue_is_answered_before_the_body_is_sent() {
    let served = served();
    let text = TestHttpRequest::mcp(&read(1)).with("expect", "100-continue").to_bytes(served.addr);
    let at = text.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let mut connection = served.connect();
    connection.write(&text[..at]);
    assert_eq!(connection.head().status, 100);
    connection.write(&text[at..]);
    assert_eq!(connection.response().status, 200);
}

/// Returns the bytes of `post` as a request in HTTP/1.0.
fn http_1_0(served: &HttpServerProcess, post: &TestHttpRequest) -> Vec<u8> {
    let text = String::from_utf8(post.to_bytes(served.addr)).unwrap();
    text.replacen("HTTP/1.1", "HTTP/1.0", 1).into_bytes()
}

#[test]
fn an_http_1_0_client_is_answered_and_the_connection_closed() {
    let served = served();
    let mut connection = served.connect();
    connection.write(&http_1_0(&served, &TestHttpRequest::mcp(&read(1))));
    assert_eq!(structured(&connection.response().json())["content"], TempWorkspace::README);
    assert_eq!(connection.read_until_closed(), b"");
}

#[test]
fn an_http_1_0_client_gets_a_stream_without_chunks() {
    let served = served();
    let mut connection = served.connect();
    // The call takes longer than the time until a stream begins.
    let call = call(1, "exec_run", json!({ "command": "sleep", "args": ["2.5"] }));
    connection.write(&http_1_0(&served, &TestHttpRequest::mcp(&call)));
    let response = connection.response();
    assert_eq!(response.header("transfer-encoding"), None);
    assert_eq!(structured(response.events().last().unwrap())["exit_code"], 0);
}

#[test]
fn a_request_with_connection_close_closes_the_connection() {
    let served = served();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&read(1)).with("connection", "close"));
    assert_eq!(connection.response().status, 200);
    assert_eq!(connection.read_until_closed(), b"");
}

#[test]
fn at_the_limit_the_connection_idle_for_longest_is_closed() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_connections_max", 4).served();
    let mut idle: Vec<_> = (0..4).map(|_| served.connect()).collect();
    for connection in &mut idle {
        connection.post(&TestHttpRequest::mcp(&read(1)));
        assert_eq!(connection.response().status, 200);
    }
    let mut one_more = served.connect();
    one_more.post(&TestHttpRequest::mcp(&read(2)));
    assert_eq!(one_more.response().status, 200);
    assert_eq!(idle.remove(0).read_until_closed(), b"");
    for connection in &mut idle {
        connection.post(&TestHttpRequest::mcp(&read(3)));
        assert_eq!(connection.response().status, 200);
    }
}

#[test]
fn at_the_limit_of_busy_connections_a_new_one_waits() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_connections_max", 2).served();
    let markers = [ProcessMarker::new(), ProcessMarker::new()];
    let busy = markers.each_ref().map(|marker| {
        let script = "while :; do sleep 0.1; done";
        let input = json!({ "command": script, "shell": true, "args": [marker.0] });
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", input)));
        marker.wait_until_running();
        connection
    });
    let mut waiting = served.connect();
    waiting.post(&TestHttpRequest::mcp(&read(2)));
    waiting.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(waiting.stream.read(&mut [0]).is_err(), "there was one connection too many");
    waiting.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let [one, two] = busy;
    one.close();
    assert_eq!(waiting.response().status, 200);
    drop(two);
}

#[test]
fn a_flood_of_silent_connections_does_not_block_clients() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_connections_max", 8).served();
    let mut flood: Vec<_> = (0..200).map(|_| served.connect()).collect();
    for (at, connection) in flood.iter_mut().enumerate() {
        match at % 3 {
            0 => {}
            1 => drop(connection.stream.write_all(b"POST /mcp HT")),
            _ => {
                let started = TestHttpRequest::bytes(b"{")
                    .with("content-length", "100")
                    .to_bytes(served.addr);
                drop(connection.stream.write_all(&started));
            }
        }
    }
    check_serves(&served);
    drop(flood);
    check_serves(&served);
}

#[test]
fn open_streams_leave_room_for_calls() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_connections_max", 8).served();
    let subscribe =
        modern(1, "subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let listening = || {
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::mcp(&subscribe));
        let status = connection.head().status;
        (connection, status)
    };
    let mut streams: Vec<_> = (0..4).map(|_| listening()).collect();
    assert_eq!(streams.iter().map(|(_, status)| *status).collect::<Vec<_>>(), [200; 4]);
    let (_refused, status) = listening();
    assert_eq!(status, 503);
    check_serves(&served);
    streams.pop();
    wait_until("there is room again", || listening().1 == 200);
}

#[test]
fn clients_that_disconnect_leave_no_open_sockets() {
    let served = served();
    let sockets = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", served.pid)).unwrap();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let before = sockets();
    for round in 0..60 {
        let mut connection = served.connect();
        match round % 4 {
            0 => {}
            1 => connection.write(b"POST /mcp HT"),
            2 => connection.post(&TestHttpRequest::bytes(b"{").with("content-length", "100")),
            _ => connection.post(&TestHttpRequest::mcp(&initialize(1, "2025-11-25"))),
        }
        connection.close();
    }
    wait_until("all connections are closed", || sockets() <= before);
    check_serves(&served);
}

#[test]
fn a_client_that_does_not_read_its_stream_delays_no_other_client() {
    let served = served();
    let marker = ProcessMarker::new();
    let script = "while :; do echo $1 and much more; done";
    let params = json!({
        "name": "exec_run",
        "arguments": { "command": script, "shell": true, "args": [marker.0] },
        "_meta": { "progressToken": 1 },
    });
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&modern(1, "tools/call", params)));
    marker.wait_until_running();
    for _ in 0..20 {
        check_serves(&served);
    }
    connection.close();
    marker.wait_until_gone();
}
