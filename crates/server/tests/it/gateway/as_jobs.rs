//! Calls to upstreams that become jobs.

use std::fs;

use serde_json::{Value, json};

use super::{launch, with_odds};
use crate::support::{Client, MODERN, Wire, Workspace, wait_for, wait_until};

/// Opens an HTTP client that accepts tasks.
fn open(workspace: &Workspace) -> Client {
    with_tasks(Wire::Http(launch(workspace).served()))
}

fn with_tasks(wire: Wire) -> Client {
    let can = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    Client::open(wire, MODERN, can)
}

/// Waits for the end of the task in `begun` and returns its state.
fn ended(client: &mut Client, begun: &Value) -> Value {
    assert_eq!(begun["result"]["resultType"], "task", "{begun}");
    let about = json!({ "taskId": begun["result"]["taskId"] });
    wait_for("it ends", || {
        let state = client.ask("tasks/get", about.clone());
        (state["result"]["status"] != "working").then_some(state)
    })
}

#[test]
fn a_call_continues_as_a_job_after_its_client_has_left() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let begun = client.call("odd_wait", json!({}));
    let Client { wire, .. } = client;
    let mut other = with_tasks(wire);
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let state = ended(&mut other, &begun);
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
    let begun = client.call("odd_wait", json!({}));
    assert_eq!(begun["result"]["resultType"], "task", "{begun}");
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let state = ended(&mut client, &begun);
    assert!(state["result"]["result"].to_string().contains("waited"), "{state}");
    assert_eq!(workspace.read("odd.log").matches("call wait").count(), 1);
}

#[test]
fn a_cancelled_job_cancels_its_upstream_call() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let begun = client.call("odd_never", json!({}));
    let about = json!({ "taskId": begun["result"]["taskId"] });
    client.ask("tasks/cancel", about);
    wait_until("the cancellation arrives", || workspace.read("odd.log").contains("cancelled "));
}
