//! Tests of requirements of the tasks extension that no other test covers (rows TK of the MCP
//! checklist).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{code, mcp_key, meta_with_capabilities};
use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient,
    over_both,
};

fn task_metadata() -> Value {
    meta_with_capabilities(json!({ "extensions": { mcp_key("tasks"): {} } }))
}

#[track_caller]
fn start_task(client: &mut TestMcpClient) -> String {
    let arguments = json!({ "command": "sleep", "args": [ProcessMarker::new().0] });
    let params = json!({ "name": "exec_run", "arguments": arguments, "_meta": task_metadata() });
    let answer = client.ask("tools/call", params);
    assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    answer["result"]["taskId"].as_str().unwrap().to_owned()
}

#[test]
fn tk12_task_ids_are_unguessable() {
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&TempWorkspace::new()),
        crate::support::MODERN,
    );
    let ids: Vec<String> = (0..6).map(|_| start_task(&mut client)).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    for id in &ids {
        assert!(id.len() >= 22, "{id}");
        // Ids may share only the part that depends on the start time.
        for other in ids.iter().filter(|other| *other != id) {
            let unlike = id.chars().zip(other.chars()).filter(|(one, other)| one != other).count();
            assert!(unlike >= 10, "{id} and {other}");
        }
    }
}

#[test]
fn tk12_a_slightly_different_task_id_is_unknown() {
    over_both(&TempWorkspace::new(), |client| {
        let id = start_task(client);
        let mut last = id.clone();
        let end = if last.pop() == Some('a') { 'b' } else { 'a' };
        last.push(end);
        let wrong = [
            last,
            id.to_uppercase(),
            format!(" {id}"),
            format!("{id} "),
            String::new(),
            "%".to_owned(),
        ];
        for wrong in wrong.iter().filter(|wrong| **wrong != id) {
            for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
                let params =
                    json!({ "taskId": wrong, "inputResponses": {}, "_meta": task_metadata() });
                let message = client.request(method, params);
                let answer = match &client.wire {
                    TestClientTransport::Http(served) => {
                        // A header value cannot begin or end with a blank.
                        let blank = wrong.trim() != wrong || wrong.is_empty();
                        if blank {
                            continue;
                        }
                        served.send(&client.post(&message)).message()
                    }
                    TestClientTransport::Stdio(_) => client.exchange(&message),
                };
                assert_eq!(code(&answer), -32602, "{method} {wrong:?}: {answer}");
            }
        }
        let params = json!({ "taskId": id, "_meta": task_metadata() });
        let answer = client.ask("tasks/get", params);
        assert_eq!(answer["result"]["status"], "working", "{answer}");
        let server = &answer["result"]["_meta"][mcp_key("serverInfo")];
        assert_eq!(server["name"], "toolgate", "B13: {answer}");
        for wrong in [json!(5), json!(null), json!([id])] {
            let params = json!({ "taskId": wrong, "_meta": task_metadata() });
            assert!(client.ask("tasks/get", params).get("error").is_some(), "{wrong}");
        }
    });
}
