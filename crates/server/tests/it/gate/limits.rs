//! How much each caller may take, seen from outside.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::policy::{called, key};
use crate::support::{Launch, Workspace, over_both_with, refusal, wait_until};

#[test]
fn who_has_written_too_much_is_told_when_to_come_back_and_is_let_in_then() {
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
        // What writes nothing is none of it.
        let read = client.call("files_read", json!({ "path": "README.md" }));
        assert_eq!(read["result"]["isError"], false, "{read}");
        thread::sleep(Duration::from_millis(wait + 50));
        let later =
            client.call("files_write", json!({ "path": "a", "content": "x", "overwrite": true }));
        assert_eq!(later["result"]["isError"], false, "{later}");
    });
}

#[test]
fn one_caller_keeps_no_other_out() {
    let ((ada, ada_lines), (bob, bob_lines)) = (key("ada"), key("bob"));
    let limits = "[limits]\nprograms = 4\n";
    let workspace =
        Workspace::new().file("toolgate.toml", format!("{limits}{ada_lines}\n{bob_lines}"));
    let served = Launch::over(&workspace).served();
    let sleep = |key: &str, seconds: &str| -> Value {
        called(
            &served,
            key,
            "exec_run",
            json!({ "command": "sh", "args": ["-c", "mktemp ran-XXXXXX; sleep $1", "sh", seconds] }),
        )
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| sleep(&ada, "3"));
        }
        let ran = || {
            std::fs::read_dir(workspace.root())
                .unwrap()
                .filter(|it| it.as_ref().unwrap().file_name().to_string_lossy().starts_with("ran-"))
                .count()
        };
        wait_until("as many of hers run as may", || ran() == 3);
        let begun = Instant::now();
        let answer = sleep(&bob, "0");
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}
