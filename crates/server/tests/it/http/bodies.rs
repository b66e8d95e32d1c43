//! Tests of request bodies: how much memory they may use, and which bodies are dropped.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest,
    call, keys_of, let_continue, started_commands, wait_until,
};

/// Largest body in these tests. The memory limit allows eight of them, in addition to the first 64
/// KiB of each. Text counts three times once a body is complete.
const BODY: usize = 256 << 10;

fn read(id: u64) -> Value {
    call(id, "files_read", json!({ "path": "README.md" }))
}

/// Returns a call whose body has nearly the largest size, [`BODY`].
fn large(id: u64) -> TestHttpRequest {
    let content = "x".repeat(BODY - 1024);
    TestHttpRequest::mcp(&call(
        id,
        "files_write",
        json!({ "path": format!("{id}.txt"), "content": content }),
    ))
}

/// Opens a connection and sends all bytes of `post` except the last.
fn send_unfinished(served: &HttpServerProcess, post: &TestHttpRequest) -> TestHttpConnection {
    let mut connection = served.connect();
    let bytes = post.to_bytes(served.addr);
    connection.try_write(&bytes[..bytes.len() - 1]);
    connection
}

/// Opens a connection and sends the head of `post` and the first byte of its chunked body.
fn start_body(served: &HttpServerProcess, post: TestHttpRequest) -> TestHttpConnection {
    let post = post.without("content-length").with("transfer-encoding", "chunked");
    let mut connection = served.connect();
    connection.write(&post.to_bytes(served.addr));
    connection.write(b"1\r\n{\r\n");
    connection
}

#[track_caller]
fn check_answered_at_once(served: &HttpServerProcess, post: &TestHttpRequest) {
    let started = Instant::now();
    let response = served.send(post);
    assert_eq!(response.status, 200, "{response:?}");
    let answer = response.json();
    assert_eq!(answer["result"]["isError"], json!(false), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn stalled_bodies_do_not_block_other_requests() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", "devkey").served();
    let key = |post: TestHttpRequest| post.with("x-api-key", "devkey");
    let mut stalled: Vec<_> =
        (0..16).map(|_| start_body(&served, TestHttpRequest::bare("GET", "/v1/health"))).collect();
    check_answered_at_once(&served, &key(TestHttpRequest::mcp(&read(1))));
    let posts = [
        TestHttpRequest::bytes(b""),
        TestHttpRequest::bytes(b"").to("/v1/mcp"),
        TestHttpRequest::bytes(b"").to("/rpc"),
    ];
    stalled.extend((0..24).map(|nth| start_body(&served, key(posts[nth % posts.len()].clone()))));
    check_answered_at_once(&served, &key(TestHttpRequest::mcp(&read(2))));
}

#[test]
fn only_the_start_of_an_unused_body_is_read() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).env("ZYRA_API_KEY", "devkey").served();
    let large = TestHttpRequest::bytes(&vec![b' '; (64 << 10) + 1]).to("/v1/health");
    assert_eq!(served.send(&large).status, 200, "the JSON-RPC error is in the body");
    let look = TestHttpRequest::bare("GET", "/v1/health").with("content-length", "70000");
    assert_eq!(served.send(&look).status, 200);
    assert_eq!(served.get("/v1/health").status, 200);
}

#[test]
fn unfinished_large_bodies_are_dropped_when_room_is_needed() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("limits_message_bytes", BODY).served();
    // The unfinished parts of nine bodies exceed the share of one address.
    let mut stalled: Vec<_> = (0..9).map(|id| send_unfinished(&served, &large(id))).collect();
    let full = served.send(&large(9));
    assert_eq!(full.status, 200, "{full:?}");
    check_answered_at_once(&served, &TestHttpRequest::mcp(&read(10)));
    wait_until("one is dropped", || stalled.iter().any(TestHttpConnection::has_answer));
    let mut statuses: Vec<_> = Vec::new();
    for connection in &mut stalled {
        connection.try_write(b"}");
        let head = connection.head();
        assert_eq!(head.header("retry-after").is_some(), head.status == 503, "{head:?}");
        statuses.push(head.status);
    }
    statuses.sort_unstable();
    assert!(statuses[0] == 200 && statuses[8] == 503, "{statuses:?}");
}

#[test]
fn one_caller_cannot_use_all_the_room_for_bodies() {
    let toml = keys_of(&["ada", "bob"]);
    let workspace = TempWorkspace::new().file("toolgate.toml", toml);
    let served = ServerLaunchOptions::over(&workspace).set("limits_message_bytes", BODY).served();
    let with_key =
        |post: TestHttpRequest, name: &str| post.with("x-api-key", &format!("{name}-key"));
    let mut adas: Vec<_> =
        (0..12).map(|id| send_unfinished(&served, &with_key(large(id), "ada"))).collect();
    thread::sleep(Duration::from_millis(300));
    check_answered_at_once(&served, &with_key(large(20), "bob"));
    // Ada's first body was not dropped for it.
    let mut last = adas.remove(0);
    last.try_write(b"}");
    assert_eq!(last.head().status, 200);
}

#[test]
fn many_large_bodies_at_once_are_each_answered_or_refused_with_503() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("limits_message_bytes", BODY).served();
    let statuses: Vec<_> = thread::scope(|scope| {
        let sending = (0..24).map(|id| {
            let served = &served;
            scope.spawn(move || {
                let mut connection = served.connect();
                connection.try_write(&large(id).to_bytes(served.addr));
                connection.head().status
            })
        });
        sending.collect::<Vec<_>>().into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    wait_until("there is room again", || served.send(&large(30)).status == 200);
}

#[test]
fn the_memory_of_a_request_is_in_use_until_its_call_ends() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).set("limits_message_bytes", BODY).served();
    let script = "cat >/dev/null; echo run >> ran; until [ -e go ]; do sleep 0.02; done";
    let stdin = "x".repeat(BODY - 4096);
    let slow = |id| {
        let input = json!({ "command": script, "shell": true, "stdin": stdin });
        TestHttpRequest::mcp(&call(id, "exec_run", input))
    };
    // The memory of one address is enough for two such requests.
    let mut running: Vec<_> = (0..2)
        .map(|id| {
            let mut connection = served.connect();
            connection.write(&slow(id).to_bytes(served.addr));
            connection
        })
        .collect();
    wait_until("both run", || started_commands(&workspace).len() == 2);
    assert_eq!(served.send(&slow(2)).status, 503);
    check_answered_at_once(&served, &TestHttpRequest::mcp(&read(3)));
    let_continue(&workspace);
    assert!(running.iter_mut().all(|connection| connection.head().status == 200));
    wait_until("there is room again", || served.send(&slow(4)).status == 200);
}
