//! Tests of how the server recognizes a request's revision, of the order of its checks, and of the
//! features of each revision (rows L and section 1.6 of the MCP checklist).

use serde_json::{Value, json};

use super::{code, in_each, mcp_key, served, sessions, uri};
use crate::support::{
    MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest,
    TestMcpClient, initialize, legacy, modern, notification, over_both, structured,
};

/// Returns a request that names the MCP revision `named`.
fn request_of(named: &str) -> Value {
    let mut message = modern(1, "tools/list", json!({}));
    message["params"]["_meta"][mcp_key("protocolVersion")] = json!(named);
    message
}

#[test]
fn e1_the_version_header_and_body_are_compared_before_either_is_interpreted() {
    let served = served();
    let known = json!(MODERN);
    for (header, body, status, expected) in [
        (MODERN, "v999", 400, -32020),
        ("v999", MODERN, 400, -32020),
        ("2025-11-25", MODERN, 400, -32020),
        ("v999", "v999", 400, -32022),
        ("2099-01-01", "2099-01-01", 400, -32022),
    ] {
        let post = TestHttpRequest::mcp(&request_of(body)).with("mcp-protocol-version", header);
        let response = served.send(&post.with("mcp-method", "tools/list"));
        let answer = response.json();
        assert_eq!(
            (response.status, code(&answer)),
            (status, expected),
            "{header} {body}: {answer}"
        );
        if expected == -32022 {
            assert_eq!(answer["error"]["data"]["requested"], body, "{answer}");
            assert!(answer["error"]["data"]["supported"].as_array().unwrap().contains(&known));
        }
    }
}

#[test]
fn e2_an_unsupported_version_error_lists_the_discovered_versions() {
    over_both(&TempWorkspace::new(), |client| {
        let discovered = client.ask("server/discover", json!({}));
        let all = discovered["result"]["supportedVersions"].as_array().unwrap();
        let answer = match &client.wire {
            TestClientTransport::Http(served) => {
                let post =
                    TestHttpRequest::mcp(&request_of("v999")).with("mcp-protocol-version", "v999");
                served.send(&post.with("mcp-method", "tools/list")).json()
            }
            TestClientTransport::Stdio(_) => client.exchange(&request_of("v999")),
        };
        assert_eq!(code(&answer), -32022, "{answer}");
        let supported = answer["error"]["data"]["supported"].as_array().unwrap();
        assert!(supported.iter().all(|one| all.contains(one)), "{supported:?} of {all:?}");
    });
}

#[test]
fn e3_a_request_without_the_required_meta_is_refused() {
    let served = served();
    let post =
        TestHttpRequest::mcp(&legacy(1, "tools/list", json!({}))).with("mcp-method", "tools/list");
    let response = served.send(&post.with("mcp-protocol-version", MODERN));
    assert_eq!((response.status, code(&response.json())), (400, -32602), "{response:?}");
}

#[test]
fn e4_the_era_is_decided_before_the_method() {
    let gone =
        ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
    over_both(&TempWorkspace::new(), |client| {
        for method in gone {
            let params = json!({ "uri": "file:///a", "level": "info" });
            assert_eq!(code(&client.ask(method, params)), -32601, "{method}");
        }
    });
    // In a session the methods of sessions exist and the stateless ones do not.
    in_each(sessions(), &TempWorkspace::new(), |client| {
        assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
        for method in ["server/discover", "subscriptions/listen"] {
            assert_eq!(code(&client.ask(method, json!({}))), -32601, "{method}");
        }
    });
}

#[test]
fn e5_a_stateless_request_within_a_session_is_stateless() {
    in_each(sessions(), &TempWorkspace::new(), |client| {
        let list = modern("modern", "tools/list", json!({}));
        let answer = match &client.wire {
            TestClientTransport::Http(served) => {
                let session = client.session.clone().unwrap();
                served.send(&TestHttpRequest::mcp(&list).with("mcp-session-id", &session)).json()
            }
            TestClientTransport::Stdio(_) => client.exchange(&list),
        };
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        let after = client.ask("tools/list", json!({}));
        assert!(after["result"].get("resultType").is_none(), "{after}");
    });
}

#[test]
fn e6_a_handshake_never_selects_the_stateless_revision() {
    for wanted in [MODERN, "v999", "2024-10-07", "", "2025-11-26", "2099-01-01"] {
        let opened =
            ServerLaunchOptions::over(&TempWorkspace::new()).stdio().ask(&initialize(1, wanted));
        assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{wanted}: {opened}");
        let opened = served().ask(&initialize(1, wanted));
        assert_eq!(opened["result"]["protocolVersion"], "2025-11-25", "{wanted}: {opened}");
    }
}

#[test]
fn l4_a_null_or_invalid_id_is_refused() {
    in_each(sessions(), &TempWorkspace::new(), |client| {
        for id in [json!(null), json!(1.5), json!(true), json!({})] {
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
            let answer = client.raw(message.to_string().as_bytes());
            assert_eq!(code(&answer), -32600, "{id}: {answer}");
            assert!(answer["id"].is_null(), "{id}: {answer}");
        }
    });
}

#[test]
fn l6_a_bad_origin_is_403_with_or_without_a_session() {
    let served = served();
    for revision in sessions() {
        let session = served.session(revision);
        let ping =
            TestHttpRequest::mcp(&legacy(1, "ping", json!({}))).with("mcp-session-id", &session);
        for origin in ["null", "http://evil.example"] {
            for post in [ping.clone(), TestHttpRequest::mcp(&initialize(1, revision))] {
                assert_eq!(served.send(&post.with("origin", origin)).status, 403, "{origin}");
            }
        }
    }
}

#[test]
fn l7_notifications_and_responses_get_an_empty_202_and_invalid_messages_4xx() {
    in_each(sessions(), &TempWorkspace::new(), |client| {
        if matches!(client.wire, TestClientTransport::Stdio(_)) {
            return;
        }
        for message in [
            notification("notifications/cancelled", json!({ "requestId": 99 })),
            notification("notifications/unheard-of", json!({})),
            json!({ "jsonrpc": "2.0", "id": 99, "result": {} }),
            json!({ "jsonrpc": "2.0", "id": 99, "error": { "code": 1, "message": "no" } }),
        ] {
            let response = client.response(&message);
            assert_eq!((response.status, response.body.len()), (202, 0), "{message}: {response:?}");
        }
        for body in [json!(5), json!({ "jsonrpc": "2.0" }), json!({ "method": "notifications/a" })]
        {
            let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
            let response = served.send(&client.post(&body).malformed());
            assert!((400..500).contains(&response.status), "{body}: {response:?}");
        }
    });
}

#[test]
fn l16_an_unknown_log_level_is_refused_and_the_eight_are_accepted() {
    in_each(sessions(), &TempWorkspace::new(), |client| {
        for level in
            ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
        {
            let answer = client.ask("logging/setLevel", json!({ "level": level }));
            assert_eq!(answer["result"], json!({}), "{level}: {answer}");
        }
        for level in [json!("loud"), json!("INFO"), json!(""), json!(5), json!(null)] {
            let answer = client.ask("logging/setLevel", json!({ "level": level }));
            assert_eq!(code(&answer), -32602, "{level}");
        }
        assert_eq!(code(&client.ask("logging/setLevel", json!({}))), -32602);
    });
}

#[test]
fn l18_a_missing_resource_has_the_error_code_of_its_era() {
    let workspace = TempWorkspace::new();
    let gone = uri(&workspace, "none.txt");
    in_each(REVISIONS, &workspace, |client| {
        for uri in [gone.as_str(), "unheard:of"] {
            let answer = client.ask("resources/read", json!({ "uri": uri }));
            let expected = if client.revision == MODERN { -32602 } else { -32002 };
            assert_eq!(code(&answer), expected, "{answer}");
            assert_eq!(answer["error"]["data"]["uri"], uri, "{answer}");
        }
    });
}

#[test]
fn l25_older_revisions_get_no_fields_of_the_newest() {
    let workspace = TempWorkspace::new();
    let file = uri(&workspace, "README.md");
    let explain = json!({ "name": "explain", "arguments": { "path": "README.md" } });
    in_each(sessions(), &workspace, |client| {
        for (method, params) in [
            ("tools/list", json!({})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("prompts/list", json!({})),
            ("resources/read", json!({ "uri": file })),
            ("prompts/get", explain.clone()),
            ("tools/call", json!({ "name": "files_read", "arguments": { "path": "README.md" } })),
        ] {
            let answer = client.ask(method, params);
            let result = answer["result"].as_object().unwrap_or_else(|| panic!("{answer}"));
            for new in ["resultType", "ttlMs", "cacheScope", "_meta"] {
                assert!(!result.contains_key(new), "{method} {new}: {answer}");
            }
        }
    });
}

/// Returns true if any object within `value` has the member `name`.
fn has_member(value: &Value, name: &str) -> bool {
    match value {
        Value::Object(members) => {
            members.contains_key(name) || members.values().any(|member| has_member(member, name))
        }
        Value::Array(items) => items.iter().any(|item| has_member(item, name)),
        _ => false,
    }
}

#[test]
fn l26_fields_are_absent_before_the_revision_that_added_them() {
    let workspace = TempWorkspace::new();
    in_each(REVISIONS, &workspace, |client| {
        let lists = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"];
        for method in lists {
            let answer = client.ask(method, json!({}));
            let mut result = answer["result"].clone();
            assert!(result.is_object(), "{method}: {answer}");
            // Schemas of arguments do not depend on the revision.
            for tool in result["tools"].as_array_mut().into_iter().flatten() {
                tool.as_object_mut().unwrap().retain(|name, _| !name.ends_with("Schema"));
            }
            for (name, started) in
                [("icons", "2025-11-25"), ("execution", "2025-11-25"), ("title", "2025-06-18")]
            {
                // Annotations of tools had a title before tools did.
                let older = client.revision < started;
                let annotated =
                    name == "title" && method == "tools/list" && client.revision == "2025-03-26";
                assert!(
                    !older || annotated || !has_member(&result, name),
                    "{name} in {method}: {answer}"
                );
            }
        }
        if let Some(capabilities) = client.opened["result"].get("capabilities") {
            let has_capability = |name: &str| capabilities.get(name).is_some();
            assert!(!has_capability("extensions"), "{capabilities}");
            assert!(!has_capability("tasks") || client.revision == "2025-11-25", "{capabilities}");
            assert!(
                !has_capability("completions") || client.revision >= "2025-03-26",
                "{capabilities}"
            );
        }
    });
}

#[test]
fn c26_a_batch_is_accepted_in_2025_03_26_only() {
    in_each(REVISIONS, &TempWorkspace::new(), |client| {
        let read = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
        let batch =
            json!([client.request("tools/call", read), client.request("tools/list", json!({}))]);
        let answer = client.raw(batch.to_string().as_bytes());
        if client.revision == "2025-03-26" {
            let answers = answer.as_array().unwrap();
            assert_eq!(answers.len(), 2, "{answer}");
            let read = answers.iter().find(|one| one["id"] == batch[0]["id"]).unwrap();
            assert_eq!(read["result"]["isError"], false, "{answer}");
        } else {
            assert_eq!(code(&answer), -32600, "{answer}");
        }
        assert_eq!(code(&client.raw(b"[]")), -32600);
    });
}

#[test]
fn v3_declared_capabilities_work_and_undeclared_ones_do_not() {
    let workspace = TempWorkspace::new();
    in_each(REVISIONS, &workspace, |client| {
        let declared = if client.revision == MODERN {
            client.ask("server/discover", json!({}))["result"]["capabilities"].clone()
        } else {
            client.opened["result"]["capabilities"].clone()
        };
        for (capability, method) in [
            ("tools", "tools/list"),
            ("resources", "resources/list"),
            ("resources", "resources/templates/list"),
            ("prompts", "prompts/list"),
        ] {
            assert!(declared[capability].is_object(), "{capability}: {declared}");
            assert!(client.ask(method, json!({}))["result"].is_object(), "{method}");
        }
        if client.revision != "2024-11-05" {
            assert!(declared["completions"].is_object(), "{declared}");
        }
        let skills = declared["extensions"].get("io.modelcontextprotocol/skills").is_some();
        assert_eq!(skills, client.revision == MODERN, "{declared}");
    });
    let nothing = |launch: ServerLaunchOptions| {
        launch.set("resources_kinds", "").set("prompts_folder", "off").set("skills_folders", "")
    };
    for mut client in [
        TestMcpClient::stdio(nothing(ServerLaunchOptions::over(&workspace)), MODERN),
        TestMcpClient::http(nothing(ServerLaunchOptions::over(&workspace)), MODERN),
        TestMcpClient::stdio(nothing(ServerLaunchOptions::over(&workspace)), "2025-11-25"),
    ] {
        let declared = if client.revision == MODERN {
            client.ask("server/discover", json!({}))["result"]["capabilities"].clone()
        } else {
            client.opened["result"]["capabilities"].clone()
        };
        for (capability, method) in [
            ("resources", "resources/list"),
            ("resources", "resources/read"),
            ("prompts", "prompts/list"),
            ("prompts", "prompts/get"),
            ("completions", "completion/complete"),
        ] {
            assert!(declared.get(capability).is_none(), "{capability}: {declared}");
            assert_eq!(code(&client.ask(method, json!({}))), -32601, "{method}");
        }
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    }
}
