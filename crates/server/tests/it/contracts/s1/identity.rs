//! Tests of the request, trace and span ids in an envelope.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::{ask, call, envelope, get, library, lines};
use crate::support::ServerLaunchOptions;

fn ids(envelope: &Value) -> [String; 3] {
    ["requestId", "traceId", "spanId"].map(|id| envelope["meta"][id].as_str().unwrap().to_owned())
}

#[test]
fn s1_05_deterministic_ids_of_a_request_are_the_same_over_both_transports() {
    let workspace = library();
    let served = ServerLaunchOptions::over(&workspace).arg("--deterministic-ids").served();
    let mut stdio = lines(ServerLaunchOptions::over(&workspace).arg("--deterministic-ids"));
    let tool = "mcp.tool:files.read";
    let arguments = json!({ "path": "README.md" });
    let payload = json!({ "arguments": arguments, "toolId": tool });
    let discovered = [
        ids(&get(&served, "/mcp/discover").json()),
        ids(&get(&served, "/mcp/discover").json()),
        ids(&envelope(&ask(&mut stdio, 1, "mcp.discover", &json!({})))),
    ];
    assert_eq!(discovered[0], discovered[1]);
    assert_eq!(discovered[0], discovered[2]);
    // The id that the contract's first server computed.
    assert_eq!(discovered[0][0], "f8f3eb42-5b88-5811-bebf-7d8e1a90ea79");
    let called = [
        call(&served, tool, &arguments).json(),
        call(&served, tool, &arguments).json(),
        envelope(&ask(&mut stdio, 2, "mcp.tool.invoke", &payload)),
    ];
    assert_eq!(ids(&called[0]), ids(&called[1]));
    assert_eq!(ids(&called[0]), ids(&called[2]));
    assert_eq!(called[0], called[1], "deterministic envelopes have no times");
    assert_eq!(called[0]["meta"]["deterministic"], true);
    let other = ids(&call(&served, tool, &json!({ "path": "docs/one.md" })).json());
    let of_call = ids(&called[0]);
    let all: BTreeSet<_> = [&discovered[0], &of_call, &other].into_iter().flatten().collect();
    assert_eq!(all.len(), 9, "ids must differ for each request and kind");
}

#[test]
fn s1_05_ids_are_unique_by_default() {
    let served = ServerLaunchOptions::over(&library()).served();
    let envelopes: Vec<_> = (0..4).map(|_| get(&served, "/mcp/discover").json()).collect();
    let all: BTreeSet<_> = envelopes.iter().flat_map(ids).collect();
    assert_eq!(all.len(), 12);
    assert!(envelopes.iter().all(|one| one["meta"]["deterministic"] == false));
}
