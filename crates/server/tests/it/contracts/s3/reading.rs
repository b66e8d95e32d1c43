//! Tests of the method `files/read` of Mira's contract.

use std::fs;
use std::os::unix::fs::MetadataExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::over_all;
use crate::support::TempWorkspace;

const TEXT: &str = "aé€😀\nzwei\n";

#[test]
fn s3_07_32_33_37_40_a_file_is_read_as_text_or_as_base64() {
    let bytes: Vec<u8> = (0..=255).collect();
    let workspace = TempWorkspace::new()
        .file("src/main.rs", "fn main() {}\n")
        .file("text.txt", TEXT)
        .file("empty", "")
        .file("all.bin", &bytes);
    over_all(&workspace, |mira| {
        let example = mira.get("files/read", json!({ "path": "src/main.rs" }));
        assert_eq!(example["content"], "fn main() {}\n");
        assert_eq!((&example["path"], &example["size"]), (&json!("src/main.rs"), &json!(13)));
        let text = mira.get("files/read", json!({ "path": "text.txt", "encoding": "utf-8" }));
        assert_eq!((&text["content"], &text["encoding"]), (&json!(TEXT), &json!("utf-8")));
        assert!(text["content_base64"].is_null());
        let binary = mira.get("files/read", json!({ "path": "all.bin", "encoding": "base64" }));
        assert_eq!(binary["content_base64"], STANDARD.encode(&bytes));
        assert_eq!((&binary["content"], &binary["encoding"]), (&Value::Null, &json!("base64")));
        assert_eq!(binary["size"], 256);
        assert_eq!(mira.get("files/read", json!({ "path": "empty" }))["content"], "");
        // Bytes that are not UTF-8 are refused, not replaced.
        mira.expect_refusal_of(1003, "encoding", "files/read", json!({ "path": "all.bin" }));
        for (field, params) in [
            ("encoding", json!({ "path": "text.txt", "encoding": "latin1" })),
            ("encoding", json!({ "path": "text.txt", "encoding": "UTF-8" })),
            ("encoding", json!({ "path": "text.txt", "encoding": null })),
            ("path", json!({ "path": null })),
            ("path", json!({ "path": ["a"] })),
            ("start_line", json!({ "path": "text.txt", "start_line": 1 })),
            ("if_none_match", json!({ "path": "text.txt", "if_none_match": "a" })),
        ] {
            mira.expect_refusal_of(-32602, field, "files/read", params);
        }
    });
}

#[test]
fn a_utf_16_file_is_refused_as_text_and_read_as_base64() {
    let bytes = b"\xff\xfea\0\n\0";
    let workspace = TempWorkspace::new().file("utf16.txt", bytes);
    over_all(&workspace, |mira| {
        mira.expect_refusal_of(1003, "encoding", "files/read", json!({ "path": "utf16.txt" }));
        let read = mira.get("files/read", json!({ "path": "utf16.txt", "encoding": "base64" }));
        assert_eq!(read["content_base64"], STANDARD.encode(bytes));
    });
}

#[test]
fn s3_34_35_ranges_are_in_bytes_and_too_large_a_read_is_refused_not_cut() {
    let long = "x".repeat(300_000);
    let workspace = TempWorkspace::new().file("text.txt", TEXT).file("long.txt", &long);
    let bytes = TEXT.as_bytes();
    over_all(&workspace, |mira| {
        let read = |more: Value| {
            let mut params = json!({ "path": "text.txt" });
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            params
        };
        for (more, from, to) in [
            (json!({ "offset": 0, "length": 1 }), 0, 1),
            (json!({ "offset": 1, "length": 2 }), 1, 3),
            (json!({ "offset": 3 }), 3, bytes.len()),
            (json!({ "length": 6 }), 0, 6),
            (json!({ "offset": 10, "length": 1000 }), 10, bytes.len()),
            (json!({ "offset": bytes.len() }), bytes.len(), bytes.len()),
            (json!({ "offset": 1_u64 << 40 }), bytes.len(), bytes.len()),
            (json!({ "offset": 1_u64 << 40, "length": 5 }), bytes.len(), bytes.len()),
            (json!({ "max_bytes": bytes.len() }), 0, bytes.len()),
            (json!({ "offset": 1, "length": 2, "max_bytes": 2 }), 1, 3),
        ] {
            let text = mira.get("files/read", read(more.clone()));
            assert_eq!(text["content"], TEXT[from..to], "{more}");
            assert_eq!(text["size"], bytes.len(), "`size` is not that of the whole file");
            let mut encoded = read(more.clone());
            encoded["encoding"] = json!("base64");
            let encoded = mira.get("files/read", encoded);
            assert_eq!(encoded["content_base64"], STANDARD.encode(&bytes[from..to]), "{more}");
        }
        for most in 1..bytes.len() {
            mira.expect_refusal(1007, "files/read", read(json!({ "max_bytes": most })));
            let slice = json!({ "offset": 0, "length": bytes.len(), "max_bytes": most });
            mira.expect_refusal(1007, "files/read", read(slice));
        }
        // Offsets count bytes and may split a character.
        for more in
            [json!({ "offset": 2 }), json!({ "length": 2 }), json!({ "offset": 4, "length": 1 })]
        {
            mira.expect_refusal_of(1003, "encoding", "files/read", read(more));
        }
        for (field, more) in [
            ("max_bytes", json!({ "max_bytes": 0 })),
            ("max_bytes", json!({ "max_bytes": 1.5 })),
            ("max_bytes", json!({ "max_bytes": null })),
            ("offset", json!({ "offset": -1 })),
            ("length", json!({ "length": 0 })),
            ("length", json!({ "length": "1" })),
        ] {
            mira.expect_refusal_of(-32602, field, "files/read", read(more));
        }
        // A long file is not cut here, unlike in other dialects.
        let full = mira.get("files/read", json!({ "path": "long.txt" }));
        assert_eq!(full["content"], long);
    });
}

#[test]
fn s3_10_36_a_read_with_the_current_etag_returns_no_content() {
    let workspace = TempWorkspace::new().file("a.txt", "one");
    over_all(&workspace, |mira| {
        workspace.put("a.txt", "one");
        let first = mira.get("files/read", json!({ "path": "a.txt", "etag": null }));
        assert_eq!(first["content"], "one");
        let again = json!({ "path": "a.txt", "etag": first["etag"] });
        let spared = mira.get("files/read", again.clone());
        assert!(spared["content"].is_null() && spared["content_base64"].is_null(), "{spared}");
        for key in ["path", "size", "etag", "mtime", "encoding"] {
            assert_eq!(spared[key], first[key], "{key}");
        }
        assert_eq!(
            mira.get("files/read", json!({ "path": "a.txt", "etag": "other" }))["content"],
            "one"
        );
        workspace.put("a.txt", "two");
        let changed = mira.get("files/read", again);
        assert_eq!(changed["content"], "two");
        assert_ne!(changed["etag"], first["etag"]);
    });
}

#[test]
fn s3_38_mtime_is_the_files_own_in_iso_8601() {
    let workspace = TempWorkspace::new();
    let stat = fs::metadata(workspace.path("README.md")).unwrap();
    over_all(&workspace, |mira| {
        let read = mira.get("files/read", json!({ "path": "README.md" }));
        let mtime: jiff::Timestamp = read["mtime"].as_str().unwrap().parse().unwrap();
        assert_eq!(mtime.as_second(), stat.mtime());
        assert_eq!(i64::from(mtime.subsec_nanosecond()), stat.mtime_nsec());
    });
}
