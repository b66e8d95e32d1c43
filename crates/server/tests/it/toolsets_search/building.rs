//! Tests of searches while the index is being built.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{paths, search, status};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, structured,
    wait_long_for,
};

/// Returns a workspace with `files` files in addition to the corpus, so that indexing takes a
/// while.
pub(crate) fn large(files: usize) -> TempWorkspace {
    let workspace = TempWorkspace::new();
    for file in 0..files {
        let one = |at| format!("fn zebra_{file}_{at}(run: u32) -> u32 {{\n    run + {at}\n}}\n\n");
        let text: String = (0..20).map(one).collect();
        workspace.put(&format!("src/{}/f{file}.rs", file % 20), text);
    }
    workspace
}

#[test]
fn a_first_search_answers_from_the_incomplete_index_and_reports_progress() {
    let workspace = large(5_000);
    // The search waits half of this time, and reading all files takes far longer.
    let launch = ServerLaunchOptions::over(&workspace).set("limits_deadline_ms", 1_200);
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let input = json!({ "query": "zebra", "top_k": 50 });
    let params = json!({ "name": "search_semantic", "arguments": input });
    let mut message = client.request("tools/call", params);
    message["params"]["_meta"]["progressToken"] = json!("token");
    let start = Instant::now();
    let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    let mut notifications = Vec::new();
    let answer = loop {
        let received = stdio.receive();
        if received["id"] == message["id"] {
            break received;
        }
        notifications.push(received);
    };
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let index = &structured(&answer)["index"];
    assert_eq!((&index["state"], &index["complete"]), (&json!("building"), &json!(false)));
    let files = index["files"].as_u64().unwrap();
    assert!(files < 5_001, "{index}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    assert!(first.starts_with("partial: ") && first.ends_with(" files indexed"), "{text}");
    let is_progress = |it: &Value| {
        let params = &it["params"];
        let message = params["message"].as_str().unwrap_or_default();
        params["progressToken"] == "token" && message.ends_with(" indexed")
    };
    let all_progress = notifications.iter().all(is_progress);
    assert!(!notifications.is_empty() && all_progress, "{notifications:?}");
    // Files that are already in the index are found.
    wait_long_for(Duration::from_secs(60), "a match in the incomplete index", || {
        let some = search(&mut client, json!({ "query": "zebra", "top_k": 50 }));
        assert_eq!(some["index"]["complete"], false, "no match before: {}", some["index"]);
        (!paths(&some).is_empty()).then_some(())
    });
    let index = wait_long_for(Duration::from_secs(60), "the index is complete", || {
        let index = status(&mut client, "workspace");
        (index["complete"] == true).then_some(index)
    });
    assert_eq!((&index["state"], &index["files"]), (&json!("ready"), &json!(5_001)), "{index}");
}
