//! Tests that messages are validated against MCP's schemas.
//!
//! The schemas are in npm packages that `cargo xtask setup` installs.

use serde_json::{Value, json};

use crate::support::schemas::{self, RevisionSchemas};
use crate::support::{MODERN, REVISIONS, initialize, legacy, modern, notification};

fn for_revision(revision: &str) -> &'static RevisionSchemas {
    let missing = "the official suite is not installed: run `cargo xtask setup`";
    schemas::for_revision(revision).unwrap_or_else(|| panic!("{missing}"))
}

#[test]
fn every_revision_has_a_schema_with_its_methods() {
    for revision in REVISIONS {
        let methods: Vec<_> = for_revision(revision).methods().collect();
        assert!(methods.len() >= 20, "{revision}: {methods:?}");
        let has = |method: &str| methods.contains(&method);
        assert_eq!(has("server/discover"), revision == MODERN);
        assert_eq!(has("ping"), revision != MODERN);
        assert_eq!(has("tasks/get"), revision == "2025-11-25");
        assert_eq!(has("elicitation/create"), revision >= "2025-06-18");
    }
}

#[test]
fn valid_messages_pass_in_each_revision() {
    for revision in REVISIONS {
        let schemas = for_revision(revision);
        let call = json!({ "name": "files_read", "arguments": { "path": "a" } });
        let message = crate::support::request(revision, 1, "tools/call", call);
        assert_eq!(schemas.client_faults(&message), [""; 0], "{revision}");
        let mut result = json!({ "content": [{ "type": "text", "text": "a" }] });
        if revision == MODERN {
            result["resultType"] = json!("complete");
        }
        let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        assert_eq!(schemas.server_faults(Some("tools/call"), &answer), [""; 0], "{revision}");
    }
}

#[test]
fn invalid_messages_are_found_in_each_revision() {
    let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": 1, "result": result });
    for revision in REVISIONS {
        let schemas = for_revision(revision);
        let to_server = [
            legacy(1, "tools/call", json!({ "arguments": {} })),
            json!({ "jsonrpc": "1.0", "id": 1, "method": "tools/list" }),
            json!({ "jsonrpc": "2.0", "id": null, "method": "tools/list" }),
            json!({ "jsonrpc": "2.0", "id": [1], "method": "unheard/of" }),
            notification("notifications/tools/list_changed", json!({})),
            notification("notifications/progress", json!({ "progress": 1 })),
        ];
        for message in &to_server {
            assert_ne!(schemas.client_faults(message), [""; 0], "{revision}: {message}");
        }
        let from_server = [
            (None, legacy(1, "tools/list", json!({}))),
            (None, notification("notifications/initialized", json!({}))),
            (None, notification("notifications/unheard-of", json!({}))),
            (None, notification("notifications/progress", json!({ "progress": 1 }))),
            (Some("tools/list"), answer(json!({ "resultType": "complete" }))),
            (Some("tools/call"), answer(json!({ "resultType": "complete", "content": "a" }))),
            (Some("tools/call"), answer(json!(5))),
            (None, json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": "x", "message": "" } })),
            (None, json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": 1.5, "message": "" } })),
            (None, json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": 1 } })),
        ];
        for (method, message) in &from_server {
            assert_ne!(schemas.server_faults(*method, message), [""; 0], "{revision}: {message}");
        }
        let batch = json!([legacy(1, "ping", json!({}))]);
        assert_eq!(schemas.client_faults(&batch).is_empty(), revision == "2025-03-26");
    }
    let mut bare = modern(1, "tools/list", json!({}));
    bare["params"].as_object_mut().unwrap().remove("_meta");
    assert_ne!(for_revision(MODERN).client_faults(&bare), [""; 0]);
    let untyped = answer(json!({ "content": [] }));
    assert_ne!(for_revision(MODERN).server_faults(Some("tools/call"), &untyped), [""; 0]);
    let version = json!({ "code": -32022, "message": "", "data": { "requested": "x" } });
    let error = json!({ "jsonrpc": "2.0", "id": 1, "error": version });
    assert_ne!(for_revision(MODERN).server_faults(None, &error), [""; 0]);
}

#[test]
#[should_panic(expected = "invalid message from the server in 2025-11-25")]
fn an_invalid_answer_fails_the_test_that_receives_it() {
    for_revision("2025-11-25");
    let mut checker = schemas::McpMessageChecker::default();
    checker.sent(&initialize(1, "2025-11-25"), true);
    checker.received(
        &json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocolVersion": "2025-11-25" } }),
        None,
    );
}

#[test]
#[should_panic(expected = "invalid message from a test in 2026-07-28")]
fn an_invalid_request_that_is_accepted_fails_the_test_that_sends_it() {
    for_revision(MODERN);
    let mut checker = schemas::McpMessageChecker::default();
    checker.sent(&modern(1, "tools/call", json!({ "arguments": [] })), true);
    let result = json!({ "resultType": "complete", "content": [] });
    checker.received(&json!({ "jsonrpc": "2.0", "id": 1, "result": result }), None);
}
