//! Tests of JSON-RPC, `_meta`, capabilities and error codes of the stateless revision (rows B of
//! the MCP checklist).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{code, mcp_key, meta_with_capabilities, uri};
use crate::support::{
    MODERN, TempWorkspace, TestClientTransport, TestHttpRequest, TestMcpClient, modern,
    notification, over_both, over_both_with, refusal, structured,
};

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;

/// Adds the keys of every `_meta` object within `value` to `into`.
fn collect_meta_keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let ("_meta", Some(meta)) = (name.as_str(), member.as_object()) {
                    into.extend(meta.keys().cloned());
                }
                collect_meta_keys(member, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_meta_keys(item, into)),
        _ => {}
    }
}

/// Returns the result of one request of each type that has a result.
fn every_result(client: &mut TestMcpClient, workspace: &TempWorkspace) -> Vec<Value> {
    let file = uri(workspace, "README.md");
    let reference = json!({ "type": "ref/prompt", "name": "explain" });
    let argument = json!({ "name": "path", "value": "READ" });
    let requests = [
        ("server/discover", json!({})),
        ("tools/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("prompts/list", json!({})),
        ("skills/list", json!({})),
        ("resources/read", json!({ "uri": file })),
        ("prompts/get", json!({ "name": "explain", "arguments": { "path": "README.md" } })),
        ("completion/complete", json!({ "ref": reference, "argument": argument })),
        ("tools/call", json!({ "name": "files_read", "arguments": { "path": "README.md" } })),
        ("tools/call", json!({ "name": "files_read", "arguments": { "path": "none" } })),
        ("tools/call", json!({ "name": "files_read", "arguments": { "path": 5 } })),
    ];
    let mut results = Vec::new();
    for (method, params) in requests {
        let answer = client.ask(method, params);
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        results.push(answer);
    }
    results
}

#[test]
fn b1_invalid_utf_8_or_json_is_a_parse_error() {
    over_both(&TempWorkspace::new(), |client| {
        for bytes in
            [&b"{\"jsonrpc\":\"2.0\",\"id\":1"[..], b"\xff", b"{\"id\":01}", b"nul", b"{'a':1}"]
        {
            assert_eq!(code(&client.raw(bytes)), PARSE_ERROR, "{}", bytes.escape_ascii());
        }
    });
}

#[test]
fn b1_a_malformed_request_is_answered_with_its_id_if_it_is_readable() {
    over_both(&TempWorkspace::new(), |client| {
        let broken = [
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"a":"\ud800b","id":8}}"#,
            r#"{"params":{"a":1,"a":2},"jsonrpc":"2.0","method":"tools/list","id":"x"}"#,
            r#"{"jsonrpc":"2.0","id":"x","params":{"a":1e400}}"#,
        ];
        for text in broken {
            let answer = client.raw(text.as_bytes());
            assert_eq!(answer["id"], "x", "{text}: {answer}");
            assert!([PARSE_ERROR, INVALID_REQUEST].contains(&code(&answer)), "{answer}");
        }
    });
}

#[test]
fn b1_a_jsonrpc_version_other_than_2_0_is_an_invalid_request() {
    over_both(&TempWorkspace::new(), |client| {
        for version in [json!("1.0"), json!("2"), json!(2.0), json!(null), json!(["2.0"])] {
            let mut message = client.request("tools/list", json!({}));
            message["jsonrpc"] = version.clone();
            assert_eq!(code(&client.exchange(&message)), INVALID_REQUEST, "{version}");
        }
    });
}

#[test]
fn b2_an_id_that_is_not_a_string_or_integer_is_refused_without_an_id() {
    over_both(&TempWorkspace::new(), |client| {
        for id in [json!(null), json!(1.5), json!(true), json!([1]), json!({ "a": 1 })] {
            let mut message = client.request("tools/list", json!({}));
            message["id"] = id.clone();
            let answer = client.raw(message.to_string().as_bytes());
            assert_eq!(code(&answer), INVALID_REQUEST, "{id}: {answer}");
            assert!(answer.get("id").is_none(), "{id}: {answer}");
        }
    });
}

#[test]
fn b3_a_message_without_an_id_gets_no_answer() {
    over_both(&TempWorkspace::new(), |client| {
        let without_id = [
            notification("notifications/unheard-of", json!({})),
            notification("notifications/initialized", json!({})),
            notification("notifications/cancelled", json!({ "requestId": 5 })),
            notification("tools/list", json!({})),
            notification("tools/call", json!({ "name": "none" })),
        ];
        for message in &without_id {
            match &mut client.wire {
                TestClientTransport::Stdio(stdio) => stdio.send_malformed(message),
                TestClientTransport::Http(served) => {
                    let response = served.send(&TestHttpRequest::mcp(message).malformed());
                    let taken = response.status == 202 && response.body.is_empty();
                    let refused = (400..500).contains(&response.status);
                    assert!(taken || refused, "{message}: {response:?}");
                }
            }
        }
        if let TestClientTransport::Stdio(stdio) = &mut client.wire {
            stdio.send(&modern("after", "server/discover", json!({})));
            assert_eq!(stdio.receive()["id"], "after");
        }
    });
}

#[test]
fn b3_a_call_without_an_id_is_not_run() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let mut call = client.request(
            "tools/call",
            json!({
                "name": "files_write",
                "arguments": { "path": "unasked", "content": "" },
            }),
        );
        call.as_object_mut().unwrap().remove("id");
        match &mut client.wire {
            TestClientTransport::Stdio(stdio) => stdio.send_malformed(&call),
            TestClientTransport::Http(served) => {
                served.send(&TestHttpRequest::mcp(&call).malformed());
            }
        }
        assert_eq!(client.call("files_list", json!({}))["result"]["isError"], false);
        assert!(!workspace.path("unasked").exists());
    });
}

#[test]
fn b6_every_error_code_is_a_known_or_unreserved_one() {
    let workspace = TempWorkspace::new();
    let gone = uri(&workspace, "none");
    over_both(&workspace, |client| {
        let requests = [
            ("tools/fly", json!({})),
            ("tools/call", json!({ "name": "none" })),
            ("tools/call", json!({ "name": 5 })),
            ("tools/call", json!({ "name": "files_read", "arguments": [] })),
            ("tools/list", json!({ "cursor": "none" })),
            ("resources/read", json!({ "uri": gone })),
            ("resources/read", json!({ "uri": "unheard:of" })),
            ("resources/read", json!({})),
            ("prompts/get", json!({ "name": "none" })),
            ("prompts/get", json!({ "name": "explain" })),
            ("completion/complete", json!({ "ref": { "type": "ref/none" } })),
            ("subscriptions/listen", json!({})),
            ("tasks/get", json!({ "taskId": "none" })),
            ("skills/get", json!({ "uri": "skill://none/SKILL.md" })),
        ];
        let known = [-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022];
        for (method, params) in requests {
            let answer = client.ask(method, params.clone());
            let code = code(&answer);
            let is_free = !(-32768..=-32000).contains(&code);
            assert!(known.contains(&code) || is_free, "{method} {params}: {answer}");
        }
    });
}

#[test]
fn b8_client_capabilities_are_not_inferred_from_earlier_requests() {
    let write =
        |name: &str| json!({ "name": "files_write", "arguments": { "path": name, "content": "" } });
    let workspace = TempWorkspace::new();
    over_both_with(&workspace, &[("tools_confirm", "files.write")], |client| {
        for round in ["a", "b"] {
            let mut params = write(round);
            params["_meta"] = meta_with_capabilities(json!({ "elicitation": {} }));
            let first = client.ask("tools/call", params);
            assert_eq!(first["result"]["resultType"], "input_required", "{first}");
            let refused = client.ask("tools/call", write(round));
            assert_ne!(refused["result"]["resultType"], "input_required", "{refused}");
            refusal(&refused);
        }
        let mut bare = client.request("tools/list", json!({}));
        bare["params"].as_object_mut().unwrap().remove("_meta");
        if let TestClientTransport::Http(served) = &client.wire {
            let post = TestHttpRequest::mcp(&bare).with("mcp-protocol-version", MODERN);
            let answer = served.send(&post.with("mcp-method", "tools/list"));
            assert_eq!(code(&answer.json()), INVALID_PARAMS);
        } else {
            // Without a revision it counts as a session's request, and there is no session.
            assert_eq!(code(&client.exchange(&bare)), INVALID_PARAMS);
        }
    });
}

#[test]
fn b13_every_result_names_the_server() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        for answer in every_result(client, &workspace) {
            let server = &answer["result"]["_meta"][mcp_key("serverInfo")];
            assert_eq!(server["name"], "toolgate", "{answer}");
            assert_eq!(server["version"], env!("CARGO_PKG_VERSION"), "{answer}");
        }
    });
}

#[test]
fn b14_client_info_changes_nothing() {
    over_both(&TempWorkspace::new(), |client| {
        let mut answers = Vec::new();
        for info in [
            json!({ "name": "it", "version": "1" }),
            json!({ "name": "claude-code", "version": "99.0", "title": "Claude" }),
            json!({ "name": "", "version": "" }),
        ] {
            let meta = json!({ mcp_key("clientInfo"): info });
            let list = client.ask("tools/list", json!({ "_meta": meta }));
            let call = json!({ "name": "files_list", "arguments": {}, "_meta": meta });
            answers
                .push((list["result"].clone(), client.ask("tools/call", call)["result"].clone()));
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:#?}");
    });
}

#[test]
fn b15_meta_keys_are_defined_by_mcp_or_our_own() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let mut keys = BTreeSet::new();
        for answer in every_result(client, &workspace) {
            collect_meta_keys(&answer, &mut keys);
        }
        for key in &keys {
            let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
            let labels: Vec<&str> = prefix.split('.').collect();
            let is_label = |label: &&str| {
                label.starts_with(|first: char| first.is_ascii_alphabetic())
                    && label.ends_with(|last: char| last.is_ascii_alphanumeric())
                    && label.chars().all(|one| one.is_ascii_alphanumeric() || one == '-')
            };
            assert!(prefix.is_empty() || labels.iter().all(is_label), "{key}");
            let is_inner = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
            assert!(name.chars().all(is_inner) && !name.is_empty(), "{key}");
            let reserved =
                labels.get(1).is_some_and(|it| ["modelcontextprotocol", "mcp"].contains(it));
            let given = ["serverInfo", "subscriptionId", "related-task"].map(mcp_key);
            assert!(!reserved || given.contains(key), "{key} is reserved for MCP");
        }
    });
}

#[test]
fn b16_a_trace_context_is_accepted_and_an_invalid_one_is_harmless() {
    over_both(&TempWorkspace::new(), |client| {
        for parent in [
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-0000000000000000-00",
            "garbage",
            "",
        ] {
            let meta = json!({ "traceparent": parent, "tracestate": "a=b", "baggage": "c=d" });
            let arguments = json!({ "path": "README.md" });
            let params = json!({ "name": "files_read", "arguments": arguments, "_meta": meta });
            let answer = client.ask("tools/call", params);
            assert_eq!(structured(&answer)["content"], TempWorkspace::README, "{parent}");
        }
    });
}

#[test]
fn b17_every_tool_schema_is_valid_in_its_declared_dialect() {
    over_both(&TempWorkspace::new(), |client| {
        for tool in client.tools() {
            for schema in
                [Some(&tool["inputSchema"]), tool.get("outputSchema")].into_iter().flatten()
            {
                let dialect = schema.get("$schema").and_then(Value::as_str);
                let is_2020 = |it: &str| it == "https://json-schema.org/draft/2020-12/schema";
                assert!(dialect.is_none_or(is_2020), "{tool}");
                if let Err(fault) = jsonschema::draft202012::meta::validate(schema) {
                    panic!("{fault}: {tool}");
                }
            }
        }
    });
}

#[test]
fn b18_no_schema_refers_outside_itself() {
    fn check(value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    assert!(to.starts_with('#'), "{to}");
                }
                members.values().for_each(check);
            }
            Value::Array(items) => items.iter().for_each(check),
            _ => {}
        }
    }
    over_both(&TempWorkspace::new(), |client| client.tools().iter().for_each(check));
}

#[test]
fn b20_icons_are_https_or_data_uris() {
    fn check(value: &Value) {
        match value {
            Value::Object(members) => {
                for icon in members.get("icons").and_then(Value::as_array).into_iter().flatten() {
                    let from = icon["src"].as_str().unwrap();
                    assert!(from.starts_with("https://") || from.starts_with("data:"), "{icon}");
                }
                members.values().for_each(check);
            }
            Value::Array(items) => items.iter().for_each(check),
            _ => {}
        }
    }
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| every_result(client, &workspace).iter().for_each(check));
}
