//! Tests that calls in other dialects are logged as envelopes, and of the envelope's dedicated
//! listener.

use serde_json::{Value, json};

use super::client::{check_schema, get, library, lines, read_log};
use crate::support::{ServerLaunchOptions, TempWorkspace, TestHttpRequest, modern, wait_for};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Waits for the first line of the envelope log for which `wanted` returns true, and returns it.
#[track_caller]
fn find_log_line(workspace: &TempWorkspace, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || read_log(&workspace.path("runs")).into_iter().find(&wanted))
}

#[test]
fn s1_06_31_every_call_of_every_dialect_is_logged_as_an_envelope() {
    let workspace = library();
    let log = workspace.path("runs").display().to_string();
    let served = ServerLaunchOptions::over(&workspace).arg("--log-dir").arg(&log).served();
    let read = |path: &str| json!({ "path": path });
    let answer = served.ask(&modern(
        1,
        "tools/call",
        json!({ "name": "files_read", "arguments": read("README.md") }),
    ));
    assert!(answer["result"].is_object(), "{answer}");
    let mcp = find_log_line(&workspace, "MCP's call is logged", |line| {
        line["method"] == "mcp:tool.invoke"
    });
    assert_eq!((&mcp["transport"], &mcp["status"]), (&json!("http"), &json!("ok")));
    assert_eq!(mcp["metadata"]["toolId"], "files_read");
    let zyra =
        served.rpc("tools/call", json!({ "name": "files-read", "arguments": read("hunter2") }));
    assert!(zyra.json()["error"].is_object());
    let zyra = find_log_line(&workspace, "Zyra's call is logged", |line| {
        line["method"] == "zyra:tool.invoke"
    });
    assert_eq!(zyra["error"]["code"], "NOT_FOUND");
    assert_eq!(zyra["error"]["httpStatus"], 404);
    // Arguments are not logged.
    assert!(!zyra.to_string().contains("hunter2"), "{zyra}");
    let traced = TestHttpRequest::bare("GET", "/mcp/discover").with("traceparent", TRACE);
    assert_eq!(served.send(&traced).status, 200);
    let own = find_log_line(&workspace, "its own call is logged", |line| {
        line["method"] == "mcp.discover"
    });
    assert_eq!(own["metadata"]["traceparent"], TRACE);
    // Tools cannot write to the log.
    let body = json!({ "arguments": { "path": "runs/mcp_server/x.jsonl", "content": "" } });
    let forged =
        TestHttpRequest::bytes(body.to_string().as_bytes()).to("/mcp/tool/mcp.tool:files.write");
    assert_eq!(served.send(&forged.malformed()).status, 401);
    drop(served);

    let mut stdio = ServerLaunchOptions::over(&workspace).arg("--log-dir").arg(&log).stdio();
    stdio.ask(&modern(1, "tools/call", json!({ "name": "files_list", "arguments": {} })));
    let stdio = find_log_line(&workspace, "the call over stdio is logged", |line| {
        line["metadata"]["toolId"] == "files_list"
    });
    assert_eq!(stdio["transport"], "stdio");
}

#[test]
fn s1_04_a_dedicated_listener_answers_every_path_with_an_envelope() {
    let workspace = library();
    workspace.put("toolgate.toml", "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"envelope\"\n");
    let mut served = ServerLaunchOptions::over(&workspace).served();
    served.addr = wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once("serving envelope alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    });
    let health = get(&served, "/healthz");
    assert_eq!((health.status, health.json()), (200, json!({ "status": "ok" })));
    let mut envelopes = Vec::new();
    for (path, status) in
        [("/mcp/discover", 200), ("/", 404), ("/mcp", 404), ("/v1/mcp", 404), ("/mcp/else", 404)]
    {
        let response = get(&served, path);
        assert_eq!(response.status, status, "{path}");
        envelopes.push(response.json());
    }
    check_schema("envelope", &envelopes);
}

#[test]
fn s1_25_26_a_missing_or_wrong_key_is_unauthorized_in_an_envelope() {
    let workspace = library();
    let served = ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", "s3cret").served();
    let mut envelopes = Vec::new();
    let discover = || TestHttpRequest::bare("GET", "/mcp/discover");
    for post in [discover(), discover().with("x-api-key", "wrong")] {
        let response = served.send(&post);
        assert_eq!(response.status, 401);
        let envelope = response.json();
        assert_eq!(envelope["error"]["code"], "UNAUTHORIZED");
        envelopes.push(envelope);
    }
    check_schema("envelope", &envelopes);
    assert_eq!(served.send(&discover().with("x-api-key", "s3cret")).status, 200);
    // Over stdio no key is needed.
    let mut stdio = lines(ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", "s3cret"));
    let message = super::client::ask(&mut stdio, 1, "mcp.discover", &json!({}));
    assert!(message["result"].is_object(), "{message}");
}
