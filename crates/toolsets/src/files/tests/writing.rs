//! Tests of `files.write`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::{Value, json};

use super::space::TestWorkspace;
use crate::files::FileToolLimits;

async fn etag(space: &TestWorkspace, path: &str) -> Value {
    space.ok("files.read", json!({ "path": path })).await["etag"].clone()
}

#[tokio::test]
async fn a_new_file_is_created_with_the_directories_on_the_way() {
    let space = TestWorkspace::new();
    let wrote = space.ok("files.write", json!({ "path": "a/b/c.txt", "content": "héllo\n" })).await;
    assert_eq!(space.get("a/b/c.txt"), "héllo\n".as_bytes());
    assert_eq!(wrote["size"], 7);
    assert_eq!((&wrote["created"], &wrote["overwritten"]), (&json!(true), &json!(false)));
    assert_eq!(wrote["etag"], etag(&space, "a/b/c.txt").await);
    assert_eq!(
        wrote["mtime"],
        space.ok("files.info", json!({ "path": "a/b/c.txt" })).await["mtime"]
    );
    let left: Vec<_> = fs::read_dir(space.ws.join("a/b")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn an_existing_file_is_replaced_only_with_overwrite_or_if_match() {
    let space = TestWorkspace::new();
    space.put("f", "old");
    let old = etag(&space, "f").await;
    let failed = space.fails("files.write", json!({ "path": "f", "content": "new" })).await;
    assert_eq!(failed.reason, "conflict");
    assert!(failed.message.contains("if_match") && failed.message.contains("overwrite: true"));
    assert_eq!(failed.details(), &json!({ "expected": null, "actual": old }));
    assert_eq!(space.get("f"), b"old");
    let wrote =
        space.ok("files.write", json!({ "path": "f", "content": "new", "overwrite": true })).await;
    assert_eq!((&wrote["created"], &wrote["overwritten"]), (&json!(false), &json!(true)));
    let wrote = space
        .ok("files.write", json!({ "path": "f", "content": "newer", "if_match": wrote["etag"] }))
        .await;
    assert_eq!(space.get("f"), b"newer");
    // `overwrite: false` wins over a matching etag.
    let input =
        json!({ "path": "f", "content": "x", "if_match": wrote["etag"], "overwrite": false });
    assert_eq!(space.fails("files.write", input).await.reason, "conflict");
}

#[tokio::test]
async fn a_stale_etag_is_a_conflict_that_names_both_etags() {
    let space = TestWorkspace::new();
    space.put("f", "v1");
    let stale = etag(&space, "f").await;
    space.put("f", "v2");
    let current = etag(&space, "f").await;
    for overwrite in [json!(null), json!(true)] {
        let input =
            json!({ "path": "f", "content": "v3", "if_match": stale, "overwrite": overwrite });
        let failed = space.fails("files.write", input).await;
        assert_eq!(failed.reason, "conflict");
        assert_eq!(failed.details(), &json!({ "expected": stale, "actual": current }));
        assert_eq!(space.get("f"), b"v2");
    }
    let input = json!({ "path": "gone", "content": "v3", "if_match": stale });
    let failed = space.fails("files.write", input).await;
    assert_eq!(failed.details(), &json!({ "expected": stale, "actual": null }));
    assert!(!space.has("gone"));
}

#[tokio::test]
async fn weak_etags_guard_large_files_too() {
    let space =
        TestWorkspace::limited(FileToolLimits { hashed_bytes_max: 1, ..FileToolLimits::default() });
    space.put("f", "old");
    let old = etag(&space, "f").await;
    assert!(old.as_str().unwrap().starts_with("W/"));
    let wrote =
        space.ok("files.write", json!({ "path": "f", "content": "new", "if_match": old })).await;
    assert_eq!(wrote["etag"], etag(&space, "f").await);
    let failed =
        space.fails("files.write", json!({ "path": "f", "content": "x", "if_match": old })).await;
    assert_eq!(failed.reason, "conflict");
}

#[tokio::test]
async fn missing_files_and_directories_are_not_created_if_disabled() {
    let space = TestWorkspace::new();
    let failed =
        space.fails("files.write", json!({ "path": "f", "content": "x", "create": false })).await;
    assert_eq!(failed.reason, "not_found");
    let failed =
        space.fails("files.write", json!({ "path": "a/f", "content": "x", "create": false })).await;
    assert_eq!(failed.reason, "not_found");
    let failed =
        space.fails("files.write", json!({ "path": "a/f", "content": "x", "mkdirs": false })).await;
    assert_eq!((failed.reason, failed.pointer()), ("invalid_input", "/path"));
    assert!(failed.message.contains("the directory `a` does not exist"), "{failed:?}");
    assert_eq!(fs::read_dir(&space.ws).unwrap().count(), 0);
}

#[tokio::test]
async fn a_write_to_a_directory_or_through_a_file_is_refused() {
    let space = TestWorkspace::new();
    fs::create_dir(space.ws.join("d")).unwrap();
    space.put("f", "x");
    for path in ["d", "d/", "new/", "f/x", "f/x/y"] {
        let failed = space
            .fails("files.write", json!({ "path": path, "content": "x", "overwrite": true }))
            .await;
        assert_eq!(failed.pointer(), "/path", "{path}");
    }
    assert_eq!(space.get("f"), b"x");
    assert!(!space.has("new"));
}

#[tokio::test]
async fn base64_is_decoded_or_refused() {
    let space = TestWorkspace::new();
    space.ok("files.write", json!({ "path": "f", "content_base64": "//4AeA==" })).await;
    assert_eq!(space.get("f"), b"\xff\xfe\0x");
    space.ok("files.write", json!({ "path": "empty", "content_base64": "" })).await;
    for invalid in ["a$b=", "//4AeA", "__4AeA==", "//4A eA==", "//4AeA==\n", "A"] {
        let failed =
            space.fails("files.write", json!({ "path": "g", "content_base64": invalid })).await;
        assert_eq!(failed.pointer(), "/content_base64", "{invalid}");
    }
    for input in
        [json!({ "path": "g" }), json!({ "path": "g", "content": "", "content_base64": "" })]
    {
        assert_eq!(space.fails("files.write", input).await.pointer(), "");
    }
    assert!(!space.has("g"));
}

#[tokio::test]
async fn the_mode_is_the_given_or_the_old_or_the_default_one() {
    let space = TestWorkspace::new();
    let mode = |path: &str| fs::metadata(space.ws.join(path)).unwrap().mode() & 0o7777;
    space.put("usual", "x");
    space.ok("files.write", json!({ "path": "new", "content": "x" })).await;
    assert_eq!(mode("new"), mode("usual"));
    space.ok("files.write", json!({ "path": "private", "content": "x", "mode": 0o600 })).await;
    assert_eq!(mode("private"), 0o600);
    space.ok("files.write", json!({ "path": "open", "content": "x", "mode": 0o777 })).await;
    assert_eq!(mode("open"), 0o777);
    fs::set_permissions(space.ws.join("usual"), fs::Permissions::from_mode(0o750)).unwrap();
    space.ok("files.write", json!({ "path": "usual", "content": "y", "overwrite": true })).await;
    assert_eq!(mode("usual"), 0o750);
    space
        .ok(
            "files.write",
            json!({ "path": "usual", "content": "y", "overwrite": true, "mode": null }),
        )
        .await;
    assert_eq!(mode("usual"), 0o750);
    for invalid in [755, 644, 0o1000] {
        let failed = space
            .fails("files.write", json!({ "path": "x", "content": "x", "mode": invalid }))
            .await;
        assert_eq!(failed.pointer(), "/mode");
    }
}

#[tokio::test]
async fn a_write_keeps_owner_and_attributes() {
    let space = TestWorkspace::new();
    space.put("f", "old");
    let path = space.ws.join("f");
    if std::os::unix::fs::chown(&path, Some(1234), Some(2345)).is_err() {
        eprintln!("SKIPPED: only root can change a file's owner");
        return;
    }
    setxattr(&path, "user.note", b"kept", XattrFlags::empty()).unwrap();
    space.ok("files.write", json!({ "path": "f", "content": "new", "overwrite": true })).await;
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (1234, 2345));
    let mut value = [0; 16];
    let len = getxattr(&path, "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"kept");
}

#[tokio::test]
async fn a_write_through_a_symlink_replaces_its_target() {
    let space = TestWorkspace::new();
    space.put("real/f", "old");
    space.symlink("real/f", "link");
    space.symlink("real", "dir");
    space.ok("files.write", json!({ "path": "link", "content": "new", "overwrite": true })).await;
    assert_eq!(space.get("real/f"), b"new");
    assert!(fs::symlink_metadata(space.ws.join("link")).unwrap().is_symlink());
    space.ok("files.write", json!({ "path": "dir/g", "content": "g" })).await;
    assert_eq!(space.get("real/g"), b"g");
    let edits = json!([{ "old": "new", "new": "newer" }]);
    space.ok("files.edit", json!({ "path": "link", "edits": edits })).await;
    assert_eq!(space.get("real/f"), b"newer");
    assert!(fs::symlink_metadata(space.ws.join("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn content_over_the_limit_is_refused() {
    let space =
        TestWorkspace::limited(FileToolLimits { write_bytes_max: 10, ..FileToolLimits::default() });
    space.ok("files.write", json!({ "path": "f", "content": "0123456789" })).await;
    let failed = space.fails("files.write", json!({ "path": "g", "content": "0123456789a" })).await;
    assert_eq!(failed.reason, "too_large");
    let edits = json!([{ "start_line": 1, "new": "0123456789a" }]);
    let failed = space.fails("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert_eq!(failed.reason, "too_large");
    assert_eq!(space.get("f"), b"0123456789");
}

#[tokio::test]
async fn temporary_files_of_a_dead_process_are_never_visible() {
    let space = TestWorkspace::new();
    let temp = ".toolgate-0123456789abcdef.tmp";
    space.put(temp, "needle");
    space.put("d/f", "needle");
    assert_eq!(space.ok("files.list", json!({})).await["entries"].as_array().unwrap().len(), 1);
    assert!(!space.text("files.tree", json!({ "include_ignored": true })).await.contains(".tmp"));
    let found =
        space.ok("files.search", json!({ "query": "needle", "include_ignored": true })).await;
    assert_eq!(found["matches"].as_array().unwrap().len(), 1);
    let failed = space
        .fails("files.write", json!({ "path": temp, "content": "x", "overwrite": true }))
        .await;
    assert_eq!(failed.reason, "not_allowed");
}

#[tokio::test]
async fn new_content_does_not_keep_setuid_and_setgid() {
    let space = TestWorkspace::new();
    space.put("f", "old");
    let path = space.ws.join("f");
    let edits = json!([{ "old": "new", "new": "newer" }]);
    for (tool, input) in [
        ("files.write", json!({ "path": "f", "content": "new", "overwrite": true })),
        ("files.edit", json!({ "path": "f", "edits": edits })),
    ] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        space.ok(tool, input).await;
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755, "{tool}");
    }
}

#[tokio::test]
async fn a_mode_is_octal_as_a_string_and_decimal_as_a_number() {
    let space = TestWorkspace::new();
    for (path, mode, bits) in [
        ("a", json!("0755"), 0o755),
        ("b", json!("640"), 0o640),
        ("c", json!("0o600"), 0o600),
        ("d", json!(493), 0o755),
    ] {
        space.ok("files.write", json!({ "path": path, "content": "x", "mode": mode })).await;
        assert_eq!(fs::metadata(space.ws.join(path)).unwrap().mode() & 0o7777, bits, "{mode}");
    }
    for invalid in [json!("0999"), json!("01755"), json!("rwx"), json!(""), json!("+755")] {
        let input = json!({ "path": "x", "content": "x", "mode": invalid });
        assert_eq!(space.fails("files.write", input).await.pointer(), "/mode", "{invalid}");
    }
    let input = json!({ "path": "x", "content": "x", "mode": 755 });
    let failed = space.fails("files.write", input).await;
    assert!(failed.message.contains(r#"for 0755 write 493 or "0755""#), "{failed:?}");
}

#[test]
fn a_mode_can_be_a_number_a_string_or_missing() {
    let space = TestWorkspace::new();
    let schema = space.schema("files.write");
    assert_eq!(schema["properties"]["mode"]["type"], json!(["integer", "string", "null"]));
    assert_eq!(schema["required"], json!(["path"]));
}
