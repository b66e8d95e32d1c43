//! Limits per caller, seen from outside.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::policy::{call_with_key, key};
use crate::support::{Launch, Workspace, keys_of, over_both, over_both_with, refusal, wait_until};

#[test]
fn a_caller_that_wrote_too_much_gets_a_retry_time_and_is_admitted_after_it() {
    let workspace = Workspace::new();
    let settings = [("limits_written_bytes", 100_000), ("limits_written_per_s_bytes", 100_000)];
    over_both_with(&workspace, &settings, |client| {
        let content = "x".repeat(60_000);
        let write = json!({ "path": "a", "content": content, "overwrite": true });
        let first = client.call("files_write", write.clone());
        assert_eq!(first["result"]["isError"], false, "{first}");
        let refused = (0..3).map(|_| client.call("files_write", write.clone()));
        let refused = refusal(&refused.last().unwrap());
        let (_, wait) = refused.rsplit_once("try again in ").unwrap();
        let wait: u64 = wait.trim_end_matches(" ms").parse().unwrap();
        assert!((1..=3_000).contains(&wait), "{refused}");
        // A call that writes nothing is not limited.
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(read["result"]["isError"], false, "{read}");
        thread::sleep(Duration::from_millis(wait + 50));
        let later =
            client.call("files_write", json!({ "path": "a", "content": "x", "overwrite": true }));
        assert_eq!(later["result"]["isError"], false, "{later}");
    });
}

#[test]
fn a_caller_that_received_too_much_gets_a_retry_time_and_others_are_not_limited() {
    let ((ada, ada_lines), (bob, bob_lines)) = (key("ada"), key("bob"));
    let limits = "[limits]\ncarried_bytes = 100_000\ncarried_per_s_bytes = 50_000\n";
    let workspace = Workspace::new()
        .file("toolgate.toml", format!("{limits}{ada_lines}\n{bob_lines}"))
        .file("large", "x".repeat(80_000));
    let served = Launch::over(&workspace).served();
    let read =
        |key: &str, path: &str| call_with_key(&served, key, "files_read", json!({ "path": path }));
    for _ in 0..2 {
        assert_eq!(read(&ada, "large")["result"]["isError"], false);
    }
    let refused = refusal(&read(&ada, "README.md"));
    assert!(refused.contains("sent and received recently"), "{refused}");
    let (_, wait) = refused.rsplit_once("try again in ").unwrap();
    let wait: u64 = wait.trim_end_matches(" ms").parse().unwrap();
    assert!((1..=2_500).contains(&wait), "{refused}");
    assert_eq!(read(&bob, "README.md")["result"]["isError"], false);
    thread::sleep(Duration::from_millis(wait + 50));
    assert_eq!(read(&ada, "README.md")["result"]["isError"], false);
}

#[test]
fn one_caller_does_not_block_others() {
    let ((ada, ada_lines), (bob, bob_lines)) = (key("ada"), key("bob"));
    let limits = "[limits]\nprograms = 4\n";
    let workspace =
        Workspace::new().file("toolgate.toml", format!("{limits}{ada_lines}\n{bob_lines}"));
    let served = Launch::over(&workspace).served();
    let sleep = |key: &str, seconds: &str| -> Value {
        call_with_key(
            &served,
            key,
            "exec_run",
            json!({ "command": "sh", "args": ["-c", "mktemp ran-XXXXXX; sleep $1", "sh", seconds] }),
        )
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| sleep(&ada, "8"));
        }
        let started_count = || {
            std::fs::read_dir(workspace.root())
                .unwrap()
                .filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().starts_with("ran-"))
                .count()
        };
        wait_until("ada's programs reach their limit", || started_count() == 3);
        let started = Instant::now();
        let answer = sleep(&bob, "0");
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    });
}

#[test]
fn refused_calls_of_one_caller_do_not_displace_records_of_others() {
    let workspace = Workspace::new().file("toolgate.toml", keys_of(&["ada", "bob"]));
    let launch = Launch::over(&workspace).set("limits_refused", 5).set("limits_refused_per_s", 1);
    let served = launch.served();
    let read =
        |key: &str| call_with_key(&served, key, "files_read", json!({ "path": "README.md" }));
    assert_eq!(read("bob-key")["result"]["isError"], false);
    let started = Instant::now();
    let refused: Vec<_> = (0..60)
        .map(|nth| match nth % 2 {
            0 => call_with_key(&served, "ada-key", "no_such_tool", json!({})),
            _ => call_with_key(&served, "ada-key", "files_read", json!({ "paths": 1 })),
        })
        .collect();
    assert!(!refusal(&refused[0]).contains("too many"), "{}", refused[0]);
    let last = refusal(refused.last().unwrap());
    assert!(last.contains("too many of your calls were refused recently"), "{last}");
    assert!(last.contains("try again in"), "{last}");
    let most = 6 + usize::try_from(started.elapsed().as_secs()).unwrap();
    // Her allowed calls still run and are recorded, as are all calls of others.
    assert_eq!(read("ada-key")["result"]["isError"], false);
    assert_eq!(
        call_with_key(&served, "bob-key", "no_such_tool", json!({}))["error"]["code"],
        -32602
    );
    let count_records = |caller: &str, outcome: &str| {
        let records = served.records();
        let matching = records.iter().filter(|it| it["caller"] == caller);
        matching.filter(|it| (it["outcome"] == "ok") == (outcome == "ok")).count()
    };
    wait_until("the last is on record", || count_records("bob", "refused") == 1);
    assert_eq!((count_records("ada", "ok"), count_records("bob", "ok")), (1, 1));
    assert!(
        (5..=most).contains(&count_records("ada", "refused")),
        "{} of {most}",
        count_records("ada", "refused")
    );
}

#[test]
fn a_prompt_that_includes_files_counts_against_the_rate_of_reading_them() {
    let workspace = Workspace::new().file(
        "toolgate.toml",
        "[[limits.rate]]\ntools = \"files.read\"\ncalls = 2\nin_ms = 3600000\n",
    );
    over_both(&workspace, |client| {
        let mut explain = || {
            let arguments = json!({ "path": "README.md" });
            client.ask("prompts/get", json!({ "name": "explain", "arguments": arguments }))
        };
        for _ in 0..2 {
            let made = explain();
            assert!(made["result"]["messages"].is_array(), "{made}");
        }
        let refused = refusal(&explain());
        assert!(refused.contains("`files_read` is called too often"), "{refused}");
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert!(refusal(&read).contains("too often"), "{read}");
        let prompt = client.ask("prompts/get", json!({ "name": "bootstrap" }));
        assert!(prompt["result"]["messages"].is_array(), "{prompt}");
    });
}

#[test]
fn beyond_the_limit_an_output_of_the_caller_with_most_is_removed() {
    let workspace = Workspace::new().file("toolgate.toml", keys_of(&["ada", "bob"]));
    let served = Launch::over(&workspace).served();
    let print = |key: &str| {
        let answer =
            call_with_key(&served, key, "exec_run", json!({ "command": "seq", "args": ["99999"] }));
        let id = &answer["result"]["structuredContent"]["output_id"];
        id.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let is_kept = |key: &str, id: &str| {
        let answer = call_with_key(&served, key, "exec_output", json!({ "output_id": id }));
        answer["result"]["isError"] == false
    };
    let bob_id = print("bob-key");
    // 16 outputs are kept.
    let ada_ids: Vec<_> = (0..17).map(|_| print("ada-key")).collect();
    assert!(is_kept("bob-key", &bob_id));
    let retained: Vec<_> = ada_ids.iter().map(|id| is_kept("ada-key", id)).collect();
    assert_eq!(
        (&retained[..2], retained[2..].iter().all(|retained| *retained)),
        (&[false, false][..], true)
    );
}
