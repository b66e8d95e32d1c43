//! Tests of an upstream of 2025-11-25 that asks the user to visit a web page, with clients of
//! several revisions.

use std::fs;
use std::thread::{sleep, spawn};
use std::time::Duration;

use serde_json::{Value, json};

use super::real::tool;
use super::{checkout, launch, text};
use crate::support::{
    MODERN, TempWorkspace, TestClientTransport, TestMcpClient, converse, wait_until,
};

const PAGE: &str = "https://example.com/in";

fn with_visits(env: &str) -> TempWorkspace {
    let workspace = TempWorkspace::new();
    let python = tool("upstreams/bin/python");
    let script = checkout().join("tests/upstreams/visits.py");
    let log = workspace.path("visits.log");
    let settings = format!(
        "[upstream.visits]\ncommand = [{python:?}, {script:?}]\nrevision = \"2025-11-25\"\n\
         start_ms = 20000\nenv = {{ {env}VISITS_LOG = {log:?} }}\n"
    );
    workspace.file("visits.log", "").file("toolgate.toml", settings)
}

/// Opens a client of `revision` that supports requests to visit a web page, over stdio or HTTP.
fn open(workspace: &TempWorkspace, revision: &'static str, over_http: bool) -> TestMcpClient {
    let wire = match over_http {
        true => TestClientTransport::Http(launch(workspace).served()),
        false => TestClientTransport::Stdio(launch(workspace).stdio()),
    };
    TestMcpClient::open(wire, revision, json!({ "elicitation": { "url": {} } }))
}

fn visited_file(workspace: &TempWorkspace) -> String {
    workspace.path("been").display().to_string()
}

fn secret(workspace: &TempWorkspace) -> Value {
    json!({ "name": "visits_secret", "arguments": { "been": visited_file(workspace) } })
}

fn calls(workspace: &TempWorkspace) -> usize {
    workspace.read("visits.log").matches("secret").count()
}

#[test]
fn the_caller_is_sent_to_the_page_and_the_call_is_repeated() {
    for (revision, over_http) in
        [(MODERN, true), (MODERN, false), ("2025-11-25", true), ("2025-11-25", false)]
    {
        let workspace = with_visits("");
        let mut client = open(&workspace, revision, over_http);
        let (answer, requests) =
            converse(&mut client, "tools/call", secret(&workspace), |request: &Value| {
                assert_eq!(request["method"], "elicitation/create", "{request}");
                assert_eq!(request["params"]["mode"], "url", "{request}");
                assert_eq!(request["params"]["url"], PAGE, "{request}");
                fs::write(workspace.path("been"), "").unwrap();
                json!({ "action": "accept" })
            });
        assert_eq!(text(&answer), "the secret", "{revision}");
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(calls(&workspace), 2, "{revision}");
    }
}

#[test]
fn a_visit_is_awaited_with_and_without_a_notification_of_its_completion() {
    for env in ["", "VISITS_QUIET = \"1\", "] {
        let workspace = with_visits(env);
        let mut client = open(&workspace, MODERN, true);
        let file = workspace.path("been");
        let (answer, requests) = converse(&mut client, "tools/call", secret(&workspace), |_| {
            let file = file.clone();
            spawn(move || {
                // A person takes some time.
                sleep(Duration::from_millis(700));
                fs::write(file, "").unwrap();
            });
            json!({ "action": "accept" })
        });
        assert_eq!(text(&answer), "the secret", "{env}");
        assert_eq!(requests.len(), 1, "{env}: {requests:?}");
    }
}

#[test]
fn a_declined_visit_is_an_error() {
    let workspace = with_visits("");
    let mut client = open(&workspace, MODERN, true);
    let decline = |_: &Value| json!({ "action": "decline" });
    let (answer, requests) = converse(&mut client, "tools/call", secret(&workspace), decline);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(text(&answer).contains("did not open the page"), "{answer}");
    assert_eq!((requests.len(), calls(&workspace)), (1, 1), "{requests:?}");
}

#[test]
fn a_client_without_page_visits_gets_the_error_of_its_revision() {
    let workspace = with_visits("");
    let mut modern = TestMcpClient::http(launch(&workspace), MODERN);
    let refused = modern.ask("tools/call", secret(&workspace));
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    let required = &refused["error"]["data"]["requiredCapabilities"];
    assert_eq!(*required, json!({ "elicitation": { "url": {} } }), "{refused}");
    let mut older = TestMcpClient::http(launch(&workspace), "2025-11-25");
    let refused = older.ask("tools/call", secret(&workspace));
    assert_eq!(refused["error"]["code"], -32042, "{refused}");
    assert_eq!(refused["error"]["data"]["elicitations"][0]["url"], PAGE, "{refused}");
}

#[test]
fn a_client_of_a_running_call_is_notified_of_the_completed_visit() {
    let workspace = with_visits("");
    let mut client = open(&workspace, "2025-11-25", false);
    let params = json!({ "name": "visits_pay", "arguments": { "been": visited_file(&workspace) } });
    let message = client.request("tools/call", params);
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    let mut notifications = Vec::new();
    let answer = loop {
        let received = stdio.receive();
        match received["method"].as_str() {
            Some("elicitation/create") => {
                assert_eq!(received["params"]["elicitationId"], "the payment", "{received}");
                let result = json!({ "action": "accept" });
                stdio.send(&json!({ "jsonrpc": "2.0", "id": received["id"], "result": result }));
                fs::write(workspace.path("been"), "").unwrap();
            }
            Some(_) => notifications.push(received),
            None if received["id"] == message["id"] => break received,
            None => {}
        }
    };
    assert_eq!(text(&answer), "paid");
    let done = |received: &&Value| received["method"] == "notifications/elicitation/complete";
    let done: Vec<_> = notifications.iter().filter(done).collect();
    assert_eq!(done.len(), 1, "{notifications:?}");
    assert_eq!(done[0]["params"]["elicitationId"], "the payment");
}

#[test]
fn a_call_that_waits_for_a_visit_ends_when_it_is_cancelled() {
    let workspace = with_visits("");
    let mut client = open(&workspace, MODERN, false);
    let params = secret(&workspace);
    let first = client.ask("tools/call", params.clone());
    let mut again = params;
    let key = first["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    again["inputResponses"] = json!({ key.as_str(): { "action": "accept" } });
    again["requestState"] = first["result"]["requestState"].clone();
    let message = client.request("tools/call", again);
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    wait_until("it is called again", || calls(&workspace) >= 3);
    let cancelled = json!({ "requestId": message["id"] });
    stdio.send(&crate::support::notification("notifications/cancelled", cancelled));
    let answer = stdio.ask(&crate::support::modern("after", "tools/list", json!({})));
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    let before = calls(&workspace);
    sleep(Duration::from_millis(1500));
    assert!(calls(&workspace) <= before + 1, "{before} calls, and then more");
}
