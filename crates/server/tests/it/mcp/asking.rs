//! Tests of questions from the server to the user, in old and new revisions (rows MR, E and L20 of
//! the MCP checklist).
//!
//! The tool `files_write` needs a confirmation here.

use serde_json::{Value, json};

use super::{code, mcp_key, meta_with_capabilities, sessions};
use crate::support::{
    MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient,
    converse, job_params, over_both_tuned, refusal, structured,
};

/// Runs `check` in each revision over both transports. The client has `capabilities`, and the
/// server asks for confirmations.
fn check_with_confirmation(
    revisions: impl IntoIterator<Item = &'static str>,
    capabilities: &Value,
    check: impl Fn(&mut TestMcpClient, &TempWorkspace),
) {
    for revision in revisions {
        for over_http in [false, true] {
            eprintln!("{revision} over {}:", if over_http { "HTTP" } else { "stdio" });
            let workspace = TempWorkspace::new();
            let launch = ServerLaunchOptions::over(&workspace).set("tools_confirm", "files.write");
            let wire = if over_http {
                TestClientTransport::Http(launch.served())
            } else {
                TestClientTransport::Stdio(launch.stdio())
            };
            check(&mut TestMcpClient::open(wire, revision, capabilities.clone()), &workspace);
        }
    }
}

/// Returns the MCP revisions in which a server can ask questions with forms.
fn with_forms() -> impl Iterator<Item = &'static str> {
    REVISIONS.into_iter().filter(|revision| *revision >= "2025-06-18")
}

fn write() -> Value {
    json!({ "name": "files_write", "arguments": { "path": "new.txt", "content": "new" } })
}

#[test]
fn l20_a_call_runs_after_a_person_accepts() {
    check_with_confirmation(with_forms(), &json!({ "elicitation": {} }), |client, workspace| {
        let accept = |_: &Value| json!({ "action": "accept", "content": {} });
        let (answer, requests) = converse(client, "tools/call", write(), accept);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert_eq!(workspace.read("new.txt"), "new");
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0]["method"], "elicitation/create", "{requests:?}");
        let params = &requests[0]["params"];
        assert!(params["message"].as_str().unwrap().contains("new.txt"), "{params}");
        assert_eq!(params["requestedSchema"]["type"], "object", "{params}");
    });
}

#[test]
fn e3_nothing_is_done_if_a_person_declines_or_cancels() {
    for action in ["decline", "cancel"] {
        check_with_confirmation(
            with_forms(),
            &json!({ "elicitation": {} }),
            |client, workspace| {
                let no = |_: &Value| json!({ "action": action });
                let (answer, _) = converse(client, "tools/call", write(), no);
                refusal(&answer);
                assert!(!workspace.path("new.txt").exists(), "{action}: {answer}");
                assert_eq!(client.call("files_list", json!({}))["result"]["isError"], false);
            },
        );
    }
}

#[test]
fn e3_an_error_from_the_client_is_not_consent() {
    let forms = with_forms().filter(|revision| *revision != MODERN);
    check_with_confirmation(forms, &json!({ "elicitation": {} }), |client, workspace| {
        let message = client.request("tools/call", write());
        let error = |id: &Value| {
            let why = json!({ "code": -32603, "message": "no screen" });
            json!({ "jsonrpc": "2.0", "id": id, "error": why })
        };
        let answer = match &mut client.wire {
            TestClientTransport::Stdio(stdio) => {
                stdio.send(&message);
                let question = stdio.receive();
                stdio.send(&error(&question["id"]));
                stdio.answer(message["id"].clone())
            }
            TestClientTransport::Http(_) => {
                let post = client.post(&message);
                let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
                let mut connection = served.connect();
                connection.post(&post);
                assert!(connection.head().is_stream());
                let question = connection.event().unwrap();
                assert_eq!(client.response(&error(&question["id"])).status, 202);
                connection.event().unwrap()
            }
        };
        assert_eq!(refusal(&answer), "the client did not answer: no screen (-32603)");
        assert!(!workspace.path("new.txt").exists(), "{answer}");
    });
}

#[test]
fn mr3_a_client_is_not_asked_without_the_declared_capability() {
    for none in
        [json!({}), json!({ "sampling": {}, "roots": {} }), json!({ "elicitation": { "url": {} } })]
    {
        // Before elicitation had modes, it meant forms.
        let revisions =
            REVISIONS.into_iter().filter(|it| *it >= "2025-11-25" || none["elicitation"].is_null());
        check_with_confirmation(revisions, &none, |client, workspace| {
            let answer = client.ask("tools/call", write());
            refusal(&answer);
            assert!(!workspace.path("new.txt").exists(), "{none}: {answer}");
            if client.revision == MODERN {
                assert_eq!(code(&answer), -32021, "{answer}");
                let required = &answer["error"]["data"]["requiredCapabilities"];
                assert_eq!(*required, json!({ "elicitation": { "form": {} } }), "{answer}");
            }
            assert!(answer.to_string().contains("must be confirmed by a person"), "{answer}");
        });
    }
}

#[test]
fn e2_a_client_that_declares_no_mode_or_form_mode_gets_forms() {
    for forms in [json!({}), json!({ "form": {} }), json!({ "form": {}, "url": {} })] {
        let revisions = REVISIONS.into_iter().filter(|revision| *revision >= "2025-11-25");
        check_with_confirmation(
            revisions,
            &json!({ "elicitation": forms }),
            |client, workspace| {
                let accept = |request: &Value| {
                    assert_ne!(request["params"]["mode"], "url", "{request}");
                    json!({ "action": "accept", "content": {} })
                };
                let (answer, requests) = converse(client, "tools/call", write(), accept);
                assert_eq!(requests.len(), 1, "{answer}");
                assert_eq!(workspace.read("new.txt"), "new");
            },
        );
    }
}

#[test]
fn l20_nobody_is_asked_in_revisions_without_forms() {
    let older = sessions().filter(|revision| *revision < "2025-06-18");
    check_with_confirmation(
        older,
        &json!({ "elicitation": {}, "sampling": {}, "roots": {} }),
        |client, workspace| {
            refusal(&client.ask("tools/call", write()));
            assert!(!workspace.path("new.txt").exists());
        },
    );
}

pub(crate) fn with_confirmations(launch: ServerLaunchOptions) -> ServerLaunchOptions {
    launch.set("tools_confirm", "files.write")
}

fn can_fill_in() -> Value {
    meta_with_capabilities(json!({ "elicitation": {} }))
}

/// Calls `files_write` on `path`. Checks that the server asks for input, and returns that result.
#[track_caller]
pub(crate) fn questions(client: &mut TestMcpClient, path: &str) -> Value {
    let mut params =
        json!({ "name": "files_write", "arguments": { "path": path, "content": "x" } });
    params["_meta"] = can_fill_in();
    let reply = client.ask("tools/call", params);
    assert_eq!(reply["result"]["resultType"], "input_required", "{reply}");
    let server = &reply["result"]["_meta"][mcp_key("serverInfo")];
    assert_eq!(server["name"], "toolgate", "B13: {reply}");
    reply["result"].clone()
}

/// Calls `files_write` on `path` again with the request state `state`, and accepts all questions in
/// `reply`.
#[track_caller]
pub(crate) fn agree_again(
    client: &mut TestMcpClient,
    path: &str,
    reply: &Value,
    state: &Value,
) -> Value {
    let keys = reply["inputRequests"].as_object().unwrap().keys();
    let yes = json!({ "action": "accept", "content": {} });
    let responses: Value =
        keys.map(|key| (key.clone(), yes.clone())).collect::<serde_json::Map<_, _>>().into();
    let mut params =
        json!({ "name": "files_write", "arguments": { "path": path, "content": "x" } });
    params["_meta"] = can_fill_in();
    params["inputResponses"] = responses;
    params["requestState"] = state.clone();
    client.ask("tools/call", params)
}

#[test]
fn mr4_a_changed_or_forged_state_is_refused() {
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, with_confirmations, |client| {
        let reply = questions(client, "a");
        let state = reply["requestState"].as_str().unwrap().to_owned();
        let mut changed = state.clone().into_bytes();
        let middle = changed.len() / 2;
        changed[middle] = if changed[middle] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        for bad in [
            changed,
            state[..state.len() - 4].to_owned(),
            format!("{state}AAAA"),
            "e30".to_owned(),
            String::new(),
            "{}".to_owned(),
        ] {
            let answer = agree_again(client, "a", &reply, &json!(bad));
            assert_eq!(code(&answer), -32602, "{bad}: {answer}");
            assert!(!workspace.path("a").exists());
        }
        for bad in [json!(5), json!({}), json!(null)] {
            assert_eq!(code(&agree_again(client, "a", &reply, &bad)), -32602, "{bad}");
        }
    });
}

#[test]
fn mr5_a_consent_is_valid_once() {
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, with_confirmations, |client| {
        let reply = questions(client, "once");
        let state = reply["requestState"].clone();
        let done = agree_again(client, "once", &reply, &state);
        assert_eq!(done["result"]["isError"], false, "{done}");
        workspace.put("once", "meanwhile");
        let again = agree_again(client, "once", &reply, &state);
        assert_eq!(code(&again), -32602, "{again}");
        assert_eq!(workspace.read("once"), "meanwhile");
        // A new call is asked again, also when two calls are the same.
        let both = [questions(client, "twice"), questions(client, "twice")];
        for reply in &both {
            let done = agree_again(client, "twice", reply, &reply["requestState"]);
            assert!(done["error"].is_null(), "{done}");
        }
        for file in ["once", "twice"] {
            std::fs::remove_file(workspace.path(file)).unwrap();
        }
    });
}

#[test]
fn mr5_a_state_is_valid_only_for_its_own_request() {
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, with_confirmations, |client| {
        let _ = std::fs::remove_file(workspace.path("a"));
        let reply = questions(client, "a");
        let state = &reply["requestState"];
        let answer = agree_again(client, "b", &reply, state);
        assert_eq!(code(&answer), -32602, "{answer}");
        assert!(!workspace.path("b").exists());
        let done = agree_again(client, "a", &reply, state);
        assert_eq!(done["result"]["isError"], false, "{done}");
        assert_eq!(workspace.read("a"), "x");
    });
}

#[test]
fn mr5_a_state_of_another_server_is_refused() {
    let workspace = TempWorkspace::new();
    let mut one =
        TestMcpClient::stdio(with_confirmations(ServerLaunchOptions::over(&workspace)), MODERN);
    let mut other =
        TestMcpClient::stdio(with_confirmations(ServerLaunchOptions::over(&workspace)), MODERN);
    let reply = questions(&mut one, "a");
    let answer = agree_again(&mut other, "a", &reply, &reply["requestState"]);
    assert_eq!(code(&answer), -32602, "{answer}");
    assert!(!workspace.path("a").exists());
}

#[test]
fn mr4_an_answer_without_its_state_is_not_consent() {
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, with_confirmations, |client| {
        let reply = questions(client, "a");
        let mut params =
            json!({ "name": "files_write", "arguments": { "path": "a", "content": "x" } });
        params["_meta"] = can_fill_in();
        let key = reply["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let yeses = [
            json!({ "action": "accept" }),
            json!({ "action": "accept", "content": {} }),
            json!({ "action": "accept", "content": { "agreed": true } }),
        ];
        for yes in yeses {
            // Without the state the server cannot know that it asked.
            params["inputResponses"] = json!({ &key: yes });
            let answer = client.ask("tools/call", params.clone());
            assert_eq!(answer["result"]["resultType"], "input_required", "{yes}: {answer}");
            assert!(!workspace.path("a").exists(), "{yes}");
        }
    });
}

#[test]
fn mr3_no_other_route_to_a_call_bypasses_its_confirmation() {
    let workspace = TempWorkspace::new();
    let write = json!({ "path": "a", "content": "x" });
    over_both_tuned(&workspace, with_confirmations, |client| {
        let job = json!({ "tool": "files_write", "arguments": write });
        let tasks = json!({ "extensions": { mcp_key("tasks"): {} } });
        let as_task = json!({
            "name": "files_write",
            "arguments": write,
            "_meta": meta_with_capabilities(tasks),
        });
        for (method, params) in [
            ("tools/call", json!({ "name": "jobs_start", "arguments": job })),
            ("tools/call", as_task),
        ] {
            let answer = client.ask(method, params);
            let id = &answer["result"]["structuredContent"]["job_id"];
            if id.is_string() {
                let ended = client.call("jobs_get", json!({ "job_id": id, "wait_ms": 10_000 }));
                assert_eq!(structured(&ended)["state"], "failed", "{ended}");
            } else {
                refusal(&answer);
            }
            assert!(!workspace.path("a").exists(), "{answer}");
        }
    });
    let served = with_confirmations(ServerLaunchOptions::over(&workspace)).served();
    for params in [
        json!({ "name": "files_write", "arguments": write }),
        job_params("files_write", write.clone()),
    ] {
        let answer = served.rpc("tools/call", params).json();
        if let Some(id) = answer["result"]["job_id"].as_str() {
            served.job_in("failed", id);
        }
        assert!(!workspace.path("a").exists(), "{answer}");
    }
    let mut client = TestMcpClient::stdio(
        with_confirmations(ServerLaunchOptions::over(&workspace)),
        "2025-11-25",
    );
    let task = json!({ "name": "files_write", "arguments": write, "task": { "ttl": 60_000 } });
    let started = client.ask("tools/call", task);
    if let Some(id) = started["result"]["task"]["taskId"].as_str() {
        let ended = client.ask("tasks/result", json!({ "taskId": id }));
        refusal(&ended);
    }
    assert!(!workspace.path("a").exists(), "{started}");
}

#[test]
fn mr6_missing_answers_are_asked_again_and_extra_ones_ignored() {
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, with_confirmations, |client| {
        let _ = std::fs::remove_file(workspace.path("a"));
        let reply = questions(client, "a");
        let base = json!({
            "name": "files_write",
            "arguments": { "path": "a", "content": "x" },
            "_meta": can_fill_in(),
            "requestState": reply["requestState"],
        });
        let mut state = reply["requestState"].clone();
        for useless in [json!({}), json!({ "other": { "action": "accept", "content": {} } })] {
            let mut params = base.clone();
            params["inputResponses"] = useless.clone();
            params["requestState"] = state.clone();
            let again = client.ask("tools/call", params);
            assert_eq!(again["result"]["resultType"], "input_required", "{useless}: {again}");
            assert_eq!(again["result"]["inputRequests"], reply["inputRequests"]);
            state = again["result"]["requestState"].clone();
        }
        let mut params = base;
        let key = reply["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let yes = json!({ "action": "accept", "content": {} });
        params["inputResponses"] = json!({ key: yes, "other": yes });
        params["requestState"] = state;
        assert_eq!(client.ask("tools/call", params)["result"]["isError"], false);
    });
}

#[test]
fn mr6_answers_that_are_not_objects_are_a_protocol_error() {
    over_both_tuned(&TempWorkspace::new(), with_confirmations, |client| {
        let reply = questions(client, "a");
        let key = reply["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        for bad in [json!([]), json!("yes"), json!(5), json!({ &key: "yes" }), json!({ &key: [] })]
        {
            let mut params =
                json!({ "name": "files_write", "arguments": { "path": "a", "content": "x" } });
            params["_meta"] = can_fill_in();
            params["inputResponses"] = bad.clone();
            params["requestState"] = reply["requestState"].clone();
            let answer = client.ask("tools/call", params);
            assert_eq!(code(&answer), -32602, "{bad}: {answer}");
        }
    });
}

#[test]
fn mr7_unanswered_questions_do_not_block_other_calls() {
    let workspace = TempWorkspace::new();
    let tune = |launch: ServerLaunchOptions| with_confirmations(launch).set("limits_calls", 1);
    over_both_tuned(&workspace, tune, |client| {
        for n in 0..10 {
            questions(client, &format!("{n}"));
        }
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(structured(&read)["content"], TempWorkspace::README);
    });
}

#[test]
fn mr1_no_other_request_returns_input_required() {
    over_both_tuned(&TempWorkspace::new(), with_confirmations, |client| {
        let everything =
            json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} });
        for method in ["server/discover", "tools/list", "resources/list", "prompts/list"] {
            let answer =
                client.ask(method, json!({ "_meta": meta_with_capabilities(everything.clone()) }));
            assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        }
    });
}

#[test]
fn e4_a_form_is_flat_with_primitive_fields() {
    check_with_confirmation(with_forms(), &json!({ "elicitation": {} }), |client, _| {
        let decline = |_: &Value| json!({ "action": "decline" });
        let (_, requests) = converse(client, "tools/call", write(), decline);
        for question in requests {
            let schema = &question["params"]["requestedSchema"];
            for (name, field) in schema["properties"].as_object().unwrap() {
                let kind = field["type"].as_str().unwrap();
                assert!(
                    ["string", "number", "integer", "boolean", "array"].contains(&kind),
                    "{name}"
                );
                assert!(field.get("properties").is_none(), "{name}: {field}");
            }
            assert!(schema.get("$defs").is_none() && schema.get("allOf").is_none(), "{schema}");
        }
    });
}

#[test]
fn l20_an_unexpected_response_is_ignored() {
    let older = with_forms().filter(|revision| *revision != MODERN);
    check_with_confirmation(older, &json!({ "elicitation": {} }), |client, workspace| {
        let accept = json!({ "action": "accept", "content": {} });
        for id in [json!(1), json!("1"), json!("toolgate.confirm"), json!("none")] {
            let answer = json!({ "jsonrpc": "2.0", "id": id, "result": accept });
            match &mut client.wire {
                TestClientTransport::Stdio(stdio) => stdio.send(&answer),
                TestClientTransport::Http(_) => assert_eq!(client.response(&answer).status, 202),
            }
        }
        let (answer, requests) =
            converse(client, "tools/call", write(), |_| json!({ "action": "decline" }));
        assert_eq!(requests.len(), 1, "{answer}");
        assert!(!workspace.path("new.txt").exists());
    });
}

#[test]
fn l20_another_session_cannot_answer_a_question() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("tools_confirm", "files.write");
    let capabilities = json!({ "elicitation": {} });
    let mut client =
        TestMcpClient::open(TestClientTransport::Http(launch.served()), "2025-11-25", capabilities);
    let message = client.request("tools/call", write());
    let post = client.post(&message);
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(&post);
    assert!(connection.head().is_stream());
    let question = connection.event().unwrap();
    let accept = |action: &str| {
        let result = json!({ "action": action, "content": {} });
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
    };
    let other = served.session("2025-11-25");
    let forged =
        crate::support::TestHttpRequest::mcp(&accept("accept")).with("mcp-session-id", &other);
    assert_eq!(served.send(&forged).status, 202);
    let own = client.response(
        &json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } }),
    );
    assert_eq!(own.status, 202);
    refusal(&connection.event().unwrap());
    assert!(!workspace.path("new.txt").exists());
}
