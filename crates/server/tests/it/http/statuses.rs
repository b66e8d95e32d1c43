//! What each kind of request is answered with.

use serde_json::{Value, json};

use crate::support::{
    Launch, MODERN, Post, Response, Served, Workspace, call, initialize, legacy, modern,
    notification, refusal,
};

fn served() -> Served {
    Launch::over(&Workspace::new()).served()
}

fn list() -> Post {
    Post::mcp(&modern(1, "tools/list", json!({})))
}

#[test]
fn a_notification_and_an_answer_are_taken_without_a_word() {
    let served = served();
    let session = served.session("2025-11-25");
    let messages = [
        notification("notifications/initialized", json!({})),
        notification("notifications/cancelled", json!({ "requestId": 99 })),
        notification("notifications/unheard-of", json!({})),
        json!({ "jsonrpc": "2.0", "id": 5, "result": {} }),
    ];
    for message in &messages {
        for post in [Post::mcp(message), Post::mcp(message).with("mcp-session-id", &session)] {
            let response = served.send(&post);
            assert_eq!((response.status, response.body.len()), (202, 0), "{message}: {response:?}");
        }
    }
}

#[test]
fn a_host_that_is_not_ours_is_forbidden() {
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
fn an_origin_that_is_not_ours_is_forbidden_even_if_the_host_is() {
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
        for post in [list(), Post::bare("GET", "/mcp"), Post::bare("GET", "/healthz")] {
            let response = served.send(&post.with("origin", &origin));
            assert_eq!(response.status, 403, "{origin}: {response:?}");
        }
    }
    for origin in [format!("http://localhost:{port}"), format!("http://127.0.0.1:{port}")] {
        assert_eq!(served.send(&list().with("origin", &origin)).status, 200, "{origin}");
    }
}

#[test]
fn what_a_page_of_another_site_shows_is_not_served_to_it() {
    let launch = Launch::over(&Workspace::new());
    let served = launch.set("server_allowed_origins", "https://app.example").served();
    // As the browser asks for what stands in an <img>: without an `Origin`.
    let look = |site: &str| Post::bare("GET", "/v1/mcp").with("sec-fetch-site", site);
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
fn a_host_and_an_origin_that_settings_name_are_served() {
    let launch = Launch::over(&Workspace::new())
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
fn a_page_that_is_allowed_may_read_its_answers_and_no_other_may() {
    let launch = Launch::over(&Workspace::new());
    let served = launch.set("server_allowed_origins", "https://app.example").served();
    let asks = |origin: &str| {
        Post::bare("OPTIONS", "/mcp")
            .with("origin", origin)
            .with("access-control-request-method", "POST")
            .with("access-control-request-headers", "content-type,mcp-session-id")
    };
    let response = served.send(&asks("https://app.example"));
    assert_eq!((response.status, response.body.len()), (204, 0), "{response:?}");
    let allowed = |response: &Response, what: &str| {
        response.header(&format!("access-control-allow-{what}")).map(str::to_owned)
    };
    assert_eq!(allowed(&response, "origin").unwrap(), "https://app.example");
    assert!(allowed(&response, "methods").unwrap().contains("POST"));
    assert!(allowed(&response, "headers").unwrap().contains("mcp-session-id"));

    let open = Post::mcp(&initialize(1, "2025-11-25")).with("origin", "https://app.example");
    let response = served.send(&open);
    assert_eq!(allowed(&response, "origin").unwrap(), "https://app.example");
    assert_eq!(response.header("access-control-expose-headers"), Some("*"));

    let response = served.send(&asks("https://evil.example"));
    assert_eq!((response.status, allowed(&response, "origin")), (403, None), "{response:?}");
    assert_eq!(allowed(&served.send(&list()), "origin"), None);
}

#[test]
fn another_host_in_the_target_than_in_the_header_is_forbidden() {
    let served = served();
    let own = format!("http://{}/mcp", served.addr);
    assert_eq!(served.send(&list().to(&own)).status, 200);
    assert_eq!(served.send(&list().to("http://evil.example/mcp")).status, 403);
}

#[test]
fn only_what_is_served_is_found() {
    let served = served();
    for path in ["/", "/mcp/", "/MCP", "/mcp2", "/mcp/../mcp", "//mcp", "/sse", "/favicon.ico"] {
        let response = served.send(&list().to(path));
        assert_eq!(response.status, 404, "{path}: {response:?}");
        assert!(!response.body.is_empty(), "{path}");
    }
    assert_eq!(served.send(&list().to("/mcp?query=1")).status, 200);
}

#[test]
fn an_unknown_method_is_not_found_by_the_status_of_its_revision() {
    let served = served();
    let response = served.send(&Post::mcp(&modern(1, "tools/fly", json!({}))));
    assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!(-32601)));
    let session = served.session("2025-11-25");
    let post = Post::mcp(&legacy(1, "tools/fly", json!({}))).with("mcp-session-id", &session);
    let response = served.send(&post);
    assert_eq!((response.status, &response.json()["error"]["code"]), (200, &json!(-32601)));
}

#[test]
fn what_was_removed_from_the_stateless_revision_is_not_found_there() {
    let served = served();
    for method in
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
    {
        let response = served.send(&Post::mcp(&modern(1, method, json!({}))));
        assert_eq!((response.status, &response.json()["error"]["code"]), (404, &json!(-32601)));
    }
}

#[test]
fn a_verb_that_is_not_for_messages_is_refused_with_those_that_are() {
    let served = served();
    let session = served.session("2025-11-25");
    for verb in ["GET", "PUT", "PATCH", "OPTIONS", "DELETE"] {
        let post = Post::bare(verb, "/mcp").with("accept", "text/event-stream");
        let response = served.send(&post);
        assert_eq!((response.status, response.header("allow")), (405, Some("POST")), "{verb}");
        let needs = response.text().contains("`Mcp-Session-Id`, which `initialize` gives");
        assert_eq!(needs, ["GET", "DELETE"].contains(&verb), "{verb}: {response:?}");
    }
    // Without an `Accept` of events there is no stream to get.
    let in_session = |verb| Post::bare(verb, "/mcp").with("mcp-session-id", &session);
    let response = served.send(&in_session("GET"));
    assert_eq!(response.status, 406);
    assert!(response.text().contains("`Accept: text/event-stream`"), "{response:?}");
    let response = served.send(&in_session("PUT"));
    assert_eq!((response.status, response.header("allow")), (405, Some("GET, POST, DELETE")));
    // The stateless revision has no sessions to end.
    let post = Post::bare("DELETE", "/mcp").with("mcp-session-id", &session);
    assert_eq!(served.send(&post.clone().with("mcp-protocol-version", MODERN)).status, 405);
    assert_eq!(served.send(&post).status, 204);
}

#[test]
fn a_head_request_has_a_head_and_no_body() {
    let served = served();
    let mut connection = served.connect();
    for (accept, status) in [("text/event-stream", 405), ("application/json", 200)] {
        connection.post(&Post::bare("HEAD", "/mcp").with("accept", accept));
        assert_eq!(connection.head().status, status);
        connection.post(&list());
        assert_eq!(connection.response().status, 200);
    }
}

#[test]
fn who_looks_at_mcp_and_takes_no_stream_is_told_what_there_is() {
    let served = served();
    let whole = served.get("/v1/mcp").json();
    assert_eq!(whole["mcp_version"], "0.1");
    for accept in ["application/json", "*/*", ""] {
        for verb in ["GET", "OPTIONS"] {
            let response = served.send(&Post::bare(verb, "/mcp").with("accept", accept));
            assert_eq!(response.json(), whole, "{verb} {accept}");
        }
    }
}

#[test]
fn who_looks_at_mcp_with_a_browser_reads_what_it_is() {
    let served = served();
    let accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let response = served.send(&Post::bare("GET", "/mcp").with("accept", accept));
    assert_eq!((response.status, response.header("allow")), (405, Some("POST")));
    assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));
    assert!(response.text().contains(&served.url()), "{response:?}");
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
fn health_is_told_to_whoever_may_ask() {
    let served = served();
    let response = served.send(&Post::bare("GET", "/healthz"));
    assert_eq!((response.status, response.text().trim()), (200, "ok"));
    assert_eq!(
        served.send(&Post::bare("GET", "/healthz").with("host", "evil.example")).status,
        403
    );
}

/// What a stateless request with these headers and this body is answered: status and error code.
#[track_caller]
fn check(served: &Served, post: &Post, expected: (u16, i64)) -> Value {
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
fn headers_of_a_stateless_request_say_what_its_body_says() {
    let served = served();
    let post = Post::mcp(&call(1, "files_read", json!({ "path": "README.md" })));
    let bad = [
        post.clone().with("mcp-protocol-version", "2025-11-25"),
        post.clone().without("mcp-protocol-version"),
        post.clone().without("mcp-method"),
        post.clone().with("mcp-method", "tools/list"),
        post.clone().with("mcp-method", "TOOLS/CALL"),
        post.clone().without("mcp-name"),
        post.clone().with("mcp-name", "files_write"),
        post.clone().with("mcp-name", "FILES_READ"),
        post.clone().and("mcp-name", "files_read"),
        post.clone().with("mcp-name", "=?base64?!!!?="),
        post.clone().with("mcp-name", "files_réad"),
    ];
    for post in &bad {
        check(&served, post, MISMATCH);
    }
    for name in ["files_read", "  files_read\t", "=?base64?ZmlsZXNfcmVhZA==?="] {
        assert_eq!(served.send(&post.clone().with("mcp-name", name)).status, 200, "{name}");
    }
    let shouted = post.without("mcp-method").with("MCP-METHOD", "tools/call");
    assert_eq!(served.send(&shouted).status, 200);
}

#[test]
fn a_version_that_is_not_spoken_is_refused_with_those_that_are() {
    let served = served();
    let version = "io.modelcontextprotocol/protocolVersion";
    let mut message = modern(1, "tools/list", json!({}));
    message["params"]["_meta"][version] = json!("v999");
    let post = Post::mcp(&message).with("mcp-method", "tools/list");
    check(&served, &post.clone().with("mcp-protocol-version", MODERN), MISMATCH);
    let answer = check(&served, &post.with("mcp-protocol-version", "v999"), UNSUPPORTED);
    assert_eq!(answer["error"]["data"]["requested"], "v999");
    assert!(answer["error"]["data"]["supported"].as_array().unwrap().contains(&json!(MODERN)));
}

#[test]
fn a_stateless_request_without_what_it_must_carry_is_refused() {
    let served = served();
    let header = |message: &Value| {
        Post::mcp(message).with("mcp-protocol-version", MODERN).with("mcp-method", "tools/list")
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
fn a_request_of_no_revision_is_told_both_ways_to_name_one() {
    let served = served();
    let answer = check(&served, &Post::mcp(&legacy(1, "tools/list", json!({}))), INVALID_PARAMS);
    let said = refusal(&answer);
    assert!(said.contains("initialize") && said.contains("_meta"), "{said}");
}

#[test]
fn a_handshake_never_ends_in_the_stateless_revision() {
    let served = served();
    for wanted in [MODERN, "2099-01-01", ""] {
        let answer = served.ask(&initialize(1, wanted));
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    }
}
