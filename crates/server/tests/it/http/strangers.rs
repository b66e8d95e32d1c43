//! Tests that unauthenticated clients that connect often do not block authenticated clients.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest,
    call, keys_of, structured,
};

const CONNECTIONS_MAX: usize = 8;

fn served() -> HttpServerProcess {
    let launch = ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", "devkey");
    launch.set("server_connections_max", CONNECTIONS_MAX).served()
}

fn read() -> TestHttpRequest {
    let read = call(1, "files_read", json!({ "path": "README.md" }));
    TestHttpRequest::mcp(&read).with("x-api-key", "devkey")
}

#[track_caller]
fn read_over(connection: &mut TestHttpConnection) {
    connection.post(&read());
    assert_eq!(structured(&connection.response().json())["content"], TempWorkspace::README);
}

#[test]
fn unauthenticated_requests_on_every_connection_do_not_block_clients() {
    let served = served();
    let stranger = TestHttpRequest::bytes(b"{}").to_bytes(served.addr);
    let mut crowd: Vec<_> = (0..CONNECTIONS_MAX).map(|_| served.connect()).collect();
    for connection in &mut crowd {
        // The answers take half a minute.
        connection.try_write(&stranger.repeat(300));
    }
    thread::sleep(Duration::from_millis(50));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS_MAX / 2 {
        clients.push(served.connect());
        thread::sleep(Duration::from_millis(20));
    }
    let started = Instant::now();
    clients.iter_mut().for_each(read_over);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn public_requests_do_not_block_clients() {
    let served = served();
    let mut crowd: Vec<_> = (0..CONNECTIONS_MAX).map(|_| served.connect()).collect();
    let look = TestHttpRequest::bare("GET", "/v1/health").with("transfer-encoding", "chunked");
    for connection in &mut crowd {
        connection.write(&look.to_bytes(served.addr));
    }
    thread::sleep(Duration::from_millis(100));
    // Each replaces a public request, and none replaces another new client.
    let mut clients: Vec<_> = (0..CONNECTIONS_MAX).map(|_| served.connect()).collect();
    thread::sleep(Duration::from_millis(100));
    clients.iter_mut().for_each(read_over);
}

#[test]
fn a_new_connection_is_not_closed_before_it_can_send() {
    let served = served();
    let mut idle: Vec<_> = (0..CONNECTIONS_MAX - 1).map(|_| served.connect()).collect();
    idle.iter_mut().for_each(read_over);
    let mut new = served.connect();
    thread::sleep(Duration::from_millis(100));
    let mut later = served.connect();
    read_over(&mut later);
    read_over(&mut new);
    assert_eq!(idle[0].read_until_closed(), b"");
}

#[test]
fn an_expired_key_uses_no_streams_of_other_callers() {
    let [old, good] = ["old", "good"].map(|name| keys_of(&[name]));
    let config = format!("{old}expires = \"2020-01-01T00:00:00Z\"\n{good}");
    let launch = ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", config));
    let served = launch.set("server_connections_max", 32).served();
    let mut crowd: Vec<_> = (0..20).map(|_| served.connect()).collect();
    for connection in &mut crowd {
        let upgrade = TestHttpRequest::bare("GET", "/v1/ws/mcp?api_key=old-key")
            .with("connection", "upgrade")
            .with("upgrade", "websocket")
            .with("sec-websocket-version", "13")
            .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        connection.write(&upgrade.to_bytes(served.addr));
    }
    thread::sleep(Duration::from_millis(500));
    for _ in 0..4 {
        drop(served.socket("/v1/ws/mcp?api_key=good-key"));
    }
}
