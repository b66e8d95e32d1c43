//! Tests of documents that callers store: searching, replacing, removing and keeping them.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{search, status};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, refusal, structured,
};

fn upsert(client: &mut TestMcpClient, input: Value) -> Value {
    structured(&client.call("search_upsert", input)).clone()
}

fn ids(found: &Value) -> Vec<&str> {
    let matches = found["matches"].as_array().unwrap();
    matches.iter().map(|it| it["path"].as_str().unwrap()).collect()
}

#[test]
fn documents_are_found_by_content_in_their_namespace_only() {
    over_both(&TempWorkspace::new(), |client| {
        let documents = json!([
            { "id": "meeting.md", "text": "# Monday\n\nThe okapi enclosure needs a new fence.\n",
              "tags": ["minutes"], "metadata": { "by": "ada" } },
            { "id": "ticket/17", "json": { "title": "Gate squeaks", "state": "open" } },
        ]);
        let put = upsert(client, json!({ "namespace": "notes", "documents": documents }));
        assert_eq!(put, json!({ "added": 2, "replaced": 0, "removed": 0, "documents": 2 }));
        let within = |query: &str| json!({ "query": query, "namespace": "notes" });
        let fence = search(client, within("okapi fence"));
        assert_eq!(ids(&fence), ["meeting.md"]);
        let first = &fence["matches"][0];
        assert_eq!(first["snippet"], "# Monday\n\nThe okapi enclosure needs a new fence.");
        assert_eq!(
            (&first["metadata"], &first["tags"]),
            (&json!({ "by": "ada" }), &json!(["minutes"]))
        );
        let gate = search(client, within("squeaking gate"));
        assert_eq!(ids(&gate), ["ticket/17"]);
        assert!(gate["matches"][0]["snippet"].as_str().unwrap().contains("Gate squeaks"));
        assert_eq!(ids(&search(client, json!({ "query": "okapi fence" }))), [""; 0]);
        let tagged = json!({ "query": "fence gate", "namespace": "notes", "tags": ["Minutes"] });
        assert_eq!(ids(&search(client, tagged)), ["meeting.md"]);

        let again = json!([{ "id": "meeting.md", "text": "The zebra enclosure is fine.\n" }]);
        let put = upsert(client, json!({ "namespace": "notes", "documents": again }));
        assert_eq!(put, json!({ "added": 0, "replaced": 1, "removed": 0, "documents": 2 }));
        assert_eq!(ids(&search(client, within("okapi"))), [""; 0]);
        assert_eq!(ids(&search(client, within("zebra"))), ["meeting.md"]);
        let gone = json!({ "namespace": "notes", "remove": ["meeting.md", "never"] });
        assert_eq!(upsert(client, gone)["removed"], 1);
        assert_eq!(ids(&search(client, within("zebra"))), [""; 0]);
        assert_eq!(status(client, "notes")["files"], 1);
    });
}

#[test]
fn documents_survive_a_restart_and_the_loss_of_the_cache() {
    let workspace = TempWorkspace::new();
    let state = TempDir::new().unwrap();
    let start = |cache: &TempDir| {
        let launch = ServerLaunchOptions::over(&workspace).with_cache(cache);
        TestMcpClient::stdio(launch.with_state(&state), MODERN)
    };
    let cache = TempDir::new().unwrap();
    let documents = json!([{ "id": "a", "text": "an okapi" }]);
    upsert(&mut start(&cache), json!({ "namespace": "notes", "documents": documents }));
    let input = json!({ "query": "okapi", "namespace": "notes" });
    for cache in [cache, TempDir::new().unwrap()] {
        let mut client = start(&cache);
        assert_eq!(ids(&search(&mut client, input.clone())), ["a"]);
    }
}

#[test]
fn invalid_documents_are_rejected_with_the_reason() {
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("search_namespaces", "docs=docs");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let one = json!([{ "id": "a", "text": "x" }]);
    for (input, expected) in [
        (json!({ "namespace": "workspace", "documents": one }), "has files"),
        (json!({ "namespace": "docs", "documents": one }), "has files"),
        (json!({ "namespace": "../x", "documents": one }), "lower-case letters"),
        (json!({ "namespace": "n" }), "pass `documents` to store"),
        (json!({ "namespace": "n", "remove": ["a"] }), "unknown namespace `n`"),
        (json!({ "namespace": "n", "documents": [{ "id": "", "text": "x" }] }), "/documents/0/id"),
        (json!({ "namespace": "n", "documents": [{ "id": "a" }] }), "/documents/0"),
        (json!({ "namespace": "n", "documents": [{ "id": "a", "text": "x", "json": 1 }] }), "one"),
        (json!({ "namespace": "n", "documents": [one[0], one[0]] }), "twice"),
        (json!({ "namespace": "n", "documents": one, "remove": ["a"] }), "twice"),
        (
            json!({ "namespace": "n", "documents": [{ "id": "a", "text": "x".repeat(2 << 20) }] }),
            "split it",
        ),
    ] {
        let message = refusal(&client.call("search_upsert", input.clone()));
        assert!(message.contains(expected), "{input}: {message}");
    }
    for at in 0..64 {
        upsert(&mut client, json!({ "namespace": format!("many-{at}"), "documents": one }));
    }
    let more = client.call("search_upsert", json!({ "namespace": "more", "documents": one }));
    assert!(refusal(&more).contains("there are 64 namespaces of documents already"), "{more}");
    let read_only = ServerLaunchOptions::over(&TempWorkspace::new()).arg("--read-only");
    let names = TestMcpClient::stdio(read_only, MODERN).tools();
    assert!(!names.iter().any(|tool| tool["name"] == "search_upsert"));
}
