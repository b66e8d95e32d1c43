//! Tests of the five error codes, which are equal over both transports.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::{ask, call, check_schema, envelope, library, lines, post};
use crate::support::{HttpServerProcess, ServerLaunchOptions, StdioServerProcess, TempWorkspace};

/// Returns a workspace with an output schema for `files.info` that its results do not satisfy.
fn broken_outputs() -> TempWorkspace {
    library().file(
        "apps/mcp_server/schemas/tools/files.info.output.schema.json",
        json!({ "type": "object", "required": ["never"] }).to_string(),
    )
}

/// Calls a tool over both transports. Returns the HTTP status, and the answers over HTTP and stdio.
fn call_both(
    served: &HttpServerProcess,
    stdio: &mut StdioServerProcess,
    id: u64,
    tool: &str,
    arguments: &Value,
) -> (u16, Value, Value) {
    let response = call(served, tool, arguments);
    let params = json!({ "toolId": tool, "arguments": arguments });
    (response.status, response.json(), ask(stdio, id, "mcp.tool.invoke", &params))
}

#[test]
fn s1_11_23_25_26_27_28_each_reason_has_one_status_code_and_message_over_both_transports() {
    let workspace = broken_outputs();
    workspace.put(
        "toolgate.toml",
        "[[limits.rate]]\ntools = \"files.list\"\ncalls = 1\nin_ms = 3_600_000\n",
    );
    let served = ServerLaunchOptions::over(&workspace).served();
    let mut stdio = lines(ServerLaunchOptions::over(&workspace));
    // A call that satisfies its schemas succeeds over both transports.
    let (status, fine, message) =
        call_both(&served, &mut stdio, 100, "mcp.tool:files.list", &json!({ "path": "docs" }));
    assert_eq!((status, &fine["ok"]), (200, &json!(true)), "{fine}");
    assert_eq!(envelope(&message)["ok"], true, "{message}");
    let mut envelopes = Vec::new();
    let mut seen = BTreeSet::new();
    for (id, (tool, arguments, canonical, status, code, retryable)) in [
        ("mcp.tool:files.read", json!({}), "INVALID_INPUT", 400, -32602, false),
        (
            "mcp.tool:vector.query.search",
            json!({ "query": "q", "topK": 0 }),
            "INVALID_INPUT",
            400,
            -32602,
            false,
        ),
        ("files.read", json!({}), "INVALID_INPUT", 400, -32602, false),
        (
            "mcp.tool:files.info",
            json!({ "path": "README.md" }),
            "INVALID_OUTPUT",
            502,
            -32002,
            false,
        ),
        ("mcp.tool:nothing.here", json!({}), "NOT_FOUND", 404, -32004, false),
        ("mcp.tool:files.read", json!({ "path": "nothing" }), "NOT_FOUND", 404, -32004, false),
        (
            "mcp.tool:files.read",
            json!({ "path": "../../etc/passwd" }),
            "UNAUTHORIZED",
            401,
            -32001,
            false,
        ),
        ("mcp.tool:files.list", json!({}), "INTERNAL_ERROR", 500, -32603, true),
    ]
    .into_iter()
    .enumerate()
    {
        let (http_status, over_http, message) =
            call_both(&served, &mut stdio, id as u64, tool, &arguments);
        let what = format!("{tool} {arguments}: {over_http}");
        assert_eq!(http_status, status, "{what}");
        assert_eq!(over_http["error"]["code"], canonical, "{what}");
        let error = &message["error"];
        assert_eq!(error["code"], code, "{message}");
        let data = &error["data"];
        assert_eq!(data["canonical"], canonical, "{message}");
        assert_eq!(data["httpStatus"], status, "{message}");
        assert_eq!(data["retryable"], retryable, "{message}");
        // Both transports have the same message, except for the remaining wait time.
        let timeless = |value: &Value| value.to_string().replace(|c: char| c.is_ascii_digit(), "");
        let (there, here) = (&over_http["error"], &data["envelope"]["error"]);
        assert_eq!(timeless(here), timeless(there), "{message}");
        assert_eq!(data["message"], here["message"], "{message}");
        let keys: Vec<_> = data.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["canonical", "httpStatus", "message", "retryable", "envelope"]);
        seen.insert(canonical);
        envelopes.extend([over_http, envelope(&message)]);
    }
    assert_eq!(seen.len(), 5);
    check_schema("envelope", &envelopes);
}

#[test]
fn an_id_that_discovery_does_not_list_is_refused_over_both_transports() {
    let served = ServerLaunchOptions::over(&library()).served();
    let mut stdio = lines(ServerLaunchOptions::over(&library()));
    for id in [
        "mcp.tool:files_info",
        "mcp.tool:files-info",
        "mcp.tool:Files.info",
        "mcp.tool:docs.render",
        "mcp.tool:exports_render_markdown",
    ] {
        let (status, over_http, message) =
            call_both(&served, &mut stdio, 1, id, &json!({ "path": "README.md" }));
        assert_eq!((status, &over_http["error"]["code"]), (404, &json!("NOT_FOUND")), "{id}");
        assert_eq!(message["error"]["code"], -32004, "{message}");
    }
    let (_, listed, _) =
        call_both(&served, &mut stdio, 2, "mcp.tool:files.info", &json!({ "path": "README.md" }));
    let toolpack = &listed["data"]["metadata"]["toolpack"];
    let expected = json!({
        "id": "mcp.tool:files.info", "version": "1.0.0", "deterministic": false, "timeoutMs": 60000,
    });
    assert_eq!(*toolpack, expected, "{listed}");
}

#[test]
fn s1_15_16_17_21_22_a_call_needs_a_canonical_tool_and_an_input_and_no_unknown_keys() {
    let workspace = library();
    let served = ServerLaunchOptions::over(&workspace).served();
    let mut stdio = lines(ServerLaunchOptions::over(&workspace));
    let tool = "mcp.tool:files.read";
    let input = json!({ "path": "README.md" });
    let version = |version: Value| json!({ "tool": tool, "input": input, "version": version });
    for (row, body, ok) in [
        ("whole", json!({ "tool": tool, "input": input }), true),
        ("arguments", json!({ "arguments": input }), true),
        ("metadata", json!({ "tool": tool, "input": input, "metadata": { "a": [1] } }), true),
        ("version", version(json!({ "major": 1 })), true),
        ("whole version", version(json!({ "major": 1, "minor": 2, "patch": 3 })), true),
        ("nothing", json!({}), false),
        ("tool alone", json!({ "tool": tool }), false),
        ("another tool", json!({ "tool": "mcp.tool:files.list", "input": input }), false),
        ("a bare tool", json!({ "tool": "files.read", "input": input }), false),
        ("an empty tool", json!({ "tool": "", "input": input }), false),
        ("a tool that is none", json!({ "tool": 1, "input": input }), false),
        ("input that is none", json!({ "tool": tool, "input": "README.md" }), false),
        ("both", json!({ "arguments": input, "input": input }), false),
        ("more", json!({ "tool": tool, "input": input, "more": 1 }), false),
        ("metadata that is none", json!({ "tool": tool, "input": input, "metadata": 1 }), false),
        ("no major", version(json!({ "minor": 2 })), false),
        ("a fourth", version(json!({ "major": 1, "build": 2 })), false),
        ("a version that is none", version(json!("1.0.0")), false),
        ("an unknown argument", json!({ "arguments": { "path": "README.md", "x": 1 } }), false),
        ("a wrong argument", json!({ "arguments": { "path": 1 } }), false),
    ] {
        let response = post(&served, tool, body.to_string().as_bytes());
        let envelope = response.json();
        assert_eq!(envelope["ok"], ok, "{row}: {envelope}");
        if !ok {
            assert_eq!(
                (response.status, &envelope["error"]["code"]),
                (400, &json!("INVALID_INPUT")),
                "{row}"
            );
        }
    }
    for id in [
        "",
        "docs.load.fetch",
        "mcp.tool:",
        "mcp.tool:docs..load",
        "mcp.tool:a b",
        "tool:files.read",
        "mcp.tool:files/read",
    ] {
        let spelled = id.replace(' ', "%20").replace('/', "%2F");
        let response = call(&served, &spelled, &json!({}));
        assert_eq!(response.json()["error"]["code"], "INVALID_INPUT", "{id}");
        assert_eq!(response.status, 400);
        let params = json!({ "toolId": id, "arguments": {} });
        let message = ask(&mut stdio, 7, "mcp.tool.invoke", &params);
        assert_eq!(message["error"]["data"]["canonical"], "INVALID_INPUT", "{id}: {message}");
    }
    // Tool IO over stdio.
    let message = ask(&mut stdio, 8, "mcp.tool.invoke", &json!({ "tool": tool, "input": input }));
    assert_eq!(envelope(&message)["ok"], true, "{message}");
    let message = ask(&mut stdio, 9, "mcp.tool.invoke", &json!({ "input": input }));
    assert_eq!(message["error"]["code"], -32602, "{message}");
}

#[test]
fn s1_19_22_an_error_of_a_tools_own_validation_points_to_the_argument() {
    let served = ServerLaunchOptions::over(&library()).served();
    for (arguments, at) in [
        (json!({ "query": "q", "topK": 0 }), "/topK"),
        (json!({ "query": "q", "topK": 11 }), "/topK"),
        (json!({ "query": 5 }), "/query"),
        (json!({ "query": "q", "more": 1 }), ""),
        (json!({}), ""),
    ] {
        let envelope = call(&served, "mcp.tool:vector.query.search", &arguments).json();
        assert_eq!(envelope["error"]["code"], "INVALID_INPUT", "{envelope}");
        assert_eq!(envelope["error"]["details"]["problems"][0]["pointer"], at, "{envelope}");
    }
}

#[test]
fn s1_27_28_malformed_lines_are_refused_in_envelopes_and_the_next_is_answered() {
    let mut stdio = lines(ServerLaunchOptions::over(&library()).set("limits_message_bytes", 4096));
    let mut envelopes = Vec::new();
    for (line, canonical, code) in [
        (b"{".to_vec(), "INVALID_INPUT", -32700),
        (b"\xff".to_vec(), "INVALID_INPUT", -32700),
        ("[".repeat(3000).into_bytes(), "INVALID_INPUT", -32700),
        (vec![b'x'; 8192], "INVALID_INPUT", -32602),
        (b"[]".to_vec(), "INVALID_INPUT", -32602),
        (
            b"{\"id\":null,\"jsonrpc\":\"2.0\",\"method\":\"mcp.discover\"}".to_vec(),
            "INVALID_INPUT",
            -32602,
        ),
        (b"{\"id\":1,\"method\":\"mcp.discover\"}".to_vec(), "INVALID_INPUT", -32602),
        (b"{\"id\":1,\"jsonrpc\":\"2.0\"}".to_vec(), "INVALID_INPUT", -32602),
        (b"{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"tools/list\"}".to_vec(), "NOT_FOUND", -32004),
        (
            b"{\"id\":1,\"jsonrpc\":\"2.0\",\"method\":\"mcp.discover\",\"params\":[]}".to_vec(),
            "INVALID_INPUT",
            -32602,
        ),
    ] {
        // A notification before it is neither answered nor run.
        let silent = json!({ "jsonrpc": "2.0", "method": "mcp.tool.invoke", "params": {
            "toolId": "mcp.tool:files.write", "arguments": { "path": "made", "content": "" },
        } });
        stdio.write(format!("{silent}\n").as_bytes());
        stdio.write(&[line.as_slice(), b"\n"].concat());
        let message = stdio.receive();
        let what = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
        assert_eq!(message["error"]["data"]["canonical"], canonical, "{what}: {message}");
        assert_eq!(message["error"]["code"], code, "{what}: {message}");
        envelopes.push(envelope(&message));
    }
    check_schema("envelope", &envelopes);
    assert!(!stdio.root().join("made").exists());
    let message = ask(&mut stdio, 9, "mcp.discover", &json!({}));
    assert_eq!(envelope(&message)["ok"], true);
}
