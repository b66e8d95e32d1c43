//! Tests of limits per caller with a running server.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::policy::{call_with_key, key};
use crate::support::{ServerLaunchOptions, TempWorkspace, keys_of, over_both, refusal, wait_until};

#[test]
fn one_caller_does_not_block_others() {
    let ((ada, ada_lines), (bob, bob_lines)) = (key("ada"), key("bob"));
    let limits = "[limits]\nprograms = 4\n";
    let workspace =
        TempWorkspace::new().file("toolgate.toml", format!("{limits}{ada_lines}\n{bob_lines}"));
    let served = ServerLaunchOptions::over(&workspace).served();
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
    // Number of refused calls that leave a record at once, and of further ones per second.
    const REFUSED: u64 = 1_000;
    const MORE: u64 = 20;
    let workspace = TempWorkspace::new().file("toolgate.toml", keys_of(&["ada", "bob"]));
    let served = ServerLaunchOptions::over(&workspace).served();
    let read =
        |key: &str| call_with_key(&served, key, "files_read", json!({ "path": "README.md" }));
    assert_eq!(read("bob-key")["result"]["isError"], false);
    let started = Instant::now();
    let mut nth = 0;
    let last = loop {
        let answer = match nth % 2 {
            0 => call_with_key(&served, "ada-key", "no_such_tool", json!({})),
            _ => call_with_key(&served, "ada-key", "files_read", json!({ "paths": 1 })),
        };
        nth += 1;
        let message = refusal(&answer);
        if message.contains("too many of your calls were refused recently") {
            break message;
        }
        assert!(nth < REFUSED + MORE * (1 + started.elapsed().as_secs()), "{nth}: {message}");
    };
    assert!(nth > REFUSED && last.contains("try again in"), "{nth}: {last}");
    let most = usize::try_from(nth).unwrap();
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
        (1_000..=most).contains(&count_records("ada", "refused")),
        "{} of {most}",
        count_records("ada", "refused")
    );
}

#[test]
fn a_prompt_that_includes_files_counts_against_the_rate_of_reading_them() {
    let workspace = TempWorkspace::new().file(
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
    let workspace = TempWorkspace::new().file("toolgate.toml", keys_of(&["ada", "bob"]));
    let served = ServerLaunchOptions::over(&workspace).served();
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
