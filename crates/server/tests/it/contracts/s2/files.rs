//! Compares the file tools with the folder itself, and tests paths that lead out of the folder.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::client::{WorkstationClient, over_all};
use crate::support::{ServerLaunchOptions, TempWorkspace};

#[test]
fn s2_01_19_36_each_file_tool_does_what_its_name_says() {
    let workspace = TempWorkspace::new();
    over_all(&workspace, |client| {
        let mut content =
            |tool: &str, arguments| client.content(&format!("filesystem/{tool}"), arguments);
        // A write creates folders and replaces the file.
        for text in ["first\n", "é \u{1f600}\r\n\u{0}", ""] {
            content("write", json!({ "path": "a/b/c.txt", "content": text }));
            assert_eq!(workspace.read("a/b/c.txt"), text);
            assert_eq!(content("read", json!({ "path": "a/b/c.txt" })), text);
        }
        content("mkdir", json!({ "path": "a/d/e" }));
        assert!(workspace.path("a/d/e").is_dir());
        content("mkdir", json!({ "path": "a/d/e" }));
        content("write", json!({ "path": "a/z.txt", "content": "z" }));
        assert_eq!(content("list", json!({ "path": "a" })), "b\nd\nz.txt");
        assert_eq!(content("list", json!({ "path": "a/d/e" })), "");
        for (path, file, folder) in [
            ("a/z.txt", "true", "false"),
            ("a/d", "false", "true"),
            (".", "false", "true"),
            ("none", "false", "false"),
            ("a/z.txt/below", "false", "false"),
        ] {
            assert_eq!(content("file_exists", json!({ "path": path })), file, "{path}");
            assert_eq!(content("dir_exists", json!({ "path": path })), folder, "{path}");
        }
        content("delete", json!({ "path": "a/z.txt" }));
        assert!(!workspace.path("a/z.txt").exists());
        // A missing file cannot be deleted, read or listed; a folder cannot be read.
        for (tool, path, code) in [
            ("delete", "a/z.txt", -32603),
            ("read", "a/z.txt", -32603),
            ("list", "z", -32603),
            ("read", "a", -32602),
        ] {
            let (actual, message, data) =
                client.refusal(&format!("filesystem/{tool}"), json!({ "path": path }));
            assert_eq!(actual, code, "{tool} {path}: {data}");
            assert_eq!(message, if code == -32603 { "Internal error" } else { "Invalid params" });
            assert!(data["detail"].as_str().unwrap().contains(path), "{data}");
        }
        // A folder that is not empty is not deleted.
        let (_, _, data) = client.refusal("filesystem/delete", json!({ "path": "a" }));
        assert!(data["detail"].as_str().unwrap().contains("empty"), "{data}");
        assert!(workspace.path("a/b/c.txt").exists());
        fs::remove_dir_all(workspace.path("a")).unwrap();
    });
}

#[test]
fn a_utf_16_file_is_refused_with_its_encoding() {
    let workspace = TempWorkspace::new().file("utf16.txt", b"\xfe\xff\0a\0\n");
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    let (code, _, data) = client.refusal("filesystem/read", json!({ "path": "utf16.txt" }));
    let detail = data["detail"].as_str().unwrap();
    assert!(code == -32603 && detail.contains("UTF-16BE") && detail.contains("ci/run"), "{data}");
}

#[test]
fn s2_12_36_a_file_is_returned_whole_or_refused_with_an_alternative() {
    let large = "0123456789abcde\n".repeat(20_000);
    let workspace = TempWorkspace::new()
        .file("large.txt", &large)
        .file("larger.txt", large.repeat(40))
        .file("bytes", b"ab\xff\n");
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    assert_eq!(client.content("filesystem/read", json!({ "path": "large.txt" })), large);
    let (code, message, data) = client.refusal("filesystem/read", json!({ "path": "bytes" }));
    assert_eq!((code, message.as_str()), (-32603, "Internal error"));
    assert!(data["detail"].as_str().unwrap().contains("not UTF-8 at byte 2"), "{data}");

    let (code, message, data) = client.refusal("filesystem/read", json!({ "path": "larger.txt" }));
    assert_eq!((code, message.as_str()), (-32602, "Invalid params"));
    let detail = data["detail"].as_str().unwrap();
    assert!(detail.contains("12800000 bytes") && detail.contains("ci/run"), "{data}");
}

#[test]
fn s2_29_no_path_leads_out_of_the_workspace() {
    let outside = TempDir::with_prefix("toolgate-outside-").unwrap();
    fs::write(outside.path().join("secret.txt"), "not to be read").unwrap();
    let out = outside.path().to_str().unwrap().to_owned();
    let name = outside.path().file_name().unwrap().to_str().unwrap().to_owned();
    let workspace = TempWorkspace::new()
        .file("in/file.txt", "")
        .link("way-out", &out)
        .link("one-file", outside.path().join("secret.txt"));
    over_all(&workspace, |client| {
        let paths = [
            format!("../{name}"),
            format!("in/../../{name}"),
            out.clone(),
            "way-out".to_owned(),
            format!("in/../way-out/../{name}"),
        ];
        for folder in &paths {
            let file = format!("{folder}/secret.txt");
            for (tool, arguments) in [
                ("read", json!({ "path": file })),
                ("write", json!({ "path": file, "content": "changed" })),
                ("write", json!({ "path": format!("{folder}/new.txt"), "content": "" })),
                ("delete", json!({ "path": file })),
                ("list", json!({ "path": folder })),
                ("mkdir", json!({ "path": format!("{folder}/new") })),
                ("file_exists", json!({ "path": file })),
                ("dir_exists", json!({ "path": format!("{folder}/.") })),
            ] {
                let (code, _, data) = client.refusal(&format!("filesystem/{tool}"), arguments);
                assert!(matches!(code, -32603 | -32602), "{tool} {folder}: {data}");
                assert!(!data.to_string().contains("not to be read"), "{data}");
            }
        }
        // Percent-encoding is not decoded, and a NUL is invalid.
        for path in ["%2e%2e/x", "..%2fx", "in/\u{0}", "../\u{0}", "one-file", "~/x", "C:\\x"] {
            let (code, _, data) = client.refusal("filesystem/read", json!({ "path": path }));
            assert!(matches!(code, -32603 | -32602), "{path:?}: {data}");
            assert!(!data.to_string().contains("not to be read"), "{data}");
        }
    });
    let left: Vec<_> =
        fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["secret.txt"]);
    assert_eq!(fs::read_to_string(outside.path().join("secret.txt")).unwrap(), "not to be read");
}
