//! The rows that need tools of another kind than a workspace has: `example-everything` has them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{able, code, of_mcp};
use crate::support::{
    Client, Launch, MODERN, Post, REVISIONS, Served, Wire, call, converse, modern, refusal, text,
};

/// A client that can do everything there is to ask of one, over each transport, in each revision.
fn each(revisions: impl IntoIterator<Item = &'static str>, check: impl Fn(&mut Client)) {
    let can = |revision: &str| match revision {
        "2024-11-05" | "2025-03-26" => json!({ "sampling": {}, "roots": {} }),
        "2025-06-18" => json!({ "sampling": {}, "roots": {}, "elicitation": {} }),
        _ => json!({ "sampling": {}, "roots": {}, "elicitation": { "form": {} } }),
    };
    each_that_can(revisions, can, check);
}

fn each_that_can(
    revisions: impl IntoIterator<Item = &'static str>,
    can: impl Fn(&str) -> Value,
    check: impl Fn(&mut Client),
) {
    for revision in revisions {
        eprintln!("{revision} over stdio:");
        let wire = Wire::Stdio(Launch::everything().stdio());
        check(&mut Client::open(wire, revision, can(revision)));
        eprintln!("{revision} over HTTP:");
        let wire = Wire::Http(Launch::everything().served());
        check(&mut Client::open(wire, revision, can(revision)));
    }
}

fn with_forms() -> impl Iterator<Item = &'static str> {
    REVISIONS.into_iter().filter(|revision| *revision >= "2025-06-18")
}

fn everything() -> Served {
    Launch::everything().served()
}

/// What a client answers that says yes to all.
fn yes(request: &Value) -> Value {
    match request["method"].as_str().unwrap() {
        "elicitation/create" => {
            let fields = request["params"]["requestedSchema"]["properties"].as_object().unwrap();
            let fill = |(name, field): (&String, &Value)| (name.clone(), filled(field));
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
        other => panic!("{other} is nothing to ask a client: {request}"),
    }
}

fn filled(field: &Value) -> Value {
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

/// Calls `tool` and says yes to whatever it asks.
#[track_caller]
fn agree(client: &mut Client, tool: &str, arguments: Value) -> (Value, Vec<Value>) {
    converse(client, "tools/call", json!({ "name": tool, "arguments": arguments }), yes)
}

/// All that is said until `message` is answered, and with that.
#[track_caller]
fn said_until_answered(client: &mut Client, message: &Value) -> Vec<Value> {
    match &mut client.wire {
        Wire::Stdio(stdio) => {
            stdio.send(message);
            let mut said = Vec::new();
            loop {
                said.push(stdio.receive());
                if said.last().unwrap()["id"] == message["id"] {
                    return said;
                }
            }
        }
        Wire::Http(served) => {
            let session = client.session.iter();
            let post = session.fold(Post::mcp(message), |post, id| post.with("mcp-session-id", id));
            let response = served.send(&post);
            if response.is_stream() { response.events() } else { vec![response.json()] }
        }
    }
}

#[test]
fn l20_a_model_answers_in_every_revision() {
    each(REVISIONS, |client| {
        let (answer, asked) = agree(client, "test_sampling", json!({ "prompt": "Where?" }));
        assert_eq!(text(&answer), "LLM response: Paris", "{answer}");
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0]["params"]["maxTokens"], 100, "{asked:?}");
    });
}

#[test]
fn ro1_folders_are_asked_for_where_they_are_declared_and_only_there() {
    each(REVISIONS, |client| {
        let (answer, _) = agree(client, "test_input_required_result_list_roots", json!({}));
        assert!(text(&answer).contains("file:///home/it"), "{answer}");
    });
    each_that_can(
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
fn e4_forms_with_defaults_and_choices_are_as_each_revision_has_them() {
    // What is asked is held against the schema of the revision.
    each(with_forms(), |client| {
        for tool in ["test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"] {
            let (answer, asked) = agree(client, tool, json!({}));
            if client.revision == "2025-06-18" && tool == "test_elicitation_sep1330_enums" {
                // Its forms have no field for several choices; the tool is told that.
                assert_eq!(asked.len(), 0, "{asked:?}");
                refusal(&answer);
                continue;
            }
            assert_eq!(asked.len(), 1, "{tool}: {answer}");
            assert!(text(&answer).starts_with("Elicitation completed: action=accept"), "{answer}");
        }
    });
}

#[test]
fn e3_each_way_out_of_a_form_is_told_to_the_tool() {
    each(with_forms(), |client| {
        for action in ["decline", "cancel"] {
            let params = json!({ "name": "test_elicitation", "arguments": { "message": "Who?" } });
            let (answer, _) =
                converse(client, "tools/call", params, |_| json!({ "action": action }));
            assert!(text(&answer).contains(&format!("action={action}")), "{answer}");
        }
    });
}

#[test]
fn e3_what_is_filled_in_wrongly_is_asked_again_or_fails() {
    each(with_forms(), |client| {
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
fn mr2_several_questions_have_keys_of_their_own_and_are_answered_together() {
    each(with_forms(), |client| {
        let (answer, asked) =
            agree(client, "test_input_required_result_multiple_inputs", json!({}));
        assert_eq!(text(&answer), "Answered: client_roots, greeting, user_name", "{answer}");
        let methods: BTreeSet<_> =
            asked.iter().map(|one| one["method"].as_str().unwrap()).collect();
        let all = ["elicitation/create", "roots/list", "sampling/createMessage"];
        assert_eq!(methods, BTreeSet::from(all));
    });
}

#[test]
fn mr6_what_is_answered_in_part_is_asked_for_the_rest() {
    each([MODERN], |client| {
        let name = "test_input_required_result_multiple_inputs";
        let mut params = json!({ "name": name, "arguments": {} });
        let mut open: BTreeSet<String> =
            ["client_roots", "greeting", "user_name"].map(str::to_owned).into();
        while !open.is_empty() {
            let asked = client.ask("tools/call", params.clone());
            let requests =
                asked["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{asked}"));
            assert_eq!(requests.keys().cloned().collect::<BTreeSet<_>>(), open, "{asked}");
            let key = open.pop_first().unwrap();
            params["inputResponses"] = json!({ &key: yes(&requests[&key]) });
            params["requestState"] = asked["result"]["requestState"].clone();
        }
        assert!(text(&client.ask("tools/call", params)).starts_with("Answered: "));
    });
}

#[test]
fn mr2_rounds_follow_each_other_and_remember_what_was_said() {
    each(with_forms(), |client| {
        let (answer, asked) = agree(client, "test_input_required_result_multi_round", json!({}));
        assert_eq!(text(&answer), "Ada likes Ada", "{answer}");
        assert_eq!(asked.len(), 2, "{asked:?}");
    });
}

#[test]
fn mr3_only_the_kinds_that_are_declared_are_asked() {
    for (can, methods) in [
        (json!({ "elicitation": {} }), vec!["elicitation/create"]),
        (json!({ "sampling": {} }), vec!["sampling/createMessage"]),
        (json!({ "elicitation": { "url": {} }, "sampling": {} }), vec!["sampling/createMessage"]),
        (json!({ "roots": {} }), vec![]),
    ] {
        let revisions = [MODERN, "2025-11-25"];
        each_that_can(
            revisions,
            |_| can.clone(),
            |client| {
                let (answer, asked) =
                    agree(client, "test_input_required_result_capabilities", json!({}));
                let said: Vec<_> =
                    asked.iter().map(|one| one["method"].as_str().unwrap()).collect();
                assert_eq!(said, methods, "{can}: {answer}");
            },
        );
    }
}

#[test]
fn b12_what_a_client_lacks_is_named_as_it_would_declare_it() {
    each_that_can(
        [MODERN],
        |_| json!({}),
        |client| {
            for (tool, lacks) in [
                ("test_missing_capability", json!({ "sampling": {} })),
                ("test_input_required_result_list_roots", json!({ "roots": {} })),
            ] {
                let answer = client.call(tool, json!({}));
                assert_eq!(code(&answer), -32021, "{answer}");
                assert_eq!(answer["error"]["data"]["requiredCapabilities"], lacks, "{answer}");
            }
            let answer = client.call("test_elicitation", json!({ "message": "Who?" }));
            assert!(answer["error"]["data"]["requiredCapabilities"]["elicitation"].is_object());
            if let Wire::Http(served) = &client.wire {
                let post = Post::mcp(&call(1, "test_missing_capability", json!({})));
                assert_eq!(served.send(&post).status, 400);
            }
        },
    );
}

#[test]
fn mr1_prompts_ask_as_tools_do() {
    each(with_forms(), |client| {
        let params = json!({ "name": "test_input_required_result_prompt" });
        let (answer, asked) = converse(client, "prompts/get", params, yes);
        assert!(answer["result"]["messages"].is_array(), "{answer}");
        assert_eq!(asked.len(), 1, "{asked:?}");
    });
}

#[test]
fn lg1_nothing_is_logged_to_who_did_not_ask_for_it_or_asked_for_what_is_graver() {
    each([MODERN], |client| {
        for (level, heard) in [(None, 0), (Some("error"), 0), (Some("info"), 1), (Some("debug"), 1)]
        {
            let mut params = json!({ "name": "test_logging_tool", "arguments": {} });
            if let Some(level) = level {
                params["_meta"] = json!({ of_mcp("logLevel"): level });
            }
            let message = client.request("tools/call", params);
            let said = said_until_answered(client, &message);
            let logged = said.iter().filter(|one| one["method"] == "notifications/message");
            assert_eq!(logged.count(), heard, "{level:?}: {said:?}");
        }
    });
}

#[test]
fn l16_a_session_hears_what_is_as_grave_as_it_said() {
    each(super::sessions(), |client| {
        for (level, heard) in [("debug", 3), ("error", 0), ("info", 3), ("emergency", 0)] {
            assert_eq!(
                client.ask("logging/setLevel", json!({ "level": level }))["result"],
                json!({})
            );
            let params = json!({ "name": "test_tool_with_logging", "arguments": {} });
            let message = client.request("tools/call", params);
            let said = said_until_answered(client, &message);
            let logged = said.iter().filter(|one| one["method"] == "notifications/message");
            assert_eq!(logged.count(), heard, "{level}: {said:?}");
        }
    });
}

#[test]
fn p1_progress_grows_names_its_token_and_ends_before_the_answer() {
    each(REVISIONS, |client| {
        for token in [json!("a"), json!(7), json!(0)] {
            let mut params = json!({ "name": "test_tool_with_progress", "arguments": {} });
            params["_meta"] = json!({ "progressToken": token });
            let message = client.request("tools/call", params);
            let said = said_until_answered(client, &message);
            let told: Vec<_> =
                said.iter().filter(|one| one["method"] == "notifications/progress").collect();
            assert!(told.iter().all(|one| one["params"]["progressToken"] == token), "{told:?}");
            let far = |one: &Value| one["params"]["progress"].as_f64().unwrap();
            assert!(told.windows(2).all(|pair| far(pair[0]) < far(pair[1])), "{told:?}");
            assert!(!told.is_empty(), "{said:?}");
            assert_eq!(said.last().unwrap()["id"], message["id"]);
        }
        let message = client.request("tools/call", json!({ "name": "test_tool_with_progress" }));
        assert_eq!(said_until_answered(client, &message).len(), 1);
    });
}

#[test]
fn tl8_whoever_embeds_resources_declares_that_there_are_some() {
    each(REVISIONS, |client| {
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
fn l26_sound_is_words_where_a_revision_has_no_sound() {
    each(REVISIONS, |client| {
        let answer = client.call("test_audio_content", json!({}));
        let kind = &answer["result"]["content"][0]["type"];
        assert_eq!(*kind == "audio", client.revision != "2024-11-05", "{answer}");
    });
}

#[test]
fn tl3_sessions_are_told_of_other_tools_and_other_prompts() {
    for revision in super::sessions() {
        let mut client = Client::stdio(Launch::everything(), revision);
        client.ask("tools/list", json!({}));
        client.ask("prompts/list", json!({}));
        for (tool, method) in [
            ("test_trigger_tool_change", "notifications/tools/list_changed"),
            ("test_trigger_prompt_change", "notifications/prompts/list_changed"),
        ] {
            client.call(tool, json!({}));
            let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
            assert_eq!(stdio.receive()["method"], method, "{revision}");
        }
    }
}

/// A call with an argument that is in a header too.
fn mirrored(value: Value) -> Post {
    Post::mcp(&call(1, "test_custom_header", json!({ "value": value })))
}

#[track_caller]
fn is_mismatch(served: &Served, post: &Post) {
    let response = served.send(post);
    assert_eq!((response.status, code(&response.json())), (400, -32020), "{response:?}");
}

#[test]
fn h17_an_argument_that_is_in_a_header_too_is_the_same_in_both() {
    let served = everything();
    for (value, header) in [
        ("plain", "plain"),
        ("plain", "=?base64?cGxhaW4=?="),
        ("Größe", "=?base64?R3LDtsOfZQ==?="),
        (" blank ", "=?base64?IGJsYW5rIA==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
    ] {
        let response = served.send(&mirrored(json!(value)).with("mcp-param-value", header));
        assert_eq!(text(&response.json()), value, "{header}");
        let response = served.send(&mirrored(json!(value)).with("MCP-PARAM-VALUE", header));
        assert_eq!(response.status, 200, "{header}");
    }
    let plain = mirrored(json!("plain"));
    is_mismatch(&served, &plain);
    for header in ["", "other", "PLAIN", "=?base64?!!!?=", "=?base64?b3RoZXI=?=", "plain, plain"] {
        is_mismatch(&served, &plain.clone().with("mcp-param-value", header));
    }
    let right = plain.with("mcp-param-value", "plain");
    is_mismatch(&served, &right.and("mcp-param-value", "plain"));
    is_mismatch(&served, &mirrored(json!("Größe")).with("mcp-param-value", "Größe"));
}

#[test]
fn h17_an_argument_that_is_not_given_has_no_header_to_be_given() {
    let served = everything();
    for arguments in [json!({}), json!({ "value": null })] {
        let post = Post::mcp(&call(1, "test_custom_header", arguments.clone()));
        // The tool wants it, and says so: its header is not what is missing.
        let answer = served.send(&post).json();
        assert_ne!(answer["error"]["code"], -32020, "{arguments}: {answer}");
        is_mismatch(&served, &post.with("mcp-param-value", "plain"));
    }
}

#[test]
fn h17_headers_of_nobodys_arguments_are_passed_over() {
    let served = everything();
    let post = mirrored(json!("plain")).with("mcp-param-value", "plain");
    assert_eq!(served.send(&post.with("mcp-param-other", "x")).status, 200);
    let post = mirrored(json!("plain")).with("mcp-param-value", "plain");
    assert_eq!(served.send(&post.with("mcp-param-other", "=?base64?***?=")).status, 200);
    is_mismatch(&served, &mirrored(json!("plain")).with("mcp-param-value", "=?base64?***?="));
    let post = Post::mcp(&call(1, "test_simple_text", json!({})));
    assert_eq!(served.send(&post.with("mcp-param-value", "x")).status, 200);
}

#[test]
fn h17_sessions_and_stdio_have_no_such_headers() {
    each(REVISIONS, |client| {
        if matches!(client.wire, Wire::Http(_)) && client.revision == MODERN {
            return;
        }
        let answer = client.call("test_custom_header", json!({ "value": "plain" }));
        assert_eq!(text(&answer), "plain");
    });
}

#[test]
fn h19_what_is_listed_as_mirrored_is_as_it_must_be() {
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
fn tk3_a_tool_that_must_be_a_task_is_none_for_who_takes_no_tasks() {
    each_that_can(
        [MODERN],
        |_| json!({}),
        |client| {
            let answer = client.call("failing_job", json!({}));
            assert_eq!(code(&answer), -32021, "{answer}");
            let lacks = &answer["error"]["data"]["requiredCapabilities"]["extensions"];
            assert!(lacks[of_mcp("tasks")].is_object(), "{answer}");
        },
    );
    each_that_can(
        ["2025-11-25"],
        |_| json!({}),
        |client| {
            assert_eq!(code(&client.call("failing_job", json!({}))), -32601);
        },
    );
}

#[test]
fn tk8_a_task_that_asks_goes_on_once_it_is_answered() {
    let can = json!({ "elicitation": {}, "extensions": { of_mcp("tasks"): {} } });
    each_that_can(
        [MODERN],
        |_| can.clone(),
        |client| {
            let begun = client.call("confirm_delete", json!({ "filename": "a" }));
            assert_eq!(begun["result"]["resultType"], "task", "{begun}");
            let id = begun["result"]["taskId"].clone();
            let about = json!({ "taskId": id });
            let look = |client: &mut Client, wanted: &str| {
                crate::support::wait_for(wanted, || {
                    let seen = client.ask("tasks/get", about.clone());
                    (seen["result"]["status"] == wanted).then_some(seen)
                })
            };
            let seen = look(client, "input_required");
            let (key, asked) =
                seen["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
            // What is not asked is passed over, and the task goes on asking.
            let other = json!({ "taskId": id, "inputResponses": { "other": yes(asked) } });
            assert!(client.ask("tasks/update", other)["result"].is_object());
            look(client, "input_required");
            let told = json!({ "taskId": id, "inputResponses": { key: yes(asked) } });
            assert!(client.ask("tasks/update", told.clone())["result"].is_object());
            let done = look(client, "completed");
            assert!(done["result"]["result"].to_string().contains("Deleted a"), "{done}");
            assert!(client.ask("tasks/update", told)["result"].is_object());
        },
    );
    // Whoever can be asked nothing is told so before there is a task that waits for ever.
    let tasks = json!({ "extensions": { of_mcp("tasks"): {} } });
    each_that_can(
        [MODERN],
        |_| tasks.clone(),
        |client| {
            let mut answer = client.call("confirm_delete", json!({ "filename": "a" }));
            if answer["result"]["resultType"] == "task" {
                let about = json!({ "taskId": answer["result"]["taskId"] });
                answer = crate::support::wait_for("it ends", || {
                    let seen = client.ask("tasks/get", about.clone());
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
fn b8_who_declared_asking_once_is_not_asked_by_a_request_that_does_not() {
    each_that_can(
        [MODERN],
        |_| json!({}),
        |client| {
            let mut can = json!({ "name": "test_missing_capability", "arguments": {} });
            can["_meta"] = able(json!({ "sampling": {} }));
            assert_eq!(client.ask("tools/call", can)["result"]["resultType"], "input_required");
            assert_eq!(code(&client.call("test_missing_capability", json!({}))), -32021);
        },
    );
}

#[test]
fn l22_what_a_task_asks_is_asked_of_whoever_waits_for_its_result() {
    each(["2025-11-25"], |client| {
        let params = json!({
            "name": "confirm_delete",
            "arguments": { "filename": "a" },
            "task": {},
        });
        let begun = client.ask("tools/call", params);
        let id = begun["result"]["task"]["taskId"].clone();
        let about = json!({ "taskId": id });
        crate::support::wait_for("it asks", || {
            let seen = client.ask("tasks/get", about.clone());
            (seen["result"]["status"] == "input_required").then_some(())
        });
        let (done, asked) = converse(client, "tasks/result", about.clone(), yes);
        assert_eq!(asked.len(), 1, "{asked:?}");
        let related = &asked[0]["params"]["_meta"][of_mcp("related-task")];
        assert_eq!(related["taskId"], id, "{asked:?}");
        assert!(text(&done).contains("Deleted a"), "{done}");
        assert_eq!(client.ask("tasks/get", about)["result"]["status"], "completed");
    });
}
