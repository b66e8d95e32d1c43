//! Tests of the fields that every reply in an envelope has.

use serde_json::{Value, json};

use super::client::{
    ask, call, call_ok, check_schema, envelope, get, library, lines, post, schema,
};
use crate::support::{ServerLaunchOptions, TestHttpRequest};

/// Returns a reply of each type over HTTP, with a description of its request and its status.
fn replies_over_http() -> Vec<(String, u16, Value)> {
    let served = ServerLaunchOptions::over(&library()).set("limits_message_bytes", 4096).served();
    let mut all = Vec::new();
    for path in [
        "/mcp/discover",
        "/mcp/prompt/core.generic.bootstrap@1",
        "/mcp/prompt/core.generic/bootstrap/1",
        "/mcp/prompt/core.generic.explain@1?path=README.md",
        "/mcp/prompt/core.generic.explain@1",
        "/mcp/prompt/core.generic.nothing@1",
        "/mcp/prompt/core.generic.bootstrap@9",
        "/mcp/prompt/nonsense",
        "/mcp/prompt",
        "/mcp/tool/mcp.tool:files.read",
    ] {
        let response = get(&served, path);
        all.push((path.to_owned(), response.status, response.json()));
    }
    let arguments = |value: Value| json!({ "arguments": value }).to_string().into_bytes();
    let readme = arguments(json!({ "path": "README.md" }));
    for (id, body) in [
        ("mcp.tool:files.read", readme.clone()),
        ("mcp.tool%3Afiles.read", readme.clone()),
        ("mcp.tool:docs.load.fetch", arguments(json!({ "path": "docs/one.md" }))),
        ("mcp.tool:exec.run", arguments(json!({ "command": "false" }))),
        ("mcp.tool:files.read", arguments(json!({ "path": "nothing" }))),
        ("mcp.tool:files.read", arguments(json!({ "path": "../outside" }))),
        ("mcp.tool:files.read", arguments(json!({ "pth": "README.md" }))),
        ("mcp.tool:nothing.here", readme.clone()),
        ("files.read", readme.clone()),
        ("", readme.clone()),
        ("mcp.tool:files.read", b"{\"arguments\":".to_vec()),
        ("mcp.tool:files.read", b"\xff\xfe".to_vec()),
        ("mcp.tool:files.read", b"[]".to_vec()),
        ("mcp.tool:files.read", b"{}".to_vec()),
        ("mcp.tool:files.read", b"{\"arguments\":{},\"arguments\":{}}".to_vec()),
        ("mcp.tool:files.read", "[".repeat(4000).into_bytes()),
        ("mcp.tool:files.read", vec![b' '; 8192]),
    ] {
        let response = post(&served, id, &body);
        let what = format!("{id} {}", String::from_utf8_lossy(&body[..body.len().min(60)]));
        all.push((what, response.status, response.json()));
    }
    let form =
        TestHttpRequest::bytes(&readme).with("content-type", "application/x-www-form-urlencoded");
    let others = [
        TestHttpRequest::bare("POST", "/mcp/discover").with("content-type", "application/json"),
        TestHttpRequest::bare("DELETE", "/mcp/tool/mcp.tool:files.read"),
        form.malformed().to("/mcp/tool/mcp.tool:files.read"),
    ];
    for other in others {
        let response = served.send(&other.with("content-length", "0"));
        all.push(("another method or kind".to_owned(), response.status, response.json()));
    }
    all
}

#[test]
fn s1_02_03_04_10_11_every_reply_over_http_is_a_valid_envelope_for_python() {
    let all = replies_over_http();
    let envelopes: Vec<_> = all.iter().map(|(_, _, envelope)| envelope.clone()).collect();
    check_schema("envelope", &envelopes);
    let went_well = all.iter().filter(|(_, _, envelope)| envelope["ok"] == true).count();
    assert!(went_well >= 7, "{went_well}");
    assert!(all.len() - went_well >= 20);
    for (what, status, envelope) in &all {
        let keys: Vec<_> = envelope.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["ok", "data", "error", "meta"], "{what}");
        if envelope["ok"] == true {
            assert_eq!((*status, &envelope["error"]), (200, &Value::Null), "{what}");
            assert!(envelope["data"].is_object(), "{what}");
        } else {
            assert_eq!(envelope["data"], Value::Null, "{what}");
            assert!(
                envelope["error"]["message"].as_str().is_some_and(|message| !message.is_empty())
            );
            assert!(envelope["error"]["details"].is_object(), "{what}");
        }
    }
}

#[test]
fn s1_06_07_08_09_meta_has_the_transport_the_duration_and_the_sizes() {
    let workspace = library();
    let served = ServerLaunchOptions::over(&workspace).served();
    let mut stdio = lines(ServerLaunchOptions::over(&workspace));
    let arguments = json!({ "path": "docs/one.md" });
    let id = "mcp.tool:docs.load.fetch";
    let payload = json!({ "toolId": id, "arguments": arguments });
    let discover = ask(&mut stdio, 1, "mcp.discover", &json!({}));
    let prompt = json!({ "promptId": "core.generic.bootstrap@1" });
    let prompted = ask(&mut stdio, 2, "mcp.prompt.get", &prompt);
    let tool = ask(&mut stdio, 3, "mcp.tool.invoke", &payload);
    let missing = json!({ "toolId": id, "arguments": { "path": "no.md" } });
    let refused = ask(&mut stdio, 4, "mcp.tool.invoke", &missing);
    for (over_http, on_line, route, method, payload) in [
        (get(&served, "/mcp/discover"), discover, "discover", "mcp.discover", json!({})),
        (
            get(&served, "/mcp/prompt/core.generic.bootstrap@1"),
            prompted,
            "prompt",
            "mcp.prompt.get",
            prompt,
        ),
        (call(&served, id, &arguments), tool, "tool", "mcp.tool.invoke", payload),
        (
            call(&served, id, &json!({ "path": "no.md" })),
            refused,
            "tool",
            "mcp.tool.invoke",
            missing,
        ),
    ] {
        for (transport, envelope) in [("http", over_http.json()), ("stdio", envelope(&on_line))] {
            let meta = &envelope["meta"];
            let origin = [&meta["transport"], &meta["route"], &meta["method"]];
            assert_eq!(origin, [transport, route, method]);
            assert!(meta["durationMs"].as_f64().is_some_and(|took| took >= 0.0), "{meta}");
            assert_eq!(meta["attempt"], 0);
            // Compact JSON has the same length in any key order; RAGX escapes each UTF-16 unit
            // of a non-ASCII character with six letters.
            let bytes_of = |value: &Value| -> usize {
                let written = value.to_string();
                let length = |c: char| if c.is_ascii() { 1 } else { 6 * c.len_utf16() };
                written.chars().map(length).sum()
            };
            assert_eq!(meta["inputBytes"], bytes_of(&payload), "{meta}");
            let data = &envelope["data"];
            let bytes = if data.is_null() { 0 } else { bytes_of(data) };
            assert_eq!(meta["outputBytes"], bytes, "{meta}");
            assert_eq!(meta["status"], if data.is_null() { "error" } else { "ok" });
            assert_eq!(meta["schemaVersion"], "0.1.0");
            let named = [meta.get("toolId"), meta.get("promptId")].map(|named| named.is_some());
            assert_eq!(named, [route == "tool", route == "prompt"], "{meta}");
        }
    }
}

#[test]
fn s1_12_unknown_keys_are_refused_at_every_level_of_an_envelope() {
    let served = ServerLaunchOptions::over(&library()).served();
    let valid = call_ok(&served, "mcp.tool:files.read", &json!({ "path": "README.md" }));
    let broken = call(&served, "mcp.tool:files.read", &json!({ "path": "nothing" })).json();
    let schema = schema("envelope");
    let with_more = |envelope: &Value, at: &str| {
        let mut envelope = envelope.clone();
        envelope.pointer_mut(at).unwrap()["more"] = json!(1);
        envelope
    };
    let more = [
        with_more(&valid, ""),
        with_more(&valid, "/meta"),
        with_more(&broken, ""),
        with_more(&broken, "/meta"),
        with_more(&broken, "/error"),
    ];
    let requests: Vec<_> =
        more.iter().map(|one| json!({ "schema": schema, "instance": one })).collect();
    let errors = super::client::python_errors(&requests);
    assert!(errors.iter().all(|faults| !faults.is_empty()), "{errors:?}");
    // Our validator agrees.
    for one in &more {
        let workspace = crate::support::TempWorkspace::new().file("reply.json", one.to_string());
        let output = super::client::run(
            workspace.root(),
            &["contract", "schemas", "--validate", "reply.json"],
        );
        assert_eq!(output.status.code(), Some(1), "{one}");
        assert!(super::client::stdout(&output).contains("unknown field `more`"), "{output:?}");
    }
}

#[test]
fn s1_25_prompts_and_tools_can_be_called_by_their_discovered_ids() {
    let served = ServerLaunchOptions::over(&library()).served();
    let everything = get(&served, "/mcp/discover").json();
    let ids = |of: &str| -> Vec<String> {
        let all = everything["data"][of].as_array().unwrap();
        all.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    let tools = ids("tools");
    for id in ["files.read", "docs.load.fetch", "exports.render.markdown", "exec.run"] {
        assert!(tools.contains(&format!("mcp.tool:{id}")), "{tools:?}");
    }
    assert!(tools.iter().all(|id| id.starts_with("mcp.tool:")));
    let render = json!({ "title": "T", "template": "Hello {{ body }}", "body": "world" });
    let envelope = call_ok(&served, "mcp.tool:exports.render.markdown", &render);
    assert_eq!(envelope["data"]["toolId"], "mcp.tool:exports.render.markdown");
    assert!(envelope["data"]["result"]["markdown"].is_string(), "{envelope}");
    for id in ids("prompts").iter().filter(|id| id.contains("bootstrap")) {
        let prompt = get(&served, &format!("/mcp/prompt/{id}")).json();
        assert_eq!(prompt["data"]["id"], **id);
        assert_eq!(prompt["data"]["messages"][0]["role"], "user");
    }
}
