//! Tests of `files.list`, `tree`, `info` and `exists`.

use std::fs;
use std::fs::File;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::space::TestWorkspace;

/// Lists the workspace folder page by page, with at most `limit` entries at a time.
async fn pages(space: &TestWorkspace, limit: u64) -> Vec<String> {
    let mut names = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let page = space.ok("files.list", json!({ "limit": limit, "cursor": cursor })).await;
        let entries = page["entries"].as_array().unwrap();
        assert!(entries.len() as u64 <= limit);
        names.extend(entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            assert_eq!(page["left"], 0);
            return names;
        }
    }
}

#[tokio::test]
async fn a_directory_is_listed_in_order_with_kind_and_size() {
    let space = TestWorkspace::new();
    space.put("b.txt", "12345");
    space.put("a/inner", "");
    space.put(".hidden", "");
    space.symlink("nowhere", "link");
    let list = space.ok("files.list", json!({})).await;
    let seen: Vec<_> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (&entry["name"], &entry["kind"]))
        .collect();
    assert_eq!(
        json!(seen),
        json!([[".hidden", "file"], ["a", "dir"], ["b.txt", "file"], ["link", "symlink"]])
    );
    assert_eq!(list["entries"][2]["size"], 5);
    assert!(list["entries"][2]["mtime"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    let text = space.text("files.list", json!({})).await;
    assert_eq!(text, ".hidden  0\na/\nb.txt  5\nlink (symlink)\n[4 entries]");
    assert_eq!(space.fails("files.list", json!({ "path": "b.txt" })).await.pointer(), "/path");
    assert_eq!(space.fails("files.list", json!({ "path": "none" })).await.reason, "not_found");
}

#[tokio::test]
async fn pages_are_stable_while_entries_come_and_go() {
    let space = TestWorkspace::new();
    for at in 0..10 {
        space.put(&format!("f{at}"), "");
    }
    let first = space.ok("files.list", json!({ "limit": 4 })).await;
    assert_eq!(first["left"], 6);
    fs::remove_file(space.ws.join("f3")).unwrap();
    fs::remove_file(space.ws.join("f5")).unwrap();
    space.put("a", "");
    space.put("f35", "");
    let second = space.ok("files.list", json!({ "limit": 3, "cursor": first["cursor"] })).await;
    let names: Vec<_> =
        second["entries"].as_array().unwrap().iter().map(|entry| entry["name"].clone()).collect();
    assert_eq!(names, ["f35", "f4", "f6"]);
    assert_eq!(pages(&space, 3).await.len(), 10);
}

#[tokio::test]
async fn a_forged_cursor_is_refused() {
    let space = TestWorkspace::new();
    space.put("d/f0", "");
    space.put("f1", "");
    space.put("f2", "");
    let cursor =
        space.ok("files.list", json!({ "limit": 1 })).await["cursor"].as_str().unwrap().to_owned();
    let first = space.ok("files.list", json!({ "limit": 1, "cursor": "" })).await;
    assert_eq!(first["cursor"], cursor, "an empty cursor is none");
    let mut changed = cursor.clone().into_bytes();
    changed[3] ^= 1;
    let changed = String::from_utf8(changed).unwrap();
    for input in [
        json!({ "cursor": changed }),
        json!({ "cursor": " " }),
        json!({ "cursor": "Zg" }),
        json!({ "cursor": "../../etc/passwd" }),
        json!({ "cursor": cursor, "path": "d" }),
    ] {
        assert_eq!(space.fails("files.list", input).await.pointer(), "/cursor");
    }
    let input = json!({ "query": "x", "cursor": cursor });
    assert_eq!(space.fails("files.search", input).await.pointer(), "/cursor");
}

#[tokio::test]
async fn a_directory_of_50_000_entries_is_listed_page_by_page() {
    let space = TestWorkspace::in_memory();
    let count = 50_000;
    for at in 0..count {
        File::create(space.ws.join(format!("file-{at:06}"))).unwrap();
    }
    let started = Instant::now();
    let first = space.ok("files.list", json!({ "limit": 1000 })).await;
    assert_eq!(first["left"], count - 1000);
    assert_eq!(first["entries"][999]["name"], "file-000999");
    let second = space.ok("files.list", json!({ "limit": 1000, "cursor": first["cursor"] })).await;
    assert_eq!(second["entries"][0]["name"], "file-001000");
    let tree = space.text("files.tree", json!({ "limit": 10 })).await;
    assert!(tree.contains("… 49990 more"), "{tree}");
    let found = space.ok("files.search", json!({ "glob": "*-049999" })).await;
    assert_eq!(found["files"].as_array().unwrap().len(), 1);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_tree_is_shown_indented_without_ignored_files() {
    let space = TestWorkspace::new();
    for path in [
        "Cargo.toml",
        "src/main.rs",
        "src/deep/er/est/file",
        "target/debug/x",
        ".git/config",
        "src/gen.rs",
    ] {
        space.put(path, "");
    }
    space.put(".gitignore", "/target\n");
    space.put("src/.gitignore", "gen.rs\n");
    let text = space.text("files.tree", json!({})).await;
    let expected = "./\n  .gitignore\n  Cargo.toml\n  src/\n    .gitignore\n    deep/\n      er/ …\n    main.rs\n";
    assert_eq!(
        text,
        format!(
            "{expected}[7 entries; … marks directories that were not opened: raise depth, or give their path]"
        )
    );
    let tree = space.ok("files.tree", json!({})).await;
    assert_eq!(
        tree["entries"][4],
        json!({ "path": "src/deep", "kind": "dir", "depth": 2, "left_out": 0 })
    );
    assert_eq!(
        tree["entries"][5],
        json!({ "path": "src/deep/er", "kind": "dir", "depth": 3, "left_out": null })
    );
    let text = space.text("files.tree", json!({ "include_ignored": true, "path": "." })).await;
    assert!(
        text.contains("target/") && text.contains("gen.rs") && !text.contains(".git/"),
        "{text}"
    );
    let text = space.text("files.tree", json!({ "path": "src/deep", "depth": 9 })).await;
    assert_eq!(text, "src/deep/\n  er/\n    est/\n      file\n[3 entries]");
}

#[tokio::test]
async fn a_name_with_line_breaks_is_one_line_of_a_listing() {
    let space = TestWorkspace::new();
    space.put("a\nsecret.txt  5\n\u{1b}[2Jb", "needle\n");
    for (tool, input) in [
        ("files.list", json!({})),
        ("files.tree", json!({})),
        ("files.search", json!({ "query": "needle" })),
        ("files.search", json!({ "glob": "**" })),
    ] {
        let text = space.text(tool, input).await;
        assert!(text.contains("a\\nsecret.txt  5\\n\\u{1b}[2Jb"), "{tool}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("secret")), "{tool}: {text:?}");
    }
}

#[tokio::test]
async fn a_too_large_tree_marks_where_and_how_much_was_left_out() {
    let space = TestWorkspace::new();
    for at in 0..30 {
        space.put(&format!("big/f{at:02}"), "");
        space.put(&format!("small{}/f", at % 3), "");
    }
    let tree = space.ok("files.tree", json!({ "limit": 12 })).await;
    assert_eq!(tree["entries"].as_array().unwrap().len(), 12 - 3);
    assert_eq!(tree["left_out_total"], 28);
    let text = space.text("files.tree", json!({ "limit": 12 })).await;
    assert!(text.contains("  big/\n    f00\n    f01\n    … 28 more\n  small0/\n    f\n"), "{text}");
    assert!(text.contains("28 left out"), "{text}");
}

#[tokio::test]
async fn two_hundred_nested_directories_are_walked_copied_and_deleted() {
    let space = TestWorkspace::new();
    let deep = "d/".repeat(200);
    space.put(&format!("{deep}needle"), "needle");
    space.put("d/d/f", "");
    space.ok("files.tree", json!({ "depth": 100 })).await;
    let found = space.ok("files.search", json!({ "query": "needle" })).await;
    assert_eq!(found["matches"][0]["path"], format!("{deep}needle"));
    space.ok("files.copy", json!({ "source": "d", "destination": "e", "recursive": true })).await;
    assert_eq!(space.get(&format!("e/{}needle", "d/".repeat(199))), b"needle");
    let deleted = space.ok("files.delete", json!({ "path": "d", "recursive": true })).await;
    assert_eq!(deleted["entries"], 202);
    assert!(!space.has("d") && space.has("e"));
}

#[tokio::test]
async fn info_describes_an_entry_and_follows_no_symlink_outside() {
    let space = TestWorkspace::new();
    space.put("f", "one\ntwo");
    space.put("bin", b"\0\xff");
    space.symlink("f", "in");
    space.symlink(space.evil.join("secret"), "out");
    let info = space.ok("files.info", json!({ "path": "f" })).await;
    let read = space.ok("files.read", json!({ "path": "f" })).await;
    assert_eq!(
        (
            &info["kind"],
            &info["size"],
            &info["text"],
            &info["lines"],
            &info["etag"],
            &info["mtime"]
        ),
        (&json!("file"), &json!(7), &json!(true), &json!(2), &read["etag"], &read["mtime"])
    );
    assert_eq!(info["mode"].as_str().unwrap().len(), 4);
    let info = space.ok("files.info", json!({ "path": "bin", "etag": false })).await;
    assert_eq!(
        (&info["text"], &info["lines"], &info["etag"]),
        (&json!(false), &Value::Null, &Value::Null)
    );
    let info = space.ok("files.info", json!({ "path": "in" })).await;
    assert_eq!(
        (&info["kind"], &info["target"], &info["leads_to"]),
        (&json!("symlink"), &json!("f"), &json!("file"))
    );
    let info = space.ok("files.info", json!({ "path": "out" })).await;
    assert_eq!(
        (&info["kind"], &info["leads_to"], &info["etag"]),
        (&json!("symlink"), &Value::Null, &Value::Null)
    );
    assert_eq!(space.ok("files.info", json!({ "path": "." })).await["kind"], "dir");
    assert_eq!(space.fails("files.info", json!({ "path": "none" })).await.reason, "not_found");
}

#[tokio::test]
async fn exists_reports_whether_a_path_exists_and_its_kind() {
    let space = TestWorkspace::new();
    space.put("d/f", "");
    space.symlink("d", "in");
    space.symlink("none", "dangling");
    for (path, exists, kind) in [
        ("d", true, json!("dir")),
        ("d/f", true, json!("file")),
        ("in", true, json!("dir")),
        ("in/f", true, json!("file")),
        ("dangling", true, json!("symlink")),
        ("none", false, Value::Null),
        ("d/f/x", false, Value::Null),
        ("none/x", false, Value::Null),
    ] {
        let seen = space.ok("files.exists", json!({ "path": path })).await;
        assert_eq!(seen, json!({ "path": path, "exists": exists, "kind": kind }));
    }
    assert_eq!(
        space.fails("files.exists", json!({ "path": "../ws_evil/secret" })).await.reason,
        "not_allowed"
    );
}
