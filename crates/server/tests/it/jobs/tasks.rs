//! Tests of MCP tasks of 2025-11-25, which a call requests with a parameter, and whose result the
//! client fetches later.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest,
    TestMcpClient, legacy, let_continue, notification, refusal, wait_until,
};

const REVISION: &str = "2025-11-25";
const RELATED: &str = "io.modelcontextprotocol/related-task";

fn clients(workspace: &TempWorkspace, check: impl Fn(&mut TestMcpClient)) {
    check(&mut TestMcpClient::stdio(ServerLaunchOptions::over(workspace), REVISION));
    let _ = std::fs::remove_file(workspace.path("go"));
    check(&mut TestMcpClient::http(ServerLaunchOptions::over(workspace), REVISION));
}

#[track_caller]
fn start(client: &mut TestMcpClient, tool: &str, arguments: Value, more: Value) -> Value {
    let mut params = json!({ "name": tool, "arguments": arguments, "task": { "ttl": 60_000 } });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = client.ask("tools/call", params);
    let task = answer["result"]["task"].clone();
    assert_eq!((&task["status"], &task["ttl"]), (&json!("working"), &json!(60_000)), "{answer}");
    assert_eq!(answer["result"]["_meta"][RELATED]["taskId"], task["taskId"], "{answer}");
    task
}

#[track_caller]
fn status(client: &mut TestMcpClient, id: &Value) -> Value {
    let answer = client.ask("tasks/get", json!({ "taskId": id }));
    assert_eq!(answer["result"]["taskId"], *id, "{answer}");
    answer["result"]["status"].clone()
}

#[test]
fn the_server_declares_tasks_and_every_tool_supports_them() {
    clients(&TempWorkspace::with_commands(), |client| {
        let tasks = json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
        assert_eq!(client.opened["result"]["capabilities"]["tasks"], tasks);
        for tool in client.tools() {
            assert_eq!(tool["execution"]["taskSupport"], "optional", "{tool}");
        }
    });
}

#[test]
fn a_task_is_created_queried_and_its_result_awaited() {
    let workspace = TempWorkspace::with_commands();
    clients(&workspace, |client| {
        let task = start(client, "tell_steps", json!({ "name": "a" }), json!({}));
        let id = &task["taskId"];
        assert_eq!(status(client, id), "working");
        let stdio = matches!(client.wire, TestClientTransport::Stdio(_));
        let message = client.request("tasks/result", json!({ "taskId": id }));
        let answer = match &mut client.wire {
            // It waits without delaying other requests.
            TestClientTransport::Stdio(wire) => {
                wire.send(&message);
                let get = legacy("get", "tasks/get", json!({ "taskId": id }));
                assert_eq!(wire.ask(&get)["result"]["status"], "working");
                let_continue(&workspace);
                wire.answer(message["id"].clone())
            }
            TestClientTransport::Http(_) => {
                let post = client.post(&message);
                let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
                let mut connection = served.connect();
                connection.post(&post);
                assert_eq!(status(client, id), "working");
                let_continue(&workspace);
                connection.response().message()
            }
        };
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0, "{answer}");
        assert_eq!(answer["result"]["_meta"][RELATED]["taskId"], *id);
        assert_eq!(status(client, id), "completed", "stdio: {stdio}");
        // The result is available again at once.
        let again = client.ask("tasks/result", json!({ "taskId": id }));
        assert_eq!(again["result"], answer["result"]);
    });
}

#[test]
fn a_failed_task_has_its_error() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    check_failed(&mut TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION));
    check_failed(&mut TestMcpClient::http(ServerLaunchOptions::over(&workspace), REVISION));
}

#[track_caller]
fn check_failed(client: &mut TestMcpClient) {
    let task = start(client, "tell_steps", json!({ "name": "a", "code": "3" }), json!({}));
    let id = &task["taskId"];
    let answer = client.ask("tasks/result", json!({ "taskId": id }));
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(answer["result"]["structuredContent"]["exit_code"], 3, "{answer}");
    assert_eq!(status(client, id), "failed");
}

#[test]
fn a_task_is_cancelled_once() {
    let workspace = TempWorkspace::with_commands();
    clients(&workspace, |client| {
        let marker = ProcessMarker::new();
        let task = start(client, "work_wait", json!({ "name": marker.0 }), json!({}));
        let id = &task["taskId"];
        marker.wait_until_running();
        let answer = client.ask("tasks/cancel", json!({ "taskId": id }));
        assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
        assert!(marker.pids().is_empty());
        assert_eq!(status(client, id), "cancelled");
        let again = client.ask("tasks/cancel", json!({ "taskId": id }));
        assert_eq!(again["error"]["code"], -32602, "{again}");
        let result = client.ask("tasks/result", json!({ "taskId": id }));
        assert!(!refusal(&result).is_empty());
    });
}

#[test]
fn tasks_are_listed_newest_first() {
    let workspace = TempWorkspace::with_commands();
    clients(&workspace, |client| {
        let read = json!({ "path": "README.md" });
        let ids = [(); 3]
            .map(|()| start(client, "files_read", read.clone(), json!({}))["taskId"].clone());
        let answer = client.ask("tasks/list", json!({}));
        let tasks = answer["result"]["tasks"].as_array().unwrap();
        let listed: Vec<_> = tasks.iter().map(|task| task["taskId"].clone()).collect();
        assert_eq!(listed, [ids[2].clone(), ids[1].clone(), ids[0].clone()]);
    });
}

#[test]
fn a_list_of_tasks_has_pages() {
    let workspace = TempWorkspace::with_commands();
    let launch = || ServerLaunchOptions::over(&workspace);
    for mut client in
        [TestMcpClient::stdio(launch(), REVISION), TestMcpClient::http(launch(), REVISION)]
    {
        let read = json!({ "path": "README.md" });
        // A page has 200 tasks.
        let mut ids: Vec<_> = (0..205)
            .map(|_| start(&mut client, "files_read", read.clone(), json!({}))["taskId"].clone())
            .collect();
        ids.reverse();
        let mut listed = Vec::new();
        let mut params = json!({});
        for page in 1.. {
            let answer = client.ask("tasks/list", params);
            let tasks = answer["result"]["tasks"].as_array().unwrap();
            listed.extend(tasks.iter().map(|task| task["taskId"].clone()));
            let Some(next) = answer["result"].get("nextCursor") else {
                assert_eq!(page, 2);
                break;
            };
            params = json!({ "cursor": next });
        }
        assert_eq!(listed, ids);
    }
}

#[test]
fn an_unknown_task_is_refused_everywhere() {
    clients(&TempWorkspace::new(), |client| {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            for id in ["nobody's", "0123456789abcdef0123456789abcdef"] {
                let answer = client.ask(method, json!({ "taskId": id }));
                assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
            }
        }
    });
}

#[test]
fn over_stdio_progress_continues_after_the_answer_and_the_end_is_notified() {
    let workspace = TempWorkspace::with_commands();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION);
    let meta = json!({ "_meta": { "progressToken": "p" } });
    let task = start(&mut client, "tell_steps", json!({ "name": "a" }), meta);
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let first = stdio.receive();
    assert_eq!(first["method"], "notifications/progress", "{first}");
    let_continue(&workspace);
    let mut messages = vec![first];
    while messages.last().unwrap()["method"] != "notifications/tasks/status" {
        messages.push(stdio.receive());
    }
    let end = messages.pop().unwrap();
    assert_eq!(end["params"]["taskId"], task["taskId"], "{end}");
    assert_eq!(end["params"]["status"], "completed", "{end}");
    let mut last = f64::MIN;
    for event in &messages {
        let params = &event["params"];
        assert_eq!(params["progressToken"], "p", "{event}");
        assert_eq!(params["_meta"][RELATED]["taskId"], task["taskId"], "{event}");
        let progress = params["progress"].as_f64().unwrap();
        assert!(progress > last, "{progress} after {last}");
        last = progress;
    }
    assert_eq!(last, 0.75, "{messages:?}");
}

#[test]
fn a_watched_task_does_not_delay_a_client_that_disconnects() {
    let workspace = TempWorkspace::with_commands();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION);
    let marker = ProcessMarker::new();
    let meta = json!({ "_meta": { "progressToken": "p" } });
    start(&mut client, "work_wait", json!({ "name": marker.0 }), meta);
    marker.wait_until_running();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let started = Instant::now();
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(marker.pids().is_empty());
}

#[test]
fn cancelling_the_wait_for_a_result_does_not_end_the_task() {
    let workspace = TempWorkspace::with_commands();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), REVISION);
    let task = start(&mut client, "work_wait", json!({ "name": "a" }), json!({}));
    let id = &task["taskId"];
    let message = client.request("tasks/result", json!({ "taskId": id }));
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": message["id"] })));
    assert_eq!(status(&mut client, id), "working");
    let_continue(&workspace);
    wait_until("it ends", || status(&mut client, id) == "completed");
}

#[test]
fn a_task_is_visible_in_another_session_of_its_caller() {
    let workspace = TempWorkspace::with_commands();
    let mut client = TestMcpClient::http(ServerLaunchOptions::over(&workspace), REVISION);
    let task = start(&mut client, "files_read", json!({ "path": "README.md" }), json!({}));
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let other = served.session(REVISION);
    let get = legacy(9, "tasks/get", json!({ "taskId": task["taskId"] }));
    let answer = served.send(&TestHttpRequest::mcp(&get).with("mcp-session-id", &other)).message();
    assert_eq!(answer["result"]["taskId"], task["taskId"], "{answer}");
}

#[test]
fn without_jobs_no_tasks_are_declared() {
    let workspace = TempWorkspace::new();
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).set("jobs_to", "off"), REVISION);
    assert_eq!(client.opened["result"]["capabilities"].get("tasks"), None);
    for tool in client.tools() {
        assert_eq!(tool.get("execution"), None, "{tool}");
        assert!(!tool["name"].as_str().unwrap().starts_with("jobs_"), "{tool}");
    }
    let call = json!({ "name": "files_read", "arguments": { "path": "README.md" }, "task": {} });
    let answer = client.ask("tools/call", call);
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}
