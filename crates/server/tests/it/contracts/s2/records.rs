//! The record of each call: one line, whatever came of it, and no secret in it.

use serde_json::json;

use super::desk::over_all;
use crate::support::Workspace;

#[test]
fn s2_08_31_each_call_leaves_a_line_with_when_what_how_and_how_long() {
    const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ456789";
    over_all(&Workspace::new(), |desk| {
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
            desk.call(tool, arguments.clone());
        }
        // None of these is a call.
        desk.tools();
        desk.ask("ping", serde_json::Value::Null);
        desk.raw(b"{");
        desk.call("filesystem/file_exists", json!({ "path": "." }));
        let outcomes = desk.server().outcomes(calls.len() + 1);
        let expected: Vec<&str> = calls.iter().map(|row| row.3).chain(["ok"]).collect();
        assert_eq!(outcomes, expected);
        let records = desk.server().records();
        for (record, (_, _, tool, _)) in records.iter().zip(&calls) {
            assert_eq!(
                (&record["tool"], &record["dialect"]),
                (&json!(tool), &json!("workstation"))
            );
            assert!(record["ts"].as_str().is_some_and(|ts| ts.ends_with('Z')), "{record}");
            assert!(record["duration_us"].is_u64(), "{record}");
        }
        assert!(!format!("{records:?}{}", desk.server().log()).contains(SECRET));
    });
}
