//! Tests that oversized input and output is refused or delayed, in bounded memory.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    MODERN, NOTHING, PATIENCE, ServerLaunchOptions, TempWorkspace, TestClientTransport,
    TestHttpRequest, TestMcpClient, call, held_memory_kib, over_both, over_both_with,
    peak_memory_kib, refusal, structured,
};

const MIB: usize = 1 << 20;

#[test]
fn a_line_of_a_gib_is_refused_in_bounded_memory_and_the_next_is_served() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let mut input = stdio.take_input();
    let read = call(2, "files_read", json!({ "path": "README.md" }));
    let writing = thread::spawn(move || {
        let piece = vec![b'x'; MIB];
        for _ in 0..1024 {
            input.write_all(&piece).unwrap();
        }
        input.write_all(format!("\n{read}\n").as_bytes()).unwrap();
        input
    });
    let refused = stdio.receive();
    assert!(refusal(&refused).contains("larger than 33554432 bytes"), "{refused}");
    assert_eq!(structured(&stdio.answer(2))["content"], TempWorkspace::README);
    let peak = peak_memory_kib(stdio.pid);
    assert!(peak < 160 << 10, "{peak} KiB");
    drop(writing.join().unwrap());
    assert_eq!(stdio.read_rest(), NOTHING, "it was answered once");
}

#[test]
fn a_message_at_the_cap_is_served_and_one_a_byte_beyond_is_refused() {
    const CAP: usize = 4096;
    over_both_with(&TempWorkspace::new(), &[("limits_message_bytes", CAP)], |client| {
        let sized = |size: usize| {
            let padded = |padding: usize| {
                let mut message = call(1, "files_read", json!({ "path": "README.md" }));
                message["params"]["_meta"]["com.example/padding"] = json!("x".repeat(padding));
                message
            };
            padded(size - padded(0).to_string().len())
        };
        let at = sized(CAP);
        assert_eq!(at.to_string().len(), CAP);
        assert_eq!(structured(&client.exchange(&at))["content"], TempWorkspace::README);
        let beyond = client.raw(sized(CAP + 1).to_string().as_bytes());
        assert!(refusal(&beyond).contains("larger than 4096 bytes"), "{beyond}");
    });
}

#[test]
fn a_long_id_or_progress_token_is_refused() {
    let longest = "x".repeat(1022);
    over_both(&TempWorkspace::new(), |client| {
        let read = |id: &str| call(id, "files_read", json!({ "path": "README.md" }));
        assert_eq!(structured(&client.exchange(&read(&longest)))["content"], TempWorkspace::README);
        let refused = client.raw(read(&format!("{longest}x")).to_string().as_bytes());
        assert_eq!(refused["error"]["code"], -32600, "{refused}");
        assert_eq!(refusal(&refused), "`id` is longer than 1024 bytes");
        let with = |token: String| {
            let mut message = call(1, "files_read", json!({ "path": "README.md" }));
            message["params"]["_meta"]["progressToken"] = json!(token);
            message
        };
        let refused = client.exchange(&with("\"".repeat(512)));
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        assert!(refusal(&refused).contains("longer than 1024 bytes"), "{refused}");
        let answer = client.exchange(&with("\"".repeat(511)));
        assert_eq!(structured(&answer)["content"], TempWorkspace::README);
    });
}

#[test]
fn no_dialect_repeats_a_long_id() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let id = "x".repeat(100_000);
    for path in ["/mcp", "/rpc", "/v1/mcp", "/workstation", "/synesthetic"] {
        let ask = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {} });
        let answer =
            served.send(&TestHttpRequest::bytes(ask.to_string().as_bytes()).to(path)).text();
        assert!(
            answer.len() < 1024 && answer.contains("longer than 1024 bytes"),
            "{path}: {answer:.200}"
        );
        assert!(answer.contains("-32600"), "{path}: {answer}");
    }
}

#[test]
fn a_body_with_too_large_a_content_length_is_refused_unread() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let mut connection = served.connect();
    connection
        .post(&TestHttpRequest::bytes(b"").with("content-length", &(1_u64 << 30).to_string()));
    let response = connection.response();
    assert_eq!(response.status, 413);
    assert!(refusal(&response.json()).contains("larger than"), "{response:?}");
    check_serves(&TestMcpClient::http(ServerLaunchOptions::over(&TempWorkspace::new()), MODERN));
}

#[test]
fn a_chunked_body_is_refused_once_it_is_too_large() {
    let client = TestMcpClient::http(
        ServerLaunchOptions::over(&TempWorkspace::new()).set("limits_message_bytes", MIB),
        MODERN,
    );
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    check_serves(&client);
    let before = peak_memory_kib(client.server().pid);
    let mut connection = served.connect();
    let post =
        TestHttpRequest::bytes(b"").without("content-length").with("transfer-encoding", "chunked");
    connection.post(&post);
    let chunk = [b"10000\r\n", &[b' '; 1 << 16][..], b"\r\n"].concat();
    for _ in 0..16 {
        connection.write(&chunk);
    }
    // One chunk more than the limit, without the end.
    connection.write(&chunk);
    assert_eq!(connection.response().status, 413);
    let grown = peak_memory_kib(client.server().pid).saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
    check_serves(&client);
}

#[track_caller]
fn check_serves(client: &TestMcpClient) {
    let read = client.response(&call(1, "files_read", json!({ "path": "README.md" }))).message();
    assert_eq!(structured(&read)["content"], TempWorkspace::README);
}

#[test]
fn a_client_that_stops_reading_is_paused_and_later_answered_in_full() {
    // Too many small answers, and too many bytes of large ones.
    check_late_reader(4_000, 128, 32);
    check_late_reader(1_200, 3_000, 48);
}

/// Sends `requests` requests to read a file of `lines` lines, and reads the answers only later. The
/// server may use at most `mib` MiB.
#[track_caller]
fn check_late_reader(requests: usize, lines: usize, mib: u64) {
    let workspace = TempWorkspace::new().file("page.txt", "0123456789abcdef\n".repeat(lines));
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    let mut input = stdio.take_input();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let writing = thread::spawn(move || {
        for id in 0..requests {
            let message = call(id, "files_read", json!({ "path": "page.txt" }));
            input.write_all(format!("{message}\n").as_bytes()).unwrap();
            counter.fetch_add(1, Ordering::Relaxed);
        }
        input
    });
    let taken = wait_until_stalled(&sent);
    assert!(taken < requests, "it read {taken} requests while no answer was read");
    let held = held_memory_kib(stdio.pid);
    assert!(held < mib << 10, "{held} KiB");

    let mut answers: HashMap<u64, usize> = HashMap::new();
    for _ in 0..requests {
        let answer = stdio.receive();
        assert_eq!(structured(&answer)["size"], 17 * lines, "{answer}");
        *answers.entry(answer["id"].as_u64().unwrap()).or_default() += 1;
    }
    let input = writing.join().unwrap();
    assert!(answers.len() == requests && answers.values().all(|times| *times == 1));
    let held = held_memory_kib(stdio.pid);
    assert!(held < mib << 10, "{held} KiB");
    drop(input);
    assert_eq!(stdio.read_rest(), NOTHING, "each is answered once");
}

/// Waits until `counter` has not changed for half a second, and returns its value.
fn wait_until_stalled(counter: &AtomicUsize) -> usize {
    let started = Instant::now();
    let mut last = 0;
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(500) {
        assert!(started.elapsed() < PATIENCE, "it never stalls");
        let now = counter.load(Ordering::Relaxed);
        if now != last || now == 0 {
            (last, since) = (now, Instant::now());
        }
        thread::sleep(Duration::from_millis(10));
    }
    last
}

#[test]
fn endless_output_of_a_program_takes_bounded_memory() {
    over_both(&TempWorkspace::new(), |client| {
        let quick = client.call("exec_run", json!({ "command": "true" }));
        assert_eq!(structured(&quick)["exit_code"], 0);
        let before = peak_memory_kib(client.server().pid);
        let script = "head -c 300000000 /dev/zero | tr '\\0' 'x'";
        let answer = client.call("exec_run", json!({ "command": script, "shell": true }));
        let result = structured(&answer);
        assert_eq!(
            result["stdout_extent"]["total_bytes"], 300_000_000,
            "{}",
            result["stdout_extent"]
        );
        assert!(result["stdout"].as_str().unwrap().len() <= 40 << 10);
        let grown = peak_memory_kib(client.server().pid).saturating_sub(before);
        assert!(grown < 16 << 10, "{grown} KiB");
    });
}
