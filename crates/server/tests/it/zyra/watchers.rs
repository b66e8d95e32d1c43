//! Tests of many watchers of one job, and of watchers that do not read.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, WebSocketEnd, at_once, is_alive,
    let_continue, peak_memory_kib, wait_long_for, wait_until,
};

/// Number of bytes that a job prints. It exceeds the client's buffers in the kernel and the server,
/// but not the limit on stored output.
const OUTPUT_BYTES: usize = 7 << 20;

#[test]
fn two_hundred_watchers_of_a_job_all_get_its_end() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("tell-steps", json!({ "name": "a" }));
    let sockets: Vec<_> = (0..200).map(|_| served.socket(&format!("/ws/jobs/{id}"))).collect();
    let_continue(&workspace);
    for mut socket in sockets {
        let (messages, ended) = socket.read_rest();
        assert_eq!(ended, WebSocketEnd::Closed(1000));
        assert_eq!(messages[..2], [json!({ "stderr": "listening" }), json!({ "progress": 0.0 })]);
        let end = messages.last().unwrap();
        assert_eq!(end["status"], "succeeded", "{messages:?}");
        assert_eq!(end["stdout"], "began\nlast\n");
        assert_eq!(messages.iter().filter(|message| message["progress"] == 0.75).count(), 1);
    }
}

#[test]
fn a_watcher_that_does_not_read_delays_neither_the_job_nor_others() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).set("limits_message_bytes", 65_536).served();
    let marker = ProcessMarker::new();
    let wait = "touch begun; until [ -e go ]; do sleep 0.02; done";
    let script = format!("{wait}; head -c $2 /dev/zero | tr '\\0' x; exec sleep $1");
    let args = [marker.0.clone(), OUTPUT_BYTES.to_string()];
    let arguments = json!({ "command": script, "shell": true, "args": args });
    let id = served.start_job("exec-run", arguments);
    let _slow = served.socket(&format!("/ws/jobs/{id}?stream=stdout"));
    let mut fast = served.socket(&format!("/ws/jobs/{id}?stream=stdout"));
    wait_until("it runs", || workspace.path("begun").exists());
    let_continue(&workspace);
    let program = marker.wait_until_running();
    let mut received = 0;
    while received < OUTPUT_BYTES {
        received += fast.receive()["stdout"].as_str().unwrap_or_default().len();
    }
    assert!(is_alive(program));
    assert_eq!(served.delete(&format!("/jobs/{id}")).status, 200);
    assert_eq!(fast.read_rest().1, WebSocketEnd::Closed(1000));
}

#[test]
fn event_streams_that_are_not_read_take_little_memory_and_the_job_continues() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("tell-steps", json!({ "name": "a" }));
    // The first watcher brings the code that serves watchers into memory.
    assert!(!served.get(&format!("/v1/mcp/progress/{id}?max_ms=500")).events().is_empty());
    let before = peak_memory_kib(served.pid);
    let target = format!("/v1/mcp/progress/{id}?interval_ms=50&max_ms=3600000");
    let idle: Vec<_> = (0..50)
        .map(|_| {
            let mut connection = served.connect();
            connection.post(&crate::support::TestHttpRequest::bare("GET", &target));
            connection
        })
        .collect();
    at_once(0..4, |_| {
        let events = served.get(&format!("/v1/mcp/progress/{id}?max_ms=500")).events();
        assert!(events.len() >= 2, "{events:?}");
    });
    let_continue(&workspace);
    wait_long_for(Duration::from_secs(15), "it ends", || {
        (served.job(&id)["status"] == "succeeded").then_some(())
    });
    let grown = peak_memory_kib(served.pid).saturating_sub(before);
    assert!(grown < 12 << 10, "{grown} KiB more than {before} KiB");
    drop(idle);
}
