//! Tests of MCP tasks as an extension of 2026-07-28, in which the server decides which calls become
//! tasks.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest,
    TestMcpClient, call, modern, over_both, structured, wait_for, wait_until,
};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Returns the `_meta` of a request whose client supports tasks.
fn task_metadata() -> Value {
    let capabilities = json!({ "extensions": { EXTENSION: {} } });
    json!({ "io.modelcontextprotocol/clientCapabilities": capabilities })
}

#[track_caller]
fn ask(client: &mut TestMcpClient, method: &str, mut params: Value) -> Value {
    params["_meta"] = task_metadata();
    let message = client.request(method, params);
    match &mut client.wire {
        TestClientTransport::Stdio(stdio) => stdio.ask(&message),
        TestClientTransport::Http(served) => {
            let post = TestHttpRequest::mcp(&message);
            let post = match message["params"]["taskId"].as_str() {
                Some(id) => post.with("mcp-name", id),
                None => post,
            };
            served.send(&post).message()
        }
    }
}

#[track_caller]
fn run(client: &mut TestMcpClient, arguments: Value) -> Value {
    let mut answer =
        ask(client, "tools/call", json!({ "name": "exec_run", "arguments": arguments }));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

#[test]
fn a_long_call_becomes_a_task_and_a_short_one_is_answered() {
    over_both(&TempWorkspace::new(), |client| {
        // A program may take long to start on a busy machine. A list of files does not.
        let short = ask(client, "tools/call", json!({ "name": "files_list", "arguments": {} }));
        assert_eq!(short["result"]["resultType"], "complete", "{short}");

        let started = Instant::now();
        let task = run(client, json!({ "command": "sleep", "args": ["4"] }));
        assert_eq!(
            (&task["resultType"], &task["status"]),
            (&json!("task"), &json!("working")),
            "{task}"
        );
        assert!(started.elapsed() < Duration::from_millis(3500), "{:?}", started.elapsed());
        let get = json!({ "taskId": task["taskId"] });
        let end = wait_for("it ends", || {
            let mut answer = ask(client, "tasks/get", get.clone());
            (answer["result"]["status"] != "working").then(|| answer["result"].take())
        });
        assert_eq!(end["status"], "completed", "{end}");
        assert_eq!(end["result"]["structuredContent"]["exit_code"], 0, "{end}");
        assert!(started.elapsed() >= Duration::from_secs(4));
    });
}

#[test]
fn a_task_is_cancelled() {
    over_both(&TempWorkspace::new(), |client| {
        let marker = ProcessMarker::new();
        let task = run(client, json!({ "command": "sleep", "args": [marker.0] }));
        let params = json!({ "taskId": task["taskId"] });
        let answer = ask(client, "tasks/cancel", params.clone());
        assert!(answer.get("error").is_none(), "{answer}");
        marker.wait_until_gone();
        let answer = ask(client, "tasks/get", params);
        assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
    });
}

#[test]
fn a_client_without_the_extension_gets_no_task() {
    over_both(&TempWorkspace::new(), |client| {
        let arguments = json!({ "command": "sleep", "args": ["1.3"] });
        let answer = client.call("exec_run", arguments);
        assert_eq!(structured(&answer)["exit_code"], 0);
    });
}

#[test]
fn disconnecting_before_the_task_is_announced_leaves_none() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let marker = ProcessMarker::new();
    let params = json!({
        "name": "exec_run",
        "arguments": { "command": "sleep", "args": [marker.0] },
        "_meta": task_metadata(),
    });
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::mcp(&modern(1, "tools/call", params)));
    marker.wait_until_running();
    connection.close();
    marker.wait_until_gone();
    wait_until("it is cancelled", || {
        let jobs = served.ask(&call(2, "jobs_list", json!({})));
        structured(&jobs)["jobs"][0]["state"] == "canceled"
    });
}

#[test]
fn disconnecting_after_the_task_is_announced_leaves_it_running() {
    over_both(&TempWorkspace::new(), |client| {
        let task = run(client, json!({ "command": "sleep", "args": ["1.6"] }));
        let other = client.call("jobs_get", json!({ "job_id": task["taskId"], "wait_ms": 10_000 }));
        assert_eq!(structured(&other)["state"], "succeeded");
    });
}
