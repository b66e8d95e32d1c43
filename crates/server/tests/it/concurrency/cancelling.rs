//! Tests of cancelling one call: by a notification, or by disconnecting.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, MODERN, NOTHING, ProcessMarker, ServerLaunchOptions, TempWorkspace,
    TestHttpRequest, call, initialize, legacy, modern, notification, request, sleeps, structured,
    wait_until, waits_for_go,
};

/// Returns a call of `tool` in the message format of `revision`.
fn call_request(revision: &str, id: &str, tool: &str, arguments: Value) -> Value {
    request(revision, id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

fn cancel_notification(id: impl Into<Value>) -> Value {
    notification("notifications/cancelled", json!({ "requestId": id.into(), "reason": "enough" }))
}

#[test]
fn a_call_cancelled_over_stdio_ends_unanswered_and_others_continue() {
    for revision in [MODERN, "2025-11-25", "2024-11-05"] {
        let workspace = TempWorkspace::new();
        let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
        if revision != MODERN {
            stdio.ask(&initialize("hello", revision));
        }
        let doomed = ProcessMarker::new();
        let other = ProcessMarker::new();
        stdio.send(&call_request(revision, "doomed", "exec_run", sleeps(&doomed)));
        stdio.send(&call_request(revision, "other", "exec_run", waits_for_go(&other)));
        doomed.wait_until_running();
        other.wait_until_running();
        // An unknown id and an invalid one are ignored.
        stdio.send(&cancel_notification("nobody"));
        stdio
            .send_malformed(&notification("notifications/cancelled", json!({ "requestId": null })));
        stdio.send(&cancel_notification("doomed"));
        doomed.wait_until_gone();

        assert!(!other.pids().is_empty(), "the other was cancelled too");
        workspace.put("go", "");
        let answer = stdio.answer("other");
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        // A cancelled id may be reused.
        let read = call_request(revision, "doomed", "files_read", json!({ "path": "README.md" }));
        assert_eq!(stdio.ask(&read)["result"]["isError"], false);
        stdio.close_input();
        assert_eq!(stdio.read_rest(), NOTHING, "{revision}: the cancelled call was answered");
        let mut outcomes = stdio.outcomes(3);
        outcomes.sort();
        assert_eq!(outcomes, ["canceled", "ok", "ok"]);
    }
}

#[test]
fn a_late_cancellation_does_not_affect_an_ended_call() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let read = call(1, "files_read", json!({ "path": "README.md" }));
    assert_eq!(structured(&stdio.ask(&read))["content"], TempWorkspace::README);
    stdio.send(&cancel_notification(1));
    assert_eq!(structured(&stdio.ask(&read))["content"], TempWorkspace::README);
}

#[test]
fn a_number_does_not_cancel_the_string_that_spells_it() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call("1", "exec_run", waits_for_go(&marker)));
    marker.wait_until_running();
    stdio.send(&cancel_notification(1));
    workspace.put("go", "");
    assert_eq!(structured(&stdio.answer("1"))["stdout"], "began\nwent\n");
}

fn served(workspace: &TempWorkspace) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).served()
}

#[test]
fn disconnecting_before_the_answer_cancels_a_stateless_call() {
    let served = served(&TempWorkspace::new());
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker))));
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn disconnecting_during_the_stream_cancels_a_stateless_call() {
    let served = served(&TempWorkspace::new());
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker))));
    let head = connection.head();
    assert!(head.is_stream(), "{head:?}");
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn disconnecting_after_progress_cancels_a_stateless_call() {
    let served = served(&TempWorkspace::new());
    let marker = ProcessMarker::new();
    let script = json!({ "command": "echo one; exec sleep $1", "shell": true, "args": [marker.0] });
    let params =
        json!({ "name": "exec_run", "arguments": script, "_meta": { "progressToken": "p" } });
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&modern(1, "tools/call", params)));
    assert!(connection.head().is_stream());
    assert_eq!(connection.event().unwrap()["method"], "notifications/progress");
    connection.close();
    marker.wait_until_gone();
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn disconnecting_cancels_a_stateless_call_of_a_client_without_streams() {
    let served = served(&TempWorkspace::new());
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    let post = TestHttpRequest::mcp(&call(1, "exec_run", sleeps(&marker)))
        .with("accept", "application/json");
    connection.post(&post);
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn disconnecting_does_not_cancel_a_call_of_a_session() {
    for in_stream in [true, false] {
        let workspace = TempWorkspace::new();
        let served = served(&workspace);
        let session = served.session("2025-11-25");
        let marker = ProcessMarker::new();
        let message = call_request("2025-11-25", "1", "exec_run", waits_for_go(&marker));
        let mut connection = served.connect();
        connection.post(&TestHttpRequest::mcp(&message).with("mcp-session-id", &session));
        marker.wait_until_running();
        if in_stream {
            assert!(connection.head().is_stream());
        }
        connection.close();
        // Once the server has served the next request, it has seen the disconnect.
        served.session("2025-11-25");
        workspace.put("go", "");
        wait_until("the program runs to its end", || workspace.path("went").exists());
        assert_eq!(served.outcomes(1), ["ok"]);
    }
}

#[test]
fn a_call_of_a_session_is_cancelled_by_a_notification_in_the_session() {
    let served = served(&TempWorkspace::new());
    let mine = served.session("2025-11-25");
    let other = served.session("2025-06-18");
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    let message =
        legacy(1, "tools/call", json!({ "name": "exec_run", "arguments": sleeps(&marker) }));
    connection.post(&TestHttpRequest::mcp(&message).with("mcp-session-id", &mine));
    marker.wait_until_running();
    assert!(connection.head().is_stream());
    // A notification in another session has no effect.
    let cancel = TestHttpRequest::mcp(&cancel_notification(1));
    assert_eq!(served.send(&cancel.clone().with("mcp-session-id", &other)).status, 202);
    assert_eq!(served.send(&cancel).status, 202);
    let ping = TestHttpRequest::mcp(&legacy(2, "ping", json!({}))).with("mcp-session-id", &mine);
    assert_eq!(served.send(&ping).message()["result"], json!({}));
    assert!(!marker.pids().is_empty(), "another session cancelled it");

    assert_eq!(served.send(&cancel.with("mcp-session-id", &mine)).status, 202);
    marker.wait_until_gone();
    assert_eq!(connection.event(), None, "a cancelled call is not answered");
    assert_eq!(served.outcomes(1), ["canceled"]);
}

#[test]
fn the_end_of_a_session_cancels_its_calls() {
    let served = served(&TempWorkspace::new());
    let session = served.session("2025-11-25");
    let marker = ProcessMarker::new();
    let mut connection = served.connect();
    let message =
        legacy(1, "tools/call", json!({ "name": "exec_run", "arguments": sleeps(&marker) }));
    connection.post(&TestHttpRequest::mcp(&message).with("mcp-session-id", &session));
    marker.wait_until_running();
    let head = connection.head();
    assert_eq!((head.status, head.is_stream()), (200, true), "{head:?}");
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&end).status, 204);
    marker.wait_until_gone();
    // The connection of the call is closed.
    while let Some(event) = connection.event() {
        assert!(!event.to_string().contains("the server is stopping"), "{event}");
    }
}

#[test]
fn a_call_cancelled_in_the_queue_never_runs() {
    let workspace = TempWorkspace::new();
    let mut stdio = ServerLaunchOptions::over(&workspace).set("limits_programs", 1).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", waits_for_go(&marker)));
    marker.wait_until_running();
    let touch = json!({ "command": "touch", "args": ["ran"] });
    stdio.send(&call(2, "exec_run", touch));
    stdio.send(&cancel_notification(2));
    workspace.put("go", "");
    assert_eq!(structured(&stdio.answer(1))["stdout"], "began\nwent\n");
    let next = json!({ "command": "printf", "args": ["next"] });
    assert_eq!(structured(&stdio.ask(&call(3, "exec_run", next)))["stdout"], "next");
    stdio.close_input();
    assert_eq!(stdio.read_rest(), NOTHING);
    assert!(!workspace.path("ran").exists(), "it ran after all");
}
