//! Tests of the audit record of each call: one line, whatever the outcome, without secrets.

use serde_json::json;

use super::client::over_all;
use crate::support::TempWorkspace;

#[test]
fn s2_08_31_each_call_is_recorded_with_time_tool_outcome_and_duration() {
    const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
    over_all(&TempWorkspace::new(), |client| {
        let calls = [
            ("filesystem/read", json!({ "path": "README.md" }), "files.read", "ok"),
            ("ci/run", json!({ "command": "false" }), "ci.run", "program_failed"),
            ("filesystem/read", json!({ "path": "none" }), "files.read", "not_found"),
            ("filesystem/read", json!({ "path": "../x" }), "files.read", "not_allowed"),
            ("filesystem/read", json!({ "file": "x" }), "files.read", "invalid_input"),
            ("git/status", json!({ "repositoryPath": SECRET }), "git.status", "not_found"),
            ("no/such", json!({}), "no.such", "unknown_tool"),
            ("files/read", json!({}), "files/read", "unknown_tool"),
        ];
        for (tool, arguments, ..) in &calls {
            client.call(tool, arguments.clone());
        }
        // These are not calls.
        client.tools();
        client.ask("ping", serde_json::Value::Null);
        client.raw(b"{");
        client.call("filesystem/file_exists", json!({ "path": "." }));
        let outcomes = client.server().outcomes(calls.len() + 1);
        let expected: Vec<&str> = calls.iter().map(|row| row.3).chain(["ok"]).collect();
        assert_eq!(outcomes, expected);
        let records = client.server().records();
        for (record, (_, _, tool, _)) in records.iter().zip(&calls) {
            assert_eq!(
                (&record["tool"], &record["dialect"]),
                (&json!(tool), &json!("workstation"))
            );
            assert!(record["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{record}");
            assert!(record["duration_us"].is_u64(), "{record}");
        }
        assert!(!format!("{records:?}{}", client.server().log()).contains(SECRET));
    });
}
