//! Tests of Zyra's errors and their JSON structure.

use serde_json::{Value, json};

use crate::support::{HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest};

/// Calls `method`, which must fail, and returns the error.
#[track_caller]
fn refusal(served: &HttpServerProcess, method: &str, params: Value) -> Value {
    let response = served.rpc(method, params.clone());
    assert_eq!(response.status, 200, "{params}: {response:?}");
    let answer = response.json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(1)), "{answer}");
    assert!(answer.get("result").is_none(), "{params}: {answer}");
    answer["error"].clone()
}

#[test]
fn s4_22_an_invalid_call_is_refused_as_invalid_params_with_the_reason() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let call = |name: &str, arguments: Value| json!({ "name": name, "arguments": arguments });
    for (method, params, fragment) in [
        ("tools/call", call("drew-one", json!({})), "drew-one"),
        ("tools/call", call("nothing", json!({})), "nothing"),
        ("callTool", json!({ "stage": "drew", "command": "one" }), "drew-one"),
        ("callTool", json!({ "stage": "draw", "command": "none" }), "draw-none"),
        ("callTool", json!({ "stage": "draw" }), "params.command"),
        ("callTool", json!({ "command": "one" }), "params.stage"),
        ("tools/call", json!({}), "params.name"),
        ("tools/call", json!({ "name": 7 }), "params.name"),
        ("tools/call", call("work-wait", json!({})), "name"),
        ("tools/call", call("work-wait", json!({ "name": [1] })), "/name"),
        ("tools/call", call("work-wait", json!({ "name": "a", "nome": "b" })), "nome"),
        ("tools/call", call("work-wait", json!([])), "params.arguments"),
        ("tools/call", call("work-wait", json!("name=a")), "params.arguments"),
        ("callTool", json!({ "stage": "work", "command": "wait", "args": 1 }), "params.args"),
        ("tools/call", json!({ "name": "draw-one", "mode": "later" }), "params.mode"),
        ("tools/call", json!({ "name": "draw-one", "mode": 1 }), "params.mode"),
        ("tools/call", json!([]), "params"),
    ] {
        let error = refusal(&served, method, params.clone());
        assert_eq!(error["code"], -32602, "{params}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(fragment), "{params}: {message}");
    }
    assert!(crate::support::started_commands(&workspace).is_empty(), "a command ran");
}

#[test]
fn s4_23_a_failed_program_is_reported_with_its_exit_code_and_output() {
    let workspace = TempWorkspace::with_commands();
    crate::support::let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).served();
    let arguments = json!({ "name": "a", "code": "7" });
    for (method, params) in [
        ("tools/call", json!({ "name": "tell-steps", "arguments": arguments })),
        ("callTool", json!({ "stage": "tell", "command": "steps", "args": arguments })),
    ] {
        let error = refusal(&served, method, params);
        assert_eq!(error["code"], -32000, "{error}");
        let expected = json!({
            "exit_code": 7,
            "stderr": "step 1/4\nstep 3/4\n",
            "stdout": "began\nlast\n",
            "stage": "tell",
            "command": "steps",
        });
        assert_eq!(error["data"], expected);
    }
    // A missing file.
    let params = json!({ "name": "files-read", "arguments": { "path": "none.txt" } });
    let error = refusal(&served, "tools/call", params);
    assert_eq!((&error["code"], &error["data"]["stage"]), (&json!(-32000), &json!("files")));
    assert!(error["data"]["stderr"].as_str().unwrap().contains("none.txt"), "{error}");
}

#[test]
fn s4_55_a_notification_gets_no_body() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let call = json!({ "name": "draw-one", "arguments": {} });
    for message in [
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": null, "method": "statusReport" }),
        json!({ "jsonrpc": "2.0", "method": "tools/call", "params": call }),
        json!({ "jsonrpc": "2.0", "method": "no/such/method" }),
    ] {
        let post = TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp");
        let answer = served.send(&post);
        assert_eq!((answer.status, &*answer.body), (204, &b""[..]), "{message}");
    }
    // On MCP's own endpoint it is 202, as MCP specifies.
    let id = served.session("2025-06-18");
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let post = TestHttpRequest::mcp(&message).with("mcp-session-id", &id);
    assert_eq!(served.send(&post.with("mcp-protocol-version", "2025-06-18")).status, 202);
}

#[test]
fn s4_56_an_unknown_method_and_another_json_rpc_version_are_refused_by_code() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let error = refusal(&served, "tools/explode", json!({}));
    assert_eq!(error["code"], -32601, "{error}");
    assert!(error["message"].as_str().unwrap().contains("tools/explode"), "{error}");
    for version in [json!("1.0"), json!(2.0), json!(null), json!("2")] {
        let message = json!({ "jsonrpc": version, "id": 1, "method": "statusReport" });
        let post = TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp");
        let answer = served.send(&post).json();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &json!(1)));
    }
}

#[test]
fn s4_18_a_request_that_is_too_large_is_a_json_rpc_error_with_its_id() {
    let workspace = TempWorkspace::new();
    let bounded =
        ServerLaunchOptions::over(&workspace).env("ZYRA_MCP_MAX_BODY_BYTES", "100").served();
    let with_old_name =
        ServerLaunchOptions::over(&workspace).env("DATAVIZHUB_MCP_MAX_BODY_BYTES", "100").served();
    let free = ServerLaunchOptions::over(&workspace).served();
    let pad = "x".repeat(200);
    let params = json!({ "pad": pad });
    let message = json!({ "jsonrpc": "2.0", "id": 41, "method": "statusReport", "params": params });
    let body = message.to_string();
    let full = TestHttpRequest::bytes(body.as_bytes()).to("/v1/mcp");
    // In two chunks, without a length.
    let half = body.len() / 2;
    let (first, second) = body.split_at(half);
    let chunks = format!("{half:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", second.len());
    let chunked = TestHttpRequest::bytes(chunks.as_bytes()).to("/v1/mcp").without("content-length");
    let chunked = chunked.with("transfer-encoding", "chunked");
    let too_large = format!("Request too large: {} bytes (limit 100)", body.len());
    for served in [&bounded, &with_old_name] {
        for post in [&full, &chunked] {
            let answer = served.send(post);
            assert_eq!(answer.status, 200, "{answer:?}");
            let error = json!({ "code": -32001, "message": too_large });
            let expected = json!({ "jsonrpc": "2.0", "id": 41, "error": error });
            assert_eq!(answer.json(), expected);
        }
        assert_eq!(served.result("statusReport", json!({}))["status"], "ok");
        // The limit applies to Zyra only.
        let mcp = TestHttpRequest::mcp(&crate::support::initialize(0, "2025-06-18"));
        assert_eq!(served.send(&mcp).status, 200);
    }
    for post in [&full, &chunked] {
        assert_eq!(free.send(post).json()["result"]["status"], "ok");
    }
}
