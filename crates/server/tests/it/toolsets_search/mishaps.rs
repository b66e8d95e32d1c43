//! Tests of failures while an index is maintained: full disks, deleted folders, and servers that
//! hang or are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{large, paths, search, status};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, refusal,
    structured, wait_until,
};

/// Returns the path of the only index in `cache`.
fn index(cache: &TempDir) -> PathBuf {
    let mut folders = fs::read_dir(cache.path().join("toolgate/search")).unwrap();
    folders.next().expect("no index").unwrap().path()
}

fn signal(client: &TestMcpClient, signal: Signal) {
    let TestClientTransport::Stdio(stdio) = &client.wire else { unreachable!() };
    stdio.signal(signal);
}

/// Guard that makes all commits to the index in `folder` fail until it is dropped, like a full
/// disk.
struct FullIndexDiskGuard(PathBuf);

impl FullIndexDiskGuard {
    fn new(folder: &Path) -> Self {
        let at = folder.join("words/meta.json.new");
        fs::create_dir(&at).unwrap();
        Self(at)
    }
}

impl Drop for FullIndexDiskGuard {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn a_following_server_reports_complete_once_the_leader_does() {
    let workspace = large(2_000);
    let cache = TempDir::new().unwrap();
    let start = || {
        let launch = ServerLaunchOptions::over(&workspace).with_cache(&cache);
        // A search waits half of this time for the index.
        TestMcpClient::stdio(launch.set("limits_deadline_ms", 400), MODERN)
    };
    let input = || json!({ "query": "zebra" });
    let mut leader = start();
    assert_eq!(search(&mut leader, input())["index"]["state"], "building");
    signal(&leader, Signal::STOP);
    let mut follower = start();
    wait_until("the follower has opened the index", || {
        search(&mut follower, input())["index"]["state"] == "following"
    });
    let index = status(&mut follower, "workspace");
    assert_eq!(index["complete"], false, "{index}");
    signal(&leader, Signal::CONT);
    wait_until("all files are indexed", || status(&mut leader, "workspace")["state"] == "ready");
    wait_until("the follower reports it", || {
        status(&mut follower, "workspace")["complete"] == true
    });
    let files = |client: &mut TestMcpClient| status(client, "workspace")["files"].clone();
    assert_eq!(files(&mut follower), files(&mut leader));
}

#[test]
fn a_server_that_follows_a_stuck_one_names_it_and_takes_over_when_it_ends() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn zebra() {}\n");
    let start =
        || TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    let mut leader = start();
    let mut follower = start();
    search(&mut leader, json!({ "query": "zebra" }));
    wait_until("the second server follows", || {
        let index = search(&mut follower, json!({ "query": "zebra" }))["index"].clone();
        index["state"] == "following" && index["complete"] == true
    });
    signal(&leader, Signal::STOP);
    // As if the leader's last sign of life was a minute ago.
    let file = fs::File::options().write(true).open(index(&cache).join("leader.json")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    workspace.put("b.rs", "fn okapi() {}\n");
    let mut report = Value::Null;
    wait_until("the follower reports the stuck leader", || {
        report = search(&mut follower, json!({ "query": "okapi" }))["index"].clone();
        report["complete"] == false
    });
    let TestClientTransport::Stdio(stdio) = &leader.wire else { unreachable!() };
    let note = report["note"].as_str().unwrap();
    assert!(
        note.contains(&format!("process {}", stdio.pid)) && note.contains("end that server"),
        "{note}"
    );
    signal(&leader, Signal::KILL);
    wait_until("the follower takes over", || {
        paths(&search(&mut follower, json!({ "query": "okapi" }))) == ["b.rs"]
    });
}

#[test]
fn on_a_full_disk_indexed_files_are_found_and_the_problem_is_reported() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn zebra() {}\n");
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    search(&mut client, json!({ "query": "zebra" }));
    let full_disk = FullIndexDiskGuard::new(&index(&cache));
    workspace.put("b.rs", "fn okapi() {}\n");
    let all = search(&mut client, json!({ "query": "zebra okapi" }));
    assert_eq!((paths(&all), &all["index"]["complete"]), (vec!["a.rs"], &json!(false)));
    let note = all["index"]["note"].as_str().unwrap();
    assert!(note.contains("directory") && !note.contains(cache.path().to_str().unwrap()), "{note}");
    // Waiting for an up-to-date index fails with the reason.
    let input = json!({ "namespace": "workspace", "wait_ms": 5_000 });
    assert!(refusal(&client.call("search_index_status", input)).contains(note));
    drop(full_disk);
    wait_until("there is room again", || {
        let all = search(&mut client, json!({ "query": "okapi" }));
        paths(&all) == ["b.rs"] && all["index"]["complete"] == true
    });
    assert_eq!(status(&mut client, "workspace").get("note"), None);
}

#[test]
fn a_failed_change_of_documents_leaves_them_unchanged_after_a_restart_too() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = TempWorkspace::new();
    let start = || {
        TestMcpClient::stdio(
            ServerLaunchOptions::over(&workspace).with_cache(&cache).with_state(&state),
            MODERN,
        )
    };
    let mut client = start();
    let documents = json!([{ "id": "one", "text": "a quagga" }, { "id": "two", "text": "a gnu" }]);
    let put = json!({ "namespace": "notes", "documents": documents });
    structured(&client.call("search_upsert", put));
    let documents =
        json!([{ "id": "two", "text": "a kudu" }, { "id": "three", "text": "a bongo" }]);
    let change = json!({ "namespace": "notes", "documents": documents, "remove": ["one"] });
    let full_disk = FullIndexDiskGuard::new(&index(&cache));
    refusal(&client.call("search_upsert", change.clone()));
    drop(full_disk);
    let check = |client: &mut TestMcpClient, animals: &[(&str, bool)]| {
        for (animal, is_expected) in animals {
            let all = search(client, json!({ "query": animal, "namespace": "notes" }));
            assert_eq!(!paths(&all).is_empty(), *is_expected, "{animal}: {all}");
        }
        assert_eq!(status(client, "notes")["files"], 2);
    };
    let before = [("quagga", true), ("gnu", true), ("kudu", false), ("bongo", false)];
    check(&mut client, &before);
    drop(client);
    let mut client = start();
    check(&mut client, &before);
    structured(&client.call("search_upsert", change));
    let after = before.map(|(animal, is_expected)| (animal, !is_expected));
    check(&mut client, &after);
    drop(client);
    check(&mut start(), &after);
}

#[test]
fn a_change_of_documents_interrupted_by_a_kill_is_undone() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = TempWorkspace::new();
    let start = || {
        TestMcpClient::stdio(
            ServerLaunchOptions::over(&workspace).with_cache(&cache).with_state(&state),
            MODERN,
        )
    };
    let put = |client: &mut TestMcpClient, id: &str, text: &str| {
        let documents = json!([{ "id": id, "text": text }]);
        let put = json!({ "namespace": "notes", "documents": documents });
        structured(&client.call("search_upsert", put));
    };
    let json_files = |folder: &Path| -> Vec<PathBuf> {
        let all = super::freshness::files(folder).into_iter();
        all.filter(|it| it.extension().is_some_and(|end| end == "json")).collect()
    };
    let mut client = start();
    put(&mut client, "one", "a quagga");
    let documents = state.path().join("toolgate/documents");
    let [one] = &json_files(&documents)[..] else { panic!("{:?}", json_files(&documents)) };
    let previous = fs::read(one).unwrap();
    put(&mut client, "two", "a gnu");
    put(&mut client, "one", "a kudu");
    let two = json_files(&documents).into_iter().find(|it| it != one).unwrap();
    signal(&client, Signal::KILL);
    // As if the server was killed during a change that replaced `one` and added `two`.
    let before = one.parent().unwrap().join("before");
    fs::create_dir(&before).unwrap();
    fs::write(before.join(one.file_name().unwrap()), previous).unwrap();
    fs::write(before.join(two.file_name().unwrap()), "").unwrap();
    let mut client = start();
    for (animal, is_expected) in [("quagga", true), ("gnu", false), ("kudu", false)] {
        let all = search(&mut client, json!({ "query": animal, "namespace": "notes" }));
        assert_eq!(!paths(&all).is_empty(), is_expected, "{animal}: {all}");
    }
    assert_eq!(status(&mut client, "notes")["files"], 1);
    assert!(!before.exists() && !two.exists());
}

#[test]
fn calls_succeed_after_the_cache_is_deleted_while_the_server_runs() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("a.rs", "fn zebra() {}\n");
    let launch = ServerLaunchOptions::over(&workspace).with_cache(&cache);
    let mut client = TestMcpClient::stdio(launch.with_state(&state), MODERN);
    let put = |client: &mut TestMcpClient, id: &str| {
        let documents = json!([{ "id": id, "text": format!("a quagga called {id}") }]);
        let put = json!({ "namespace": "notes", "documents": documents });
        structured(&client.call("search_upsert", put))["documents"].clone()
    };
    search(&mut client, json!({ "query": "zebra" }));
    put(&mut client, "one");
    fs::remove_dir_all(cache.path().join("toolgate")).unwrap();
    workspace.put("b.rs", "fn okapi() {}\n");
    assert_eq!(paths(&search(&mut client, json!({ "query": "okapi" }))), ["b.rs"]);
    assert_eq!(paths(&search(&mut client, json!({ "query": "zebra" }))), ["a.rs"]);
    assert_eq!(put(&mut client, "two"), 2);
    let quaggas = search(&mut client, json!({ "query": "quagga", "namespace": "notes" }));
    assert_eq!(paths(&quaggas).len(), 2, "{quaggas}");
}

#[test]
fn a_file_with_more_passages_than_the_queue_holds_does_not_hide_others() {
    // Each passage contains the whole path.
    let folder = ["-"; 15].map(|it| it.repeat(240)).join("/");
    let big: String = (0..3_000).map(|at| format!("fn f{at:x}() {{\n1;\n1;\n}}\n")).collect();
    let workspace = TempWorkspace::new()
        .file(&format!("{folder}/big.rs"), big)
        .file("small.rs", "fn okapi() {}\n");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    search(&mut client, json!({ "query": "okapi" }));
    wait_until("all files are indexed", || status(&mut client, "workspace")["state"] == "ready");
    let all = search(&mut client, json!({ "query": "okapi" }));
    assert_eq!((paths(&all), &all["index"]["complete"]), (vec!["small.rs"], &json!(true)));
    assert!(all["index"]["chunks"].as_u64().unwrap() * 3_600 > 4 << 20, "{}", all["index"]);
}
