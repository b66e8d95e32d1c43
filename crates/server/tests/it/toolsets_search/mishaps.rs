//! What happens to an index while it is kept: full disks, folders that are deleted, servers that
//! are stuck or killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{found, large, paths, status};
use crate::support::{Client, Launch, MODERN, Wire, Workspace, refusal, structured, wait_until};

/// The only index in `cache`.
fn index(cache: &TempDir) -> PathBuf {
    let mut folders = fs::read_dir(cache.path().join("toolgate/search")).unwrap();
    folders.next().expect("no index").unwrap().path()
}

fn signal(client: &Client, signal: Signal) {
    let Wire::Stdio(stdio) = &client.wire else { unreachable!() };
    stdio.signal(signal);
}

/// Lets nothing be committed to the index in `folder` until this is dropped, as a full disk does.
struct Full(PathBuf);

impl Full {
    fn of(folder: &Path) -> Self {
        let at = folder.join("words/meta.json.new");
        fs::create_dir(&at).unwrap();
        Self(at)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).unwrap();
    }
}

#[test]
fn what_follows_says_complete_once_the_one_that_keeps_the_index_does() {
    let workspace = large(2_000);
    let cache = TempDir::new().unwrap();
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        // It waits half of that for the index.
        Client::stdio(launch.set("limits_deadline_ms", 400), MODERN)
    };
    let ask = || json!({ "query": "zebra" });
    let mut leads = start();
    assert_eq!(found(&mut leads, ask())["index"]["state"], "building");
    signal(&leads, Signal::STOP);
    let mut follows = start();
    wait_until("it has opened the index", || {
        found(&mut follows, ask())["index"]["state"] == "following"
    });
    let told = status(&mut follows, "workspace");
    assert_eq!(told["complete"], false, "{told}");
    signal(&leads, Signal::CONT);
    wait_until("all is taken in", || status(&mut leads, "workspace")["state"] == "ready");
    wait_until("it follows", || status(&mut follows, "workspace")["complete"] == true);
    let told = |client: &mut Client| status(client, "workspace")["files"].clone();
    assert_eq!(told(&mut follows), told(&mut leads));
}

#[test]
fn what_follows_one_that_is_stuck_says_which_and_takes_over_when_that_ends() {
    let workspace = Workspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn zebra() {}\n");
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        Client::stdio(launch, MODERN)
    };
    let mut leads = start();
    let mut follows = start();
    found(&mut leads, json!({ "query": "zebra" }));
    wait_until("it follows", || {
        let index = found(&mut follows, json!({ "query": "zebra" }))["index"].clone();
        index["state"] == "following" && index["complete"] == true
    });
    signal(&leads, Signal::STOP);
    // As if it was a minute ago.
    let sign = fs::File::options().write(true).open(index(&cache).join("leader.json")).unwrap();
    sign.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    workspace.put("b.rs", "fn okapi() {}\n");
    let mut told = Value::Null;
    wait_until("it is said", || {
        told = found(&mut follows, json!({ "query": "okapi" }))["index"].clone();
        told["complete"] == false
    });
    let Wire::Stdio(stdio) = &leads.wire else { unreachable!() };
    let note = told["note"].as_str().unwrap();
    assert!(note.contains(&format!("process {}", stdio.pid)) && note.contains("end it"), "{note}");
    signal(&leads, Signal::KILL);
    wait_until("it takes over", || {
        paths(&found(&mut follows, json!({ "query": "okapi" }))) == ["b.rs"]
    });
}

#[test]
fn on_a_full_disk_what_is_indexed_is_found_and_it_is_said_what_is_wrong() {
    let workspace = Workspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn zebra() {}\n");
    let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
    let mut client = Client::stdio(launch, MODERN);
    found(&mut client, json!({ "query": "zebra" }));
    let full = Full::of(&index(&cache));
    workspace.put("b.rs", "fn okapi() {}\n");
    let all = found(&mut client, json!({ "query": "zebra okapi" }));
    assert_eq!((paths(&all), &all["index"]["complete"]), (vec!["a.rs"], &json!(false)));
    let note = all["index"]["note"].as_str().unwrap();
    assert!(note.contains("directory") && !note.contains(cache.path().to_str().unwrap()), "{note}");
    // Whoever wants it brought up to date learns that it cannot be.
    let ask = json!({ "namespace": "workspace", "wait_ms": 5_000 });
    assert!(refusal(&client.call("search_index_status", ask)).contains(note));
    drop(full);
    wait_until("there is room again", || {
        let all = found(&mut client, json!({ "query": "okapi" }));
        paths(&all) == ["b.rs"] && all["index"]["complete"] == true
    });
    assert_eq!(status(&mut client, "workspace").get("note"), None);
}

#[test]
fn a_change_of_documents_that_fails_leaves_them_as_they_were_for_the_next_server_too() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = Workspace::new();
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        Client::stdio(launch.remembering(&state), MODERN)
    };
    let mut client = start();
    let documents = json!([{ "id": "one", "text": "a quagga" }, { "id": "two", "text": "a gnu" }]);
    let put = json!({ "namespace": "notes", "documents": documents });
    structured(&client.call("search_upsert", put));
    let documents =
        json!([{ "id": "two", "text": "a kudu" }, { "id": "three", "text": "a bongo" }]);
    let change = json!({ "namespace": "notes", "documents": documents, "remove": ["one"] });
    let full = Full::of(&index(&cache));
    refusal(&client.call("search_upsert", change.clone()));
    drop(full);
    let is = |client: &mut Client, animals: &[(&str, bool)]| {
        for (animal, is_there) in animals {
            let all = found(client, json!({ "query": animal, "namespace": "notes" }));
            assert_eq!(!paths(&all).is_empty(), *is_there, "{animal}: {all}");
        }
        assert_eq!(status(client, "notes")["files"], 2);
    };
    let before = [("quagga", true), ("gnu", true), ("kudu", false), ("bongo", false)];
    is(&mut client, &before);
    drop(client);
    let mut client = start();
    is(&mut client, &before);
    structured(&client.call("search_upsert", change));
    let after = before.map(|(animal, is_there)| (animal, !is_there));
    is(&mut client, &after);
    drop(client);
    is(&mut start(), &after);
}

#[test]
fn a_change_of_documents_broken_off_by_a_kill_is_undone_and_nothing_else_is_found() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = Workspace::new();
    let start = || {
        let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
        Client::stdio(launch.remembering(&state), MODERN)
    };
    let put = |client: &mut Client, id: &str, text: &str| {
        let documents = json!([{ "id": id, "text": text }]);
        let put = json!({ "namespace": "notes", "documents": documents });
        structured(&client.call("search_upsert", put));
    };
    let json = |folder: &Path| -> Vec<PathBuf> {
        let all = super::freshness::files(folder).into_iter();
        all.filter(|it| it.extension().is_some_and(|end| end == "json")).collect()
    };
    let mut client = start();
    put(&mut client, "one", "a quagga");
    let documents = state.path().join("toolgate/documents");
    let [one] = &json(&documents)[..] else { panic!("{:?}", json(&documents)) };
    let was = fs::read(one).unwrap();
    put(&mut client, "two", "a gnu");
    put(&mut client, "one", "a kudu");
    let two = json(&documents).into_iter().find(|it| it != one).unwrap();
    signal(&client, Signal::KILL);
    // It had replaced the one and added the other.
    let before = one.parent().unwrap().join("before");
    fs::create_dir(&before).unwrap();
    fs::write(before.join(one.file_name().unwrap()), was).unwrap();
    fs::write(before.join(two.file_name().unwrap()), "").unwrap();
    let mut client = start();
    for (animal, is_there) in [("quagga", true), ("gnu", false), ("kudu", false)] {
        let all = found(&mut client, json!({ "query": animal, "namespace": "notes" }));
        assert_eq!(!paths(&all).is_empty(), is_there, "{animal}: {all}");
    }
    assert_eq!(status(&mut client, "notes")["files"], 1);
    assert!(!before.exists() && !two.exists());
}

#[test]
fn the_cache_can_be_deleted_under_a_server_and_every_call_is_answered() {
    let cache = TempDir::new().unwrap();
    let state = TempDir::new().unwrap();
    let workspace = Workspace::new().file("a.rs", "fn zebra() {}\n");
    let launch = Launch::over(&workspace).env("XDG_CACHE_HOME", cache.path());
    let mut client = Client::stdio(launch.remembering(&state), MODERN);
    let put = |client: &mut Client, id: &str| {
        let documents = json!([{ "id": id, "text": format!("a quagga called {id}") }]);
        let put = json!({ "namespace": "notes", "documents": documents });
        structured(&client.call("search_upsert", put))["documents"].clone()
    };
    found(&mut client, json!({ "query": "zebra" }));
    put(&mut client, "one");
    fs::remove_dir_all(cache.path().join("toolgate")).unwrap();
    workspace.put("b.rs", "fn okapi() {}\n");
    assert_eq!(paths(&found(&mut client, json!({ "query": "okapi" }))), ["b.rs"]);
    assert_eq!(paths(&found(&mut client, json!({ "query": "zebra" }))), ["a.rs"]);
    assert_eq!(put(&mut client, "two"), 2);
    let quaggas = found(&mut client, json!({ "query": "quagga", "namespace": "notes" }));
    assert_eq!(paths(&quaggas).len(), 2, "{quaggas}");
}

#[test]
fn a_file_whose_passages_are_larger_than_what_may_wait_keeps_no_other_from_being_found() {
    // Each passage carries the whole path.
    let folder = ["-"; 15].map(|it| it.repeat(240)).join("/");
    let big: String = (0..3_000).map(|at| format!("fn f{at:x}() {{\n1;\n1;\n}}\n")).collect();
    let workspace =
        Workspace::new().file(&format!("{folder}/big.rs"), big).file("small.rs", "fn okapi() {}\n");
    let mut client = Client::stdio(Launch::over(&workspace), MODERN);
    found(&mut client, json!({ "query": "okapi" }));
    wait_until("all is taken in", || status(&mut client, "workspace")["state"] == "ready");
    let all = found(&mut client, json!({ "query": "okapi" }));
    assert_eq!((paths(&all), &all["index"]["complete"]), (vec!["small.rs"], &json!(true)));
    assert!(all["index"]["chunks"].as_u64().unwrap() * 3_600 > 4 << 20, "{}", all["index"]);
}
