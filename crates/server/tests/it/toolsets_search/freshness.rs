//! Tests of fresh results: the next search finds saved files, and only changed files are read
//! again.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{paths, search, status};
use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, over_both,
    structured, wait_until,
};
use crate::toolsets_git::{git, repository};

/// Returns the server's process id.
fn pid(client: &TestMcpClient) -> u32 {
    match &client.wire {
        TestClientTransport::Stdio(stdio) => stdio.pid,
        TestClientTransport::Http(served) => served.server.pid,
    }
}

/// Returns the paths of the files that the server has open.
fn open_files(client: &TestMcpClient) -> Vec<String> {
    let folder = format!("/proc/{}/fd", pid(client));
    let links = fs::read_dir(folder).unwrap().flatten();
    let targets = links.filter_map(|it| fs::read_link(it.path()).ok());
    targets.map(|it| it.to_string_lossy().into_owned()).collect()
}

#[test]
fn a_saved_function_is_found_for_every_way_of_saving() {
    let workspace = TempWorkspace::new().file("src/lib.rs", "fn first() {}\n");
    over_both(&workspace, |client| {
        workspace.put("src/lib.rs", "fn first() {}\n");
        assert_eq!(paths(&search(client, json!({ "query": "okapi" }))), [""; 0]);
        // Written in place.
        let typed = "fn first() {}\n\n/// Feeds an okapi.\nfn feed_okapi() {\n    todo!()\n}\n";
        workspace.put("src/lib.rs", typed);
        assert_eq!(paths(&search(client, json!({ "query": "feed okapi" }))), ["src/lib.rs"]);
        // Written to another file that replaces it.
        let typed = typed.replace("okapi", "gnu");
        workspace.put("src/.lib.rs.swp", &typed);
        fs::rename(workspace.path("src/.lib.rs.swp"), workspace.path("src/lib.rs")).unwrap();
        assert_eq!(paths(&search(client, json!({ "query": "feed gnu" }))), ["src/lib.rs"]);
        assert_eq!(paths(&search(client, json!({ "query": "okapi" }))), [""; 0]);
        // In a new folder within a new folder.
        workspace.put("a/b/c/deep.rs", "fn bongo() {}\n");
        assert_eq!(paths(&search(client, json!({ "query": "bongo" }))), ["a/b/c/deep.rs"]);
        // Moved with its folder.
        fs::rename(workspace.path("a"), workspace.path("z")).unwrap();
        assert_eq!(paths(&search(client, json!({ "query": "bongo" }))), ["z/b/c/deep.rs"]);
        workspace.put("z/b/c/deep.rs", "fn nyala() {}\n");
        assert_eq!(paths(&search(client, json!({ "query": "nyala" }))), ["z/b/c/deep.rs"]);
        // Ignored by `.gitignore`.
        workspace.put(".gitignore", "z/\n");
        assert_eq!(paths(&search(client, json!({ "query": "nyala" }))), [""; 0]);
        fs::remove_file(workspace.path(".gitignore")).unwrap();
        assert_eq!(paths(&search(client, json!({ "query": "nyala" }))), ["z/b/c/deep.rs"]);
        // Ignored by a rule that is not in the workspace.
        workspace.put(".git/info/exclude", "z/\n");
        assert_eq!(paths(&search(client, json!({ "query": "nyala" }))), [""; 0]);
        workspace.put(".git/info/exclude", "y/\n");
        assert_eq!(paths(&search(client, json!({ "query": "nyala" }))), ["z/b/c/deep.rs"]);
        fs::remove_dir_all(workspace.path(".git")).unwrap();
        // A folder in place of a file.
        let files = status(client, "workspace")["files"].clone();
        fs::remove_file(workspace.path("z/b/c/deep.rs")).unwrap();
        workspace.put("z/b/c/deep.rs/er.rs", "fn kudu() {}\n");
        assert_eq!(paths(&search(client, json!({ "query": "kudu" }))), ["z/b/c/deep.rs/er.rs"]);
        assert_eq!(status(client, "workspace")["files"], files);
        fs::remove_dir_all(workspace.path("z")).unwrap();
        assert_eq!(paths(&search(client, json!({ "query": "kudu" }))), [""; 0]);
    });
}

#[test]
fn a_search_follows_the_ignore_rules_of_git_when_their_folder_appears_or_disappears() {
    let workspace = TempWorkspace::new().file("z/deep.rs", "fn nyala() {}\n");
    over_both(&workspace, |client| {
        let found = |client: &mut TestMcpClient| -> Vec<String> {
            let results = search(client, json!({ "query": "nyala" }));
            paths(&results).into_iter().map(str::to_owned).collect()
        };
        fs::create_dir(workspace.path(".git")).unwrap();
        assert_eq!(found(client), ["z/deep.rs"]);
        for _ in 0..2 {
            workspace.put(".git/info/exclude", "z/\n");
            assert_eq!(found(client), [""; 0]);
            fs::remove_dir_all(workspace.path(".git/info")).unwrap();
            assert_eq!(found(client), ["z/deep.rs"]);
        }
        workspace.put(".git/info/exclude", "z/\n");
        assert_eq!(found(client), [""; 0]);
        fs::rename(workspace.path(".git/info"), workspace.path(".git/other")).unwrap();
        assert_eq!(found(client), ["z/deep.rs"]);
        fs::remove_dir_all(workspace.path(".git")).unwrap();
    });
}

/// Largest median time until a search finds a saved file. The benchmark measures the exact time.
/// The tests only check that no timer delays it.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn a_search_soon_sees_saved_moved_deleted_and_ignored_files_and_branch_switches() {
    let workspace = repository();
    for at in 0..200 {
        let text = format!("fn zebra_{at}() {{\n    run_{at}();\n}}\n");
        workspace.put(&format!("src/{}/z{at}.rs", at % 7), text);
    }
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "zebras"]);
    git(&workspace, &["checkout", "-qb", "other"]);
    for at in 0..20 {
        workspace.put(&format!("src/{}/z{at}.rs", at % 7), format!("fn gnu_{at}() {{}}\n"));
    }
    workspace.put("only/here.rs", "fn bongo() {}\n");
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "gnus"]);
    git(&workspace, &["checkout", "-q", "main"]);
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    search(&mut client, json!({ "query": "zebra" }));
    let mut times = Vec::new();
    let mut check = |event: &str, query: &str, path: &str, is_expected: bool| {
        let start = Instant::now();
        let all = search(&mut client, json!({ "query": query, "top_k": 50 }));
        times.push(start.elapsed());
        let is_it = |it: &Value| it["path"] == path && it["snippet"].to_string().contains(query);
        let is_found = all["matches"].as_array().unwrap().iter().any(is_it);
        assert_eq!(is_found, is_expected, "{event}: {query} in {path}: {:?}", paths(&all));
        assert_eq!(all["index"]["complete"], true, "{event}: {}", all["index"]);
    };
    for name in ["okapi", "quagga", "nyala", "tapir", "kudu"] {
        workspace.put("src/0/new.rs", format!("fn feed_{name}() {{}}\n"));
        check("saved", name, "src/0/new.rs", true);
        fs::rename(workspace.path("src/0/new.rs"), workspace.path("src/1/moved.rs")).unwrap();
        check("moved", name, "src/1/moved.rs", true);
        check("moved", name, "src/0/new.rs", false);
        fs::remove_file(workspace.path("src/1/moved.rs")).unwrap();
        check("deleted", name, "src/1/moved.rs", false);
        git(&workspace, &["checkout", "-q", "other"]);
        check("on the other branch", "bongo", "only/here.rs", true);
        check("on the other branch", "gnu_7", "src/0/z7.rs", true);
        check("on the other branch", "zebra_7", "src/0/z7.rs", false);
        git(&workspace, &["checkout", "-q", "main"]);
        check("back on the branch", "bongo", "only/here.rs", false);
        check("back on the branch", "zebra_7", "src/0/z7.rs", true);
        workspace.put(".gitignore", "src/0/\n");
        check("ignored", "zebra_7", "src/0/z7.rs", false);
        fs::remove_file(workspace.path(".gitignore")).unwrap();
        check("not ignored any more", "zebra_7", "src/0/z7.rs", true);
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    eprintln!("median time {median:?}, longest {:?}", times.last().unwrap());
    assert!(median < SOON, "{times:?}");
}

#[test]
fn saved_files_are_indexed_without_a_search() {
    let workspace = TempWorkspace::new();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    search(&mut client, json!({ "query": "anything" }));
    let before = status(&mut client, "workspace")["files"].as_u64().unwrap();
    for at in 0..20 {
        workspace.put(&format!("{at}.rs"), format!("fn zebra_{at}() {{}}\n"));
    }
    wait_until("the new files are in the index", || {
        status(&mut client, "workspace")["files"] == before + 20
    });
    for at in 0..10 {
        fs::remove_file(workspace.path(&format!("{at}.rs"))).unwrap();
    }
    wait_until("the removed files are no longer in the index", || {
        status(&mut client, "workspace")["files"] == before + 10
    });
}

#[test]
fn no_files_are_watched_or_indexed_before_the_first_search() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    let mut client =
        TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    structured(&client.call("files_read", json!({ "path": "README.md" })));
    assert_eq!(status(&mut client, "workspace")["state"], "absent");
    let watches = |client: &TestMcpClient| {
        open_files(client).iter().filter(|it| it.contains("inotify")).count()
    };
    // Only the configuration is watched.
    assert_eq!(watches(&client), 1, "{:?}", open_files(&client));
    // The cache folder exists, because a sandboxed server could not create it, and is empty.
    assert_eq!(fs::read_dir(cache.path().join("toolgate")).unwrap().count(), 0);
    search(&mut client, json!({ "query": "workspace" }));
    assert_eq!(status(&mut client, "workspace")["state"], "ready");
    assert_eq!(watches(&client), 2, "{:?}", open_files(&client));
    assert_eq!(fs::read_dir(cache.path().join("toolgate/search")).unwrap().count(), 1);
}

#[test]
fn an_index_survives_a_killed_server_and_later_changes_are_indexed() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    let start =
        || TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    for at in 0..30 {
        workspace.put(&format!("src/{at}.rs"), format!("fn zebra_{at}() {{}}\n"));
    }
    let mut first = start();
    assert_eq!(search(&mut first, json!({ "query": "zebra", "top_k": 50 }))["index"]["files"], 31);
    let TestClientTransport::Stdio(stdio) = &first.wire else { unreachable!() };
    stdio.signal(Signal::KILL);
    stdio.wait_for_exit();
    workspace.put("src/3.rs", "fn okapi() {}\n");
    fs::remove_file(workspace.path("src/4.rs")).unwrap();
    let mut second = start();
    let all = search(&mut second, json!({ "query": "zebra", "top_k": 50 }));
    assert_eq!((paths(&all).len(), &all["index"]["files"]), (28, &json!(30)), "{}", all["index"]);
    assert_eq!(paths(&search(&mut second, json!({ "query": "okapi" }))), ["src/3.rs"]);
    assert_eq!(all["index"].get("note"), None, "{}", all["index"]);
}

#[test]
fn a_second_server_follows_the_first_and_takes_over_when_it_is_killed() {
    let workspace = TempWorkspace::new();
    let cache = TempDir::new().unwrap();
    workspace.put("a.rs", "fn zebra() {}\n");
    let start =
        || TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN);
    let mut one = start();
    let mut other = start();
    let state =
        |client: &mut TestMcpClient| search(client, json!({ "query": "zebra" }))["index"].clone();
    assert_eq!(state(&mut one)["state"], "ready");
    assert_eq!(state(&mut other)["state"], "following");
    assert_eq!(paths(&search(&mut other, json!({ "query": "zebra" }))), ["a.rs"]);
    workspace.put("b.rs", "fn okapi() {}\n");
    wait_until("the other server finds the new file", || {
        paths(&search(&mut other, json!({ "query": "okapi" }))) == ["b.rs"]
    });
    let TestClientTransport::Stdio(stdio) = &one.wire else { unreachable!() };
    stdio.signal(Signal::KILL);
    stdio.wait_for_exit();
    wait_until("the other server takes over", || state(&mut other)["state"] == "ready");
    workspace.put("c.rs", "fn bongo() {}\n");
    assert_eq!(paths(&search(&mut other, json!({ "query": "bongo" }))), ["c.rs"]);
}

/// Returns all files beneath a folder.
pub(super) fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_damaged_index_or_one_of_another_version_is_rebuilt_and_reported() {
    type DamageFn = fn(&std::path::Path);
    let cut: DamageFn = |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let garbage: DamageFn = |path| fs::write(path, b"{\"format\":99999}").unwrap();
    for (suffix, damage) in [("index.json", cut), ("index.json", garbage), ("", cut), ("", garbage)]
    {
        let workspace = TempWorkspace::new();
        let cache = TempDir::new().unwrap();
        for at in 0..20 {
            workspace.put(&format!("{at}.rs"), format!("fn zebra_{at}() {{ run_{at}(); }}\n"));
        }
        let start = || {
            TestMcpClient::stdio(ServerLaunchOptions::over(&workspace).with_cache(&cache), MODERN)
        };
        let input = json!({ "query": "zebra", "top_k": 50 });
        let before = {
            let mut client = start();
            let before = search(&mut client, input.clone());
            let TestClientTransport::Stdio(stdio) = &mut client.wire else { unreachable!() };
            stdio.close_input();
            stdio.wait_for_exit();
            before
        };
        let all = files(&cache.path().join("toolgate/search"));
        let damaged = all.iter().filter(|path| path.to_string_lossy().ends_with(suffix));
        let damaged: Vec<_> =
            damaged.filter(|path| fs::metadata(path).unwrap().len() > 0).collect();
        assert!(!damaged.is_empty(), "{suffix}: {all:?}");
        damaged.iter().for_each(|path| damage(path));
        let mut client = start();
        wait_until("all files are found again", || {
            paths(&search(&mut client, input.clone())).len() == paths(&before).len()
        });
        let index: Value = status(&mut client, "workspace");
        let note = index["note"].as_str().unwrap_or_default();
        assert!(note.starts_with("rebuilt: "), "{suffix}: {index}");
    }
}
