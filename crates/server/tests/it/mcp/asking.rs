//! MR, E, L20: what the server asks of whoever called, in each era's way.
//!
//! The tool `files_write` is one that a person must agree to here.

use serde_json::{Value, json};

use super::{able, code, of_mcp, sessions};
use crate::support::{
    Client, Launch, MODERN, REVISIONS, Wire, Workspace, accepted, converse, over_both_tuned,
    refusal, structured,
};

/// A client in `revision` that can do this, over each transport, of a server that asks.
fn asked(
    revisions: impl IntoIterator<Item = &'static str>,
    capabilities: &Value,
    check: impl Fn(&mut Client, &Workspace),
) {
    for revision in revisions {
        for over_http in [false, true] {
            eprintln!("{revision} over {}:", if over_http { "HTTP" } else { "stdio" });
            let workspace = Workspace::new();
            let launch = Launch::over(&workspace).set("tools_confirm", "files.write");
            let wire =
                if over_http { Wire::Http(launch.served()) } else { Wire::Stdio(launch.stdio()) };
            check(&mut Client::open(wire, revision, capabilities.clone()), &workspace);
        }
    }
}

/// The revisions that have forms.
fn with_forms() -> impl Iterator<Item = &'static str> {
    REVISIONS.into_iter().filter(|revision| *revision >= "2025-06-18")
}

fn write() -> Value {
    json!({ "name": "files_write", "arguments": { "path": "new.txt", "content": "new" } })
}

#[test]
fn l20_a_person_agrees_and_it_is_done() {
    asked(with_forms(), &json!({ "elicitation": {} }), |client, workspace| {
        let accept = |_: &Value| json!({ "action": "accept", "content": {} });
        let (answer, asked) = converse(client, "tools/call", write(), accept);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert_eq!(workspace.read("new.txt"), "new");
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0]["method"], "elicitation/create", "{asked:?}");
        let params = &asked[0]["params"];
        assert!(params["message"].as_str().unwrap().contains("new.txt"), "{params}");
        assert_eq!(params["requestedSchema"]["type"], "object", "{params}");
    });
}

#[test]
fn e3_a_person_declines_or_goes_away_and_nothing_is_done() {
    for action in ["decline", "cancel"] {
        asked(with_forms(), &json!({ "elicitation": {} }), |client, workspace| {
            let no = |_: &Value| json!({ "action": action });
            let (answer, _) = converse(client, "tools/call", write(), no);
            refusal(&answer);
            assert!(!workspace.path("new.txt").exists(), "{action}: {answer}");
            assert_eq!(client.call("files_list", json!({}))["result"]["isError"], false);
        });
    }
}

#[test]
fn e3_a_client_that_fails_to_ask_is_no_agreement() {
    let forms = with_forms().filter(|revision| *revision != MODERN);
    asked(forms, &json!({ "elicitation": {} }), |client, workspace| {
        let message = client.request("tools/call", write());
        let error = |id: &Value| {
            let why = json!({ "code": -32603, "message": "no screen" });
            json!({ "jsonrpc": "2.0", "id": id, "error": why })
        };
        let answer = match &mut client.wire {
            Wire::Stdio(stdio) => {
                stdio.send(&message);
                let question = stdio.receive();
                stdio.send(&error(&question["id"]));
                stdio.answer(message["id"].clone())
            }
            Wire::Http(_) => {
                let post = client.post(&message);
                let Wire::Http(served) = &client.wire else { unreachable!() };
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
fn mr3_a_client_is_asked_nothing_that_it_did_not_declare() {
    for none in
        [json!({}), json!({ "sampling": {}, "roots": {} }), json!({ "elicitation": { "url": {} } })]
    {
        // Before there were modes, all there was were forms.
        let revisions =
            REVISIONS.into_iter().filter(|it| *it >= "2025-11-25" || none["elicitation"].is_null());
        asked(revisions, &none, |client, workspace| {
            let answer = client.ask("tools/call", write());
            refusal(&answer);
            assert!(!workspace.path("new.txt").exists(), "{none}: {answer}");
            if client.revision == MODERN {
                assert_eq!(code(&answer), -32021, "{answer}");
                let required = &answer["error"]["data"]["requiredCapabilities"];
                assert_eq!(*required, json!({ "elicitation": { "form": {} } }), "{answer}");
            }
            assert!(answer.to_string().contains("to be confirmed by a person"), "{answer}");
        });
    }
}

#[test]
fn e2_a_client_that_names_no_mode_or_forms_has_forms() {
    for forms in [json!({}), json!({ "form": {} }), json!({ "form": {}, "url": {} })] {
        let revisions = REVISIONS.into_iter().filter(|revision| *revision >= "2025-11-25");
        asked(revisions, &json!({ "elicitation": forms }), |client, workspace| {
            let accept = |asked: &Value| {
                assert_ne!(asked["params"]["mode"], "url", "{asked}");
                json!({ "action": "accept", "content": {} })
            };
            let (answer, asked) = converse(client, "tools/call", write(), accept);
            assert_eq!(asked.len(), 1, "{answer}");
            assert_eq!(workspace.read("new.txt"), "new");
        });
    }
}

#[test]
fn l20_before_there_were_forms_nobody_is_asked() {
    let older = sessions().filter(|revision| *revision < "2025-06-18");
    asked(
        older,
        &json!({ "elicitation": {}, "sampling": {}, "roots": {} }),
        |client, workspace| {
            refusal(&client.ask("tools/call", write()));
            assert!(!workspace.path("new.txt").exists());
        },
    );
}

fn confirming(launch: Launch) -> Launch {
    launch.set("tools_confirm", "files.write")
}

fn can_fill_in() -> Value {
    able(json!({ "elicitation": {} }))
}

/// The questions that writing `path` ends with.
#[track_caller]
fn questions(client: &mut Client, path: &str) -> Value {
    let mut params =
        json!({ "name": "files_write", "arguments": { "path": path, "content": "x" } });
    params["_meta"] = can_fill_in();
    let asked = client.ask("tools/call", params);
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let server = &asked["result"]["_meta"][of_mcp("serverInfo")];
    assert_eq!(server["name"], "toolgate", "B13: {asked}");
    asked["result"].clone()
}

/// Writes `path`, as someone who says yes to `asked`.
#[track_caller]
fn agreed(client: &mut Client, path: &str, asked: &Value, state: &Value) -> Value {
    let keys = asked["inputRequests"].as_object().unwrap().keys();
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
fn mr4_a_state_that_was_changed_or_made_up_is_refused() {
    let workspace = Workspace::new();
    over_both_tuned(&workspace, confirming, |client| {
        let asked = questions(client, "a");
        let state = asked["requestState"].as_str().unwrap().to_owned();
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
            let answer = agreed(client, "a", &asked, &json!(bad));
            assert_eq!(code(&answer), -32602, "{bad}: {answer}");
            assert!(!workspace.path("a").exists());
        }
        for bad in [json!(5), json!({}), json!(null)] {
            assert_eq!(code(&agreed(client, "a", &asked, &bad)), -32602, "{bad}");
        }
    });
}

#[test]
fn mr5_a_yes_is_good_once() {
    let workspace = Workspace::new();
    over_both_tuned(&workspace, confirming, |client| {
        let asked = questions(client, "once");
        let state = asked["requestState"].clone();
        let done = agreed(client, "once", &asked, &state);
        assert_eq!(done["result"]["isError"], false, "{done}");
        workspace.put("once", "meanwhile");
        let again = agreed(client, "once", &asked, &state);
        assert_eq!(code(&again), -32602, "{again}");
        assert_eq!(workspace.read("once"), "meanwhile");
        // Whoever asks anew is asked anew, also where another asks for the same.
        let both = [questions(client, "twice"), questions(client, "twice")];
        for asked in &both {
            let done = agreed(client, "twice", asked, &asked["requestState"]);
            assert!(done["error"].is_null(), "{done}");
        }
        for file in ["once", "twice"] {
            std::fs::remove_file(workspace.path(file)).unwrap();
        }
    });
}

#[test]
fn mr5_a_state_is_good_for_the_request_it_was_made_for_alone() {
    let workspace = Workspace::new();
    over_both_tuned(&workspace, confirming, |client| {
        let _ = std::fs::remove_file(workspace.path("a"));
        let asked = questions(client, "a");
        let state = &asked["requestState"];
        let answer = agreed(client, "b", &asked, state);
        assert_eq!(code(&answer), -32602, "{answer}");
        assert!(!workspace.path("b").exists());
        let done = agreed(client, "a", &asked, state);
        assert_eq!(done["result"]["isError"], false, "{done}");
        assert_eq!(workspace.read("a"), "x");
    });
}

#[test]
fn mr5_a_state_of_another_server_is_refused() {
    let workspace = Workspace::new();
    let mut one = Client::stdio(confirming(Launch::over(&workspace)), MODERN);
    let mut other = Client::stdio(confirming(Launch::over(&workspace)), MODERN);
    let asked = questions(&mut one, "a");
    let answer = agreed(&mut other, "a", &asked, &asked["requestState"]);
    assert_eq!(code(&answer), -32602, "{answer}");
    assert!(!workspace.path("a").exists());
}

#[test]
fn mr4_an_answer_to_what_was_never_asked_is_no_agreement() {
    let workspace = Workspace::new();
    over_both_tuned(&workspace, confirming, |client| {
        let asked = questions(client, "a");
        let mut params =
            json!({ "name": "files_write", "arguments": { "path": "a", "content": "x" } });
        params["_meta"] = can_fill_in();
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let yeses = [
            json!({ "action": "accept" }),
            json!({ "action": "accept", "content": {} }),
            json!({ "action": "accept", "content": { "agreed": true } }),
        ];
        for yes in yeses {
            // Without the state, so that nobody knows whether it was asked.
            params["inputResponses"] = json!({ &key: yes });
            let answer = client.ask("tools/call", params.clone());
            assert_eq!(answer["result"]["resultType"], "input_required", "{yes}: {answer}");
            assert!(!workspace.path("a").exists(), "{yes}");
        }
    });
}

#[test]
fn mr3_no_other_way_to_the_same_call_gets_around_the_question() {
    let workspace = Workspace::new();
    let write = json!({ "path": "a", "content": "x" });
    over_both_tuned(&workspace, confirming, |client| {
        let job = json!({ "tool": "files_write", "arguments": write });
        let tasks = json!({ "extensions": { of_mcp("tasks"): {} } });
        let as_task = json!({
            "name": "files_write",
            "arguments": write,
            "_meta": able(tasks),
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
    let served = confirming(Launch::over(&workspace)).served();
    for params in [
        json!({ "name": "files_write", "arguments": write }),
        accepted("files_write", write.clone()),
    ] {
        let answer = served.rpc("tools/call", params).json();
        if let Some(id) = answer["result"]["job_id"].as_str() {
            served.job_in("failed", id);
        }
        assert!(!workspace.path("a").exists(), "{answer}");
    }
    let mut client = Client::stdio(confirming(Launch::over(&workspace)), "2025-11-25");
    let task = json!({ "name": "files_write", "arguments": write, "task": { "ttl": 60_000 } });
    let begun = client.ask("tools/call", task);
    if let Some(id) = begun["result"]["task"]["taskId"].as_str() {
        let ended = client.ask("tasks/result", json!({ "taskId": id }));
        refusal(&ended);
    }
    assert!(!workspace.path("a").exists(), "{begun}");
}

#[test]
fn mr6_what_is_missing_is_asked_again_and_what_is_more_is_passed_over() {
    let workspace = Workspace::new();
    over_both_tuned(&workspace, confirming, |client| {
        let _ = std::fs::remove_file(workspace.path("a"));
        let asked = questions(client, "a");
        let base = json!({
            "name": "files_write",
            "arguments": { "path": "a", "content": "x" },
            "_meta": can_fill_in(),
            "requestState": asked["requestState"],
        });
        let mut state = asked["requestState"].clone();
        for useless in [json!({}), json!({ "other": { "action": "accept", "content": {} } })] {
            let mut params = base.clone();
            params["inputResponses"] = useless.clone();
            params["requestState"] = state.clone();
            let again = client.ask("tools/call", params);
            assert_eq!(again["result"]["resultType"], "input_required", "{useless}: {again}");
            assert_eq!(again["result"]["inputRequests"], asked["inputRequests"]);
            state = again["result"]["requestState"].clone();
        }
        let mut params = base;
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let yes = json!({ "action": "accept", "content": {} });
        params["inputResponses"] = json!({ key: yes, "other": yes });
        params["requestState"] = state;
        assert_eq!(client.ask("tools/call", params)["result"]["isError"], false);
    });
}

#[test]
fn mr6_answers_that_are_no_object_are_a_protocol_error() {
    over_both_tuned(&Workspace::new(), confirming, |client| {
        let asked = questions(client, "a");
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        for bad in [json!([]), json!("yes"), json!(5), json!({ &key: "yes" }), json!({ &key: [] })]
        {
            let mut params =
                json!({ "name": "files_write", "arguments": { "path": "a", "content": "x" } });
            params["_meta"] = can_fill_in();
            params["inputResponses"] = bad.clone();
            params["requestState"] = asked["requestState"].clone();
            let answer = client.ask("tools/call", params);
            assert_eq!(code(&answer), -32602, "{bad}: {answer}");
        }
    });
}

#[test]
fn mr7_a_client_that_never_comes_back_holds_nothing_up() {
    let workspace = Workspace::new();
    let tune =
        |launch: Launch| confirming(launch).set("limits_calls", 1).set("limits_in_flight", 2);
    over_both_tuned(&workspace, tune, |client| {
        for n in 0..10 {
            questions(client, &format!("{n}"));
        }
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(structured(&read)["content"], Workspace::README);
    });
}

#[test]
fn mr1_no_other_request_ends_with_questions() {
    over_both_tuned(&Workspace::new(), confirming, |client| {
        let everything =
            json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} });
        for method in ["server/discover", "tools/list", "resources/list", "prompts/list"] {
            let answer = client.ask(method, json!({ "_meta": able(everything.clone()) }));
            assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        }
    });
}

#[test]
fn e4_a_form_is_flat_and_of_plain_fields() {
    asked(with_forms(), &json!({ "elicitation": {} }), |client, _| {
        let decline = |_: &Value| json!({ "action": "decline" });
        let (_, asked) = converse(client, "tools/call", write(), decline);
        for question in asked {
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
fn l20_an_answer_to_nothing_is_taken_without_a_word_and_does_nothing() {
    let older = with_forms().filter(|revision| *revision != MODERN);
    asked(older, &json!({ "elicitation": {} }), |client, workspace| {
        let accept = json!({ "action": "accept", "content": {} });
        for id in [json!(1), json!("1"), json!("toolgate.confirm"), json!("none")] {
            let answer = json!({ "jsonrpc": "2.0", "id": id, "result": accept });
            match &mut client.wire {
                Wire::Stdio(stdio) => stdio.send(&answer),
                Wire::Http(_) => assert_eq!(client.response(&answer).status, 202),
            }
        }
        let (answer, asked) =
            converse(client, "tools/call", write(), |_| json!({ "action": "decline" }));
        assert_eq!(asked.len(), 1, "{answer}");
        assert!(!workspace.path("new.txt").exists());
    });
}

#[test]
fn l20_another_session_cannot_answer_for_the_one_that_was_asked() {
    let workspace = Workspace::new();
    let launch = Launch::over(&workspace).set("tools_confirm", "files.write");
    let can = json!({ "elicitation": {} });
    let mut client = Client::open(Wire::Http(launch.served()), "2025-11-25", can);
    let message = client.request("tools/call", write());
    let post = client.post(&message);
    let Wire::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(&post);
    assert!(connection.head().is_stream());
    let question = connection.event().unwrap();
    let accept = |action: &str| {
        let result = json!({ "action": action, "content": {} });
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })
    };
    let other = served.session("2025-11-25");
    let forged = crate::support::Post::mcp(&accept("accept")).with("mcp-session-id", &other);
    assert_eq!(served.send(&forged).status, 202);
    let own = client.response(
        &json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } }),
    );
    assert_eq!(own.status, 202);
    refusal(&connection.event().unwrap());
    assert!(!workspace.path("new.txt").exists());
}
