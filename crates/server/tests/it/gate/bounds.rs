//! Tests of deadlines, and of limits on concurrent work.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, over_both_with,
    refusal, structured, text, waits_for_go,
};

#[test]
fn a_call_beyond_its_deadline_is_stopped_with_an_error() {
    // Hard links: much to search, little to store.
    let workspace = TempWorkspace::new().file("0.txt", "the quick brown fox\n".repeat(200_000));
    for n in 1..400 {
        fs::hard_link(workspace.path("0.txt"), workspace.path(&format!("{n}.txt"))).unwrap();
    }
    over_both_with(&workspace, &[("limits_deadline_ms", 100)], |client| {
        let started = Instant::now();
        let answer = client.call("files_search", json!({ "text": "(?i)(\\w+\\s+){9,}zzz$" }));
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        assert!(refusal(&answer).contains("longer than 100 ms"), "{answer}");
        assert_eq!(client.server().outcomes(1), ["timed_out"]);
        assert!(client.ask("tools/list", json!({}))["result"]["tools"].is_array());
    });
}

#[test]
fn a_program_beyond_its_timeout_is_stopped_and_its_output_is_returned() {
    over_both_with(&TempWorkspace::new(), &[("limits_deadline_ms", 50)], |client| {
        let marker = ProcessMarker::new();
        let script = json!({
            "command": "echo so far; exec sleep $1",
            "shell": true,
            "args": [marker.0],
            "timeout_ms": 2000,
        });
        let answer = client.call("exec_run", script);
        assert!(marker.pids().is_empty());
        let content = &answer["result"]["structuredContent"];
        assert_eq!((&content["timed_out"], &content["stdout"]), (&json!(true), &json!("so far\n")));
        assert!(text(&answer).contains("timed out"), "{answer}");
    });
}

#[test]
fn a_program_beyond_the_limit_is_refused_and_reads_are_not_delayed() {
    let workspace = TempWorkspace::new();
    let tune =
        |launch: ServerLaunchOptions| launch.set("limits_programs", 1).set("limits_wait_ms", 0);
    let next = json!({ "command": "printf", "args": ["next"] });

    let mut stdio = tune(ServerLaunchOptions::over(&workspace)).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", waits_for_go(&marker)));
    marker.wait_until_running();
    let refused = stdio.ask(&call(2, "exec_run", next.clone()));
    check_refusal(&refused);
    for id in 10..30 {
        let read = stdio.ask(&call(id, "files_read", json!({ "path": "README.md" })));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    }
    workspace.put("go", "");
    stdio.answer(1);
    assert_eq!(structured(&stdio.ask(&call(3, "exec_run", next.clone())))["stdout"], "next");

    let workspace = TempWorkspace::new();
    let served = tune(ServerLaunchOptions::over(&workspace)).served();
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", waits_for_go(&marker))));
    marker.wait_until_running();
    check_refusal(&served.ask(&call(2, "exec_run", next.clone())));
    let read = served.ask(&call(3, "files_read", json!({ "path": "README.md" })));
    assert_eq!(structured(&read)["content"], TempWorkspace::README);
    workspace.put("go", "");
    connection.response();
    assert_eq!(structured(&served.ask(&call(4, "exec_run", next)))["stdout"], "next");
}

#[track_caller]
fn check_refusal(answer: &Value) {
    let message = refusal(answer);
    assert!(
        message.contains("programs") && message.contains("and no place became free within"),
        "{message}"
    );
    assert!(message.contains("try again in 1000 ms"), "{message}");
}

#[test]
fn a_program_waits_for_a_free_slot_for_a_bounded_time() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("limits_programs", 1);
    let mut stdio = launch.set("limits_wait_ms", 300).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", waits_for_go(&marker)));
    marker.wait_until_running();
    let printf = json!({ "command": "printf", "args": ["next"] });
    let started = Instant::now();
    check_refusal(&stdio.ask(&call(2, "exec_run", printf.clone())));
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());

    stdio.send(&call(3, "exec_run", printf));
    workspace.put("go", "");
    assert_eq!(structured(&stdio.answer(3))["stdout"], "next");
}

#[test]
fn the_slot_of_a_call_is_freed_whatever_its_outcome() {
    let one = [("limits_calls", 1), ("limits_programs", 1), ("limits_wait_ms", 0)];
    over_both_with(&TempWorkspace::new(), &one, |client| {
        for _ in 0..5 {
            client.call("files_read", json!({ "path": "none" }));
            client.call("files_read", json!({ "path": 5 }));
            client.call("exec_run", json!({ "command": "none" }));
            client.call("exec_run", json!({ "command": "false" }));
            let late = json!({ "command": "sleep", "args": ["9"], "timeout_ms": 10 });
            client.call("exec_run", late);
        }
        let ok = client.call("exec_run", json!({ "command": "true" }));
        assert_eq!(structured(&ok)["exit_code"], 0);
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    });
}
