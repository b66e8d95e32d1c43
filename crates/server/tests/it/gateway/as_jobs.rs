//! Calls of upstreams that become jobs.

use std::fs;

use serde_json::{Value, json};

use super::{launch, with_odds};
use crate::support::{Client, MODERN, Wire, Workspace, wait_for, wait_until};

/// A client that takes tasks for answers, over HTTP.
fn open(workspace: &Workspace) -> Client {
    with_tasks(Wire::Http(launch(workspace).served()))
}

fn with_tasks(wire: Wire) -> Client {
    let can = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    Client::open(wire, MODERN, can)
}

/// The result of the task that `begun` says has begun, once it has ended.
fn ended(client: &mut Client, begun: &Value) -> Value {
    assert_eq!(begun["result"]["resultType"], "task", "{begun}");
    let about = json!({ "taskId": begun["result"]["taskId"] });
    wait_for("it ends", || {
        let seen = client.ask("tasks/get", about.clone());
        (seen["result"]["status"] != "working").then_some(seen)
    })
}

#[test]
fn a_call_goes_on_as_a_job_after_its_client_is_gone() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let begun = client.call("odd_wait", json!({}));
    let Client { wire, .. } = client;
    let mut other = with_tasks(wire);
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let seen = ended(&mut other, &begun);
    assert!(seen["result"]["result"].to_string().contains("waited"), "{seen}");
    let log = workspace.read("odd.log");
    assert_eq!(log.matches("call wait").count(), 1, "{log}");
    assert!(!log.contains("cancelled"), "{log}");
}

#[test]
fn a_tool_that_could_become_a_task_there_and_does_not_takes_as_long_as_a_job_may() {
    let workspace = with_odds(&[("odd", "ODD_TASKS = \"1\", ", "")]);
    let settings = workspace.read("toolgate.toml");
    let settings = format!("[limits]\ndeadline_ms = 2000\n{settings}");
    fs::write(workspace.path("toolgate.toml"), settings).unwrap();
    let mut client = open(&workspace);
    client.tools();
    let begun = client.call("odd_wait", json!({}));
    assert_eq!(begun["result"]["resultType"], "task", "{begun}");
    fs::write(workspace.path("odd.log.go"), "").unwrap();
    let seen = ended(&mut client, &begun);
    assert!(seen["result"]["result"].to_string().contains("waited"), "{seen}");
    assert_eq!(workspace.read("odd.log").matches("call wait").count(), 1);
}

#[test]
fn what_was_begun_for_a_job_is_cancelled_there_with_the_job() {
    let workspace = with_odds(&[("odd", "", "")]);
    let mut client = open(&workspace);
    client.tools();
    let begun = client.call("odd_never", json!({}));
    let about = json!({ "taskId": begun["result"]["taskId"] });
    client.ask("tasks/cancel", about);
    wait_until("it hears of it", || workspace.read("odd.log").contains("cancelled "));
}
