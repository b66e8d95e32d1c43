//! Tests of the HTTP status of answers to each type of request.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, MODERN, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
    TestHttpResponse, call, initialize, legacy, modern, notification, refusal,
};

fn served() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).served()
}

fn list() -> TestHttpRequest {
    TestHttpRequest::mcp(&modern(1, "tools/list", json!({})))
}

#[test]
fn notifications_and_responses_are_accepted_with_an_empty_202() {
    let served = served();
    let session = served.session("2025-11-25");
    let messages = [
        notification("notifications/initialized", json!({})),
        notification("notifications/cancelled", json!({ "requestId": 99 })),
        notification("notifications/unheard-of", json!({})),
        json!({ "jsonrpc": "2.0", "id": 5, "result": {} }),
    ];
    for message in &messages {
        for post in [
            TestHttpRequest::mcp(message),
            TestHttpRequest::mcp(message).with("mcp-session-id", &session),
        ] {
            let response = served.send(&post);
            assert_eq!((response.status, response.body.len()), (202, 0), "{message}: {response:?}");
        }
    }
}

#[test]
fn an_unknown_host_is_forbidden() {
    let served = served();
    let port = served.addr.port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        "localhost".to_owned(),
        format!("localhost:{}", port ^ 1),
        format!("0.0.0.0:{port}"),
    ] {
        let response = served.send(&list().with("host", &host));
        assert_eq!(response.status, 403, "{host}: {response:?}");
        assert!(response.text().contains("server.allowed_hosts"), "{}", response.text());
    }
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")]
    {
        assert_eq!(served.send(&list().with("host", &host)).status, 200, "{host}");
    }
}

#[test]
fn an_unknown_origin_is_forbidden_even_with_a_known_host() {
    let served = served();
    let port = served.addr.port();
    for origin in [
        "null".to_owned(),
        "http://evil.example".to_owned(),
        format!("http://evil.example:{port}"),
        format!("https://localhost:{port}"),
        "http://localhost".to_owned(),
        "http://localhost:3000".to_owned(),
        "file://".to_owned(),
        String::new(),
    ] {
        for post in
            [list(), TestHttpRequest::bare("GET", "/mcp"), TestHttpRequest::bare("GET", "/healthz")]
        {
            let response = served.send(&post.with("origin", &origin));
            assert_eq!(response.status, 403, "{origin}: {response:?}");
        }
    }
    for origin in [format!("http://localhost:{port}"), format!("http://127.0.0.1:{port}")] {
        assert_eq!(served.send(&list().with("origin", &origin)).status, 200, "{origin}");
    }
}

#[test]
fn requests_from_a_page_of_another_site_are_forbidden() {
    let launch = ServerLaunchOptions::over(&TempWorkspace::new());
    let served = launch.set("server_allowed_origins", "https://app.example").served();
    // A browser requests the source of an <img> like this: without an `Origin`.
    let look = |site: &str| TestHttpRequest::bare("GET", "/v1/mcp").with("sec-fetch-site", site);
    for (site, status) in
        [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
    {
        let response = served.send(&look(site));
        assert_eq!(response.status, status, "{site}: {response:?}");
        assert_eq!(served.send(&list().with("sec-fetch-site", site)).status, status, "{site}");
    }
    let admitted =
        list().with("sec-fetch-site", "cross-site").with("origin", "https://app.example");
    assert_eq!(served.send(&admitted).status, 200);
}

#[test]
fn a_configured_host_or_origin_is_accepted() {
    let launch = ServerLaunchOptions::over(&TempWorkspace::new())
        .set("server_allowed_hosts", "tools.example, other.example:8443")
        .set("server_allowed_origins", "https://app.example");
    let served = launch.served();
    assert_eq!(served.send(&list().with("host", "tools.example")).status, 200);
    let post = list().with("host", "other.example:8443").with("origin", "https://app.example");
    assert_eq!(served.send(&post).status, 200);
    assert_eq!(served.send(&list().with("host", "third.example")).status, 403);
    assert_eq!(served.send(&list().with("origin", "https://app.example.evil")).status, 403);
}

#[test]
fn only_an_allowed_page_may_read_its_answers() {
    let launch = ServerLaunchOptions::over(&TempWorkspace::new());
    let served = launch.set("server_allowed_origins", "https://app.example").served();
    let preflight = |origin: &str| {
        TestHttpRequest::bare("OPTIONS", "/mcp")
            .with("origin", origin)
            .with("access-control-request-method", "POST")
            .with("access-control-request-headers", "content-type,mcp-session-id")
    };
    let response = served.send(&preflight("https://app.example"));
    assert_eq!((response.status, response.body.len()), (204, 0), "{response:?}");
    let allowed = |response: &TestHttpResponse, suffix: &str| {
        response.header(&format!("access-control-allow-{suffix}")).map(str::to_owned)
    };
    assert_eq!(allowed(&response, "origin").unwrap(), "https://app.example");
    assert!(allowed(&response, "methods").unwrap().contains("POST"));
    assert!(allowed(&response, "headers").unwrap().contains("mcp-session-id"));

    let open =
        TestHttpRequest::mcp(&initialize(1, "2025-11-25")).with("origin", "https://app.example");
    let response = served.send(&open);
    assert_eq!(allowed(&response, "origin").unwrap(), "https://app.example");
    assert_eq!(response.header("access-control-expose-headers"), Some("*"));

    let response = served.send(&preflight("https://evil.example"));
    assert_eq!((response.status, allowed(&response, "origin")), (403, None), "{response:?}");
    assert_eq!(allowed(&served.send(&list()), "origin"), None);
}

#[test]
fn a_target_with_another_host_than_the_header_is_forbidden() {
    let served = served();
    let own = format!("http://{}/mcp", served.addr);
    assert_eq!(served.send(&list().to(&own)).status, 200);
    assert_eq!(served.send(&list().to("http://evil.example/mcp")).status, 403);
}

#[test]
fn an_unknown_path_is_not_found() {
    let served = served();
    for path in ["/", "/mcp//", "/MCP", "/mcp2", "/mcp/../mcp", "//mcp", "/sse", "/favicon.ico"] {
        let response = served.send(&list().to(path));
        assert_eq!(response.status, 404, "{path}: {response:?}");
        assert!(!response.body.is_empty(), "{path}");
    }
    assert_eq!(served.send(&list().to("/mcp?query=1")).status, 200);
}

#[test]
fn a_path_with_a_slash_at_its_end_is_answered_like_the_path() {
    let served = served();
    let plain = served.send(&list());
    for path in ["/mcp/", "/mcp/?query=1"] {
        let response = served.send(&list().to(path));
        assert_eq!((response.status, &response.body), (plain.status, &plain.body), "{path}");
    }
    let session = served.session("2025-11-25");
    let closed = TestHttpRequest::bare("DELETE", "/mcp/").with("mcp-session-id", &session);
    assert_eq!(served.send(&closed).status, 204);
}

#[test]
fn jobs_and_health_are_served_at_paths_with_a_slash_at_their_end() {
    let served = served();
    for path in ["/healthz", "/v1/jobs"] {
        let plain = served.send(&TestHttpRequest::bare("GET", path));
        let slashed = served.send(&TestHttpRequest::bare("GET", &format!("{path}/")));
        assert_eq!((slashed.status, &slashed.body), (200, &plain.body), "{path}");
    }
}

#[test]
fn a_body_with_a_byte_order_mark_is_read() {
    let served = served();
    let message = modern(1, "server/discover", json!({}));
    let marked = TestHttpRequest::bytes(format!("\u{feff}{message}").as_bytes());
    let marked = marked.with("mcp-protocol-version", MODERN).with("mcp-method", "server/discover");
    let response = served.send(&marked);
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.json()["result"]["supportedVersions"].is_array(), "{response:?}");
}

#[test]
fn an_unknown_method_has_the_status_of_its_revision() {
    let served = served();
    let response = served.send(&TestHttpRequest::mcp(&modern(1, "tools/fly", json!({}))));
    assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!(-32601)));
    let session = served.session("2025-11-25");
    let post =
        TestHttpRequest::mcp(&legacy(1, "tools/fly", json!({}))).with("mcp-session-id", &session);
    let response = served.send(&post);
    assert_eq!((response.status, &response.json()["error"]["code"]), (200, &json!(-32601)));
}

#[test]
fn methods_that_the_stateless_revision_removed_are_not_found() {
    let served = served();
    for method in
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
    {
        let response = served.send(&TestHttpRequest::mcp(&modern(1, method, json!({}))));
        assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!(-32601)));
    }
}

#[test]
fn an_unsupported_http_method_is_refused_with_the_allowed_ones() {
    let served = served();
    let session = served.session("2025-11-25");
    for verb in ["GET", "PUT", "PATCH", "OPTIONS", "DELETE"] {
        let post = TestHttpRequest::bare(verb, "/mcp").with("accept", "text/event-stream");
        let response = served.send(&post);
        assert_eq!((response.status, response.header("allow")), (405, Some("POST")), "{verb}");
        let needs = response.text().contains("`Mcp-Session-Id` from `initialize`");
        assert_eq!(needs, ["GET", "DELETE"].contains(&verb), "{verb}: {response:?}");
    }
    // Without `Accept: text/event-stream` there is no stream.
    let in_session = |verb| TestHttpRequest::bare(verb, "/mcp").with("mcp-session-id", &session);
    let response = served.send(&in_session("GET"));
    assert_eq!(response.status, 406);
    assert!(response.text().contains("`Accept: text/event-stream`"), "{response:?}");
    let response = served.send(&in_session("PUT"));
    assert_eq!((response.status, response.header("allow")), (405, Some("GET, POST, DELETE")));
    // The stateless revision has no sessions to end.
    let post = TestHttpRequest::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&post.clone().with("mcp-protocol-version", MODERN)).status, 405);
    assert_eq!(served.send(&post).status, 204);
}

#[test]
fn the_answer_to_a_head_request_has_no_body() {
    let served = served();
    let mut connection = served.connect();
    for (accept, status) in [("text/event-stream", 405), ("application/json", 200)] {
        connection.post(&TestHttpRequest::bare("HEAD", "/mcp").with("accept", accept));
        assert_eq!(connection.head().status, status);
        connection.post(&list());
        assert_eq!(connection.response().status, 200);
    }
}

#[test]
fn a_get_of_mcp_without_streams_returns_zyras_description() {
    let served = served();
    let full = served.get("/v1/mcp").json();
    assert_eq!(full["mcp_version"], "0.1");
    for accept in ["application/json", "*/*", ""] {
        for verb in ["GET", "OPTIONS"] {
            let response = served.send(&TestHttpRequest::bare(verb, "/mcp").with("accept", accept));
            assert_eq!(response.json(), full, "{verb} {accept}");
        }
    }
}

#[test]
fn a_browser_at_mcp_gets_an_explanation() {
    let served = served();
    let accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let response = served.send(&TestHttpRequest::bare("GET", "/mcp").with("accept", accept));
    assert_eq!((response.status, response.header("allow")), (405, Some("POST")));
    assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(response.text().contains(&served.url()), "{response:?}");
}

#[test]
fn a_misspelled_path_of_mcp_is_suggested_before_others() {
    let response = served().send(&TestHttpRequest::bare("GET", "/mpc"));
    assert_eq!(response.status, 404, "{response:?}");
    assert!(response.text().contains("did you mean /mcp?"), "{response:?}");
}

#[test]
fn a_body_that_is_not_plain_json_is_an_unsupported_media_type() {
    let served = served();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", ""] {
        let response = served.send(&list().with("content-type", kind));
        assert_eq!(response.status, 415, "{kind}: {response:?}");
    }
    let response = served.send(&list().without("content-type"));
    assert_eq!(response.status, 415, "{response:?}");
    for encoding in ["gzip", "br", "deflate, gzip"] {
        let response = served.send(&list().with("content-encoding", encoding));
        assert_eq!(response.status, 415, "{encoding}: {response:?}");
    }
    for kind in ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"] {
        assert_eq!(served.send(&list().with("content-type", kind)).status, 200, "{kind}");
    }
    assert_eq!(served.send(&list().with("content-encoding", "identity")).status, 200);
}

#[test]
fn health_needs_no_credential_but_a_known_host() {
    let served = served();
    let response = served.send(&TestHttpRequest::bare("GET", "/healthz"));
    assert_eq!((response.status, response.text().trim()), (200, "ok"));
    assert_eq!(
        served.send(&TestHttpRequest::bare("GET", "/healthz").with("host", "evil.example")).status,
        403
    );
}

/// Checks the status and error code of the answer to a stateless request.
#[track_caller]
fn check(served: &HttpServerProcess, post: &TestHttpRequest, expected: (u16, i64)) -> Value {
    let response = served.send(post);
    let answer = response.json();
    assert_eq!(
        (response.status, answer["error"]["code"].as_i64()),
        (expected.0, Some(expected.1)),
        "{answer}"
    );
    assert_eq!(answer["id"], 1, "{answer}");
    answer
}

const MISMATCH: (u16, i64) = (400, -32020);
const INVALID_PARAMS: (u16, i64) = (400, -32602);
const UNSUPPORTED: (u16, i64) = (400, -32022);

#[test]
fn the_headers_of_a_stateless_request_must_match_its_body() {
    let served = served();
    let post = TestHttpRequest::mcp(&call(1, "files_read", json!({ "path": "README.md" })));
    let bad = [
        post.clone().with("mcp-protocol-version", "2025-11-25"),
        post.clone().without("mcp-protocol-version"),
        post.clone().without("mcp-method"),
        post.clone().with("mcp-method", "tools/list"),
        post.clone().with("mcp-method", "TOOLS/CALL"),
        post.clone().without("mcp-name"),
        post.clone().with("mcp-name", "files_write"),
        post.clone().with("mcp-name", "FILES_READ"),
        post.clone().with_additional("mcp-name", "files_read"),
        post.clone().with("mcp-name", "=?base64?!!!?="),
        post.clone().with("mcp-name", "files_réad"),
    ];
    for post in &bad {
        check(&served, post, MISMATCH);
    }
    for name in ["files_read", "  files_read\t", "=?base64?ZmlsZXNfcmVhZA==?="] {
        assert_eq!(served.send(&post.clone().with("mcp-name", name)).status, 200, "{name}");
    }
    let upper_case = post.without("mcp-method").with("MCP-METHOD", "tools/call");
    assert_eq!(served.send(&upper_case).status, 200);
}

#[test]
fn an_unsupported_version_is_refused_with_the_supported_ones() {
    let served = served();
    let version = "io.modelcontextprotocol/protocolVersion";
    let mut message = modern(1, "tools/list", json!({}));
    message["params"]["_meta"][version] = json!("v999");
    let post = TestHttpRequest::mcp(&message).with("mcp-method", "tools/list");
    check(&served, &post.clone().with("mcp-protocol-version", MODERN), MISMATCH);
    let answer = check(&served, &post.with("mcp-protocol-version", "v999"), UNSUPPORTED);
    assert_eq!(answer["error"]["data"]["requested"], "v999");
    assert!(answer["error"]["data"]["supported"].as_array().unwrap().contains(&json!(MODERN)));
}

#[test]
fn a_stateless_request_without_a_required_field_is_refused() {
    let served = served();
    let header = |message: &Value| {
        TestHttpRequest::mcp(message)
            .with("mcp-protocol-version", MODERN)
            .with("mcp-method", "tools/list")
    };
    check(&served, &header(&legacy(1, "tools/list", json!({}))), INVALID_PARAMS);
    for missing in ["protocolVersion", "clientCapabilities"] {
        let mut message = modern(1, "tools/list", json!({}));
        let meta = message["params"]["_meta"].as_object_mut().unwrap();
        meta.remove(&format!("io.modelcontextprotocol/{missing}"));
        check(&served, &header(&message), INVALID_PARAMS);
    }
    let mut message = modern(1, "tools/list", json!({}));
    let meta = message["params"]["_meta"].as_object_mut().unwrap();
    meta.remove("io.modelcontextprotocol/clientInfo");
    assert_eq!(served.send(&header(&message)).status, 200);
}

#[test]
fn the_refusal_of_a_request_without_revision_names_both_ways_to_set_one() {
    let served = served();
    let answer =
        check(&served, &TestHttpRequest::mcp(&legacy(1, "tools/list", json!({}))), INVALID_PARAMS);
    let message = refusal(&answer);
    assert!(message.contains("initialize") && message.contains("_meta"), "{message}");
}
