//! Tests that discovery and calls offer the same tools, and that each type of call works.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestHttpResponse,
    check_command,
};

fn served() -> (TempWorkspace, HttpServerProcess) {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    (workspace, served)
}

/// Sends a request without an `accept` header.
fn send_bare(served: &HttpServerProcess, message: &Value) -> TestHttpResponse {
    let post = TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp");
    served.send(&post.without("accept"))
}

#[test]
fn s4_01_02_03_04_discovery_is_the_same_by_get_and_by_options() {
    let (_workspace, served) = served();
    let got = served.get("/v1/mcp");
    assert_eq!((got.status, got.header("content-type")), (200, Some("application/json")));
    let optioned = served.send(&TestHttpRequest::bare("OPTIONS", "/v1/mcp"));
    assert_eq!((optioned.status, &optioned.body), (200, &got.body));
    let payload = got.json();
    let keys: Vec<_> = payload.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["mcp_version", "name", "description", "capabilities"]);
    assert_eq!(payload["mcp_version"], "0.1");
    assert_eq!(payload["name"], "zyra");
    let about = "Zyra MCP server for domain-specific data visualization";
    assert_eq!(payload["description"], about);
    let commands = payload["capabilities"]["commands"].as_array().unwrap();
    assert!(commands.len() > 10, "{payload}");
    // A discovered tool can be called.
    let result = served.result("tools/call", json!({ "name": "draw-one" }));
    assert_eq!(result["status"], "ok", "{result}");
}

#[test]
fn s4_05_08_13_52_tools_are_discovered_and_listed_alike_with_valid_schemas() {
    let (_workspace, served) = served();
    let listed = served.result("tools/list", json!({}));
    assert_eq!(listed, served.result("listTools", json!({})), "the alias");
    let keys: Vec<_> = listed.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["tools"]);
    let discovered = served.get("/v1/mcp").json();
    let commands = discovered["capabilities"]["commands"].as_array().unwrap();
    let tools = listed["tools"].as_array().unwrap();
    assert_eq!(commands.len(), tools.len());
    for (command, tool) in commands.iter().zip(tools) {
        let shape = |item: &Value| item.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(shape(command), ["name", "description", "parameters"]);
        assert_eq!(shape(tool), ["name", "description", "inputSchema"]);
        assert_eq!(command["name"], tool["name"]);
        assert_eq!(command["description"], tool["description"]);
        assert_eq!(command["parameters"], tool["inputSchema"], "{command}");
        check_command(command);
    }
}

#[test]
fn s4_06_07_20_initialize_and_lists_need_no_parameters() {
    let (_workspace, served) = served();
    let initialize = json!({ "jsonrpc": "2.0", "method": "initialize", "id": 2 });
    let answer = send_bare(&served, &initialize).json();
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(2)));
    let result = &answer["result"];
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert_eq!(result["serverInfo"]["name"], "zyra");
    assert!(result["serverInfo"]["version"].as_str().is_some_and(|it| !it.is_empty()), "{answer}");
    // An object: the SDKs of MCP refuse `true`.
    assert!(result["capabilities"]["tools"].is_object(), "{answer}");
    let list = json!({ "jsonrpc": "2.0", "method": "tools/list", "id": "l" });
    let answer = send_bare(&served, &list).json();
    assert_eq!(answer["id"], "l");
    assert!(answer["result"]["tools"].is_array(), "{answer}");
}

#[test]
fn s4_09_10_11_a_call_has_two_shapes_and_one_result() {
    let (_workspace, served) = served();
    let legacy = json!({ "stage": "draw", "command": "one" });
    let name = "draw-one";
    let expected = json!({ "status": "ok", "stdout": "done\n", "stderr": "", "exit_code": 0 });
    for (method, params) in [
        ("tools/call", json!({ "name": name })),
        ("tools/call", json!({ "name": name, "arguments": {} })),
        ("tools/call", json!({ "name": name, "arguments": {}, "mode": "sync" })),
        ("callTool", legacy.clone()),
        ("callTool", json!({ "stage": "draw", "command": "one", "args": {}, "mode": "sync" })),
        ("tools/call", legacy),
        ("callTool", json!({ "name": name })),
    ] {
        let mut result = served.result(method, params.clone());
        let content = result.as_object_mut().unwrap().remove("content").unwrap();
        assert_eq!(result, expected, "{method} {params}");
        assert_eq!(content[0], json!({ "type": "text", "text": "done\n" }), "{content}");
    }
    let with = |params| served.result("tools/call", params);
    let read = json!({ "name": "files-read", "arguments": { "path": "README.md" } });
    let read = with(read);
    assert_eq!((&read["status"], &read["stdout"]), (&json!("ok"), &json!(TempWorkspace::README)));
}

#[test]
fn s4_14_a_status_report_has_the_status_and_the_version() {
    let (_workspace, served) = served();
    let report = served.result("statusReport", json!({}));
    assert_eq!(report, served.result("status/report", json!({})));
    let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((keys, &report["status"]), (vec!["status", "version"], &json!("ok")));
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn s4_52_every_spelling_of_a_name_is_the_same_tool() {
    let (_workspace, served) = served();
    for name in ["draw-one", "draw.one", "draw one", "draw:one", "draw_one", "draw/one"] {
        let result = served.result("tools/call", json!({ "name": name }));
        assert_eq!(
            (&result["status"], &result["stdout"]),
            (&json!("ok"), &json!("done\n")),
            "{name}"
        );
    }
}

#[test]
fn a_declared_command_replaces_a_built_in_tool_only_if_it_says_so() {
    let ours =
        "[command.\"search.semantic\"]\nabout = \"Ours.\"\nprogram = \"echo\"\nargv = [\"ours\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", ours);
    let refused = ServerLaunchOptions::over(&workspace).serve_with_flags(&[]);
    assert_eq!(refused.wait_for_exit().code(), Some(2));
    let log = refused.log();
    assert!(log.contains("toolgate.toml:1:") && log.contains("`replaces = true`"), "{log}");
    workspace.put("toolgate.toml", format!("{ours}replaces = true\n"));
    let served = ServerLaunchOptions::over(&workspace).served();
    let result = served.result("tools/call", json!({ "name": "search-semantic" }));
    assert_eq!(result["stdout"], "ours\n", "{result}");
    assert!(served.log().contains("replaces the tool `search.semantic`"));
}
