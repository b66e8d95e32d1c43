//! Tests of every MCP revision and of its features, over both transports.

use serde_json::{Value, json};

use crate::support::{
    MODERN, NOTHING, REVISIONS, ServerLaunchOptions, StdioServerProcess, TempWorkspace,
    TestClientTransport, TestMcpClient, at_once, initialize, legacy, modern, refusal, text,
};

/// Number of tools in a page of a list.
const PAGE: usize = 200;

/// Runs `check` in each revision over both transports.
fn check(workspace: &TempWorkspace, check: impl Fn(&mut TestMcpClient)) {
    for revision in REVISIONS {
        eprintln!("{revision} over stdio:");
        check(&mut TestMcpClient::stdio(ServerLaunchOptions::over(workspace), revision));
        eprintln!("{revision} over HTTP:");
        check(&mut TestMcpClient::http(ServerLaunchOptions::over(workspace), revision));
    }
}

/// Returns true if `revision` is `first` or newer. The names of revisions are dates.
fn is_at_least(revision: &str, first: &str) -> bool {
    revision >= first
}

#[test]
fn tools_can_be_listed_and_called_in_every_revision() {
    check(&TempWorkspace::new(), |client| {
        let tools = client.tools();
        assert!(tools.iter().any(|tool| tool["name"] == "files_read"), "{tools:?}");
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert!(text(&read).starts_with(TempWorkspace::README), "{read}");
        let run = client.call("exec_run", json!({ "command": "printf", "args": ["a%sc", "b"] }));
        assert!(text(&run).starts_with("abc"), "{run}");
        let missing = client.call("files_read", json!({ "path": "none" }));
        assert_eq!(missing["result"]["isError"], true, "{missing}");
        assert!(text(&missing).contains("none"), "{missing}");
    });
}

#[test]
fn a_paged_list_has_every_tool_once_in_the_same_order() {
    let names = |tools: &[Value]| -> Vec<String> {
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let workspace = TempWorkspace::with_many_tools(PAGE);
    let full = names(&TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN).tools());
    assert!(full.len() >= PAGE + 14 && full.is_sorted(), "{full:?}");
    for revision in REVISIONS {
        let launch = || ServerLaunchOptions::over(&workspace);
        for mut client in
            [TestMcpClient::stdio(launch(), revision), TestMcpClient::http(launch(), revision)]
        {
            let first = client.ask("tools/list", json!({}));
            assert_eq!(first["result"]["tools"].as_array().unwrap().len(), PAGE, "{first}");
            assert_eq!(names(&client.tools()), full);
            assert_eq!(names(&client.tools()), full);
        }
    }
}

#[test]
fn a_page_that_exactly_fits_the_rest_is_the_last() {
    // `files_exists` and `git_current_branch` are not listed, but have a place on their page.
    let unlisted = 2;
    let listed = TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), MODERN)
        .tools()
        .len();
    let own = listed + unlisted;
    for count in [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1] {
        let workspace = TempWorkspace::with_many_tools(count - own);
        let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
        assert_eq!(client.tools().len(), count - unlisted);
        let mut pages = 0;
        let mut params = json!({});
        loop {
            pages += 1;
            let page = client.ask("tools/list", params);
            let Some(cursor) = page["result"].get("nextCursor") else { break };
            params = json!({ "cursor": cursor });
        }
        assert_eq!(pages, count.div_ceil(PAGE), "{count}");
    }
}

#[test]
fn a_handshake_is_answered_with_the_requested_revision() {
    for revision in &REVISIONS[1..] {
        let client =
            TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), revision);
        let result = &client.opened["result"];
        assert_eq!(result["protocolVersion"], *revision, "{result}");
        assert_eq!(result["serverInfo"]["name"], "toolgate");
        assert_eq!(result["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(result["capabilities"]["tools"].is_object(), "{result}");
        let has = |field: &str| result["serverInfo"].get(field).is_some();
        assert_eq!(has("title"), is_at_least(revision, "2025-06-18"), "{result}");
        assert_eq!(has("description"), is_at_least(revision, "2025-11-25"), "{result}");
        for stateless in ["resultType", "ttlMs", "cacheScope", "_meta", "supportedVersions"] {
            assert!(result.get(stateless).is_none(), "{stateless}: {result}");
        }
    }
}

#[test]
fn a_tool_is_listed_with_the_fields_of_the_revision() {
    check(&TempWorkspace::new(), |client| {
        let revision = client.revision;
        let list = client.ask("tools/list", json!({}));
        for tool in list["result"]["tools"].as_array().unwrap() {
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            assert!(tool["description"].is_string(), "{tool}");
            let has = |field: &str| tool.get(field).is_some();
            // Programs may do what clients assume of any tool.
            let runs = ["exec_run", "ci_"]
                .iter()
                .any(|name| tool["name"].as_str().is_some_and(|tool| tool.starts_with(name)));
            let is_expected = is_at_least(revision, "2025-03-26");
            assert!(has("annotations") == is_expected || runs, "{tool}");
            assert_eq!(has("title"), is_at_least(revision, "2025-06-18"), "{tool}");
            assert_eq!(has("outputSchema"), is_at_least(revision, "2025-06-18"), "{tool}");
        }
    });
}

#[test]
fn only_results_of_the_stateless_revision_have_a_type() {
    check(&TempWorkspace::new(), |client| {
        let stateless = client.revision == MODERN;
        let list = client.ask("tools/list", json!({}));
        let read = client.call("files_read", json!({ "path": "README.md" }));
        let missing = client.call("files_read", json!({ "path": "none" }));
        let cacheable =
            |result: &Value| ["ttlMs", "cacheScope"].map(|field| result.get(field).is_some());
        for answer in [&list, &read, &missing] {
            let result = &answer["result"];
            assert_eq!(result["resultType"] == "complete", stateless, "{answer}");
            assert_eq!(result.get("resultType").is_some(), stateless, "{answer}");
            let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"];
            assert_eq!(*server == "toolgate", stateless, "{answer}");
            assert_eq!(result.get("_meta").is_some(), stateless, "{answer}");
        }
        assert_eq!(cacheable(&list["result"]), [stateless; 2], "{list}");
        assert_eq!(cacheable(&read["result"]), [false; 2], "{read}");
        if stateless {
            assert!(list["result"]["ttlMs"].as_u64().is_some(), "{list}");
            assert!(["private", "public"].map(Value::from).contains(&list["result"]["cacheScope"]));
        }
    });
}

#[test]
fn structured_content_is_returned_in_revisions_that_have_it() {
    check(&TempWorkspace::new(), |client| {
        let read = client.call("files_read", json!({ "path": "README.md" }));
        let content = read["result"].get("structuredContent");
        assert_eq!(content.is_some(), is_at_least(client.revision, "2025-06-18"), "{read}");
        assert!(
            content.is_none_or(|content| content["content"] == TempWorkspace::README),
            "{read}"
        );
    });
}

#[test]
fn invalid_arguments_are_reported_as_the_revision_specifies() {
    check(&TempWorkspace::new(), |client| {
        let answer = client.call("files_read", json!({ "path": 5 }));
        assert!(refusal(&answer).contains("/path"), "{answer}");
        if is_at_least(client.revision, "2025-11-25") {
            assert_eq!(answer["result"]["isError"], true, "{answer}");
        } else {
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    });
}

#[test]
fn an_error_without_a_request_has_the_id_that_the_revision_specifies() {
    check(&TempWorkspace::new(), |client| {
        let answer = client.raw(b"{");
        assert_eq!(answer["error"]["code"], -32700, "{answer}");
        let anonymous = is_at_least(client.revision, "2025-11-25");
        assert_eq!(answer.get("id"), if anonymous { None } else { Some(&Value::Null) }, "{answer}");
    });
}

#[test]
fn ping_and_log_levels_exist_only_in_revisions_with_sessions() {
    check(&TempWorkspace::new(), |client| {
        let level = json!({ "level": "debug" });
        for (method, params) in [("ping", json!({})), ("logging/setLevel", level)] {
            let answer = client.ask(method, params);
            if client.revision == MODERN {
                assert_eq!(answer["error"]["code"], -32601, "{answer}");
            } else {
                assert_eq!(answer["result"], json!({}), "{answer}");
            }
        }
        if client.revision != MODERN {
            let answer = client.ask("logging/setLevel", json!({ "level": "loud" }));
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
    });
}

#[test]
fn discovery_exists_only_in_the_stateless_revision() {
    check(&TempWorkspace::new(), |client| {
        let answer = client.ask("server/discover", json!({}));
        if client.revision != MODERN {
            assert_eq!(answer["error"]["code"], -32601, "{answer}");
            return;
        }
        let result = &answer["result"];
        assert_eq!(result["supportedVersions"], json!([MODERN]));
        assert!(result["capabilities"]["tools"].is_object(), "{result}");
        assert!(result["instructions"].is_string() && result["ttlMs"].is_u64(), "{result}");
        assert_eq!(result["resultType"], "complete");
    });
}

#[test]
fn a_batch_is_accepted_only_in_the_revision_that_has_batches() {
    check(&TempWorkspace::new(), |client| {
        let params = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
        let batch = json!([
            legacy("a", "ping", json!({})),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            legacy("b", "tools/call", params),
            legacy("c", "tools/fly", json!({})),
            { "jsonrpc": "2.0" },
            initialize("d", "2025-03-26"),
        ]);
        let answer = client.raw(batch.to_string().as_bytes());
        if client.revision != "2025-03-26" {
            assert_eq!(answer["error"]["code"], -32600, "{answer}");
            return;
        }
        let answers = answer.as_array().unwrap();
        assert_eq!(answers.len(), 5, "{answer}");
        let answer_to = |id: &str| answers.iter().find(|answer| answer["id"] == id).unwrap();
        assert_eq!(answer_to("a")["result"], json!({}));
        assert!(text(answer_to("b")).starts_with(TempWorkspace::README));
        assert_eq!(answer_to("c")["error"]["code"], -32601);
    });
}

#[test]
fn a_batch_of_notifications_is_not_answered() {
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), "2025-03-26");
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    stdio.send(&json!([note, note]));
    assert_eq!(stdio.ask(&legacy(1, "ping", json!({})))["result"], json!({}));
    let http = TestMcpClient::http(ServerLaunchOptions::over(&TempWorkspace::new()), "2025-03-26");
    assert_eq!(http.response(&json!([note, note])).status, 202);
}

fn start_fresh() -> StdioServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).stdio()
}

#[test]
fn a_client_can_probe_before_its_handshake() {
    let mut stdio = start_fresh();
    let probe = stdio.ask(&modern(1, "server/discover", json!({})));
    assert_eq!(probe["result"]["supportedVersions"], json!([MODERN]));
    let opened = stdio.ask(&initialize(2, "2025-06-18"));
    assert_eq!(opened["result"]["protocolVersion"], "2025-06-18");
    assert!(stdio.ask(&legacy(3, "tools/list", json!({})))["result"]["tools"].is_array());
}

#[test]
fn before_the_handshake_only_a_ping_is_answered() {
    let mut stdio = start_fresh();
    assert_eq!(stdio.ask(&legacy(1, "ping", json!({})))["result"], json!({}));
    for method in ["tools/list", "tools/call", "logging/setLevel"] {
        let answer = stdio.ask(&legacy(2, method, json!({})));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(refusal(&answer).contains("initialize"), "{answer}");
    }
}

#[test]
fn a_stateless_request_without_required_meta_is_refused_over_stdio() {
    let mut stdio = start_fresh();
    let mut message = modern(1, "tools/list", json!({}));
    message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v999");
    let answer = stdio.ask(&message);
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
    assert_eq!(answer["error"]["data"], json!({ "requested": "v999", "supported": [MODERN] }));
    let mut message = modern(2, "tools/list", json!({}));
    let meta = message["params"]["_meta"].as_object_mut().unwrap();
    meta.remove("io.modelcontextprotocol/clientCapabilities");
    assert_eq!(stdio.ask(&message)["error"]["code"], -32602);
}

#[test]
fn progress_over_stdio_increases_and_ends_before_the_answer() {
    at_once(REVISIONS, |revision| {
        let mut client =
            TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), revision);
        let script = "for n in 1 2 3; do echo line $n; sleep 0.3; done";
        let params = json!({
            "name": "exec_run",
            "arguments": { "command": script, "shell": true },
            "_meta": { "progressToken": "p" },
        });
        let message = client.request("tools/call", params);
        let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
        stdio.send(&message);
        let mut notifications = Vec::new();
        let answer = loop {
            let received = stdio.receive();
            if received.get("id").is_some() {
                break received;
            }
            notifications.push(received);
        };
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        let progress = |event: &Value| event["params"]["progress"].as_f64().unwrap();
        assert!(notifications.len() >= 2, "{notifications:?}");
        assert!(
            notifications.windows(2).all(|pair| progress(&pair[0]) < progress(&pair[1])),
            "{notifications:?}"
        );
        let worded = notifications.iter().any(|event| event["params"].get("message").is_some());
        assert_eq!(worded, is_at_least(revision, "2025-03-26"), "{notifications:?}");
        stdio.close_input();
        assert_eq!(stdio.read_rest(), NOTHING, "messages after the answer");
    });
}
