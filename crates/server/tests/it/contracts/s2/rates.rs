//! How often a tool may be called.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::desk::Desk;
use crate::support::{Launch, Post, Workspace, wait_until};

const RULES: &str = "[[limits.rate]]\ntools = \"files.read\"\ncalls = 3\nin_ms = 1500\n\n\
                     [[limits.rate]]\ntools = \"exec.*\"\ncalls = 1\nburst = 2\n";

fn read() -> serde_json::Value {
    json!({ "path": "README.md" })
}

#[test]
fn s2_30_a_burst_is_let_through_then_refused_with_when_to_come_back() {
    let workspace = Workspace::new().file("toolgate.toml", RULES);
    for mut desk in [Desk::stdio(Launch::over(&workspace)), Desk::http(Launch::over(&workspace))] {
        for _ in 0..3 {
            desk.content("filesystem/read", read());
        }
        let (code, words, data) = desk.refusal("filesystem/read", read());
        assert_eq!((code, words.as_str()), (-32603, "Internal error"), "{data}");
        assert_eq!(data["reason"], "limited");
        let wait = data["retry_after_ms"].as_u64().unwrap();
        assert!((1..=500).contains(&wait), "{data}");
        // Another tool is called as often as one likes, and what is refused costs nothing.
        for _ in 0..20 {
            desk.content("filesystem/file_exists", read());
        }
        thread::sleep(Duration::from_millis(wait));
        desk.content("filesystem/read", read());
        // So is a tool under another rule, until its own is met.
        for _ in 0..2 {
            desk.call("exec/run", json!({ "command": "true" }));
        }
        let (_, _, data) = desk.refusal("exec/run", json!({ "command": "true" }));
        assert!(data["retry_after_ms"].as_u64().is_some_and(|wait| wait > 10_000), "{data}");
        if desk.is_http() {
            let params = json!({ "name": "exec/run", "arguments": { "command": "true" } });
            let call =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            let response = desk.post(&Post::bytes(call.to_string().as_bytes()));
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!(response.status == 200 && (11..=60).contains(&wait), "{response:?}");
        }
    }
}

#[test]
fn s2_30_a_rule_over_no_tool_or_of_nothing_keeps_it_from_serving() {
    for (rule, says) in [
        ("tools = \"exce.*\"\ncalls = 1\n", "limits.rate"),
        ("tools = \"exec.*\"\ncalls = 0\n", "calls of the rule over `exec.*`"),
        ("tools = \"exec.*\"\ncalls = 1\nin_ms = 0\n", "in_ms of the rule over `exec.*`"),
        ("tools = \"exec.*\"\n", "calls"),
    ] {
        let workspace = Workspace::new().file("toolgate.toml", format!("[[limits.rate]]\n{rule}"));
        let stdio = Launch::over(&workspace).stdio();
        assert_eq!(stdio.ended().code(), Some(2), "{rule}");
        wait_until("it says why", || stdio.log().contains(says));
    }
}
