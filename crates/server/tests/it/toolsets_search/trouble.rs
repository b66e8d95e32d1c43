//! Tests of searches with unreadable files, invalid vectors and invalid models.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use super::{paths, search};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, over_both,
    peak_memory_kib, wait_until,
};

#[test]
fn unreadable_files_do_not_hide_others() {
    let workspace = TempWorkspace::new()
        .file("good.rs", "fn okapi() {}\n")
        .file("latin.txt", b"okapi \xe9\n")
        .file("half.rs", b"fn okapi() { // \xf0\x9f")
        .file("nul.rs", b"fn okapi() {}\0\n")
        .file("long.js", "x".repeat(100 << 20))
        .link("loop", "loop")
        .link("round", ".")
        .link("out.rs", "/etc/passwd")
        .link("to.rs", "good.rs");
    let huge = fs::File::create(workspace.path("huge.rs")).unwrap();
    huge.set_len(2 << 30).unwrap();
    let line = fs::File::create(workspace.path("line.txt")).unwrap();
    line.set_len(1 << 20).unwrap();
    over_both(&workspace, |client| {
        let all = search(client, json!({ "query": "okapi", "top_k": 50 }));
        assert_eq!(paths(&all), ["good.rs"]);
        assert_eq!((&all["index"]["files"], &all["index"]["complete"]), (&json!(2), &json!(true)));
        let pid = match &client.wire {
            TestClientTransport::Stdio(stdio) => stdio.pid,
            TestClientTransport::Http(served) => served.server.pid,
        };
        let peak = peak_memory_kib(pid);
        assert!(peak < 200 << 10, "{peak} KiB");
    });
}

#[test]
fn a_constantly_changing_file_is_shown_in_one_version_or_not_at_all() {
    let workspace = TempWorkspace::new().file("still.rs", "fn okapi_still() {}\n");
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let workspace = workspace.clone();
        let stop = stop.clone();
        thread::spawn(move || {
            let mut round = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                workspace.put("busy.rs", format!("fn okapi_{round}() {{}}\n").repeat(200));
            }
        })
    };
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    for _ in 0..20 {
        let all = search(&mut client, json!({ "query": "okapi still", "top_k": 50 }));
        assert!(paths(&all).contains(&"still.rs"), "{all}");
        for it in all["matches"].as_array().unwrap() {
            // All lines are from the same version.
            let snippet = it["snippet"].as_str().unwrap();
            let mut lines: Vec<&str> = snippet.lines().collect();
            lines.dedup();
            assert_eq!(lines.len(), 1, "{snippet}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    workspace.put("busy.rs", "fn okapi_at_rest() {}\n");
    let rest = search(&mut client, json!({ "query": "okapi at rest" }));
    assert_eq!(paths(&rest)[0], "busy.rs", "{rest}");
}

#[test]
fn an_invalid_model_folder_is_an_error_at_the_start() {
    let workspace = TempWorkspace::new().file("model/config.json", "{}");
    for (folder, expected) in [("no-such-folder", "no-such-folder"), ("model", "model")] {
        let launch = ServerLaunchOptions::over(&workspace)
            .set("search_embedder", format!("folder={folder}"));
        let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
        let status = server.wait_for_exit();
        assert!(!status.success(), "{status}");
        wait_until("the log has the reason", || server.log().contains("search.embedder"));
        assert!(server.log().contains(expected), "{}", server.log());
    }
}

#[test]
fn a_vector_with_an_invalid_number_is_rejected_and_the_next_search_succeeds() {
    let workspace = TempWorkspace::new().file("a.rs", "fn okapi() {}\n");
    over_both(&workspace, |client| {
        for number in ["1e999", "-1e999", "NaN", "null"] {
            let numbers = vec![number; 256].join(",");
            let params =
                json!({ "name": "search_semantic", "arguments": { "embedding": "NUMBERS" } });
            let message = client.request("tools/call", params).to_string();
            let message = message.replace("\"NUMBERS\"", &format!("[{numbers}]"));
            let answer = client.raw(message.as_bytes());
            let text = answer.to_string();
            let is_error = answer.get("error").is_some() || answer["result"]["isError"] == true;
            assert!(is_error && !text.contains("panic"), "{number}: {text}");
            assert_eq!(paths(&search(client, json!({ "query": "okapi" }))), ["a.rs"]);
        }
    });
}
