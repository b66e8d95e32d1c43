//! Tests of answers as one message, and as server-sent events.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest, at_once,
    call, legacy, modern, structured, waits_for_go,
};

/// Returns a call of a program that prints five lines with pauses, so that each line becomes an
/// event. `token` is the progress token.
fn printing_call(token: Value) -> Value {
    let script = "for n in 1 2 3 4 5; do echo line $n; sleep 0.3; done";
    json!({
        "name": "exec_run",
        "arguments": { "command": script, "shell": true },
        "_meta": { "progressToken": token },
    })
}

fn served() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).served()
}

#[test]
fn an_answer_without_events_is_one_json_message() {
    let served = served();
    let response =
        served.send(&TestHttpRequest::mcp(&call(1, "files_read", json!({ "path": "README.md" }))));
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    assert_eq!(response.header("content-length"), Some(&*response.body.len().to_string()));
    assert_eq!(structured(&response.json())["content"], TempWorkspace::README);
}

/// Checks the events of a stream: progress that grows, then the answer, and nothing after it.
#[track_caller]
fn check(events: &[Value], token: &Value) {
    let (answer, progress) = events.split_last().unwrap();
    assert!(progress.len() >= 3, "{} events", progress.len());
    let mut last = f64::MIN;
    for event in progress {
        assert_eq!(event["method"], "notifications/progress", "{event}");
        assert_eq!(event["params"]["progressToken"], *token, "{event}");
        assert!(event.get("id").is_none(), "{event}");
        let progress = event["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{progress} after {last}");
        last = progress;
    }
    assert_eq!(answer["id"], 1, "{answer}");
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

#[test]
fn progress_arrives_as_growing_events_before_the_answer() {
    let served = served();
    at_once([json!("p"), json!(7)], |token| {
        let response = served.send(&TestHttpRequest::mcp(&modern(
            1,
            "tools/call",
            printing_call(token.clone()),
        )));
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-accel-buffering"), Some("no"));
        assert!(response.header("cache-control").unwrap().contains("no-cache"));
        let events = response.events();
        check(&events, &token);
        let messages = events.iter().filter_map(|event| event["params"]["message"].as_str());
        assert!(messages.collect::<Vec<_>>().join(" ").contains("line 3"), "{events:?}");
    });
}

#[test]
fn a_session_gets_progress_as_events_too() {
    let served = served();
    at_once(["2025-11-25", "2025-03-26", "2024-11-05"], |revision| {
        let session = served.session(revision);
        let post = TestHttpRequest::mcp(&legacy(1, "tools/call", printing_call(json!("p"))));
        let events = served.send(&post.with("mcp-session-id", &session)).events();
        check(&events, &json!("p"));
        let has_message = events.iter().any(|event| event["params"].get("message").is_some());
        assert_eq!(has_message, revision != "2024-11-05", "{revision}: {events:?}");
    });
}

#[test]
fn an_event_is_sent_when_it_occurs_not_at_the_end() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let params = json!({
        "name": "exec_run",
        "arguments": waits_for_go(&ProcessMarker::new()),
        "_meta": { "progressToken": 1 },
    });
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&modern(1, "tools/call", params)));
    assert!(connection.head().is_stream());
    assert_eq!(connection.event().unwrap()["method"], "notifications/progress");
    // The program still waits for this file.
    workspace.put("go", "");
    let mut last = Value::Null;
    while let Some(event) = connection.event() {
        last = event;
    }
    assert_eq!(structured(&last)["stdout"], "began\nwent\n");
    // The connection can be used again.
    connection.post(&TestHttpRequest::mcp(&call(2, "files_read", json!({ "path": "README.md" }))));
    assert_eq!(structured(&connection.response().json())["content"], TempWorkspace::README);
}

#[test]
fn a_client_that_accepts_only_json_gets_json() {
    let served = served();
    at_once(["application/json", "*/*", ""], |accept| {
        let post = TestHttpRequest::mcp(&modern(1, "tools/call", printing_call(json!("p"))));
        let response = served.send(&post.with("accept", accept));
        assert_eq!(response.json()["result"]["isError"], false, "{accept}: {response:?}");
    });
    let post = TestHttpRequest::mcp(&modern(1, "tools/list", json!({}))).without("accept");
    assert_eq!(served.send(&post).status, 200);
}

#[test]
fn progress_is_not_sent_without_a_token() {
    let script = json!({ "command": "echo one; echo two", "shell": true });
    let params = json!({ "name": "exec_run", "arguments": script });
    let response = served().send(&TestHttpRequest::mcp(&modern(1, "tools/call", params)));
    assert_eq!(structured(&response.json())["exit_code"], 0);
}

#[test]
fn a_slow_answer_is_a_stream() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(
        1,
        "exec_run",
        waits_for_go(&ProcessMarker::new()),
    )));
    assert!(connection.head().is_stream());
    workspace.put("go", "");
    assert_eq!(structured(&connection.event().unwrap())["exit_code"], 0);
    assert_eq!(connection.event(), None);
}
