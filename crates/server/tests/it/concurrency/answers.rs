//! Tests of the order in which a server answers concurrent calls.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, REVISIONS, ServerLaunchOptions, StdioServerProcess, TempWorkspace,
    TestHttpRequest, call, initialize, legacy, modern, structured, waits_for_go,
};

#[test]
fn a_slow_program_delays_no_other_call_over_stdio() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    stdio.ask(&initialize("hello", "2025-11-25"));
    let marker = ProcessMarker::new();
    stdio.send(&call("slow", "exec_run", waits_for_go(&marker)));
    marker.wait_until_running();
    for round in 0..20 {
        let ping = stdio.ask(&legacy(format!("ping {round}"), "ping", json!({})));
        assert_eq!(ping["result"], json!({}));
        let list = stdio.ask(&modern(format!("list {round}"), "tools/list", json!({})));
        assert!(list["result"]["tools"].is_array(), "{list}");
        let read = json!({ "path": "README.md" });
        let read = stdio.ask(&call(format!("read {round}"), "files_read", read));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    }
    workspace.put("go", "");
    assert_eq!(structured(&stdio.answer("slow"))["stdout"], "began\nwent\n");
}

#[test]
fn a_slow_program_delays_no_other_call_over_http() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let session = served.session("2025-11-25");
    let marker = ProcessMarker::new();
    let mut slow = served.connect();
    slow.post(&TestHttpRequest::mcp(&call("slow", "exec_run", waits_for_go(&marker))));
    marker.wait_until_running();
    for _round in 0..20 {
        let ping =
            TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).with("mcp-session-id", &session);
        assert_eq!(served.send(&ping).message()["result"], json!({}));
        let list = served.ask(&modern(1, "tools/list", json!({})));
        assert!(list["result"]["tools"].is_array(), "{list}");
        let read = served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    }
    workspace.put("go", "");
    assert_eq!(structured(&slow.response().message())["stdout"], "began\nwent\n");
}

#[test]
fn answers_come_in_the_order_in_which_they_are_ready() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    stdio.send(&call(1, "exec_run", waits_for_go(&ProcessMarker::new())));
    stdio.send(&call(2, "files_read", json!({ "path": "README.md" })));
    assert_eq!(stdio.receive()["id"], 2);
    workspace.put("go", "");
    assert_eq!(stdio.receive()["id"], 1);
}

fn pages() -> TempWorkspace {
    (0..200).fold(TempWorkspace::new(), |workspace, n| {
        workspace.file(&format!("{n}.txt"), n.to_string())
    })
}

fn read(n: u64) -> Value {
    call(n, "files_read", json!({ "path": format!("{n}.txt") }))
}

#[test]
fn two_hundred_reads_at_once_are_each_answered_with_their_own_file_over_stdio() {
    let mut stdio = ServerLaunchOptions::over(&pages()).stdio();
    let requests: String = (0..200).map(|n| format!("{}\n", read(n))).collect();
    stdio.write(requests.as_bytes());
    let mut answered = HashSet::new();
    for _ in 0..200 {
        let answer = stdio.receive();
        assert_eq!(structured(&answer)["content"], answer["id"].to_string());
        assert!(answered.insert(answer["id"].as_u64().unwrap()), "twice: {answer}");
    }
}

#[test]
fn two_hundred_reads_at_once_are_each_answered_with_their_own_file_over_http() {
    let served = ServerLaunchOptions::over(&pages()).served();
    let connections: Vec<_> = (0..200).map(|_| served.connect()).collect();
    let mut pending = Vec::new();
    for (n, mut connection) in (0..200).zip(connections) {
        connection.post(&TestHttpRequest::mcp(&read(n)));
        pending.push((n, connection));
    }
    for (n, mut connection) in pending {
        let answer = connection.response().message();
        assert_eq!(answer["id"], n);
        assert_eq!(structured(&answer)["content"], n.to_string());
    }
}

#[test]
fn both_eras_are_served_side_by_side_on_one_stdio_process() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    // Before any `initialize`, and between requests of the other revisions.
    let stateless = |stdio: &mut StdioServerProcess, id: &str| {
        let answer = stdio.ask(&call(id, "files_read", json!({ "path": "README.md" })));
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        let discover = stdio.ask(&modern(format!("{id} discover"), "server/discover", json!({})));
        assert_eq!(discover["result"]["supportedVersions"], json!(["2026-07-28"]), "{discover}");
    };
    stateless(&mut stdio, "first");
    for revision in &REVISIONS[1..] {
        let opened = stdio.ask(&initialize(format!("hello {revision}"), revision));
        assert_eq!(opened["result"]["protocolVersion"], *revision);
        stateless(&mut stdio, revision);
        let params = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
        let answer = stdio.ask(&legacy(format!("read {revision}"), "tools/call", params));
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert!(answer["result"].get("resultType").is_none(), "{answer}");
    }
}

#[test]
fn both_eras_are_served_side_by_side_at_one_http_endpoint() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let sessions: Vec<_> =
        REVISIONS[1..].iter().map(|revision| (revision, served.session(revision))).collect();
    let mut connection = served.connect();
    for (revision, session) in &sessions {
        let params = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
        let post = TestHttpRequest::mcp(&legacy(1, "tools/call", params));
        connection
            .post(&post.with("mcp-session-id", session).with("mcp-protocol-version", revision));
        let answer = connection.response().message();
        assert!(answer["result"].get("resultType").is_none(), "{answer}");
        connection.post(&TestHttpRequest::mcp(&call(
            1,
            "files_read",
            json!({ "path": "README.md" }),
        )));
        let answer = connection.response().message();
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    }
}

#[test]
fn very_long_names_are_refused_quickly() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let long = "x".repeat(10_000_000);
    let started = Instant::now();
    let tool = call(1, &long, json!({}));
    let argument = call(2, "files_read", json!({ "path": "README.md", &long: 1 }));
    for ask in [tool, argument] {
        let answer = stdio.ask(&ask).to_string();
        assert!(answer.len() < 2000, "{} bytes", answer.len());
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
