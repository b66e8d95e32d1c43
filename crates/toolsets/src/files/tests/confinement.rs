//! Tests that no path leads out of the workspace, whatever its spelling and whatever file type it
//! names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use toolgate_world::Root;

use super::space::TestWorkspace;
use crate::files::{self, FileSettings};

/// Checks that `files.read` of `path` is refused for `reason`, and returns the message.
async fn expect_refusal(space: &TestWorkspace, path: &str, reason: &str) -> String {
    let failed = space.fails("files.read", json!({ "path": path })).await;
    assert_eq!(failed.reason, reason, "{path}: {failed:?}");
    assert!(!failed.message.contains("canary"));
    failed.message
}

#[tokio::test]
async fn dots_and_absolute_paths_do_not_leave_the_workspace() {
    let space = TestWorkspace::new();
    fs::create_dir(space.ws.join("a")).unwrap();
    let evil = space.evil.join("secret");
    expect_refusal(&space, "../ws_evil/secret", "not_allowed").await;
    expect_refusal(&space, "a/../../ws_evil/secret", "not_allowed").await;
    expect_refusal(&space, "/etc/passwd", "not_allowed").await;
    expect_refusal(&space, "/", "not_allowed").await;
    expect_refusal(&space, evil.to_str().unwrap(), "not_allowed").await;
    expect_refusal(&space, &format!("{}/../ws_evil/secret", space.ws.display()), "not_allowed")
        .await;
    expect_refusal(&space, "/proc/self/root/etc/passwd", "not_allowed").await;
}

#[tokio::test]
async fn an_absolute_path_inside_the_workspace_is_accepted() {
    let space = TestWorkspace::new();
    space.put("ok.txt", "ok");
    let path = format!("{}//ok.txt", space.ws.display());
    let read = space.ok("files.read", json!({ "path": path })).await;
    assert_eq!((&read["content"], &read["path"]), (&json!("ok"), &json!("ok.txt")));
}

#[tokio::test]
async fn nothing_in_a_path_is_decoded_or_expanded() {
    let space = TestWorkspace::new();
    expect_refusal(&space, "%2e%2e/ws_evil/secret", "not_found").await;
    expect_refusal(&space, "~/.bashrc", "not_found").await;
    expect_refusal(&space, "\u{ff0e}\u{ff0e}\u{ff0f}ws_evil\u{ff0f}secret", "not_found").await;
    expect_refusal(&space, "..\\ws_evil\\secret", "not_found").await;
}

#[tokio::test]
async fn a_malformed_path_is_invalid() {
    let space = TestWorkspace::new();
    space.put("ok.txt", "ok");
    let long_name = "a".repeat(300);
    let long_path = "a/".repeat(2500);
    for path in ["", "   ", "ok.txt\0.png", &long_name, &long_path, ".", "ok.txt/.", "ok.txt/"] {
        let failed = space.fails("files.read", json!({ "path": path })).await;
        assert_eq!(failed.pointer(), "/path", "{path:?}");
        let failed = space
            .fails("files.write", json!({ "path": path, "content": "x", "overwrite": true }))
            .await;
        assert_eq!(failed.pointer(), "/path", "{path:?}");
    }
    assert_eq!(space.get("ok.txt"), b"ok");
}

#[tokio::test]
async fn symlinks_that_lead_outside_are_refused_and_others_followed() {
    let space = TestWorkspace::new();
    space.put("real/file", "inside");
    space.symlink(space.evil.join("secret"), "absolute");
    space.symlink("../ws_evil", "relative");
    space.symlink("real", "inside");
    space.symlink("round", "round");
    assert!(
        expect_refusal(&space, "absolute", "not_allowed").await.contains("out of the workspace")
    );
    expect_refusal(&space, "relative/secret", "not_allowed").await;
    expect_refusal(&space, "round", "invalid_input").await;
    assert_eq!(space.ok("files.read", json!({ "path": "inside/file" })).await["content"], "inside");
    let listed = space.ok("files.list", json!({ "path": "inside" })).await;
    assert_eq!(listed["entries"][0]["name"], "file");
}

#[tokio::test]
async fn an_absolute_symlink_back_inside_is_refused_with_the_path_to_use() {
    let space = TestWorkspace::new();
    space.put("ok.txt", "ok");
    space.symlink(space.ws.join("ok.txt"), "link");
    let message = expect_refusal(&space, "link", "not_allowed").await;
    assert!(message.contains("`link` is a symlink to an absolute path"), "{message}");
    assert!(message.contains("use `ok.txt` instead"), "{message}");
}

#[tokio::test]
async fn a_dangling_symlink_is_never_written_through() {
    let space = TestWorkspace::new();
    space.symlink(space.evil.join("planted"), "outside");
    space.symlink("nothing", "inside");
    for (path, overwrite) in [("outside", true), ("outside", false), ("inside", true)] {
        let input = json!({ "path": path, "content": "x", "overwrite": overwrite });
        assert_eq!(space.fails("files.write", input).await.reason, "not_allowed");
    }
    assert!(!space.has("nothing"));
    space.assert_outside_unchanged();
}

#[tokio::test]
async fn no_tool_follows_a_symlink_to_a_directory_outside() {
    let space = TestWorkspace::new();
    space.put("mine", "mine");
    space.symlink(&space.evil, "out");
    let calls = [
        ("files.mkdir", json!({ "path": "out/newdir/x" })),
        ("files.write", json!({ "path": "out/new", "content": "x" })),
        ("files.write", json!({ "path": "out/deep/new", "content": "x" })),
        ("files.edit", json!({ "path": "out/secret", "edits": [{ "old": "canary", "new": "x" }] })),
        ("files.move", json!({ "source": "out/secret", "destination": "stolen" })),
        ("files.move", json!({ "source": "mine", "destination": "out/mine" })),
        ("files.copy", json!({ "source": "out/secret", "destination": "stolen" })),
        ("files.copy", json!({ "source": "out", "destination": "stolen", "recursive": true })),
        ("files.copy", json!({ "source": "mine", "destination": "out/mine" })),
        ("files.delete", json!({ "path": "out/secret" })),
        ("files.list", json!({ "path": "out" })),
        ("files.tree", json!({ "path": "out" })),
        ("files.info", json!({ "path": "out/secret" })),
        ("files.exists", json!({ "path": "out/secret" })),
        ("files.search", json!({ "path": "out", "query": "canary" })),
    ];
    for (tool, input) in calls {
        let failed = space.fails(tool, input.clone()).await;
        assert_eq!(failed.reason, "not_allowed", "{tool} {input}: {failed:?}");
    }
    assert!(!space.has("stolen"));
    space.assert_outside_unchanged();
}

#[tokio::test]
async fn walks_never_follow_symlinks() {
    let space = TestWorkspace::new();
    space.put("a/mine", "canary of my own");
    space.symlink(&space.evil, "out");
    space.symlink("../a", "a/cycle");
    let found = space.ok("files.search", json!({ "query": "canary" })).await;
    assert_eq!(found["matches"].as_array().unwrap().len(), 1);
    let tree = space.text("files.tree", json!({ "depth": 50 })).await;
    assert!(!tree.contains("secret") && tree.contains("cycle (symlink)"), "{tree}");
    space.ok("files.copy", json!({ "source": "a", "destination": "b", "recursive": true })).await;
    assert_eq!(fs::read_link(space.ws.join("b/cycle")).unwrap().to_str(), Some("../a"));
    space.ok("files.delete", json!({ "path": "out" })).await;
    space.ok("files.delete", json!({ "path": "a", "recursive": true })).await;
    space.assert_outside_unchanged();
}

#[tokio::test]
async fn a_write_replaces_a_hard_link_and_keeps_the_other_file() {
    let space = TestWorkspace::new();
    fs::hard_link(space.evil.join("secret"), space.ws.join("hard")).unwrap();
    space.ok("files.write", json!({ "path": "hard", "content": "x", "overwrite": true })).await;
    assert_eq!(space.get("hard"), b"x");
    fs::remove_file(space.ws.join("hard")).unwrap();
    fs::hard_link(space.evil.join("secret"), space.ws.join("hard")).unwrap();
    space
        .ok("files.edit", json!({ "path": "hard", "edits": [{ "old": "canary", "new": "x" }] }))
        .await;
    space.assert_outside_unchanged();
    assert_eq!(fs::metadata(space.evil.join("secret")).unwrap().nlink(), 1);
}

#[tokio::test]
async fn pipes_sockets_and_devices_are_refused_without_waiting() {
    let space = TestWorkspace::new();
    mknodat(CWD, space.ws.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let _socket = UnixListener::bind(space.ws.join("socket")).unwrap();
    let started = Instant::now();
    for path in ["pipe", "socket"] {
        expect_refusal(&space, path, "invalid_input").await;
        let edits = json!([{ "old": "a", "new": "b" }]);
        for (tool, input) in [
            ("files.write", json!({ "path": path, "content": "x", "overwrite": true })),
            ("files.edit", json!({ "path": path, "edits": edits })),
            ("files.copy", json!({ "source": path, "destination": "copy" })),
            ("files.search", json!({ "path": path, "query": "x" })),
        ] {
            assert_eq!(space.fails(tool, input).await.reason, "invalid_input");
        }
    }
    space.ok("files.search", json!({ "query": "x" })).await;
    assert_eq!(space.ok("files.info", json!({ "path": "pipe" })).await["kind"], "other");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_root_stays_the_directory_that_was_opened() {
    let space = TestWorkspace::new();
    space.put("ok.txt", "ok");
    let link = space.evil.parent().unwrap().join("link");
    std::os::unix::fs::symlink(&space.ws, &link).unwrap();
    let root = Root::open(&link).unwrap();
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&space.evil, &link).unwrap();
    assert_eq!(root.path(), space.ws);
    assert!(root.open_file("ok.txt").is_ok());
    assert!(root.open_file("secret").is_err());
    assert!(root.open_dir(".").is_ok());
    // The workspace stays open after it is moved.
    let elsewhere = space.ws.with_file_name("elsewhere");
    fs::rename(&space.ws, &elsewhere).unwrap();
    let tools = files::tools(&root, &FileSettings::default());
    assert_eq!(tools.len(), 12);
    assert!(root.open_file("ok.txt").is_ok());
}
