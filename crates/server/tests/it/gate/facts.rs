//! Tests of the fields of audit records: decision, sizes, hashes, session and sandbox.

use std::fs;

use serde_json::{Value, json};

use crate::support::{
    REVISIONS, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, call,
    over_both, over_both_tuned, structured, text,
};

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

#[test]
fn a_record_has_the_policy_decision_for_every_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("rules.toml");
    let rules = r#"
        [[policy.rules]]
        name = "no-git"
        tools = ["files.read"]
        when = 'input.path == "README.md"'
        effect = "deny"

        [[policy.rules]]
        name = "ask"
        tools = ["files.info"]
        effect = "confirm"
    "#;
    fs::write(&config, rules).unwrap();
    let tuned = |launch: ServerLaunchOptions| launch.arg("--config").arg(&config);
    over_both_tuned(&TempWorkspace::new(), tuned, |client| {
        client.call("files_read", json!({ "path": "README.md" }));
        client.call("files_info", json!({ "path": "README.md" }));
        client.call("files_exists", json!({ "path": "README.md" }));
        client.call("files_read", json!({ "path": "none" }));
        client.call("files_read", json!({ "path": 5 }));
        client.call("none", json!({}));
        let outcomes = client.server().outcomes(6);
        let records = client.server().records();
        let word = |record: &Value, field| record[field].as_str().unwrap_or("-").to_owned();
        let lines = records.iter().zip(outcomes).map(|(record, outcome)| {
            format!("{} {} {outcome}", word(record, "decision"), word(record, "rule"))
        });
        let expected = [
            "deny no-git not_allowed",
            "confirm ask cannot_ask",
            "allow default ok",
            "allow default not_found",
            "- - invalid_input",
            "- - unknown_tool",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    });
}

#[test]
fn a_record_has_the_size_of_the_output() {
    over_both(&TempWorkspace::new().file("b", [0, 159, 146, 150]), |client| {
        let answer = client.call("files_exists", json!({ "path": "README.md" }));
        let structured_bytes = structured(&answer).to_string().len();
        client.call("files_read", json!({ "path": "none" }));
        let root = client.server().root().canonicalize().unwrap();
        let read = |client: &mut TestMcpClient, name: &str| {
            let uri = format!("file://{}/{name}", root.display());
            client.ask("resources/read", json!({ "uri": uri }));
        };
        read(client, "README.md");
        read(client, "b");
        let arguments = json!({ "path": "README.md" });
        let made = client.ask("prompts/get", json!({ "name": "explain", "arguments": arguments }));
        let texts = made["result"]["messages"].as_array().unwrap().iter();
        let texts = texts.map(|it| it["content"]["text"].as_str().unwrap().len()).sum::<usize>();
        client.server().outcomes(5);
        let records = client.server().records();
        let bytes_out: Vec<_> = records.iter().map(|record| record["bytes_out"].clone()).collect();
        let expected = json!([structured_bytes, null, TempWorkspace::README.len(), 4, texts]);
        assert_eq!(Value::from(bytes_out), expected);
    });
}

#[test]
fn records_of_resources_and_prompts_have_the_hash_of_the_request() {
    over_both(&TempWorkspace::new(), |client| {
        let uris = ["file:///none", "audit://tail"];
        for uri in uris {
            client.ask("resources/read", json!({ "uri": uri }));
        }
        let arguments = json!({ "question": "why", "path": "README.md" });
        client.ask("prompts/get", json!({ "name": "explain", "arguments": arguments }));
        client.ask("prompts/get", json!({ "name": "none" }));
        client.server().outcomes(4);
        let expected = [
            r#"{"uri":"file:///none"}"#,
            r#"{"uri":"audit://tail"}"#,
            r#"{"name":"explain","arguments":{"path":"README.md","question":"why"}}"#,
            r#"{"name":"none","arguments":{}}"#,
        ];
        for (record, request) in client.server().records().iter().zip(expected) {
            assert_eq!(record["input"], hash(request), "{record}");
            assert_eq!(record["bytes_in"], request.len(), "{record}");
        }
    });
}

#[test]
fn a_record_has_the_sandbox_of_its_programs() {
    let tuned = |launch: ServerLaunchOptions| launch.set("exec_allow", "true");
    over_both_tuned(&TempWorkspace::new(), tuned, |client| {
        let answer = client.call("exec_run", json!({ "command": "true" }));
        let sandbox = &structured(&answer)["sandbox"];
        client.call("exec_run", json!({ "command": "no-such-program" }));
        client.call("files_exists", json!({ "path": "." }));
        client.server().outcomes(3);
        let records = client.server().records();
        match sandbox.as_str() {
            Some(profile) => assert_eq!(records[0]["sandbox"], profile),
            None => {
                let lacks = format!("{} (lacks ", sandbox["profile"].as_str().unwrap());
                assert!(records[0]["sandbox"].as_str().unwrap().starts_with(&lacks));
                assert!(text(&answer).contains("lacks"), "{answer}");
            }
        }
        for record in &records[1..] {
            assert_eq!(record.get("sandbox"), None, "{record}");
        }
    });
}

#[test]
fn a_record_has_a_hash_of_the_session_id() {
    let legacy = REVISIONS[1];
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let mut client = TestMcpClient::open(TestClientTransport::Http(served), legacy, json!({}));
    client.call("files_exists", json!({ "path": "." }));
    client.server().outcomes(1);
    let id = client.session.clone().unwrap();
    let record = &client.server().records()[0];
    assert_eq!(record["session"], hash(&id)[..16]);
    assert!(!record.to_string().contains(&id), "the session id is a secret: {record}");
}

#[test]
fn calls_on_one_socket_share_a_session_and_others_have_none() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_exists", json!({ "path": "." })));
    for _ in 0..2 {
        let mut socket = served.socket("/v1/ws/mcp");
        for id in 0..2 {
            let params = json!({ "name": "files-exists", "arguments": { "path": "." } });
            socket.ask(
                &json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }),
            );
        }
    }
    served.outcomes(5);
    let records = served.records();
    assert_eq!(records[0].get("session"), None);
    let session = |at: usize| records[at]["session"].as_str().unwrap().to_owned();
    assert_eq!((session(1), session(3)), (session(2), session(4)));
    assert_ne!(session(1), session(3));
}
