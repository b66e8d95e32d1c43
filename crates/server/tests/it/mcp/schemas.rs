//! That messages are held against the schemas at all.
//!
//! The packages must be there: `cargo xtask setup` installs them.

use serde_json::{Value, json};

use crate::support::schemas::{self, Schemas};
use crate::support::{MODERN, REVISIONS, initialize, legacy, modern, notification};

fn of(revision: &str) -> &'static Schemas {
    let missing = "the official suite is not installed: run `cargo xtask setup`";
    schemas::of(revision).unwrap_or_else(|| panic!("{missing}"))
}

#[test]
fn every_revision_has_a_schema_with_its_methods() {
    for revision in REVISIONS {
        let methods: Vec<_> = of(revision).methods().collect();
        assert!(methods.len() >= 20, "{revision}: {methods:?}");
        let has = |method: &str| methods.contains(&method);
        assert_eq!(has("server/discover"), revision == MODERN);
        assert_eq!(has("ping"), revision != MODERN);
        assert_eq!(has("tasks/get"), revision == "2025-11-25");
        assert_eq!(has("elicitation/create"), revision >= "2025-06-18");
    }
}

#[test]
fn what_is_right_passes_in_each_revision() {
    for revision in REVISIONS {
        let schemas = of(revision);
        let call = json!({ "name": "files_read", "arguments": { "path": "a" } });
        let message = crate::support::request(revision, 1, "tools/call", call);
        assert_eq!(schemas.by_client(&message), [""; 0], "{revision}");
        let mut result = json!({ "content": [{ "type": "text", "text": "a" }] });
        if revision == MODERN {
            result["resultType"] = json!("complete");
        }
        let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        assert_eq!(schemas.by_server(Some("tools/call"), &answer), [""; 0], "{revision}");
    }
}

#[test]
fn what_is_wrong_is_seen_in_each_revision() {
    let answer = |result: Value| json!({ "jsonrpc": "2.0", "id": 1, "result": result });
    for revision in REVISIONS {
        let schemas = of(revision);
        let to_server = [
            legacy(1, "tools/call", json!({ "arguments": {} })),
            json!({ "jsonrpc": "1.0", "id": 1, "method": "tools/list" }),
            json!({ "jsonrpc": "2.0", "id": null, "method": "tools/list" }),
            json!({ "jsonrpc": "2.0", "id": [1], "method": "unheard/of" }),
            notification("notifications/tools/list_changed", json!({})),
            notification("notifications/progress", json!({ "progress": 1 })),
        ];
        for message in &to_server {
            assert_ne!(schemas.by_client(message), [""; 0], "{revision}: {message}");
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
            assert_ne!(schemas.by_server(*method, message), [""; 0], "{revision}: {message}");
        }
        let batch = json!([legacy(1, "ping", json!({}))]);
        assert_eq!(schemas.by_client(&batch).is_empty(), revision == "2025-03-26");
    }
    let mut bare = modern(1, "tools/list", json!({}));
    bare["params"].as_object_mut().unwrap().remove("_meta");
    assert_ne!(of(MODERN).by_client(&bare), [""; 0]);
    let unsaid = answer(json!({ "content": [] }));
    assert_ne!(of(MODERN).by_server(Some("tools/call"), &unsaid), [""; 0]);
    let version = json!({ "code": -32022, "message": "", "data": { "requested": "x" } });
    let error = json!({ "jsonrpc": "2.0", "id": 1, "error": version });
    assert_ne!(of(MODERN).by_server(None, &error), [""; 0]);
}

#[test]
#[should_panic(expected = "2025-11-25 does not have this")]
fn an_answer_that_is_wrong_fails_the_test_that_hears_it() {
    of("2025-11-25");
    let mut ear = schemas::Ear::default();
    ear.sent(&initialize(1, "2025-11-25"), true);
    ear.received(
        &json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocolVersion": "2025-11-25" } }),
        None,
    );
}

#[test]
#[should_panic(expected = "a test sent what 2026-07-28 does not have")]
fn a_request_that_is_wrong_and_taken_fails_the_test_that_sends_it() {
    of(MODERN);
    let mut ear = schemas::Ear::default();
    ear.sent(&modern(1, "tools/call", json!({ "arguments": [] })), true);
    let result = json!({ "resultType": "complete", "content": [] });
    ear.received(&json!({ "jsonrpc": "2.0", "id": 1, "result": result }), None);
}
