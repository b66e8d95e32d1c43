//! Tests of texts on which a tree-sitter grammar crashes, and of the processes that parse texts.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::search;
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, descendants, is_alive, over_both,
    structured, wait_until,
};

/// Returns Ruby code that defines `name`, and on which the grammar's scanner aborts: the word after
/// `<<` has more than 255 bytes.
fn crashing_text(name: &str) -> String {
    format!("def {name}\n  1\nend\n\nx = <<{}\n", "A".repeat(300))
}

/// Returns the path and the line of the first definition with the name `name`.
#[track_caller]
fn definition(client: &mut TestMcpClient, name: &str) -> (String, u64) {
    let found = structured(&client.call("search_names", json!({ "name": name }))).clone();
    let first = &found["definitions"][0];
    (first["path"].as_str().unwrap().to_owned(), first["line"].as_u64().unwrap())
}

/// Checks that the log reports the crash on `bad.rb` once, and no other crash.
#[track_caller]
fn is_reported_once(client: &TestMcpClient) {
    let report = "the parser of `bad.rb` crashed";
    wait_until("the crash is reported", || client.server().log().contains(report));
    let log = client.server().log();
    assert_eq!(log.matches("the parser of").count(), 1, "{log}");
}

/// Returns the ids of the server's processes that parse texts.
fn parsers(client: &TestMcpClient) -> Vec<u32> {
    let is_parser = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with("toolgate-parser")
    };
    descendants(client.server().pid).into_iter().filter(is_parser).collect()
}

#[test]
fn a_file_that_crashes_a_grammar_is_found_and_reported_once() {
    let workspace = TempWorkspace::new()
        .file("bad.rb", crashing_text("okapi_feed"))
        .file("good.rb", "def zebra_feed\n  1\nend\n");
    over_both(&workspace, |client| {
        for (name, path) in [("okapi_feed", "bad.rb"), ("zebra_feed", "good.rb")] {
            assert_eq!(definition(client, name), (path.to_owned(), 1));
            let found = search(client, json!({ "query": name }));
            let is_it = |it: &Value| it["path"] == path;
            assert!(found["matches"].as_array().unwrap().iter().any(is_it), "{found}");
            let text = structured(&client.call("search_text", json!({ "text": name }))).clone();
            assert_eq!(text["files"][0]["path"], path);
        }
        is_reported_once(client);
    });
}

#[test]
fn a_document_whose_id_selects_a_crashing_grammar_is_found() {
    over_both(&TempWorkspace::new(), |client| {
        let documents = json!([
            { "id": "bad.rb", "text": crashing_text("okapi_feed") },
            { "id": "good.rb", "text": "def zebra_feed\n  1\nend\n" },
        ]);
        let input = json!({ "namespace": "notes", "documents": documents });
        assert_eq!(structured(&client.call("search_upsert", input))["added"], 2);
        for (query, id) in [("okapi feed", "bad.rb"), ("zebra feed", "good.rb")] {
            let found = search(client, json!({ "query": query, "namespace": "notes" }));
            let is_it = |it: &Value| it["path"] == id;
            assert!(found["matches"].as_array().unwrap().iter().any(is_it), "{found}");
        }
        is_reported_once(client);
    });
}

#[test]
fn a_killed_parser_is_replaced_and_no_text_is_blamed() {
    let workspace = TempWorkspace::new().file("one.rb", "def okapi_feed\n  1\nend\n");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    assert_eq!(definition(&mut client, "okapi_feed"), ("one.rb".to_owned(), 1));
    let killed = parsers(&client);
    assert!(!killed.is_empty(), "no process parses");
    for pid in &killed {
        kill_process(Pid::from_raw((*pid).try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    }
    wait_until("the parsers have ended", || killed.iter().all(|pid| !is_alive(*pid)));
    workspace.put("two.rb", "def zebra_feed\n  1\nend\n");
    wait_until("the new file is found", || {
        let answer = client.call("search_names", json!({ "name": "zebra_feed" }));
        let found = structured(&answer);
        found["definitions"][0]["path"] == "two.rb"
    });
    let log = client.server().log();
    assert!(!log.contains("the parser of"), "{log}");
}

#[test]
fn a_parser_opens_no_files_gains_no_rights_and_ends_with_a_killed_server() {
    let workspace = TempWorkspace::new().file("one.rb", "def okapi_feed\n  1\nend\n");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    definition(&mut client, "okapi_feed");
    let parsers = parsers(&client);
    assert!(!parsers.is_empty(), "no process parses");
    for pid in &parsers {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let (limits, status) = (read("limits"), read("status"));
        let limit = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(limit("Max open files"), ["0", "0"]);
        assert_eq!(limit("Max file size"), ["0", "0"]);
        assert_ne!(limit("Max address space")[1], "unlimited");
        let has = |line: &str| status.lines().any(|it| it == line);
        assert!(has("NoNewPrivs:\t1") && has("CapEff:\t0000000000000000"), "{status}");
    }
    client.server().signal(Signal::KILL);
    wait_until("the parsers have ended", || parsers.iter().all(|pid| !is_alive(*pid)));
}
