//! Tests that each call leaves one audit record, whatever its outcome.

use std::fs::File;

use serde_json::{Value, json};

use crate::support::{
    ProcessMarker, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, call,
    legacy, notification, over_both, over_both_with, sleeps, wait_until,
};

#[test]
fn each_call_leaves_one_record_with_its_outcome() {
    let calls = [
        ("files_read", json!({ "path": "README.md" }), "ok"),
        ("files.read", json!({ "path": "README.md" }), "ok"),
        ("fils_read", json!({}), "unknown_tool"),
        ("", json!({}), "unknown_tool"),
        ("files_read", json!({ "path": 5 }), "invalid_input"),
        (
            "files_read",
            json!({ "path": "README.md", "offset": 1, "start_line": 1 }),
            "invalid_input",
        ),
        ("exec_run", json!({ "command": "no-such-program" }), "invalid_input"),
        ("files_read", json!({ "path": "../x" }), "not_allowed"),
        ("files_write", json!({ "path": ".git/config", "content": "" }), "not_allowed"),
        ("files_read", json!({ "path": "none" }), "not_found"),
        ("files_write", json!({ "path": "README.md", "content": "", "if_match": "x" }), "conflict"),
        (
            "files_edit",
            json!({ "path": "big", "edits": [{ "old": "x", "new": "y" }] }),
            "too_large",
        ),
        ("exec_run", json!({ "command": "true" }), "ok"),
        ("exec_run", json!({ "command": "false" }), "program_failed"),
    ];
    let workspace = TempWorkspace::new().file("big", "");
    // The file is too large to edit. It is sparse, so it takes no space.
    let big = File::options().write(true).open(workspace.path("big")).unwrap();
    big.set_len((64 << 20) + 1).unwrap();
    over_both(&workspace, |client| {
        for (tool, arguments, outcome) in &calls {
            let answer = client.call(tool, arguments.clone());
            let refused = answer.get("error").is_some() || answer["result"]["isError"] == true;
            assert_eq!(refused, *outcome != "ok", "{tool} {arguments}: {answer}");
        }
        // None of these requests is a call.
        client.ask("tools/list", json!({}));
        client.ask("tools/fly", json!({}));
        client.ask("tools/call", json!({ "name": 5 }));
        client.raw(b"{");
        client.call("files_exists", json!({ "path": "." }));

        let outcomes = client.server().outcomes(calls.len() + 1);
        let expected = calls.iter().map(|(_, _, outcome)| *outcome).chain(["ok"]);
        assert_eq!(outcomes, expected.collect::<Vec<_>>());
        let caller =
            if matches!(client.wire, TestClientTransport::Stdio(_)) { "local" } else { "http" };
        for (record, (tool, _, outcome)) in client.server().records().iter().zip(&calls) {
            assert_eq!(record["tool"], *tool, "{record}");
            assert_eq!((&record["caller"], &record["dialect"]), (&json!(caller), &json!("mcp")));
            assert!(record["duration_us"].is_u64(), "{record}");
            let is_checked = record["steps_us"]["check"].is_u64();
            assert_eq!(is_checked, ["ok", "program_failed"].contains(outcome), "{record}");
            let ts = record["ts"].as_str().unwrap();
            assert!(ts.ends_with('Z') && ts.contains('T'), "{record}");
        }
    });
}

#[test]
fn a_record_contains_the_subject_but_neither_other_arguments_nor_results() {
    over_both(&TempWorkspace::new().file("s.txt", "hidden-in-file"), |client| {
        client.call("files_read", json!({ "path": "s.txt" }));
        client.call("files_write", json!({ "path": "new.txt", "content": "hidden-in-content" }));
        client.server().outcomes(2);
        let records = client.server().records();
        assert_eq!(
            (&records[0]["subject"], &records[1]["subject"]),
            (&json!("s.txt"), &json!("new.txt"))
        );
        let records = Value::from(records).to_string();
        assert!(!records.contains("hidden"), "{records}");
    });
}

#[test]
fn a_record_of_a_failed_program_contains_its_exit_code_and_last_error_line() {
    let fails = |client: &mut TestMcpClient| {
        let script = "echo first >&2; echo broken pipe >&2; exit 3";
        client.call("exec_run", json!({ "command": "sh", "args": ["-c", script] }));
        client.server().outcomes(1);
        client.server().records()[0]["error"].clone()
    };
    over_both(&TempWorkspace::new(), |client| {
        assert_eq!(fails(client), "exit code 3: broken pipe");
    });
    over_both_with(&TempWorkspace::new(), &[("audit_arguments", "none")], |client| {
        assert_eq!(fails(client), Value::Null);
    });
}

#[test]
fn a_record_contains_neither_arguments_nor_results_if_the_settings_say_so() {
    let workspace = TempWorkspace::new().file("s.txt", "hidden-in-file");
    over_both_with(&workspace, &[("audit_arguments", "none")], |client| {
        client.call("files_read", json!({ "path": "s.txt" }));
        client.call("files_read", json!({ "path": "hidden-in-path" }));
        client.call("exec_run", json!({ "command": "true", "args": ["hidden-in-args"] }));
        client.server().outcomes(3);
        let records = Value::from(client.server().records()).to_string();
        assert!(!records.contains("hidden"), "{records}");
    });
}

#[test]
fn a_tool_name_cannot_forge_a_record() {
    over_both(&TempWorkspace::new(), |client| {
        let forged = "x\"}\n{\"outcome\":\"ok\",\"tool\":\"forged";
        let TestClientTransport::Stdio(_) = client.wire else { return };
        client.call(forged, json!({}));
        client.call(&"long".repeat(100_000), json!({}));
        assert_eq!(client.server().outcomes(2), ["unknown_tool", "unknown_tool"]);
        let records = client.server().records();
        assert_eq!(records[0]["tool"], forged);
        assert!(records[1].to_string().len() < 1000, "{}", records[1]);
    });
}

#[test]
fn interrupted_calls_leave_a_record() {
    let workspace = TempWorkspace::new();
    let launch = ServerLaunchOptions::over(&workspace).set("limits_programs", 1);
    let mut stdio = launch.set("limits_wait_ms", 0).stdio();
    let first = ProcessMarker::new();
    let second = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", sleeps(&first)));
    first.wait_until_running();
    stdio.ask(&call(2, "exec_run", sleeps(&second)));
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": 1 })));
    first.wait_until_gone();
    // The slot is free once the program has ended.
    assert_eq!(stdio.outcomes(2), ["limited", "canceled"]);
    stdio.send(&call(3, "exec_run", sleeps(&second)));
    second.wait_until_running();
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert_eq!(stdio.outcomes(3), ["limited", "canceled", "canceled"]);
}

#[test]
fn each_call_of_a_batch_leaves_one_record() {
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), "2025-03-26");
    let params = json!({ "name": "files_read", "arguments": { "path": "README.md" } });
    let batch: Vec<_> = (0..10).map(|id| legacy(id, "tools/call", params.clone())).collect();
    assert_eq!(client.raw(json!(batch).to_string().as_bytes()).as_array().unwrap().len(), 10);
    assert_eq!(client.server().outcomes(10), ["ok"; 10]);
}

#[test]
fn records_go_to_the_configured_destination() {
    let workspace = TempWorkspace::new();
    let read = call(1, "files_read", json!({ "path": "README.md" }));

    let mut stdio = ServerLaunchOptions::over(&workspace).set("audit_to", "stderr").stdio();
    stdio.ask(&read);
    stdio.close_input();
    stdio.wait_for_exit();
    wait_until("it is on standard error", || stdio.log().contains("\"outcome\":\"ok\""));

    // Root gets a warning.
    let quiet = ServerLaunchOptions::over(&workspace).set("log_level", "error");
    let mut stdio = quiet.set("audit_to", "off").stdio();
    stdio.ask(&read);
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert_eq!(stdio.log(), "");

    let mut stdio = ServerLaunchOptions::over(&workspace).set("audit_to", "state").stdio();
    stdio.ask(&read);
    stdio.close_input();
    stdio.wait_for_exit();
    let file = stdio.home().join(".local/state/toolgate/audit.jsonl");
    let record: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(record["outcome"], "ok");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "other users may read it");
}

#[test]
fn the_server_does_not_start_if_its_audit_log_cannot_be_opened() {
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("audit_to", "/proc/no/such/place");
    let stdio = launch.stdio();
    assert_eq!(stdio.wait_for_exit().code(), Some(2));
    wait_until("it says why", || stdio.log().contains("audit log /proc/no/such/place"));
}
