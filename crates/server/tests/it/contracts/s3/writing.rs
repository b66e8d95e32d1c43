//! Tests of the method `files/write` of Mira's contract.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread::scope;

use serde_json::{Value, json};

use super::client::{MiraServer, over_all};
use crate::support::TempWorkspace;

/// Returns the parameters that write `content` to `path`, with the further parameters `more`.
fn write_params(path: &str, content: &str, more: Value) -> Value {
    let mut params = json!({ "path": path, "content": content });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

#[test]
fn s3_41_42_48_50_a_file_is_written_whole_from_text_or_base64() {
    over_all(&TempWorkspace::new(), |mira| {
        let workspace = working_folder(mira);
        let example = json!({
            "path": "src/main.rs", "content": "fn main() {}", "encoding": "utf-8", "overwrite": false,
        });
        let written = mira.get("files/write", example);
        let expected = (&json!("src/main.rs"), &json!(12), &json!(true), &json!(false));
        let actual =
            (&written["path"], &written["size"], &written["created"], &written["overwritten"]);
        assert_eq!(actual, expected);
        let read = mira.get("files/read", json!({ "path": "src/main.rs" }));
        assert_eq!((&read["content"], &read["etag"]), (&json!("fn main() {}"), &written["etag"]));
        assert_eq!(read["mtime"], written["mtime"]);
        for (params, content) in [
            (json!({ "content_base64": "AP8=" }), &b"\x00\xff"[..]),
            (json!({ "content_base64": "AP8=", "encoding": "base64" }), b"\x00\xff"),
            (json!({ "content": "AP8=", "encoding": "base64" }), b"\x00\xff"),
            (json!({ "content": null, "content_base64": "" }), b""),
            (json!({ "content": "é\r\n", "content_base64": null }), "é\r\n".as_bytes()),
            (json!({ "content": "" }), b""),
        ] {
            let mut params = params;
            params["path"] = json!("w.bin");
            params["overwrite"] = json!(true);
            mira.get("files/write", params.clone());
            assert_eq!(fs::read(workspace.join("w.bin")).unwrap(), content, "{params}");
        }
        for (field, more) in [
            ("path", json!({ "path": 1 })),
            ("content", json!({ "content": 1 })),
            ("encoding", json!({ "encoding": "utf8" })),
            ("create", json!({ "create": "yes" })),
            ("overwrite", json!({ "overwrite": null })),
            ("mkdirs", json!({ "mkdirs": 1 })),
            ("etag", json!({ "etag": 1 })),
            ("mode", json!({ "mode": "0600" })),
            ("if_match", json!({ "if_match": "a" })),
        ] {
            mira.expect_refusal_of(-32602, field, "files/write", write_params("never", "x", more));
        }
        mira.expect_refusal_of(-32602, "path", "files/write", json!({ "content": "x" }));
        for (field, params) in [
            ("content", json!({ "path": "never" })),
            ("content", json!({ "path": "never", "content": null, "content_base64": null })),
            ("content", json!({ "path": "never", "content": "a", "content_base64": "YQ==" })),
            ("content_base64", json!({ "path": "never", "content_base64": "YQ" })),
            ("content", json!({ "path": "never", "content": "no!", "encoding": "base64" })),
            ("mode", write_params("never", "x", json!({ "mode": 0o7777 }))),
            ("mode", write_params("never", "x", json!({ "mode": -1 }))),
        ] {
            mira.expect_refusal_of(1003, field, "files/write", params);
        }
        assert!(!workspace.join("never").exists());
        fs::remove_dir_all(workspace.join("src")).unwrap();
    });
}

/// Returns the working folder of programs that `mira` runs.
fn working_folder(mira: &mut super::client::MiraClient) -> std::path::PathBuf {
    let here = mira.get("exec/run", json!({ "command": "pwd" }));
    here["stdout"].as_str().unwrap().trim_end().into()
}

#[test]
fn s3_43_44_45_49_create_overwrite_and_mkdirs_are_applied_as_given() {
    let workspace = TempWorkspace::new();
    over_all(&workspace, |mira| {
        workspace.put("a.txt", "one");
        // A file that must exist and does not.
        mira.expect_refusal(
            1001,
            "files/write",
            write_params("new.txt", "x", json!({ "create": false })),
        );
        mira.expect_refusal(
            1001,
            "files/write",
            write_params("no/new.txt", "x", json!({ "create": false })),
        );
        assert!(!workspace.path("new.txt").exists() && !workspace.path("no").exists());
        // A file that must not exist and does.
        for more in [json!({}), json!({ "overwrite": false }), json!({ "create": false })] {
            let error =
                mira.expect_refusal(1005, "files/write", write_params("a.txt", "two", more));
            assert!(!error.to_string().contains("if_match"), "{error}");
            assert_eq!(workspace.read("a.txt"), "one");
        }
        let replaced =
            mira.get("files/write", write_params("a.txt", "two", json!({ "overwrite": true })));
        assert_eq!((&replaced["created"], &replaced["overwritten"]), (&json!(false), &json!(true)));
        let there = json!({ "overwrite": true, "create": false });
        mira.get("files/write", write_params("a.txt", "three", there));
        assert_eq!(workspace.read("a.txt"), "three");
        // Missing parent folders.
        let flat = write_params("deep/er/b.txt", "x", json!({ "mkdirs": false }));
        mira.expect_refusal_of(1003, "path", "files/write", flat.clone());
        assert!(!workspace.path("deep").exists());
        mira.get("files/write", write_params("deep/er/b.txt", "x", json!({})));
        assert_eq!(workspace.read("deep/er/b.txt"), "x");
        fs::remove_file(workspace.path("deep/er/b.txt")).unwrap();
        mira.get("files/write", flat);
        fs::remove_dir_all(workspace.path("deep")).unwrap();
        mira.expect_refusal(1002, "files/write", write_params("../x", "x", json!({})));
        mira.expect_refusal(1003, "files/write", json!({ "path": "x" }));
    });
}

#[test]
fn s3_10_46_an_etag_prevents_lost_updates() {
    let workspace = TempWorkspace::new();
    over_all(&workspace, |mira| {
        workspace.put("a.txt", "one");
        let stale = mira.get("files/read", json!({ "path": "a.txt" }))["etag"].clone();
        workspace.put("a.txt", "two");
        for overwrite in [json!({ "overwrite": true }), json!({ "overwrite": false }), json!({})] {
            let mut more = overwrite;
            more["etag"] = stale.clone();
            mira.expect_refusal(1005, "files/write", write_params("a.txt", "three", more));
            assert_eq!(workspace.read("a.txt"), "two");
        }
        let etag = mira.get("files/read", json!({ "path": "a.txt" }))["etag"].clone();
        let current = json!({ "etag": etag, "overwrite": true });
        let written = mira.get("files/write", write_params("a.txt", "three", current));
        assert_eq!(workspace.read("a.txt"), "three");
        // The current etag allows replacing, and `overwrite` is false by default.
        let known = json!({ "etag": written["etag"], "overwrite": false });
        let written = mira.get("files/write", write_params("a.txt", "four", known));
        assert_eq!(workspace.read("a.txt"), "four");
        mira.get("files/write", write_params("a.txt", "five", json!({ "etag": written["etag"] })));
        assert_eq!(workspace.read("a.txt"), "five");
        // A deleted file does not match an etag.
        fs::remove_file(workspace.path("a.txt")).unwrap();
        mira.expect_refusal(
            1005,
            "files/write",
            write_params("a.txt", "x", json!({ "etag": stale })),
        );
        assert!(!workspace.path("a.txt").exists());
        mira.get("files/write", write_params("a.txt", "x", json!({ "etag": null })));
    });
}

#[test]
fn s3_46_exactly_one_of_several_writers_with_the_same_etag_wins() {
    let workspace = TempWorkspace::new();
    let server = MiraServer::over(&workspace);
    for round in 0..8 {
        workspace.put("a.txt", format!("round {round}"));
        let etag = server.root().get("files/read", json!({ "path": "a.txt" }))["etag"].clone();
        let outcomes: Vec<_> = scope(|scope| {
            let write = |writer: usize| {
                let server = &server;
                let etag = etag.clone();
                scope.spawn(move || {
                    let more = json!({ "etag": etag, "overwrite": true });
                    server.root().ask(
                        "files/write",
                        write_params("a.txt", &format!("writer {writer}"), more),
                    )
                })
            };
            let writers: Vec<_> = (0..6).map(write).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let won: Vec<_> = (0..6).filter(|writer| outcomes[*writer].is_ok()).collect();
        let lost = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        assert!(lost.clone().all(|error| error["code"] == 1005), "{outcomes:?}");
        assert_eq!(won.len(), 1, "{outcomes:?}");
        assert_eq!(workspace.read("a.txt"), format!("writer {}", won[0]));
    }
}

#[test]
fn s3_47_a_mode_sets_the_nine_permission_bits() {
    let workspace = TempWorkspace::new();
    over_all(&workspace, |mira| {
        let bits =
            |name: &str| fs::metadata(workspace.path(name)).unwrap().permissions().mode() & 0o7777;
        for mode in [0o600, 0o755, 0o444] {
            mira.get("files/write", write_params("m", "x", json!({ "mode": mode })));
            assert_eq!(bits("m"), mode);
            fs::remove_file(workspace.path("m")).unwrap();
        }
        fs::write(workspace.path("ours"), "").unwrap();
        for default in [json!({ "mode": null }), json!({})] {
            mira.get("files/write", write_params("m", "x", default));
            assert_eq!(bits("m"), bits("ours"), "the mode is not that of the umask");
            fs::remove_file(workspace.path("m")).unwrap();
        }
    });
}
