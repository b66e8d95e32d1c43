//! Tests of Mira's errors: the cause of each code, and the checks before a call uses files or
//! programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer, over_all};
use crate::support::{ServerLaunchOptions, TempWorkspace};

#[test]
fn s3_11_16_17_18_22_23_39_each_domain_code_is_returned_for_its_cause() {
    let workspace = TempWorkspace::new()
        .file("big.txt", "x".repeat(11 << 20))
        .file("src/main.rs", "")
        .link("out", "/etc");
    over_all(&workspace, |mira| {
        let read = |path: &str| json!({ "path": path });
        let missing = mira.expect_refusal(1001, "files/read", read("gone.txt"));
        assert_eq!(missing["data"]["field"], "path", "{missing}");
        for path in ["../x", "/etc/passwd", "out/passwd", "src/../../x"] {
            let error = mira.expect_refusal(1002, "files/read", read(path));
            // The contract's own example of an error has only a field and a reason.
            let keys: Vec<_> = error["data"].as_object().unwrap().keys().collect();
            assert_eq!(keys, ["field", "reason"], "{path}: {error}");
            assert_eq!(error["data"]["field"], "path", "{path}");
            mira.expect_refusal(1002, "files/write", json!({ "path": path, "content": "x" }));
        }
        let error = mira.expect_refusal(
            1003,
            "files/write",
            json!({
                "path": "w", "content": "a", "content_base64": "YQ==",
            }),
        );
        assert_eq!(error["message"], "Validation failed");
        let base64 = json!({ "path": "w", "content_base64": "#" });
        mira.expect_refusal_of(1003, "content_base64", "files/write", base64);
        mira.expect_refusal(1007, "files/read", json!({ "path": "README.md", "max_bytes": 3 }));
        // A file over the server's limit is refused too, but a range of it is returned.
        mira.expect_refusal(1007, "files/read", read("big.txt"));
        mira.expect_refusal(1007, "files/read", json!({ "path": "big.txt", "max_bytes": 1 << 30 }));
        let part = mira.get("files/read", json!({ "path": "big.txt", "length": 10 << 20 }));
        assert_eq!(part["content"].as_str().unwrap().len(), 10 << 20);
        mira.expect_refusal(-32602, "files/read", json!({}));
    });
    assert!(!workspace.path("w").exists());
}

/// Returns options of a server that obeys file permissions even if root runs the tests.
fn without_overriding(launch: ServerLaunchOptions) -> ServerLaunchOptions {
    if !rustix::process::geteuid().is_root() {
        return launch;
    }
    launch.through(&[
        "/usr/bin/setpriv",
        "--bounding-set=-dac_override,-dac_read_search",
        "--inh-caps=-dac_override,-dac_read_search",
    ])
}

#[test]
fn s3_17_a_file_system_permission_error_is_permission_denied() {
    let workspace = TempWorkspace::new().file("locked.txt", "secret").file("shut/in.txt", "secret");
    let mode = |path: &str, bits| {
        fs::set_permissions(workspace.path(path), Permissions::from_mode(bits)).unwrap();
    };
    mode("locked.txt", 0);
    mode("shut", 0);
    let mut mira = MiraClient::stdio(without_overriding(ServerLaunchOptions::over(&workspace)));
    for path in ["locked.txt", "shut/in.txt"] {
        mira.expect_refusal_of(1002, "path", "files/read", json!({ "path": path }));
    }
    let write = json!({ "path": "shut/new.txt", "content": "x" });
    mira.expect_refusal(1002, "files/write", write);
    mode("shut", 0o755);
}

#[test]
fn s3_15_a_file_system_fault_is_an_internal_error() {
    // The loopback interface has no speed, so reading this file always fails.
    let mut mira =
        MiraClient::stdio(ServerLaunchOptions::at(Path::new("/sys/devices/virtual/net/lo")));
    let error = mira.expect_refusal(-32603, "files/read", json!({ "path": "speed" }));
    assert_eq!(error["message"], "Internal error");
    assert_eq!(mira.get("files/read", json!({ "path": "mtu" }))["path"], "mtu");
}

#[test]
fn s3_20_a_conflict_has_both_etags() {
    let workspace = TempWorkspace::new().file("a.txt", "one");
    over_all(&workspace, |mira| {
        let etag = mira.get("files/read", json!({ "path": "a.txt" }))["etag"].clone();
        let write =
            json!({ "path": "a.txt", "content": "two", "overwrite": true, "etag": "\"x\"" });
        let error = mira.expect_refusal(1005, "files/write", write);
        assert_eq!(error["data"]["expected"], "\"x\"", "{error}");
        assert_eq!(error["data"]["actual"], etag, "{error}");
    });
    assert_eq!(workspace.read("a.txt"), "one");
}

#[test]
fn s3_21_a_denied_tool_is_unavailable() {
    let workspace = TempWorkspace::new();
    let deny =
        |launch: ServerLaunchOptions| launch.set("tools_deny", "exec.*,files.write,search.*");
    let server = MiraServer::with(&workspace, "", deny);
    let mut mira = server.root();
    mira.expect_refusal(1006, "exec/run", json!({ "command": "true" }));
    mira.expect_refusal(1006, "files/write", json!({ "path": "a", "content": "" }));
    mira.expect_refusal(1010, "vector/search", json!({ "query": "a" }));
    let tools = mira.get("tools/list", json!({ "limit": 200 }));
    let names: Vec<_> =
        tools["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    for gone in ["exec/run", "files/write", "vector/search"] {
        assert!(!names.contains(&&json!(gone)), "{names:?}");
    }
    assert_eq!(
        mira.get("files/read", json!({ "path": "README.md" }))["content"],
        TempWorkspace::README
    );
}

#[test]
fn s3_11_76_no_path_leads_out_of_the_workspace() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret.txt"), "canary").unwrap();
    let secret = outside.path().join("secret.txt");
    let workspace = TempWorkspace::new()
        .file("a/in.txt", "inside")
        .file("Case.txt", "upper")
        .link("file-out", &secret)
        .link("dir-out", outside.path())
        .link("up", "../..")
        .link("loop", "loop")
        .link("dir-in", "a");
    let server = MiraServer::over(&workspace);
    let mut mira = server.root();
    let absolute = secret.to_str().unwrap();
    let denied = [
        absolute,
        "..",
        "../secret.txt",
        "a/../../x",
        "a/../..",
        "./../x",
        "/",
        "//etc/passwd",
        "file-out",
        "dir-out/secret.txt",
        "up/etc/passwd",
        "dir-out/../x",
    ];
    for path in denied {
        for (method, params) in [
            ("files/read", json!({ "path": path })),
            ("files/write", json!({ "path": path, "content": "x", "overwrite": true })),
        ] {
            let error = mira.ask(method, params).unwrap_err();
            // A path without a file name cannot be written, wherever it leads.
            let nameless = method == "files/write" && (path.ends_with("..") || path == "/");
            let code = if nameless && error["code"] == 1003 { 1003 } else { 1002 };
            assert_eq!(error["code"], code, "{method} {path}: {error}");
            assert!(!error.to_string().contains("canary"));
        }
    }
    mira.expect_refusal_of(1003, "path", "files/read", json!({ "path": "a\0b" }));
    mira.expect_refusal_of(1003, "path", "files/read", json!({ "path": "" }));
    mira.expect_refusal_of(1003, "path", "files/read", json!({ "path": "loop" }));
    // Names are literal: no case folding, no decoding.
    mira.expect_refusal(1001, "files/read", json!({ "path": "case.txt" }));
    mira.expect_refusal(1001, "files/read", json!({ "path": "%2e%2e/x" }));
    mira.expect_refusal(1001, "files/read", json!({ "path": "~/x" }));
    for (path, content) in [
        ("a/in.txt", "inside"),
        ("dir-in/in.txt", "inside"),
        ("a/../a/in.txt", "inside"),
        ("./Case.txt", "upper"),
    ] {
        assert_eq!(mira.get("files/read", json!({ "path": path }))["content"], content, "{path}");
    }
    // Repository internals and the current settings can be read but not written.
    for path in [".git/config", "toolgate.toml", ".GIT/hooks/pre-commit"] {
        let write = json!({ "path": path, "content": "x", "overwrite": true });
        mira.expect_refusal(1002, "files/write", write);
    }
    // A hard link keeps its content: the file is replaced, not written in place.
    fs::hard_link(&secret, workspace.path("hard.txt")).unwrap();
    mira.get("files/write", json!({ "path": "hard.txt", "content": "mine", "overwrite": true }));
    assert_eq!(fs::read_to_string(&secret).unwrap(), "canary");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn s3_76_a_path_swapped_during_a_call_does_not_lead_outside() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f.txt"), "canary").unwrap();
    let workspace = TempWorkspace::new().file("real/f.txt", "inside");
    workspace.put("swap/f.txt", "inside");
    let server = MiraServer::over(&workspace);
    let over = AtomicBool::new(false);
    let swap = workspace.path("swap");
    let aside = workspace.path("aside");
    let link = workspace.path("link");
    std::os::unix::fs::symlink(outside.path(), &link).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs::rename(&swap, &aside).unwrap();
                fs::rename(&link, &swap).unwrap();
                fs::rename(&swap, &link).unwrap();
                fs::rename(&aside, &swap).unwrap();
            }
        });
        let mut mira = server.socket();
        let mut read = 0;
        for _ in 0..400 {
            match mira.ask("files/read", json!({ "path": "swap/f.txt" })) {
                Ok(result) => {
                    assert_eq!(result["content"], "inside");
                    read += 1;
                }
                Err(error) => assert!([1001, 1002, 1006].map(Value::from).contains(&error["code"])),
            }
            let write = json!({
                "path": "swap/new.txt", "content": "x", "overwrite": true, "mkdirs": false,
            });
            let _ = mira.ask("files/write", write);
        }
        over.store(true, Ordering::Relaxed);
        assert!(read > 0, "no read succeeded");
    });
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "something was written outside");
}
