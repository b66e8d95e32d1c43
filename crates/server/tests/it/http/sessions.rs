//! Tests of sessions, in the MCP revisions that have them.

use std::fs;

use std::collections::HashSet;

use serde_json::{Value, json};

use tempfile::TempDir;

use crate::support::{
    HttpServerProcess, ProcessMarker, REVISIONS, ServerLaunchOptions, TempWorkspace,
    TestHttpRequest, call, initialize, keys_of, legacy, refusal, sleeps,
};

fn served() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).served()
}

fn ping(session: &str) -> TestHttpRequest {
    TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).with("mcp-session-id", session)
}

#[test]
fn each_session_has_its_own_unguessable_id_that_fits_a_header() {
    let served = served();
    let ids: HashSet<String> = (0..50).map(|_| served.session("2025-11-25")).collect();
    assert_eq!(ids.len(), 50);
    for id in &ids {
        assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
        // 22 characters have 128 bits.
        assert!(id.len() >= 22, "{id}");
        let kinds: HashSet<u8> = id.bytes().collect();
        assert!(kinds.len() > 6, "{id}");
    }
}

#[test]
fn a_request_without_its_session_is_a_bad_request() {
    let served = served();
    served.session("2025-11-25");
    for method in ["ping", "tools/list", "tools/call"] {
        let response = served.send(&TestHttpRequest::mcp(&legacy(1, method, json!({}))));
        assert_eq!(response.status, 400, "{method}: {response:?}");
    }
}

#[test]
fn a_session_is_valid_only_in_its_own_dialect() {
    let served = served();
    let open = |path: &str| {
        let opened = served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18")).to(path));
        assert_eq!(opened.status, 200, "{path}: {opened:?}");
        opened.header("mcp-session-id").unwrap().to_owned()
    };
    let paths = ["/mcp", "/workstation"];
    let ids = paths.map(open);
    for (path_at, path) in paths.iter().enumerate() {
        for (id_at, id) in ids.iter().enumerate() {
            let response = served.send(&ping(id).malformed().to(path));
            let expected = if path_at == id_at { 200 } else { 404 };
            assert_eq!(response.status, expected, "{path}: {response:?}");
        }
    }
}

#[test]
fn an_unknown_session_is_not_found() {
    let served = served();
    let id = served.session("2025-11-25");
    let changed: String = id.chars().rev().collect();
    for wrong in [changed.as_str(), "", "0", &format!("{id}0"), &id.to_uppercase(), "ü"] {
        if wrong != id {
            let response = served.send(&ping(wrong));
            assert_eq!(response.status, 404, "`{wrong}`: {response:?}");
            assert!(refusal(&response.json()).contains("initialize"));
        }
    }
    let twice = ping(&id).with_additional("mcp-session-id", &id);
    assert_eq!(served.send(&twice).status, 404);
    assert_eq!(served.send(&ping(&id)).status, 200);
}

#[test]
fn an_ended_session_is_not_found() {
    let served = served();
    let id = served.session("2025-11-25");
    let other = served.session("2025-11-25");
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &id);
    assert_eq!(served.send(&end).status, 204);
    assert_eq!(served.send(&end).status, 404);
    assert_eq!(served.send(&ping(&id)).status, 404);
    assert_eq!(served.send(&ping(&other)).status, 200);
}

#[test]
fn an_unknown_version_header_is_a_bad_request_with_the_known_versions() {
    let served = served();
    let id = served.session("2025-11-25");
    for garbage in ["garbage", "2024-01-01", "", "2025-11-25, 2025-06-18"] {
        let response = served.send(&ping(&id).with("mcp-protocol-version", garbage));
        assert_eq!(response.status, 400, "{garbage}: {response:?}");
        let answer = response.json();
        let supported = answer["error"]["data"]["supported"].as_array().unwrap();
        for revision in &REVISIONS[1..] {
            assert!(supported.contains(&json!(revision)), "{answer}");
        }
        assert!(refusal(&answer).contains("2025-11-25"), "{answer}");
    }
    for named in &REVISIONS[1..] {
        assert_eq!(served.send(&ping(&id).with("mcp-protocol-version", named)).status, 200);
    }
    assert_eq!(served.send(&ping(&id)).status, 200);
}

#[test]
fn the_stateless_revision_has_no_sessions() {
    let served = served();
    let post = TestHttpRequest::mcp(&call(1, "files_read", json!({ "path": "README.md" })));
    for id in ["none-of-ours", "", &served.session("2025-11-25")] {
        let response = served.send(&post.clone().with("mcp-session-id", id));
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.header("mcp-session-id"), None);
    }
}

/// Starts a server that allows one connection, and therefore at most four sessions.
fn served_of_four(workspace: &TempWorkspace) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).set("server_connections_max", 1).served()
}

/// Starts a call in `session` that runs until `marker` is dropped. Closes the client's connection.
fn keep_busy(served: &HttpServerProcess, session: &str, marker: &ProcessMarker) {
    let params = json!({ "name": "exec_run", "arguments": sleeps(marker) });
    let mut connection = served.connect();
    connection.post(
        &TestHttpRequest::mcp(&legacy(1, "tools/call", params)).with("mcp-session-id", session),
    );
    marker.wait_until_running();
    connection.close();
}

#[test]
fn a_new_session_is_refused_at_the_limit_if_all_are_busy() {
    let served = served_of_four(&TempWorkspace::new());
    let sessions = [(); 4].map(|()| served.session("2025-11-25"));
    let markers = [(); 4].map(|()| ProcessMarker::new());
    for (session, marker) in sessions.iter().zip(&markers) {
        keep_busy(&served, session, marker);
    }
    let first = &sessions[0];
    let response = served.send(&TestHttpRequest::mcp(&initialize(1, "2025-11-25")));
    assert_eq!((response.status, response.header("mcp-session-id")), (503, None), "{response:?}");
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(refusal(&response.json()).contains("sessions"), "{response:?}");
    assert_eq!(served.send(&ping(first)).status, 200);
    assert_eq!(
        served.send(&TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", first)).status,
        204
    );
    served.session("2025-11-25");
}

/// Returns an `initialize` request that is too long to fit into the session's id, so that the
/// session cannot be resumed.
fn oversized_initialize() -> TestHttpRequest {
    let mut hello = initialize(0, "2025-11-25");
    hello["params"]["clientInfo"]["title"] = "x".repeat(3000).into();
    TestHttpRequest::mcp(&hello)
}

#[test]
fn at_the_limit_the_session_silent_for_longest_without_calls_ends() {
    let served = served_of_four(&TempWorkspace::new());
    let open = || served.send(&oversized_initialize()).header("mcp-session-id").unwrap().to_owned();
    let busy = open();
    let silent = open();
    let active = [open(), open()];
    let marker = ProcessMarker::new();
    keep_busy(&served, &busy, &marker);
    for session in &active {
        assert_eq!(served.send(&ping(session)).status, 200);
    }
    let fifth = open();
    assert_eq!(served.send(&ping(&silent)).status, 404);
    for session in [&busy, &active[0], &active[1], &fifth] {
        assert_eq!(served.send(&ping(session)).status, 200);
    }
}

#[test]
fn at_the_limit_a_session_of_the_caller_with_the_most_sessions_ends() {
    let workspace = TempWorkspace::new().file("toolgate.toml", keys_of(&["ada", "bob"]));
    let served = served_of_four(&workspace);
    let send_as = |name: &str, post: TestHttpRequest| {
        served.send(&post.with("x-api-key", &format!("{name}-key")))
    };
    let open = |name: &str| {
        let opened = send_as(name, oversized_initialize());
        opened.header("mcp-session-id").unwrap().to_owned()
    };
    let bob_session = open("bob");
    let ada_sessions: Vec<_> = (0..6).map(|_| open("ada")).collect();
    assert_eq!(send_as("bob", ping(&bob_session)).status, 200);
    let statuses: Vec<_> = ada_sessions.iter().map(|id| send_as("ada", ping(id)).status).collect();
    assert_eq!(statuses, [404, 404, 404, 200, 200, 200]);
}

#[test]
fn a_session_that_was_evicted_is_resumed_at_its_next_request() {
    let served = served_of_four(&TempWorkspace::new());
    let sessions: Vec<_> = (0..9).map(|_| served.session("2025-06-18")).collect();
    for session in sessions.iter().chain(&sessions) {
        assert_eq!(served.send(&ping(session)).status, 200);
    }
}

#[test]
fn a_session_is_resumed_only_by_servers_with_its_key() {
    let keys = TempDir::new().unwrap();
    let key = |name: &str, byte: u8| {
        let path = keys.path().join(name);
        fs::write(&path, [byte; 32]).unwrap();
        path.display().to_string()
    };
    let start = |key: &str| {
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_session_key", key).served()
    };
    let (one, other) = (key("one", 1), key("other", 2));
    let first = start(&one);
    let replica = start(&one);
    let stranger = start(&other);
    let session = first.session("2025-06-18");
    assert_eq!(replica.send(&ping(&session)).status, 200);
    let list = TestHttpRequest::mcp(&legacy(1, "tools/list", json!({})));
    let listed = replica.send(&list.with("mcp-session-id", &session)).message();
    assert!(listed["result"]["tools"][0].get("title").is_some(), "{listed}");
    assert_eq!(stranger.send(&ping(&session)).status, 404);
    let end = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(first.send(&end).status, 204);
    assert_eq!(first.send(&ping(&session)).status, 404);
}

#[test]
fn a_session_key_that_is_too_short_is_refused_at_start() {
    let keys = TempDir::new().unwrap();
    let path = keys.path().join("key");
    fs::write(&path, "short").unwrap();
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_session_key", path.display());
    let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
    assert!(!server.wait_for_exit().success());
    assert!(server.log().contains("server.session_key"), "{}", server.log());
}

#[test]
fn a_session_cannot_be_opened_twice() {
    let served = served();
    let session = served.session("2025-11-25");
    let again = TestHttpRequest::mcp(&initialize(2, "2025-06-18")).with("mcp-session-id", &session);
    let response = served.send(&again);
    assert_eq!((response.status, response.header("mcp-session-id")), (400, None), "{response:?}");
    assert_eq!(served.send(&ping(&session)).status, 200);
}

#[test]
fn the_negotiated_revision_applies_only_to_its_session() {
    let served = served();
    let new = served.session("2025-11-25");
    let old = served.session("2024-11-05");
    let tools = |session: &str| -> Value {
        let list = TestHttpRequest::mcp(&legacy(1, "tools/list", json!({})));
        served.send(&list.with("mcp-session-id", session)).message()["result"]["tools"][0].clone()
    };
    assert!(tools(&new).get("outputSchema").is_some());
    assert!(tools(&old).get("outputSchema").is_none());
}
