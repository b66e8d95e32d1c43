//! Tests of the stateless revision over HTTP (rows H of the MCP checklist).

use std::time::Duration;

use serde_json::{Value, json};

use super::{code, mcp_key, served, uri};
use crate::support::{
    HttpServerProcess, MODERN, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
    TestHttpResponse, call, initialize, legacy, modern, notification, structured,
};

fn list() -> TestHttpRequest {
    TestHttpRequest::mcp(&modern(1, "tools/list", json!({})))
}

fn read() -> TestHttpRequest {
    TestHttpRequest::mcp(&call(1, "files_read", json!({ "path": "README.md" })))
}

#[track_caller]
fn check(
    served: &HttpServerProcess,
    post: &TestHttpRequest,
    status: u16,
    expected: i64,
) -> TestHttpResponse {
    let response = served.send(post);
    let answer = response.json();
    assert_eq!((response.status, code(&answer)), (status, expected), "{answer}");
    response
}

const MISMATCH: i64 = -32020;

/// Checks that `response` has the status 403, and either no body or a JSON-RPC error without an id.
#[track_caller]
fn is_forbidden(response: &TestHttpResponse) {
    assert_eq!(response.status, 403, "{response:?}");
    if let Ok(body) = serde_json::from_slice::<Value>(&response.body) {
        assert!(body.get("id").is_none_or(Value::is_null), "{body}");
    }
}

#[test]
fn h2_an_unknown_origin_is_403() {
    let served = served();
    let session = served.session("2025-11-25");
    let posts = [
        list(),
        TestHttpRequest::mcp(&initialize(1, "2025-11-25")),
        TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).with("mcp-session-id", &session),
        TestHttpRequest::bare("GET", "/mcp").with("mcp-session-id", &session),
        TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session),
        TestHttpRequest::bytes(b"{"),
    ];
    for post in &posts {
        for origin in ["null", "http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1"] {
            is_forbidden(&served.send(&post.clone().with("origin", origin)));
        }
    }
    // None of them ended the session.
    let ping = TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).with("mcp-session-id", &session);
    assert_eq!(served.send(&ping).status, 200);
}

#[test]
fn h2_two_origins_are_403_whichever_comes_first() {
    let served = served();
    let own = format!("http://{}", served.addr);
    for pair in [[own.as_str(), "http://evil.example"], ["http://evil.example", own.as_str()]] {
        let post = list().with("origin", pair[0]).with_additional("origin", pair[1]);
        is_forbidden(&served.send(&post));
    }
}

#[test]
fn h4_a_batch_or_a_response_is_refused_as_a_body() {
    let served = served();
    let batch = json!([modern(1, "tools/list", json!({})), modern(2, "tools/list", json!({}))]);
    let modern = |body: &Value| {
        let post = TestHttpRequest::bytes(body.to_string().as_bytes());
        post.with("mcp-protocol-version", MODERN).with("mcp-method", "tools/list")
    };
    let response = served.send(&modern(&batch));
    assert_eq!((response.status, code(&response.json())), (400, -32600), "{response:?}");
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": {} });
    let response = served.send(&modern(&answer));
    assert!((400..500).contains(&response.status), "{response:?}");
}

#[test]
fn h5_a_notification_gets_an_empty_202_and_an_invalid_one_4xx() {
    let served = served();
    let meta = json!({ mcp_key("protocolVersion"): MODERN, mcp_key("clientCapabilities"): {} });
    let params = json!({ "requestId": 99, "_meta": meta });
    let post = TestHttpRequest::mcp(&notification("notifications/cancelled", params));
    let response = served.send(&post);
    assert_eq!((response.status, response.body.len()), (202, 0), "{response:?}");
    assert_eq!(response.header("content-type"), None, "{response:?}");
    for body in [
        json!({ "jsonrpc": "1.0", "method": "notifications/cancelled" }),
        json!({ "jsonrpc": "2.0", "method": 5 }),
        json!({ "method": "notifications/cancelled" }),
    ] {
        let response = served.send(&TestHttpRequest::bytes(body.to_string().as_bytes()));
        assert!((400..500).contains(&response.status), "{body}: {response:?}");
    }
}

#[test]
fn h6_a_simple_answer_is_one_json_object_whatever_accept_says() {
    let served = served();
    for accept in [
        Some("application/json, text/event-stream"),
        Some("text/event-stream, application/json;q=0.1"),
        Some("application/json"),
        Some("application/*"),
        Some("*/*"),
        Some(""),
        None,
    ] {
        let post = list().without("accept");
        let post = accept.map_or(post.clone(), |accept| post.with("accept", accept));
        let response = served.send(&post);
        assert_eq!(response.status, 200, "{accept:?}: {response:?}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{accept:?}");
        assert!(response.json()["result"]["tools"].is_array());
    }
}

#[test]
fn h11_a_missing_version_header_is_a_mismatch() {
    check(&served(), &list().without("mcp-protocol-version"), 400, MISMATCH);
}

#[test]
fn h13_every_request_names_its_method_in_the_header() {
    let served = served();
    let file = "file:///none";
    for (method, params) in [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/read", json!({ "uri": file })),
        ("prompts/get", json!({ "name": "explain" })),
        ("completion/complete", json!({})),
        ("subscriptions/listen", json!({ "notifications": {} })),
        ("tools/fly", json!({})),
    ] {
        let post = TestHttpRequest::mcp(&modern(1, method, params));
        check(&served, &post.clone().without("mcp-method"), 400, MISMATCH);
        check(&served, &post.with("mcp-method", "tools/call"), 400, MISMATCH);
    }
}

#[test]
fn h13_resource_reads_and_prompts_are_named_in_the_header() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let made = json!({ "name": "explain", "arguments": { "path": "README.md" } });
    for (method, params) in
        [("resources/read", json!({ "uri": uri(&workspace, "README.md") })), ("prompts/get", made)]
    {
        let post = TestHttpRequest::mcp(&modern(1, method, params));
        assert_eq!(served.send(&post).status, 200, "{method}");
        check(&served, &post.clone().without("mcp-name"), 400, MISMATCH);
        check(&served, &post.clone().with("mcp-name", ""), 400, MISMATCH);
        check(&served, &post.with("mcp-name", "another"), 400, MISMATCH);
    }
}

#[test]
fn h14_a_duplicate_header_is_a_mismatch_even_if_both_values_match() {
    let served = served();
    for (name, value) in
        [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "files_read")]
    {
        check(&served, &read().with_additional(name, value), 400, MISMATCH);
        check(&served, &read().with_additional(name, "other"), 400, MISMATCH);
        check(&served, &read().with(name, &format!("{value}, {value}")), 400, MISMATCH);
    }
}

#[test]
fn h14_a_name_in_invalid_base64_is_a_mismatch() {
    let served = served();
    for name in [
        "=?base64?!!!?=",
        "=?base64?ZmlsZXNfcmVhZA?=",
        "=?base64?ZmlsZXNfcmVhZA==",
        "=?base64??=",
        "=?base64?/w==?=",
        "=?BASE64?ZmlsZXNfcmVhZA==?=",
        "=?Base64?ZmlsZXNfcmVhZA==?=",
        "?base64?ZmlsZXNfcmVhZA==?=",
        "ZmlsZXNfcmVhZA==",
        "=?base64?ZmlsZXNfd3JpdGU=?=",
    ] {
        check(&served, &read().with("mcp-name", name), 400, MISMATCH);
    }
}

#[test]
fn h16_a_name_can_be_sent_in_base64() {
    let workspace = TempWorkspace::new().file("Größe 1.txt", "ten");
    let served = ServerLaunchOptions::over(&workspace).served();
    let name = "=?base64?ZmlsZXNfcmVhZA==?=";
    let answer = served.send(&read().with("mcp-name", name)).json();
    assert_eq!(structured(&answer)["content"], TempWorkspace::README);
    // A URI that looks like a base64 marker itself.
    let odd =
        TestHttpRequest::mcp(&modern(1, "resources/read", json!({ "uri": "=?base64?eA==?=" })));
    check(&served, &odd, 400, MISMATCH);
}

#[test]
fn h20_get_and_delete_are_405_and_session_headers_are_ignored() {
    let served = served();
    for verb in ["GET", "DELETE"] {
        let post = TestHttpRequest::bare(verb, "/mcp").with("mcp-protocol-version", MODERN);
        let response = served.send(&post.with("accept", "text/event-stream"));
        assert_eq!(response.status, 405, "{verb}: {response:?}");
    }
    let response = served.send(&list().with("last-event-id", "0-1").with("mcp-session-id", "x"));
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.header("mcp-session-id"), None, "{response:?}");
    assert!(response.json()["result"]["tools"].is_array());
}

#[test]
fn h7_the_answer_is_the_last_of_its_stream_and_has_no_event_id() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    // The call takes longer than the time until a stream begins.
    let arguments = json!({ "command": "sleep", "args": ["2.5"] });
    let mut connection = served.connect();
    connection.stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    connection.post(&TestHttpRequest::mcp(&call(1, "exec_run", arguments)));
    let response = connection.response();
    let events = response.events();
    assert_eq!(events.last().unwrap()["id"], 1, "{events:?}");
    assert!(events.iter().rev().skip(1).all(|event| event.get("id").is_none()), "{events:?}");
    assert!(!response.text().lines().any(|line| line.starts_with("id:")), "{}", response.text());
}
