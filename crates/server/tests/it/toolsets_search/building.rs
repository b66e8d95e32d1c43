//! An index that is on its way: what is answered meanwhile, and what is said of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{found, paths, status};
use crate::support::{Client, Launch, MODERN, Wire, Workspace, structured, wait_long_for};

/// A workspace with so many files more than one has: reading them takes a while.
pub(crate) fn large(files: usize) -> Workspace {
    let workspace = Workspace::new();
    for file in 0..files {
        let one = |at| format!("fn zebra_{file}_{at}(run: u32) -> u32 {{\n    run + {at}\n}}\n\n");
        let text: String = (0..20).map(one).collect();
        workspace.put(&format!("src/{}/f{file}.rs", file % 20), text);
    }
    workspace
}

#[test]
fn a_first_search_answers_from_what_is_indexed_so_far_and_says_how_far_that_is() {
    let workspace = large(5_000);
    // It waits half of that, and reading them all takes far longer.
    let launch = Launch::over(&workspace).set("limits_deadline_ms", 400);
    let mut client = Client::stdio(launch, MODERN);
    let ask = json!({ "query": "zebra", "top_k": 50 });
    let ask = json!({ "name": "search_semantic", "arguments": ask });
    let mut message = client.request("tools/call", ask);
    message["params"]["_meta"]["progressToken"] = json!("how far");
    let begun = Instant::now();
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    stdio.send(&message);
    let mut told = Vec::new();
    let answer = loop {
        let said = stdio.receive();
        if said["id"] == message["id"] {
            break said;
        }
        told.push(said);
    };
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let index = &structured(&answer)["index"];
    assert_eq!((&index["state"], &index["complete"]), (&json!("building"), &json!(false)));
    let files = index["files"].as_u64().unwrap();
    assert!(files < 5_001, "{index}");
    let text = answer["result"]["content"].to_string();
    assert!(text.contains("index: being built"), "{text}");
    let is_progress = |it: &Value| {
        let params = &it["params"];
        let message = params["message"].as_str().unwrap_or_default();
        params["progressToken"] == "how far" && message.ends_with("files indexed")
    };
    assert!(!told.is_empty() && told.iter().all(is_progress), "{told:?}");
    // What is in it already is found.
    wait_long_for(Duration::from_secs(60), "something is found before all is indexed", || {
        let some = found(&mut client, json!({ "query": "zebra", "top_k": 50 }));
        assert_eq!(some["index"]["complete"], false, "nothing was: {}", some["index"]);
        (!paths(&some).is_empty()).then_some(())
    });
    let index = wait_long_for(Duration::from_secs(60), "it is whole", || {
        let index = status(&mut client, "workspace");
        (index["complete"] == true).then_some(index)
    });
    assert_eq!((&index["state"], &index["files"]), (&json!("ready"), &json!(5_001)), "{index}");
}
