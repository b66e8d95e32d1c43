//! Upstreams that do not answer, and who waits for them.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{launch, names, with_odds};
use crate::support::{Client, Wire};

#[test]
fn for_an_upstream_that_does_not_list_one_list_waits_and_it_is_there_once_it_does() {
    let workspace = with_odds(&[("late", "ODD_LATE = \"1\",", "start_ms = 3000")]);
    let mut client = Client::stdio(launch(&workspace), "2025-06-18");
    assert!(!names(&mut client).contains(&"late_echo".to_owned()));
    let before = Instant::now();
    for _ in 0..5 {
        assert!(!names(&mut client).contains(&"late_echo".to_owned()));
        let unknown = client.call("no_such_tool", json!({}));
        assert!(unknown.get("error").is_some() || unknown["result"]["isError"] == true);
        client.ask("prompts/list", json!({}));
        client.ask("resources/list", json!({}));
    }
    let took = before.elapsed();
    assert!(took < Duration::from_millis(2500), "{took:?}");
    fs::write(workspace.path("late.log.go"), "").unwrap();
    // Clients are told once it has said what it has.
    let Wire::Stdio(stdio) = &mut client.wire else { unreachable!() };
    let mut heard = std::iter::from_fn(|| Some(stdio.receive()));
    assert!(heard.any(|said| said["method"] == "notifications/tools/list_changed"));
    assert!(names(&mut client).contains(&"late_echo".to_owned()));
}
