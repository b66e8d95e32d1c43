//! Tests of upstreams that do not answer, and of requests that wait for them.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{launch, names, text, with_odds};
use crate::support::{MODERN, TestClientTransport, TestMcpClient, wait_until};

#[test]
fn only_the_first_list_waits_for_an_upstream_that_does_not_list() {
    let workspace = with_odds(&[("late", "ODD_LATE = \"1\",", "start_ms = 3000")]);
    let mut client = TestMcpClient::stdio(launch(&workspace), "2025-06-18");
    assert!(!names(&mut client).contains(&"late_echo".to_owned()));
    let before = Instant::now();
    for _ in 0..5 {
        assert!(!names(&mut client).contains(&"late_echo".to_owned()));
        let unknown = client.call("no_such_tool", json!({}));
        assert!(unknown.get("error").is_some() || unknown["result"]["isError"] == true);
        client.ask("prompts/list", json!({}));
        client.ask("resources/list", json!({}));
    }
    let took = before.elapsed();
    assert!(took < Duration::from_millis(2500), "{took:?}");
    fs::write(workspace.path("late.log.go"), "").unwrap();
    // Clients are notified once the upstream has listed.
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let mut messages = std::iter::from_fn(|| Some(stdio.receive()));
    assert!(messages.any(|message| message["method"] == "notifications/tools/list_changed"));
    assert!(names(&mut client).contains(&"late_echo".to_owned()));
}

#[test]
fn calls_without_an_answer_do_not_block_other_calls() {
    let workspace = with_odds(&[("hung", "", "at_once = 64"), ("well", "", "")]);
    let mut client = TestMcpClient::stdio(launch(&workspace), MODERN);
    names(&mut client);
    let requests: Vec<_> = (0..80).map(|_| client.request("tools/call", hanging_call())).collect();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    requests.iter().for_each(|request| stdio.send(request));
    wait_until("they hang", || workspace.read("hung.log").matches("call never").count() == 64);
    let before = Instant::now();
    let read = client.call("files_read", json!({ "path": "README.md" }));
    assert!(text(&read).starts_with("# A workspace"), "{read}");
    let echo = client.call("well_echo", json!({ "message": "hello" }));
    assert_eq!(text(&echo), "hello");
    let took = before.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

fn hanging_call() -> Value {
    json!({ "name": "hung_never", "arguments": {} })
}
