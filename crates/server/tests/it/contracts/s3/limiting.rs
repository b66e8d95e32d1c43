//! Tests of rate limits per caller and tool, of API keys, and of secrets, which are never returned.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer};
use crate::support::{ServerLaunchOptions, TempWorkspace, keys_of, wait_until};

fn rate(tools: &str, calls: u32, in_ms: u64) -> String {
    format!("[[limits.rate]]\ntools = \"{tools}\"\ncalls = {calls}\nin_ms = {in_ms}\n")
}

#[test]
fn s3_19_79_calls_are_limited_per_caller_and_tool_with_a_retry_time() {
    let settings = [keys_of(&["ada", "bob"]), rate("files.*", 3, 60_000), rate("exec.run", 1, 700)];
    let server = MiraServer::with(&TempWorkspace::new(), &settings.concat(), |launch| launch);
    let mut ada = server.root_as("ada-key");
    let mut bob = server.root_as("bob-key");
    let read = json!({ "path": "README.md" });
    let echo = json!({ "command": "echo", "args": ["a"] });
    for _ in 0..3 {
        ada.get("files/read", read.clone());
    }
    for _ in 0..2 {
        let error = ada.expect_refusal(1004, "files/read", read.clone());
        let wait = error["data"]["retry_after_ms"].as_u64().unwrap();
        assert!((1..=60_000).contains(&wait), "{error}");
    }
    // Other callers and other tools are not affected.
    for _ in 0..3 {
        bob.get("files/read", read.clone());
    }
    bob.expect_refusal(1004, "files/read", read);
    ada.get("files/write", json!({ "path": "a", "content": "x" }));
    assert_eq!(ada.get("exec/run", echo.clone())["stdout"], "a\n");
    // After the given wait the call succeeds.
    let error = ada.expect_refusal(1004, "exec/run", echo.clone());
    bob.get("exec/run", echo.clone());
    sleep(Duration::from_millis(error["data"]["retry_after_ms"].as_u64().unwrap()));
    ada.get("exec/run", echo);
}

#[test]
fn s3_19_79_connected_clients_have_the_same_rate_limit() {
    let workspace = TempWorkspace::new();
    let server = MiraServer::with(&workspace, &rate("files.read", 2, 60_000), |launch| launch);
    for mut mira in [server.socket(), MiraClient::stdio(ServerLaunchOptions::over(&workspace))] {
        for _ in 0..2 {
            mira.get("files/read", json!({ "path": "README.md" }));
        }
        let error = mira.expect_refusal(1004, "files/read", json!({ "path": "README.md" }));
        assert!(error["data"]["retry_after_ms"].is_u64(), "{error}");
        mira.get("files/info", json!({ "path": "README.md" }));
    }
}

#[test]
fn s3_17_28_a_caller_without_a_key_is_refused_with_the_contracts_code() {
    let workspace = TempWorkspace::new();
    let server = MiraServer::with(&workspace, &keys_of(&["ada"]), |launch| launch);
    let read = json!({ "path": "README.md" });
    for mut stranger in [server.root(), server.root_as("wrong"), server.rpc()] {
        stranger.expect_refusal(1002, "files/read", read.clone());
        stranger.expect_refusal(1002, "tools/list", Value::Null);
    }
    let mut ada = server.root_as("ada-key");
    assert_eq!(ada.get("files/read", read)["content"], TempWorkspace::README);
    let listed = ada.get("tools/list", json!({}));
    assert!(listed["tools"].as_array().unwrap().iter().all(|tool| tool["auth_required"] == true));
    // Over stdio no key is needed.
    let mut mira = MiraClient::stdio(ServerLaunchOptions::over(&workspace));
    let listed = mira.get("tools/list", json!({}));
    assert!(listed["tools"].as_array().unwrap().iter().all(|tool| tool["auth_required"] == false));
}

#[test]
fn s3_78_secrets_are_absent_from_errors_records_and_the_log() {
    const OURS: &str = "canary-of-the-server-1";
    const THEIRS: &str = "canary-of-the-caller-2";
    const SHAPED: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyzAB";
    let workspace = TempWorkspace::new().file(SHAPED, "there");
    let server = MiraServer::with(&workspace, "", |launch| {
        launch.env("API_TOKEN", OURS).set("log_level", "trace")
    });
    let mut root = server.root();
    let mut socket = server.socket();
    let secret = json!({ "MY_PASSWORD": THEIRS });
    let calls = [
        ("files/read", json!({ "path": OURS })),
        ("files/read", json!({ "path": SHAPED, "encoding": OURS })),
        ("files/read", json!({ "path": format!("{SHAPED}-not-there") })),
        ("files/write", json!({ "path": SHAPED, "content": "x" })),
        ("files/write", json!({ "path": format!("../{SHAPED}"), "content": "x" })),
        ("files/write", json!({ "path": SHAPED, "content": "x", "overwrite": true, "etag": OURS })),
        ("exec/run", json!({ "command": THEIRS, "env": secret })),
        ("exec/run", json!({ "command": "echo", "cwd": THEIRS, "env": secret })),
        ("exec/run", json!({ "command": SHAPED, "args": ["--token", THEIRS] })),
        (
            "exec/run",
            json!({ "command": "echo", "args": [format!("--token={THEIRS}")], "cwd": THEIRS }),
        ),
        ("exec/run", json!({ "command": OURS })),
        ("exec/run", json!({ "command": "echo", "timeout_ms": OURS })),
        ("files/info", json!({ "path": SHAPED, "more": OURS })),
    ];
    let mut errors = String::new();
    for mira in [&mut root, &mut socket] {
        for (method, params) in &calls {
            if let Err(error) = mira.ask(method, params.clone()) {
                errors += &format!("{method} {error}\n");
            }
        }
    }
    assert!(errors.lines().count() >= 2 * (calls.len() - 1), "{errors}");
    wait_until("all calls are on record", || server.records().len() >= 2 * calls.len());
    let records: String = server.records().iter().map(|record| format!("{record}\n")).collect();
    let log = server.log();
    for (what, text) in [("an error", &errors), ("the record", &records), ("the log", &log)] {
        for secret in [OURS, THEIRS, SHAPED] {
            assert!(!text.contains(secret), "{secret} is in {what}:\n{text}");
        }
    }
}
