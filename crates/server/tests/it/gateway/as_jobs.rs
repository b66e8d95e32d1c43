//! Tests of calls to upstreams that become jobs.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{launch, with_odds};
use crate::console::ConsoleClient;
use crate::support::{
    MODERN, TempWorkspace, TestClientTransport, TestMcpClient, binary, path, trust_config,
    wait_for, wait_until,
};

/// Opens an HTTP client that declares support for MCP tasks.
fn open(workspace: &TempWorkspace) -> TestMcpClient {
    with_tasks(TestClientTransport::Http(launch(workspace).served()))
}

fn with_tasks(wire: TestClientTransport) -> TestMcpClient {
    let capabilities = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    TestMcpClient::open(wire, MODERN, capabilities)
}

/// Waits for the end of the task in the answer `started`, and returns the final state of the task.
fn wait_for_task(client: &mut TestMcpClient, started: &Value) -> Value {
    assert_eq!(started["result"]["resultType"], "task", "{started}");
    let params = json!({ "taskId": started["result"]["taskId"] });
    wait_for("it ends", || {
        let state = client.ask("tasks/get", params.clone());
        (state["result"]["status"] != "working").then_some(state)
    })
}

#[test]
fn a_call_continues_as_a_job_after_its_client_has_left() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let started = client.call("odd_wait", json!({}));
    let TestMcpClient { wire, .. } = client;
    let mut other = with_tasks(wire);
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let state = wait_for_task(&mut other, &started);
    assert!(state["result"]["result"].to_string().contains("waited"), "{state}");
    let log = workspace.read("odd.log");
    assert_eq!(log.matches("call wait").count(), 1, "{log}");
    assert!(!log.contains("cancelled"), "{log}");
}

#[test]
fn a_call_that_does_not_become_an_upstream_task_has_the_time_of_a_job() {
    let workspace = with_odds(&[("odd", "ODD_TASKS = \"1\", ", "")]);
    let settings = workspace.read("toolgate.toml");
    let settings = format!("[limits]\ndeadline_ms = 2000\n{settings}");
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    let mut client = open(&workspace);
    client.tools();
    let started = client.call("odd_wait", json!({}));
    assert_eq!(started["result"]["resultType"], "task", "{started}");
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let state = wait_for_task(&mut client, &started);
    assert!(state["result"]["result"].to_string().contains("waited"), "{state}");
    assert_eq!(workspace.read("odd.log").matches("call wait").count(), 1);
}

#[test]
fn a_cancelled_job_cancels_its_upstream_call() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let started = client.call("odd_never", json!({}));
    let params = json!({ "taskId": started["result"]["taskId"] });
    client.ask("tasks/cancel", params);
    wait_until("the cancellation arrives", || workspace.read("odd.log").contains("cancelled "));
}

#[test]
fn a_job_that_asks_is_listed_first_at_the_console_and_answered_there() {
    let workspace = with_odds(&[("odd", "ODD_ASKS = \"1\", ", "")]);
    let wire = TestClientTransport::Http(launch(&workspace).served());
    let extensions = json!({ "io.modelcontextprotocol/tasks": {} });
    let capabilities = json!({ "elicitation": { "form": {} }, "extensions": extensions });
    let mut client = TestMcpClient::open(wire, MODERN, capabilities);
    client.tools();
    let started = client.call("odd_ask", json!({}));
    assert_eq!(started["result"]["resultType"], "task", "{started}");
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let person = ConsoleClient::with_link(served);
    wait_until("the question is shown", || person.page("/").contains("Waits for your answer"));
    assert!(person.page("/console/jobs").contains("waits for an answer"));
    let job = format!("/console/jobs/{}", started["result"]["taskId"].as_str().unwrap());
    let page = person.page(&job);
    assert!(page.contains("Who is there?") && page.contains("name=\"arg.name\""), "{page}");
    let (_, key) = page.split_once("name=\"question\" value=\"").unwrap();
    let key = key.split('"').next().unwrap();
    let fields = [("question", key), ("arg.name", "ada"), ("choice", "accept")];
    let done = person.post(&format!("{job}/answer"), &fields);
    assert_eq!(done.status, 303, "{done:?}");
    wait_until("the job ends", || person.page(&job).contains("succeeded"));
    assert!(person.page(&job).contains("ada"));
    wait_until("nothing waits", || !person.page("/").contains("Waits for your answer"));
}

#[test]
fn the_question_of_a_waiting_job_is_printed_before_it_is_answered() {
    let workspace = with_odds(&[("odd", "ODD_ASKS = \"1\", ", "")]);
    let wire = TestClientTransport::Http(launch(&workspace).served());
    let extensions = json!({ "io.modelcontextprotocol/tasks": {} });
    let capabilities = json!({ "elicitation": { "form": {} }, "extensions": extensions });
    let mut client = TestMcpClient::open(wire, MODERN, capabilities);
    client.tools();
    let started = client.call("odd_ask", json!({}));
    let id = started["result"]["taskId"].as_str().expect("a task");
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let jobs = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["jobs", id]).args(args).current_dir(served.root()).env_clear();
        command.env("PATH", path()).env("HOME", served.home());
        trust_config(&mut command, served.root());
        let done = command.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let question = "the question: Who is there?";
    wait_until("the question is printed", || jobs(&["--no-follow"]).1.contains(question));
    let (is_sent, printed) = jobs(&["--answer", "{\"name\":\"ada\"}", "--yes"]);
    assert!(is_sent && printed.contains(question), "{printed}");
}
