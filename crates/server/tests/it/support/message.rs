//! MCP messages that tests build by hand.

use serde_json::{Value, json};

use super::ProcessMarker;

/// Empty list of messages, for tests that expect none.
pub(crate) const NOTHING: [Value; 0] = [];

/// Newest revision of MCP, which is stateless.
pub(crate) const MODERN: &str = "2026-07-28";
/// All revisions of MCP, newest first.
pub(crate) const REVISIONS: [&str; 5] =
    [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Returns a request of the stateless revision.
pub(crate) fn modern(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": { "name": "it", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(more) = params.get("_meta").and_then(Value::as_object) {
        meta.as_object_mut().unwrap().extend(more.clone());
    }
    params["_meta"] = meta;
    legacy(id, method, params)
}

/// Returns a request of a revision with sessions.
pub(crate) fn legacy(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

/// Returns a request in the message format of `revision`.
pub(crate) fn request(revision: &str, id: impl Into<Value>, method: &str, params: Value) -> Value {
    if revision == MODERN { modern(id, method, params) } else { legacy(id, method, params) }
}

/// Returns a `tools/call` request in the stateless revision.
pub(crate) fn call(id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
    modern(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

pub(crate) fn initialize(id: impl Into<Value>, revision: &str) -> Value {
    let client = json!({ "name": "it", "version": "1" });
    let params = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": client });
    legacy(id, "initialize", params)
}

pub(crate) fn notification(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// Returns all texts in the result of a call, joined.
#[track_caller]
pub(crate) fn text(answer: &Value) -> String {
    let Some(blocks) = answer["result"]["content"].as_array() else {
        panic!("not a result: {answer}");
    };
    blocks.iter().map(|block| block["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Returns the structured content of a successful result.
#[track_caller]
pub(crate) fn structured(answer: &Value) -> &Value {
    assert_eq!(answer["result"]["isError"], false, "not a success: {answer}");
    &answer["result"]["structuredContent"]
}

/// Returns the error message of a refused call, from an error or a failed result.
#[track_caller]
pub(crate) fn refusal(answer: &Value) -> String {
    if let Some(message) = answer["error"]["message"].as_str() {
        return message.to_owned();
    }
    assert_eq!(answer["result"]["isError"], true, "not a refusal: {answer}");
    text(answer)
}

/// Returns arguments of `exec_run` for a program that prints `began`, waits for the file `go`, and
/// prints `went`.
///
/// The program also creates the files `began` and `went`.
pub(crate) fn waits_for_go(marker: &ProcessMarker) -> Value {
    let script =
        "echo began | tee began; until [ -e go ]; do sleep 0.02; done; echo went | tee went";
    json!({ "command": script, "shell": true, "args": [marker.0] })
}

/// Returns arguments of `exec_run` for a program that sleeps for five minutes.
pub(crate) fn sleeps(marker: &ProcessMarker) -> Value {
    json!({ "command": "sleep", "args": [marker.0] })
}
