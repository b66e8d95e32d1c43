//! Tests of rows of the MCP checklist that need more types of tools than a workspace has. The
//! server `example-everything` has such tools.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{code, mcp_key, meta_with_capabilities};
use crate::support::{
    HttpServerProcess, MODERN, REVISIONS, ServerLaunchOptions, TestClientTransport,
    TestHttpRequest, TestMcpClient, call, converse, modern, refusal, text,
};

/// Runs `check` with a client that has every capability, in each revision over both transports.
fn check_each_revision(
    revisions: impl IntoIterator<Item = &'static str>,
    check: impl Fn(&mut TestMcpClient),
) {
    let capabilities = |revision: &str| match revision {
        "2024-11-05" | "2025-03-26" => json!({ "sampling": {}, "roots": {} }),
        "2025-06-18" => json!({ "sampling": {}, "roots": {}, "elicitation": {} }),
        _ => json!({ "sampling": {}, "roots": {}, "elicitation": { "form": {} } }),
    };
    check_each_with(revisions, capabilities, check);
}

fn check_each_with(
    revisions: impl IntoIterator<Item = &'static str>,
    capabilities: impl Fn(&str) -> Value,
    check: impl Fn(&mut TestMcpClient),
) {
    for revision in revisions {
        eprintln!("{revision} over stdio:");
        let wire = TestClientTransport::Stdio(ServerLaunchOptions::everything().stdio());
        check(&mut TestMcpClient::open(wire, revision, capabilities(revision)));
        eprintln!("{revision} over HTTP:");
        let wire = TestClientTransport::Http(ServerLaunchOptions::everything().served());
        check(&mut TestMcpClient::open(wire, revision, capabilities(revision)));
    }
}

fn with_forms() -> impl Iterator<Item = &'static str> {
    REVISIONS.into_iter().filter(|revision| *revision >= "2025-06-18")
}

fn everything() -> HttpServerProcess {
    ServerLaunchOptions::everything().served()
}

/// Returns the answer of a client that accepts every question of the server.
fn accept(request: &Value) -> Value {
    match request["method"].as_str().unwrap() {
        "elicitation/create" => {
            let fields = request["params"]["requestedSchema"]["properties"].as_object().unwrap();
            let fill = |(name, field): (&String, &Value)| (name.clone(), fill_field(field));
            let content: serde_json::Map<_, _> = fields.iter().map(fill).collect();
            json!({ "action": "accept", "content": content })
        }
        "sampling/createMessage" => json!({
            "role": "assistant",
            "model": "a model",
            "stopReason": "endTurn",
            "content": { "type": "text", "text": "Paris" },
        }),
        "roots/list" => json!({ "roots": [{ "uri": "file:///home/it", "name": "home" }] }),
        other => panic!("{other} is not a request to a client: {request}"),
    }
}

fn fill_field(field: &Value) -> Value {
    if let Some(default) = field.get("default") {
        return default.clone();
    }
    let first = |of: &Value| {
        let titled = of.get("oneOf").or(of.get("anyOf")).map(|all| all[0]["const"].clone());
        titled.or_else(|| of.get("enum").map(|all| all[0].clone()))
    };
    match field["type"].as_str().unwrap() {
        "string" => first(field).unwrap_or_else(|| json!("Ada")),
        "boolean" => json!(true),
        "array" => json!([first(&field["items"]).unwrap()]),
        _ => json!(7),
    }
}

/// Calls `tool` and accepts all questions of the server. Returns the answer and the questions.
#[track_caller]
fn agree(client: &mut TestMcpClient, tool: &str, arguments: Value) -> (Value, Vec<Value>) {
    converse(client, "tools/call", json!({ "name": tool, "arguments": arguments }), accept)
}

/// Sends `message` and returns all messages that arrive, up to and including the answer.
#[track_caller]
fn messages_until_answer(client: &mut TestMcpClient, message: &Value) -> Vec<Value> {
    match &mut client.wire {
        TestClientTransport::Stdio(stdio) => {
            stdio.send(message);
            let mut messages = Vec::new();
            loop {
                messages.push(stdio.receive());
                if messages.last().unwrap()["id"] == message["id"] {
                    return messages;
                }
            }
        }
        TestClientTransport::Http(served) => {
            let session = client.session.iter();
            let post = session
                .fold(TestHttpRequest::mcp(message), |post, id| post.with("mcp-session-id", id));
            let response = served.send(&post);
            if response.is_stream() { response.events() } else { vec![response.json()] }
        }
    }
}

#[test]
fn l20_sampling_works_in_every_revision() {
    check_each_revision(REVISIONS, |client| {
        let (answer, requests) = agree(client, "test_sampling", json!({ "prompt": "Where?" }));
        assert_eq!(text(&answer), "LLM response: Paris", "{answer}");
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0]["params"]["maxTokens"], 100, "{requests:?}");
    });
}

#[test]
fn ro1_roots_are_requested_only_if_declared() {
    check_each_revision(REVISIONS, |client| {
        let (answer, _) = agree(client, "test_input_required_result_list_roots", json!({}));
        assert!(text(&answer).contains("file:///home/it"), "{answer}");
    });
    check_each_with(
        REVISIONS,
        |_| json!({ "sampling": {} }),
        |client| {
            let answer = client.call("test_input_required_result_list_roots", json!({}));
            assert_ne!(answer["result"]["resultType"], "input_required", "{answer}");
            refusal(&answer);
        },
    );
}

#[test]
fn e4_forms_with_defaults_and_choices_match_each_revision() {
    // Questions are validated against the schema of the revision.
    check_each_revision(with_forms(), |client| {
        for tool in ["test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"] {
            let (answer, requests) = agree(client, tool, json!({}));
            if client.revision == "2025-06-18" && tool == "test_elicitation_sep1330_enums" {
                // Its forms have no field for several choices; the tool gets an error.
                assert_eq!(requests.len(), 0, "{requests:?}");
                refusal(&answer);
                continue;
            }
            assert_eq!(requests.len(), 1, "{tool}: {answer}");
            assert!(text(&answer).starts_with("Elicitation completed: action=accept"), "{answer}");
        }
    });
}

#[test]
fn e3_decline_and_cancel_are_reported_to_the_tool() {
    check_each_revision(with_forms(), |client| {
        for action in ["decline", "cancel"] {
            let params = json!({ "name": "test_elicitation", "arguments": { "message": "Who?" } });
            let (answer, _) =
                converse(client, "tools/call", params, |_| json!({ "action": action }));
            assert!(text(&answer).contains(&format!("action={action}")), "{answer}");
        }
    });
}

#[test]
fn e3_an_invalid_form_answer_is_asked_again_or_fails() {
    check_each_revision(with_forms(), |client| {
        let bad = |_: &Value| json!({ "action": "accept", "content": { "username": 5 } });
        let name = "test_elicitation";
        let arguments = json!({ "message": "Who?" });
        if client.revision == MODERN {
            let first = client.call(name, arguments.clone());
            let mut params = json!({ "name": name, "arguments": arguments });
            let key = first["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
            params["inputResponses"] = json!({ key: bad(&Value::Null) });
            params["requestState"] = first["result"]["requestState"].clone();
            let again = client.ask("tools/call", params);
            assert_eq!(again["result"]["resultType"], "input_required", "{again}");
        } else {
            let params = json!({ "name": name, "arguments": arguments });
            let (answer, _) = converse(client, "tools/call", params, bad);
            refusal(&answer);
        }
    });
}

#[test]
fn mr2_several_questions_have_distinct_keys_and_are_answered_together() {
    check_each_revision(with_forms(), |client| {
        let (answer, requests) =
            agree(client, "test_input_required_result_multiple_inputs", json!({}));
        assert_eq!(text(&answer), "Answered: client_roots, greeting, user_name", "{answer}");
        let methods: BTreeSet<_> =
            requests.iter().map(|one| one["method"].as_str().unwrap()).collect();
        let all = ["elicitation/create", "roots/list", "sampling/createMessage"];
        assert_eq!(methods, BTreeSet::from(all));
    });
}

#[test]
fn mr6_remaining_questions_are_asked_after_a_partial_answer() {
    check_each_revision([MODERN], |client| {
        let name = "test_input_required_result_multiple_inputs";
        let mut params = json!({ "name": name, "arguments": {} });
        let mut open: BTreeSet<String> =
            ["client_roots", "greeting", "user_name"].map(str::to_owned).into();
        while !open.is_empty() {
            let reply = client.ask("tools/call", params.clone());
            let requests =
                reply["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{reply}"));
            assert_eq!(requests.keys().cloned().collect::<BTreeSet<_>>(), open, "{reply}");
            let key = open.pop_first().unwrap();
            params["inputResponses"] = json!({ &key: accept(&requests[&key]) });
            params["requestState"] = reply["result"]["requestState"].clone();
        }
        assert!(text(&client.ask("tools/call", params)).starts_with("Answered: "));
    });
}

#[test]
fn mr2_later_rounds_use_the_answers_of_earlier_ones() {
    check_each_revision(with_forms(), |client| {
        let (answer, requests) = agree(client, "test_input_required_result_multi_round", json!({}));
        assert_eq!(text(&answer), "Ada likes Ada", "{answer}");
        assert_eq!(requests.len(), 2, "{requests:?}");
    });
}

#[test]
fn mr3_only_declared_kinds_of_questions_are_asked() {
    for (capabilities, methods) in [
        (json!({ "elicitation": {} }), vec!["elicitation/create"]),
        (json!({ "sampling": {} }), vec!["sampling/createMessage"]),
        (json!({ "elicitation": { "url": {} }, "sampling": {} }), vec!["sampling/createMessage"]),
        (json!({ "roots": {} }), vec![]),
    ] {
        let revisions = [MODERN, "2025-11-25"];
        check_each_with(
            revisions,
            |_| capabilities.clone(),
            |client| {
                let (answer, requests) =
                    agree(client, "test_input_required_result_capabilities", json!({}));
                let asked_methods: Vec<_> =
                    requests.iter().map(|one| one["method"].as_str().unwrap()).collect();
                assert_eq!(asked_methods, methods, "{capabilities}: {answer}");
            },
        );
    }
}

#[test]
fn b12_missing_capabilities_are_named_as_a_client_declares_them() {
    check_each_with(
        [MODERN],
        |_| json!({}),
        |client| {
            for (tool, missing) in [
                ("test_missing_capability", json!({ "sampling": {} })),
                ("test_input_required_result_list_roots", json!({ "roots": {} })),
            ] {
                let answer = client.call(tool, json!({}));
                assert_eq!(code(&answer), -32021, "{answer}");
                assert_eq!(answer["error"]["data"]["requiredCapabilities"], missing, "{answer}");
            }
            let answer = client.call("test_elicitation", json!({ "message": "Who?" }));
            assert!(answer["error"]["data"]["requiredCapabilities"]["elicitation"].is_object());
            if let TestClientTransport::Http(served) = &client.wire {
                let post = TestHttpRequest::mcp(&call(1, "test_missing_capability", json!({})));
                assert_eq!(served.send(&post).status, 400);
            }
        },
    );
}

#[test]
fn mr1_prompts_can_ask_questions_as_tools_do() {
    check_each_revision(with_forms(), |client| {
        let params = json!({ "name": "test_input_required_result_prompt" });
        let (answer, requests) = converse(client, "prompts/get", params, accept);
        assert!(answer["result"]["messages"].is_array(), "{answer}");
        assert_eq!(requests.len(), 1, "{requests:?}");
    });
}

#[test]
fn lg1_logs_are_sent_only_at_or_above_the_requested_level() {
    check_each_revision([MODERN], |client| {
        for (level, count) in [(None, 0), (Some("error"), 0), (Some("info"), 1), (Some("debug"), 1)]
        {
            let mut params = json!({ "name": "test_logging_tool", "arguments": {} });
            if let Some(level) = level {
                params["_meta"] = json!({ mcp_key("logLevel"): level });
            }
            let message = client.request("tools/call", params);
            let messages = messages_until_answer(client, &message);
            let logged = messages.iter().filter(|one| one["method"] == "notifications/message");
            assert_eq!(logged.count(), count, "{level:?}: {messages:?}");
        }
    });
}

#[test]
fn l16_a_session_gets_logs_at_or_above_its_level() {
    check_each_revision(super::sessions(), |client| {
        for (level, count) in [("debug", 3), ("error", 0), ("info", 3), ("emergency", 0)] {
            assert_eq!(
                client.ask("logging/setLevel", json!({ "level": level }))["result"],
                json!({})
            );
            let params = json!({ "name": "test_tool_with_logging", "arguments": {} });
            let message = client.request("tools/call", params);
            let messages = messages_until_answer(client, &message);
            let logged = messages.iter().filter(|one| one["method"] == "notifications/message");
            assert_eq!(logged.count(), count, "{level}: {messages:?}");
        }
    });
}

#[test]
fn p1_progress_increases_names_its_token_and_ends_before_the_answer() {
    check_each_revision(REVISIONS, |client| {
        for token in [json!("a"), json!(7), json!(0)] {
            let mut params = json!({ "name": "test_tool_with_progress", "arguments": {} });
            params["_meta"] = json!({ "progressToken": token });
            let message = client.request("tools/call", params);
            let messages = messages_until_answer(client, &message);
            let progress_messages: Vec<_> =
                messages.iter().filter(|one| one["method"] == "notifications/progress").collect();
            assert!(
                progress_messages.iter().all(|one| one["params"]["progressToken"] == token),
                "{progress_messages:?}"
            );
            let progress = |one: &Value| one["params"]["progress"].as_f64().unwrap();
            assert!(
                progress_messages.windows(2).all(|pair| progress(pair[0]) < progress(pair[1])),
                "{progress_messages:?}"
            );
            assert!(!progress_messages.is_empty(), "{messages:?}");
            assert_eq!(messages.last().unwrap()["id"], message["id"]);
        }
        let message = client.request("tools/call", json!({ "name": "test_tool_with_progress" }));
        assert_eq!(messages_until_answer(client, &message).len(), 1);
    });
}

#[test]
fn tl8_a_server_that_embeds_resources_declares_them() {
    check_each_revision(REVISIONS, |client| {
        let answer = client.call("test_embedded_resource", json!({}));
        assert_eq!(answer["result"]["content"][0]["type"], "resource", "{answer}");
        let declared = if client.revision == MODERN {
            client.ask("server/discover", json!({}))["result"]["capabilities"].clone()
        } else {
            client.opened["result"]["capabilities"].clone()
        };
        assert!(declared["resources"].is_object(), "{declared}");
    });
}

#[test]
fn l26_audio_becomes_text_in_revisions_without_audio() {
    check_each_revision(REVISIONS, |client| {
        let answer = client.call("test_audio_content", json!({}));
        let kind = &answer["result"]["content"][0]["type"];
        assert_eq!(*kind == "audio", client.revision != "2024-11-05", "{answer}");
    });
}

#[test]
fn tl3_sessions_are_notified_of_changed_tools_and_prompts() {
    for revision in super::sessions() {
        let mut client = TestMcpClient::stdio(ServerLaunchOptions::everything(), revision);
        client.ask("tools/list", json!({}));
        client.ask("prompts/list", json!({}));
        for (tool, method) in [
            ("test_trigger_tool_change", "notifications/tools/list_changed"),
            ("test_trigger_prompt_change", "notifications/prompts/list_changed"),
        ] {
            client.call(tool, json!({}));
            let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
            assert_eq!(stdio.receive()["method"], method, "{revision}");
        }
    }
}

/// Returns a call of a tool whose argument `value` clients must repeat in a header. The request has
/// no such header.
fn header_call(value: Value) -> TestHttpRequest {
    TestHttpRequest::mcp(&call(1, "test_custom_header", json!({ "value": value })))
}

#[track_caller]
fn is_mismatch(served: &HttpServerProcess, post: &TestHttpRequest) {
    let response = served.send(post);
    assert_eq!((response.status, code(&response.json())), (400, -32020), "{response:?}");
}

#[test]
fn h17_a_header_parameter_must_match_its_argument() {
    let served = everything();
    for (value, header) in [
        ("plain", "plain"),
        ("plain", "=?base64?cGxhaW4=?="),
        ("Größe", "=?base64?R3LDtsOfZQ==?="),
        (" blank ", "=?base64?IGJsYW5rIA==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
    ] {
        let response = served.send(&header_call(json!(value)).with("mcp-param-value", header));
        assert_eq!(text(&response.json()), value, "{header}");
        let response = served.send(&header_call(json!(value)).with("MCP-PARAM-VALUE", header));
        assert_eq!(response.status, 200, "{header}");
    }
    let plain = header_call(json!("plain"));
    is_mismatch(&served, &plain);
    for header in ["", "other", "PLAIN", "=?base64?!!!?=", "=?base64?b3RoZXI=?=", "plain, plain"] {
        is_mismatch(&served, &plain.clone().with("mcp-param-value", header));
    }
    let right = plain.with("mcp-param-value", "plain");
    is_mismatch(&served, &right.with_additional("mcp-param-value", "plain"));
    is_mismatch(&served, &header_call(json!("Größe")).with("mcp-param-value", "Größe"));
}

#[test]
fn h17_a_missing_argument_must_have_no_header() {
    let served = everything();
    for arguments in [json!({}), json!({ "value": null })] {
        let post = TestHttpRequest::mcp(&call(1, "test_custom_header", arguments.clone()));
        // The tool reports the missing argument; the missing header is not an error.
        let answer = served.send(&post).json();
        assert_ne!(answer["error"]["code"], -32020, "{arguments}: {answer}");
        is_mismatch(&served, &post.with("mcp-param-value", "plain"));
    }
}

#[test]
fn h17_headers_of_unknown_arguments_are_ignored() {
    let served = everything();
    let post = header_call(json!("plain")).with("mcp-param-value", "plain");
    assert_eq!(served.send(&post.with("mcp-param-other", "x")).status, 200);
    let post = header_call(json!("plain")).with("mcp-param-value", "plain");
    assert_eq!(served.send(&post.with("mcp-param-other", "=?base64?***?=")).status, 200);
    is_mismatch(&served, &header_call(json!("plain")).with("mcp-param-value", "=?base64?***?="));
    let post = TestHttpRequest::mcp(&call(1, "test_simple_text", json!({})));
    assert_eq!(served.send(&post.with("mcp-param-value", "x")).status, 200);
}

#[test]
fn h17_sessions_and_stdio_need_no_parameter_headers() {
    check_each_revision(REVISIONS, |client| {
        if matches!(client.wire, TestClientTransport::Http(_)) && client.revision == MODERN {
            return;
        }
        let answer = client.call("test_custom_header", json!({ "value": "plain" }));
        assert_eq!(text(&answer), "plain");
    });
}

#[test]
fn h19_listed_header_parameters_are_valid() {
    let served = everything();
    let list = served.ask(&modern(1, "tools/list", json!({})));
    let mut found = 0;
    for tool in list["result"]["tools"].as_array().unwrap() {
        let mut names = BTreeSet::new();
        let properties = tool["inputSchema"]["properties"].as_object().cloned().unwrap_or_default();
        for (name, schema) in &properties {
            let Some(header) = schema.get("x-mcp-header") else { continue };
            let header = header.as_str().unwrap();
            let is_token =
                |one: char| one.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(one);
            assert!(!header.is_empty() && header.chars().all(is_token), "{name} of {tool}");
            assert!(names.insert(header.to_ascii_lowercase()), "{name} of {tool}");
            let kind = schema["type"].as_str().unwrap();
            assert!(["string", "integer", "boolean"].contains(&kind), "{name} of {tool}");
            found += 1;
        }
    }
    assert!(found > 0, "{list}");
}

#[test]
fn tk3_a_task_only_tool_is_refused_to_clients_without_tasks() {
    check_each_with(
        [MODERN],
        |_| json!({}),
        |client| {
            let answer = client.call("failing_job", json!({}));
            assert_eq!(code(&answer), -32021, "{answer}");
            let missing = &answer["error"]["data"]["requiredCapabilities"]["extensions"];
            assert!(missing[mcp_key("tasks")].is_object(), "{answer}");
        },
    );
    check_each_with(
        ["2025-11-25"],
        |_| json!({}),
        |client| {
            assert_eq!(code(&client.call("failing_job", json!({}))), -32601);
        },
    );
}

#[test]
fn tk8_a_task_that_asks_continues_after_the_answer() {
    let capabilities = json!({ "elicitation": {}, "extensions": { mcp_key("tasks"): {} } });
    check_each_with(
        [MODERN],
        |_| capabilities.clone(),
        |client| {
            let started = client.call("confirm_delete", json!({ "filename": "a" }));
            assert_eq!(started["result"]["resultType"], "task", "{started}");
            let id = started["result"]["taskId"].clone();
            let params = json!({ "taskId": id });
            let wait_for_status = |client: &mut TestMcpClient, wanted: &str| {
                crate::support::wait_for(wanted, || {
                    let seen = client.ask("tasks/get", params.clone());
                    (seen["result"]["status"] == wanted).then_some(seen)
                })
            };
            let seen = wait_for_status(client, "input_required");
            let (key, request) =
                seen["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
            // Answers to other questions are ignored, and the task still waits.
            let other = json!({ "taskId": id, "inputResponses": { "other": accept(request) } });
            assert!(client.ask("tasks/update", other)["result"].is_object());
            wait_for_status(client, "input_required");
            let responses = json!({ "taskId": id, "inputResponses": { key: accept(request) } });
            assert!(client.ask("tasks/update", responses.clone())["result"].is_object());
            let done = wait_for_status(client, "completed");
            assert!(done["result"]["result"].to_string().contains("Deleted a"), "{done}");
            assert!(client.ask("tasks/update", responses)["result"].is_object());
        },
    );
    // Without the capability the call fails instead of becoming a task that waits forever.
    let tasks = json!({ "extensions": { mcp_key("tasks"): {} } });
    check_each_with(
        [MODERN],
        |_| tasks.clone(),
        |client| {
            let mut answer = client.call("confirm_delete", json!({ "filename": "a" }));
            if answer["result"]["resultType"] == "task" {
                let params = json!({ "taskId": answer["result"]["taskId"] });
                answer = crate::support::wait_for("it ends", || {
                    let seen = client.ask("tasks/get", params.clone());
                    assert_ne!(seen["result"]["status"], "input_required", "{seen}");
                    (seen["result"]["status"] != "working").then_some(seen)
                });
                assert_eq!(answer["result"]["status"], "failed", "{answer}");
            } else {
                refusal(&answer);
            }
        },
    );
}

#[test]
fn b8_a_question_is_not_asked_if_only_an_earlier_request_declared_it() {
    check_each_with(
        [MODERN],
        |_| json!({}),
        |client| {
            let mut params = json!({ "name": "test_missing_capability", "arguments": {} });
            params["_meta"] = meta_with_capabilities(json!({ "sampling": {} }));
            assert_eq!(client.ask("tools/call", params)["result"]["resultType"], "input_required");
            assert_eq!(code(&client.call("test_missing_capability", json!({}))), -32021);
        },
    );
}

#[test]
fn l22_a_tasks_question_is_sent_to_the_client_that_waits_for_its_result() {
    check_each_revision(["2025-11-25"], |client| {
        let params = json!({
            "name": "confirm_delete",
            "arguments": { "filename": "a" },
            "task": {},
        });
        let started = client.ask("tools/call", params);
        let id = started["result"]["task"]["taskId"].clone();
        let params = json!({ "taskId": id });
        crate::support::wait_for("it asks", || {
            let seen = client.ask("tasks/get", params.clone());
            (seen["result"]["status"] == "input_required").then_some(())
        });
        let (done, requests) = converse(client, "tasks/result", params.clone(), accept);
        assert_eq!(requests.len(), 1, "{requests:?}");
        let related = &requests[0]["params"]["_meta"][mcp_key("related-task")];
        assert_eq!(related["taskId"], id, "{requests:?}");
        assert!(text(&done).contains("Deleted a"), "{done}");
        assert_eq!(client.ask("tasks/get", params)["result"]["status"], "completed");
    });
}
