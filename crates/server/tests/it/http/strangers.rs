//! Clients that may not call and come all the same, often: they keep nobody out who may.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Connection, Launch, Post, Served, Workspace, call, keys_of, structured};

const SEATS: usize = 8;

fn served() -> Served {
    let launch = Launch::over(&Workspace::new()).env("ZYRA_API_KEY", "devkey");
    launch.set("server_connections_max", SEATS).served()
}

fn read() -> Post {
    let read = call(1, "files_read", json!({ "path": "README.md" }));
    Post::mcp(&read).with("x-api-key", "devkey")
}

#[track_caller]
fn is_read(connection: &mut Connection) {
    connection.post(&read());
    assert_eq!(structured(&connection.response().json())["content"], Workspace::README);
}

#[test]
fn who_has_no_key_and_asks_on_every_connection_keeps_nobody_out() {
    let served = served();
    let stranger = Post::bytes(b"{}").written(served.addr);
    let mut crowd: Vec<_> = (0..SEATS).map(|_| served.connect()).collect();
    for connection in &mut crowd {
        // As much as is answered in half a minute.
        connection.try_write(&stranger.repeat(300));
    }
    thread::sleep(Duration::from_millis(50));
    let mut clients = Vec::new();
    for _ in 0..SEATS / 2 {
        clients.push(served.connect());
        thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    clients.iter_mut().for_each(is_read);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn what_is_open_to_everybody_takes_nobodys_place() {
    let served = served();
    let mut crowd: Vec<_> = (0..SEATS).map(|_| served.connect()).collect();
    let look = Post::bare("GET", "/v1/health").with("transfer-encoding", "chunked");
    for connection in &mut crowd {
        connection.write(&look.written(served.addr));
    }
    thread::sleep(Duration::from_millis(100));
    // Each takes the place of one that looks, and none of another that has just come.
    let mut clients: Vec<_> = (0..SEATS).map(|_| served.connect()).collect();
    thread::sleep(Duration::from_millis(100));
    clients.iter_mut().for_each(is_read);
}

#[test]
fn who_has_just_come_has_a_moment_to_say_something() {
    let served = served();
    let mut idle: Vec<_> = (0..SEATS - 1).map(|_| served.connect()).collect();
    idle.iter_mut().for_each(is_read);
    let mut new = served.connect();
    thread::sleep(Duration::from_millis(100));
    let mut later = served.connect();
    is_read(&mut later);
    is_read(&mut new);
    assert_eq!(idle[0].until_closed(), b"");
}

#[test]
fn who_has_a_key_that_ran_out_takes_no_stream_of_others() {
    let [old, good] = ["old", "good"].map(|name| keys_of(&[name]));
    let config = format!("{old}expires = \"2020-01-01T00:00:00Z\"\n{good}");
    let launch = Launch::over(&Workspace::new().file("toolgate.toml", config));
    let served = launch.set("server_streams_max", 8).served();
    let mut crowd: Vec<_> = (0..20).map(|_| served.connect()).collect();
    for connection in &mut crowd {
        let upgrade = Post::bare("GET", "/v1/ws/mcp?api_key=old-key")
            .with("connection", "upgrade")
            .with("upgrade", "websocket")
            .with("sec-websocket-version", "13")
            .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        connection.write(&upgrade.written(served.addr));
    }
    thread::sleep(Duration::from_millis(500));
    for _ in 0..4 {
        drop(served.socket("/v1/ws/mcp?api_key=good-key"));
    }
}
