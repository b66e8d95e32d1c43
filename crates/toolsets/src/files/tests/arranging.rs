//! Tests of `files.move`, `copy`, `delete` and `mkdir`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use super::space::TestWorkspace;
use crate::files::FileToolLimits;

#[tokio::test]
async fn a_move_renames_and_creates_missing_directories() {
    let space = TestWorkspace::new();
    space.put("a", "a");
    space.put("dir/inner/f", "f");
    space.ok("files.move", json!({ "source": "a", "destination": "new/dir/b" })).await;
    assert_eq!(space.get("new/dir/b"), b"a");
    let moved =
        space.ok("files.move", json!({ "source": "dir", "destination": "new/moved" })).await;
    assert_eq!(moved["kind"], "dir");
    assert_eq!(space.get("new/moved/inner/f"), b"f");
    assert!(!space.has("a") && !space.has("dir"));
    let input = json!({ "source": "new/dir/b", "destination": "no/b", "mkdirs": false });
    assert_eq!(space.fails("files.move", input).await.pointer(), "/destination");
    assert_eq!(
        space.fails("files.move", json!({ "source": "none", "destination": "b" })).await.reason,
        "not_found"
    );
    assert_eq!(
        space.fails("files.move", json!({ "source": "", "destination": "b" })).await.pointer(),
        "/source"
    );
}

#[tokio::test]
async fn a_destination_is_replaced_only_with_overwrite() {
    let space = TestWorkspace::new();
    space.put("a", "a");
    space.put("b", "b");
    space.put("d/f", "f");
    for tool in ["files.move", "files.copy"] {
        let failed = space.fails(tool, json!({ "source": "a", "destination": "b" })).await;
        assert_eq!(failed.reason, "conflict");
        assert!(failed.message.contains("overwrite: true"), "{failed:?}");
        for (source, destination) in
            [("a", "d"), ("d", "a"), ("a", "a"), ("d", "d"), ("d", "d/e"), ("a", "a/b")]
        {
            let input = json!({ "source": source, "destination": destination, "overwrite": true, "recursive": true });
            let mut input = input;
            if tool == "files.move" {
                input.as_object_mut().unwrap().remove("recursive");
            }
            let failed = space.fails(tool, input.clone()).await;
            assert_eq!(failed.pointer(), "/destination", "{tool} {input} {failed:?}");
        }
    }
    assert_eq!(
        (space.get("a"), space.get("b"), space.get("d/f")),
        (b"a".into(), b"b".into(), b"f".into())
    );
    space.ok("files.copy", json!({ "source": "a", "destination": "b", "overwrite": true })).await;
    assert_eq!(space.get("b"), b"a");
    space.put("b", "b");
    space.ok("files.move", json!({ "source": "b", "destination": "a", "overwrite": true })).await;
    assert_eq!(space.get("a"), b"b");
    assert!(!space.has("b"));
}

#[tokio::test]
async fn a_symlink_is_moved_and_deleted_itself() {
    let space = TestWorkspace::new();
    space.put("target", "t");
    space.symlink("target", "link");
    let moved = space.ok("files.move", json!({ "source": "link", "destination": "other" })).await;
    assert_eq!(moved["kind"], "symlink");
    space.ok("files.delete", json!({ "path": "other", "recursive": true })).await;
    assert_eq!(space.get("target"), b"t");
}

#[tokio::test]
async fn a_file_is_copied_with_its_mode_and_content() {
    let space = TestWorkspace::new();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    space.put("f", &content);
    fs::set_permissions(space.ws.join("f"), std::os::unix::fs::PermissionsExt::from_mode(0o751))
        .unwrap();
    let copied = space.ok("files.copy", json!({ "source": "f", "destination": "x/g" })).await;
    assert_eq!((&copied["entries"], &copied["bytes"]), (&json!(1), &json!(12_000_000)));
    assert!(space.get("x/g") == content);
    assert_eq!(fs::metadata(space.ws.join("x/g")).unwrap().mode() & 0o7777, 0o751);
}

#[tokio::test]
async fn a_directory_is_copied_whole_or_not_at_all() {
    let space =
        TestWorkspace::limited(FileToolLimits { copy_bytes_max: 10, ..FileToolLimits::default() });
    space.put("d/a/f", "12345");
    space.put("d/g", "12345");
    assert_eq!(
        space.fails("files.copy", json!({ "source": "d", "destination": "e" })).await.pointer(),
        "/recursive"
    );
    let copied = space
        .ok("files.copy", json!({ "source": "d", "destination": "e", "recursive": true }))
        .await;
    assert_eq!(copied["entries"], 4);
    assert_eq!(space.get("e/a/f"), b"12345");
    space.put("d/h", "1");
    let failed = space
        .fails("files.copy", json!({ "source": "d", "destination": "x/y", "recursive": true }))
        .await;
    assert_eq!(failed.reason, "too_large");
    assert!(!space.has("x"));
    let into = json!({ "source": "d", "destination": "e", "recursive": true });
    assert_eq!(space.fails("files.copy", into).await.pointer(), "/destination");
}

#[tokio::test]
async fn a_directory_is_deleted_with_its_content_only_if_recursive() {
    let space = TestWorkspace::new();
    space.put("d/a/b/f", "");
    space.put("d/g", "");
    fs::create_dir(space.ws.join("empty")).unwrap();
    let failed = space.fails("files.delete", json!({ "path": "d" })).await;
    assert_eq!(failed.pointer(), "/recursive");
    space.ok("files.delete", json!({ "path": "empty" })).await;
    let deleted = space.ok("files.delete", json!({ "path": "d", "recursive": true })).await;
    assert_eq!(deleted, json!({ "path": "d", "deleted": true, "entries": 5 }));
    assert_eq!(fs::read_dir(&space.ws).unwrap().count(), 0);
    assert_eq!(space.fails("files.delete", json!({ "path": "d" })).await.reason, "not_found");
    assert_eq!(space.fails("files.delete", json!({ "path": "x/y/z" })).await.reason, "not_found");
    let deleted = space.ok("files.delete", json!({ "path": "x/y/z", "missing_ok": true })).await;
    assert_eq!((&deleted["deleted"], &deleted["entries"]), (&json!(false), &json!(0)));
}

#[tokio::test]
async fn an_existing_directory_is_not_created_again() {
    let space = TestWorkspace::new();
    space.put("f", "");
    let created = |value: Value| value["created"].as_bool().unwrap();
    assert!(created(space.ok("files.mkdir", json!({ "path": "a/b/c/" })).await));
    assert!(!created(space.ok("files.mkdir", json!({ "path": "a/b/c" })).await));
    assert!(space.ws.join("a/b/c").is_dir());
    let failed = space.fails("files.mkdir", json!({ "path": "x/y", "parents": false })).await;
    assert_eq!(failed.pointer(), "/path");
    assert_eq!(space.fails("files.mkdir", json!({ "path": "f" })).await.pointer(), "/path");
    assert!(!space.has("x"));
}

#[tokio::test]
async fn a_refused_change_creates_no_directories() {
    let space =
        TestWorkspace::limited(FileToolLimits { copy_bytes_max: 2, ..FileToolLimits::default() });
    space.put("mv/f", "12345");
    space.put("kept/f", "");
    for (tool, input) in [
        ("files.write", json!({ "path": "n1/n2/f", "content": "x", "if_match": "abc" })),
        ("files.write", json!({ "path": "kept/n2/f", "content": "x", "if_match": "abc" })),
        ("files.move", json!({ "source": "mv", "destination": "mv/b/c/d" })),
        ("files.copy", json!({ "source": "mv/f", "destination": "n1/n2/f" })),
        ("files.copy", json!({ "source": "mv", "destination": "n1/n2/d", "recursive": true })),
        ("files.write", json!({ "path": "n1/.git/n/f", "content": "x" })),
        ("files.mkdir", json!({ "path": "n1/n2/../../mv/f" })),
    ] {
        space.fails(tool, input).await;
        assert!(!space.has("n1") && !space.has("mv/b") && !space.has("kept/n2"));
    }
    assert!(space.has("kept/f"));
    space.ok("files.mkdir", json!({ "path": "n1/n2/n3" })).await;
    space.ok("files.move", json!({ "source": "mv", "destination": "n4/n5/mv" })).await;
    assert!(space.has("n1/n2/n3") && space.has("n4/n5/mv/f"));
}

#[tokio::test]
async fn leftovers_of_a_killed_copy_can_be_deleted() {
    let space = TestWorkspace::new();
    space.put("d/.toolgate-0123456789abcdef.tmp/a/f", "x");
    space.put("d/.toolgate-0123456789abcde0.tmp", "x");
    let dir = "d/.toolgate-0123456789abcdef.tmp";
    let file = "d/.toolgate-0123456789abcde0.tmp";
    let moved = json!({ "source": dir, "destination": "seen" });
    assert_eq!(space.fails("files.move", moved).await.reason, "not_allowed");
    space.fails("files.delete", json!({ "path": dir })).await;
    space.ok("files.delete", json!({ "path": dir, "recursive": true })).await;
    space.ok("files.delete", json!({ "path": file })).await;
    assert_eq!(fs::read_dir(space.ws.join("d")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_directory_as_destination_gets_a_suggestion() {
    let space = TestWorkspace::new();
    space.put("n.txt", "n");
    space.put("dir/f", "f");
    space.put("tree/f", "f");
    for (tool, source, recursive) in [
        ("files.move", "n.txt", None),
        ("files.copy", "n.txt", None),
        ("files.move", "tree", None),
        ("files.copy", "tree", Some(true)),
    ] {
        for overwrite in [false, true] {
            let mut input =
                json!({ "source": source, "destination": "dir/", "overwrite": overwrite });
            if let Some(recursive) = recursive {
                input["recursive"] = recursive.into();
            }
            let failed = space.fails(tool, input).await;
            assert_eq!(failed.pointer(), "/destination", "{failed:?}");
            let suggestion = format!("; did you mean `dir/{source}`?");
            assert!(failed.message.ends_with(&suggestion), "{tool}: {failed:?}");
        }
    }
    // The source is already there.
    let failed =
        space.fails("files.move", json!({ "source": "dir/f", "destination": "dir" })).await;
    assert!(!failed.message.contains("did you mean"), "{failed:?}");
}
