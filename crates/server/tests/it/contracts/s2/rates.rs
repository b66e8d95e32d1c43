//! Tests of rate limits on the calls of a tool.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::client::WorkstationClient;
use crate::support::{ServerLaunchOptions, TempWorkspace, TestHttpRequest, wait_until};

const RULES: &str = "[[limits.rate]]\ntools = \"files.read\"\ncalls = 3\nin_ms = 1500\n\n\
                     [[limits.rate]]\ntools = \"exec.*\"\ncalls = 2\n";

fn read() -> serde_json::Value {
    json!({ "path": "README.md" })
}

#[test]
fn s2_30_a_burst_is_allowed_then_refused_with_a_retry_time() {
    let workspace = TempWorkspace::new().file("toolgate.toml", RULES);
    for mut client in [
        WorkstationClient::stdio(ServerLaunchOptions::over(&workspace)),
        WorkstationClient::http(ServerLaunchOptions::over(&workspace)),
    ] {
        for _ in 0..3 {
            client.content("filesystem/read", read());
        }
        let (code, message, data) = client.refusal("filesystem/read", read());
        assert_eq!((code, message.as_str()), (-32603, "Internal error"), "{data}");
        assert_eq!(data["reason"], "limited");
        let wait = data["retry_after_ms"].as_u64().unwrap();
        assert!((1..=500).contains(&wait), "{data}");
        // Other tools are not limited, and refused calls do not count.
        for _ in 0..20 {
            client.content("filesystem/file_exists", read());
        }
        thread::sleep(Duration::from_millis(wait));
        client.content("filesystem/read", read());
        // A tool under another rule has its own limit.
        for _ in 0..2 {
            client.call("exec/run", json!({ "command": "true" }));
        }
        let (_, _, data) = client.refusal("exec/run", json!({ "command": "true" }));
        assert!(data["retry_after_ms"].as_u64().is_some_and(|wait| wait > 10_000), "{data}");
        if client.is_http() {
            let params = json!({ "name": "exec/run", "arguments": { "command": "true" } });
            let call =
                json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
            let response = client.post(&TestHttpRequest::bytes(call.to_string().as_bytes()));
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!(response.status == 200 && (11..=60).contains(&wait), "{response:?}");
        }
    }
}

#[test]
fn s2_30_an_invalid_rate_rule_stops_the_server_at_start() {
    for (rule, error) in [
        ("tools = \"exce.*\"\ncalls = 1\n", "limits.rate"),
        ("tools = \"exec.*\"\ncalls = 0\n", "calls of the rule for `exec.*`"),
        ("tools = \"exec.*\"\ncalls = 1\nin_ms = 0\n", "in_ms of the rule for `exec.*`"),
        ("tools = \"exec.*\"\n", "calls"),
    ] {
        let workspace =
            TempWorkspace::new().file("toolgate.toml", format!("[[limits.rate]]\n{rule}"));
        let stdio = ServerLaunchOptions::over(&workspace).stdio();
        assert_eq!(stdio.wait_for_exit().code(), Some(2), "{rule}");
        wait_until("it says why", || stdio.log().contains(error));
    }
}
