//! Tests of `files.read`.

use std::fs;
use std::fs::File;
use std::io::{Cursor, Write};
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate_contract::ContentBody;

use super::space::TestWorkspace;
use crate::files::FileToolLimits;

fn small_space() -> TestWorkspace {
    TestWorkspace::limited(FileToolLimits {
        answer_bytes: 100,
        answer_bytes_max: 1000,
        ..FileToolLimits::default()
    })
}

/// Reads `path` to its end with several calls, each from the `next` of the previous result. Returns
/// the joined content.
async fn read_all(space: &TestWorkspace, path: &str) -> String {
    let mut joined = String::new();
    let mut input = json!({ "path": path });
    for _ in 0..10_000 {
        let read = space.ok("files.read", input).await;
        joined += read["content"].as_str().unwrap();
        input = match &read["next"] {
            Value::Null => return joined,
            next if next["start_line"].is_null() => {
                json!({ "path": path, "offset": next["offset"] })
            }
            next => json!({ "path": path, "start_line": next["start_line"] }),
        };
    }
    panic!("the file does not end");
}

#[tokio::test]
async fn a_file_is_read_whole_with_its_metadata() {
    let space = TestWorkspace::new();
    space.put("src/main.rs", "fn main() {\n}\n");
    let read = space.ok("files.read", json!({ "path": "src/main.rs" })).await;
    assert_eq!(read["content"], "fn main() {\n}\n");
    assert_eq!(read["size"], 14);
    assert_eq!(read["etag"].as_str().unwrap().len(), 32);
    assert_eq!(read["lines"], json!({ "start": 1, "count": 2, "total": 2 }));
    assert_eq!((&read["next"], &read["truncated"]), (&Value::Null, &json!(false)));
    let mtime: jiff::Timestamp = read["mtime"].as_str().unwrap().parse().unwrap();
    let modified = fs::metadata(space.ws.join("src/main.rs")).unwrap().modified().unwrap();
    assert_eq!(mtime, jiff::Timestamp::try_from(modified).unwrap());
    let text = space.text("files.read", json!({ "path": "src/main.rs" })).await;
    assert_eq!(
        text,
        format!("fn main() {{\n}}\n[etag {}; 14 bytes]", read["etag"].as_str().unwrap())
    );
}

#[tokio::test]
async fn lines_are_counted_from_either_end() {
    let space = TestWorkspace::new();
    space.put("f", "1\n2\n3\n4\n5\n");
    for (start, count, content, first) in [
        (1, 2, "1\n2\n", 1),
        (4, 2, "4\n5\n", 4),
        (4, 99, "4\n5\n", 4),
        (-1, 1, "5\n", 5),
        (-2, 9, "4\n5\n", 4),
        (-99, 1, "1\n", 1),
        (6, 1, "", 6),
        (i64::MAX, 1, "", i64::MAX),
        (i64::MIN, 1, "1\n", 1),
    ] {
        let input = json!({ "path": "f", "start_line": start, "line_count": count });
        let read = space.ok("files.read", input).await;
        assert_eq!(read["content"], content, "{start} {count}");
        assert_eq!(read["lines"]["start"], first, "{start} {count}");
        assert_eq!(read["lines"]["total"], 5);
    }
    let text =
        space.text("files.read", json!({ "path": "f", "start_line": 2, "line_count": 2 })).await;
    assert!(
        text.starts_with("2\n3\n[etag ")
            && text.ends_with("; lines 2 to 3 of 5; continue with start_line: 4]"),
        "{text}"
    );
    let text = space.text("files.read", json!({ "path": "f", "start_line": 9 })).await;
    assert!(text.ends_with("; no such lines of 5]"), "{text}");
}

#[tokio::test]
async fn byte_ranges_are_exact_and_never_overflow() {
    let space = TestWorkspace::new();
    space.put("f", "hello world");
    let max = u64::MAX;
    for (offset, length, content) in [
        (json!(0), json!(5), "hello"),
        (json!(6), json!(null), "world"),
        (json!(null), json!(1), "h"),
        (json!(6), json!(max), "world"),
        (json!(11), json!(1), ""),
        (json!(max), json!(max), ""),
    ] {
        let read = space
            .ok("files.read", json!({ "path": "f", "offset": offset, "length": length }))
            .await;
        assert_eq!(read["content"], content);
        assert_eq!(read["size"], 11);
        assert_eq!(read["truncated"], false);
    }
    let read = space.ok("files.read", json!({ "path": "f", "offset": 2, "length": 3 })).await;
    assert_eq!(read["bytes"], json!({ "offset": 2, "length": 3 }));
    assert_eq!(read["next"], json!({ "offset": 5, "start_line": null }));
}

#[tokio::test]
async fn malformed_input_is_invalid() {
    let space = TestWorkspace::new();
    space.put("f", "x");
    for (input, pointer) in [
        (json!({ "path": "f", "length": 0 }), "/length"),
        (json!({ "path": "f", "line_count": 0 }), "/line_count"),
        (json!({ "path": "f", "start_line": 0 }), "/start_line"),
        (json!({ "path": "f", "max_bytes": 0 }), "/max_bytes"),
        (json!({ "path": "f", "offset": 1, "start_line": 1 }), ""),
        (json!({ "path": "f", "encoding": "latin1" }), ""),
        (json!({ "path": "f", "lines": 1 }), ""),
    ] {
        assert_eq!(space.fails("files.read", input.clone()).await.pointer(), pointer, "{input}");
    }
}

#[tokio::test]
async fn content_that_is_not_utf_8_is_refused_as_text_and_read_as_base64() {
    let space = TestWorkspace::new();
    space.put("f", b"ok\n\xff\xfe\0x");
    let failed = space.fails("files.read", json!({ "path": "f" })).await;
    assert_eq!(failed.pointer(), "/encoding");
    assert_eq!(failed.message, "`f` is not UTF-8 at byte 3; use encoding base64");
    let read = space.ok("files.read", json!({ "path": "f", "encoding": "base64" })).await;
    assert_eq!(read["content"], "b2sK//4AeA==");
    // The part that is text can be read as text.
    assert_eq!(
        space.ok("files.read", json!({ "path": "f", "line_count": 1 })).await["content"],
        "ok\n"
    );
}

#[tokio::test]
async fn a_utf_16_file_is_read_as_text_with_its_encoding() {
    let text = "one \u{e9}\r\ntwo \u{1f600}\n\u{a0a}\u{10a}three";
    for mark in ["\u{feff}", ""] {
        for (name, to_bytes) in
            [("UTF-16LE", u16::to_le_bytes as fn(u16) -> [u8; 2]), ("UTF-16BE", u16::to_be_bytes)]
        {
            let space = TestWorkspace::new();
            let whole = format!("{mark}{text}");
            let bytes: Vec<u8> = whole.encode_utf16().flat_map(to_bytes).collect();
            space.put("f", &bytes);
            let read = space.ok("files.read", json!({ "path": "f" })).await;
            assert_eq!((&read["content"], &read["file_encoding"]), (&json!(whole), &json!(name)));
            assert_eq!(read["lines"], json!({ "start": 1, "count": 3, "total": 3 }));
            assert_eq!(read["bytes"], json!({ "offset": 0, "length": bytes.len() }));
            let lines = json!({ "path": "f", "start_line": 2, "line_count": 1 });
            assert_eq!(space.ok("files.read", lines).await["content"], "two \u{1f600}\n");
            let last = json!({ "path": "f", "start_line": -1 });
            assert_eq!(space.ok("files.read", last).await["content"], "\u{a0a}\u{10a}three");
            let note = space.text("files.read", json!({ "path": "f" })).await;
            assert!(note.ends_with(&format!("; {} bytes in {name}]", bytes.len())), "{note}");
            let base64 = json!({ "path": "f", "encoding": "base64" });
            assert_eq!(space.ok("files.read", base64).await.get("file_encoding"), None);
            // Continued reads give the whole text.
            let mut all = String::new();
            let mut next = json!({ "offset": 0 });
            while let Some(offset) = next["offset"].as_u64() {
                let input = json!({ "path": "f", "offset": offset, "max_bytes": 7 });
                let part = space.ok("files.read", input).await;
                all += part["content"].as_str().unwrap();
                next = part["next"].clone();
            }
            assert_eq!(all, whole);
        }
    }
}

#[tokio::test]
async fn a_large_utf_16_file_is_read_by_lines() {
    let lines: Vec<String> = (1..=120_000).map(|at| format!("line {at} \u{a0a}")).collect();
    let text = format!("\u{feff}{}\n", lines.join("\n"));
    let space = TestWorkspace::new();
    space.put("f", text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    let read = json!({ "path": "f", "start_line": 99_000, "line_count": 1 });
    let read = space.ok("files.read", read).await;
    assert_eq!(read["content"], "line 99000 \u{a0a}\n");
    assert_eq!(read["lines"]["total"], 120_000);
    // The lines of a file that is too large to hash are counted from its end.
    let tail = "\none \u{a0a}\ntwo\n".encode_utf16().flat_map(u16::to_be_bytes);
    let file = File::create(space.ws.join("huge")).unwrap();
    file.write_all_at(&[0xfe, 0xff], 0).unwrap();
    file.write_all_at(&tail.collect::<Vec<u8>>(), 80 << 20).unwrap();
    let read = json!({ "path": "huge", "start_line": -2, "line_count": 1 });
    assert_eq!(space.ok("files.read", read).await["content"], "one \u{a0a}\n");
}

#[tokio::test]
async fn a_file_in_another_encoding_is_refused_as_text_and_its_encoding_named() {
    let space = TestWorkspace::new();
    for (bytes, part) in [
        (&b"Stra\xdfe, \xe4hnlich\n"[..], "is not UTF-8 at byte 4 (perhaps windows-1252)"),
        (
            b"\x93\xfa\x96{\x8c\xea\x82\xcc\x83e\x83L\x83X\x83g\n",
            "is not UTF-8 at byte 0 (perhaps Shift_JIS)",
        ),
        (b"\xff\xfe\0\0a\0\0\0", "is not UTF-8 at byte 0 (UTF-32LE)"),
        (b"\xfe\xff\0a\xd8\0\0b", "is not UTF-16BE at byte 4"),
        (b"\xff\xfea\0b", "is not UTF-16LE at byte 4"),
    ] {
        space.put("f", bytes);
        let failed = space.fails("files.read", json!({ "path": "f" })).await;
        assert_eq!(failed.pointer(), "/encoding");
        assert_eq!(failed.message, format!("`f` {part}; use encoding base64"));
    }
}

#[tokio::test]
async fn a_byte_range_that_cuts_a_utf_16_character_is_refused() {
    let space = TestWorkspace::new();
    let text = "\u{feff}a\u{1f600}b";
    space.put("f", text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    for (range, part) in [
        (json!({ "offset": 1, "length": 2 }), "begins inside a character, at byte 1"),
        (json!({ "offset": 6, "length": 4 }), "begins inside a character, at byte 6"),
        (json!({ "offset": 0, "length": 6 }), "ends inside the character at byte 4"),
        (json!({ "offset": 0, "length": 3 }), "ends inside the character at byte 2"),
    ] {
        let mut input = json!({ "path": "f" });
        input.as_object_mut().unwrap().extend(range.as_object().unwrap().clone());
        let failed = space.fails("files.read", input).await;
        assert!(failed.message.contains(part), "{part}: {}", failed.message);
    }
    let whole = json!({ "path": "f", "offset": 4, "length": 4 });
    assert_eq!(space.ok("files.read", whole).await["content"], "\u{1f600}");
}

#[tokio::test]
async fn a_byte_range_that_cuts_a_character_is_refused() {
    let space = TestWorkspace::new();
    space.put("f", "aé€b");
    let read =
        |offset: u64, length: u64| json!({ "path": "f", "offset": offset, "length": length });
    assert_eq!(space.ok("files.read", read(1, 2)).await["content"], "é");
    let failed = space.fails("files.read", read(0, 2)).await;
    assert_eq!(failed.pointer(), "/encoding");
    assert!(failed.message.contains("ends inside the character at byte 1"), "{failed:?}");
    let failed = space.fails("files.read", read(4, 2)).await;
    assert!(failed.message.contains("begins inside a character, at byte 4"), "{failed:?}");
}

#[tokio::test]
async fn a_long_file_is_cut_at_a_line_and_can_be_continued() {
    let space = small_space();
    let content: String = (0..100).map(|at| format!("line {at:04}\n")).collect();
    space.put("f", &content);
    let read = space.ok("files.read", json!({ "path": "f" })).await;
    assert_eq!(read["content"], content[..100]);
    assert_eq!(read["next"], json!({ "offset": 100, "start_line": 11 }));
    assert_eq!(read["truncated"], true);
    assert_eq!(read_all(&space, "f").await, content);
    let read = space.ok("files.read", json!({ "path": "f", "max_bytes": 205 })).await;
    assert_eq!(read["content"], content[..200]);
    let read = space.ok("files.read", json!({ "path": "f", "max_bytes": 1_u64 << 40 })).await;
    assert_eq!(read["content"], content);
    let text = space.text("files.read", json!({ "path": "f" })).await;
    assert!(text.ends_with("; lines 1 to 10 of 100; continue with start_line: 11]"), "{text}");
}

#[tokio::test]
async fn a_long_line_is_cut_at_a_character_and_can_be_continued() {
    let space = small_space();
    let content = "€".repeat(1000) + "\nend";
    space.put("f", &content);
    let read = space.ok("files.read", json!({ "path": "f" })).await;
    assert_eq!(read["next"], json!({ "offset": 99, "start_line": null }));
    assert_eq!(read_all(&space, "f").await, content);
}

#[tokio::test]
async fn a_matching_etag_gives_no_content() {
    let space = TestWorkspace::new();
    space.put("f", "hello");
    let etag =
        space.ok("files.read", json!({ "path": "f" })).await["etag"].as_str().unwrap().to_owned();
    for given in [etag.clone(), format!("\"{etag}\""), format!(" {etag} ")] {
        let read = space.ok("files.read", json!({ "path": "f", "if_none_match": given })).await;
        assert_eq!((&read["content"], &read["not_modified"]), (&Value::Null, &json!(true)));
        assert_eq!((&read["size"], &read["etag"]), (&json!(5), &json!(etag)));
    }
    for given in ["other", "", &format!("W/{etag}")] {
        let read = space.ok("files.read", json!({ "path": "f", "if_none_match": given })).await;
        assert_eq!((&read["content"], &read["not_modified"]), (&json!("hello"), &json!(false)));
    }
    let read = space.ok("files.read", json!({ "path": "f", "if_none_match": null })).await;
    assert_eq!(read["content"], "hello");
}

#[tokio::test]
async fn etags_differ_for_different_content_of_the_same_size_and_time() {
    let space = TestWorkspace::new();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let mut etags = Vec::new();
    for content in ["aaaa", "bbbb"] {
        space.put("f", content);
        File::options().write(true).open(space.ws.join("f")).unwrap().set_modified(time).unwrap();
        etags.push(space.ok("files.info", json!({ "path": "f" })).await["etag"].clone());
    }
    assert_ne!(etags[0], etags[1]);
}

#[tokio::test]
async fn large_files_are_read_like_small_ones() {
    // The first setting hashes the file from disk, the second not at all.
    let content: String = (0..200_000).map(|at| format!("line {at}\n")).collect();
    for hashed_bytes_max in [64 << 20, 1000] {
        let space = TestWorkspace::limited(FileToolLimits {
            hashed_bytes_max,
            ..FileToolLimits::default()
        });
        space.put("f", &content);
        let etag = space.ok("files.info", json!({ "path": "f" })).await["etag"].clone();
        assert_eq!(etag.as_str().unwrap().starts_with("W/"), hashed_bytes_max == 1000);
        let total = if hashed_bytes_max == 1000 { Value::Null } else { json!(200_000) };
        for (start, first) in [
            (1, 0),
            (2, 1),
            (100_000, 99_999),
            (200_000, 199_999),
            (-1, 199_999),
            (-150_000, 50_000),
        ] {
            let input = json!({ "path": "f", "start_line": start, "line_count": 3 });
            let read = space.ok("files.read", input).await;
            let expected: String =
                (first..(first + 3).min(200_000)).map(|at| format!("line {at}\n")).collect();
            assert_eq!(read["content"], expected, "{start}");
            assert_eq!((&read["etag"], &read["lines"]["total"]), (&etag, &total));
        }
        let read = space.ok("files.read", json!({ "path": "f", "start_line": 300_000 })).await;
        assert_eq!(read["content"], "");
        let same = space.ok("files.read", json!({ "path": "f", "if_none_match": etag })).await;
        assert_eq!(same["not_modified"], true);
    }
}

#[tokio::test]
async fn a_sparse_file_of_1_tib_is_read_in_ranges_with_little_memory() {
    let space = TestWorkspace::new();
    let file = File::create(space.ws.join("big")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_at(b"first\n", 0).unwrap();
    file.write_at(b"\nlast\n", (1 << 40) - 6).unwrap();
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    let read = space.ok("files.read", json!({ "path": "big" })).await;
    assert_eq!(read["size"], 1_u64 << 40);
    assert_eq!(read["content"], "first\n");
    assert_eq!(read["next"]["offset"], 6);
    assert!(read["etag"].as_str().unwrap().starts_with("W/"));
    let tail = json!({ "path": "big", "offset": (1_u64 << 40) - 5, "length": 100 });
    assert_eq!(space.ok("files.read", tail).await["content"], "last\n");
    let last = json!({ "path": "big", "start_line": -1 });
    assert_eq!(space.ok("files.read", last).await["content"], "last\n");
    let found = space.ok("files.search", json!({ "query": "last" })).await;
    assert_eq!(found["skipped"]["binary"], 1);
    space.ok("files.info", json!({ "path": "big" })).await;
    let failed = space
        .fails("files.edit", json!({ "path": "big", "edits": [{ "old": "a", "new": "b" }] }))
        .await;
    assert_eq!(failed.reason, "too_large");
    let failed = space.fails("files.copy", json!({ "source": "big", "destination": "copy" })).await;
    assert_eq!(failed.reason, "too_large");
    assert!(resident() - before < 64 << 10, "{} KiB", resident() - before);
}

#[tokio::test]
async fn a_search_for_a_line_in_a_huge_file_ends_when_cancelled() {
    let space = TestWorkspace::new();
    File::create(space.ws.join("big")).unwrap().set_len(1 << 40).unwrap();
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        stop.cancel();
    });
    let input = json!({ "path": "big", "start_line": 2 });
    let failed = space.run_until("files.read", input, cancel).await.unwrap_err();
    assert_eq!(failed.reason, "canceled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_file_is_read_at_one_consistent_length() {
    let space = TestWorkspace::new();
    space.put("log", "start\n");
    let mut log = File::options().append(true).open(space.ws.join("log")).unwrap();
    let writer = std::thread::spawn(move || {
        for at in 0..20_000 {
            writeln!(log, "entry {at}").unwrap();
        }
    });
    while !writer.is_finished() {
        let read = space.ok("files.read", json!({ "path": "log", "encoding": "base64" })).await;
        assert!(read["bytes"]["length"].as_u64() <= read["size"].as_u64());
        space.ok("files.search", json!({ "query": "entry 7$" })).await;
    }
    writer.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_reads_at_once_are_all_answered() {
    let space = std::sync::Arc::new(TestWorkspace::new());
    space.put("small", "small");
    space.put("large", "x\n".repeat(100_000));
    let reads: Vec<_> = (0..5000)
        .map(|at| {
            let space = space.clone();
            let path = if at % 2 == 0 { "small" } else { "large" };
            tokio::spawn(async move {
                space.ok("files.read", json!({ "path": path, "length": 5 })).await
            })
        })
        .collect();
    for read in reads {
        assert_eq!(read.await.unwrap()["bytes"]["length"], 5);
    }
}

#[tokio::test]
async fn a_read_returns_at_most_10_mib() {
    let space = TestWorkspace::new();
    space.put("f", "x".repeat(11 << 20));
    let read = space.ok("files.read", json!({ "path": "f", "max_bytes": 16 << 20 })).await;
    assert_eq!((&read["bytes"]["length"], &read["truncated"]), (&json!(10 << 20), &json!(true)));
}

#[tokio::test]
async fn a_part_of_control_characters_has_at_most_20_mib_in_json() {
    let space = TestWorkspace::new();
    space.put("f", "\0".repeat(10 << 20));
    let read = space.ok("files.read", json!({ "path": "f", "max_bytes": 10 << 20 })).await;
    let length = read["bytes"]["length"].as_u64().unwrap();
    assert!(((3 << 20)..(20 << 20) / 6).contains(&length), "{length}");
    assert_eq!((&read["truncated"], &read["next"]["offset"]), (&json!(true), &json!(length)));
}

#[tokio::test]
async fn a_long_file_that_is_read_whole_has_the_fields_of_one_that_is_read_in_part() {
    let space = TestWorkspace::new();
    let text = "a line\n".repeat(300_000) + "the end";
    space.put("f", &text);
    let whole = space.ok("files.read", json!({ "path": "f", "max_bytes": 10 << 20 })).await;
    let part = space.ok("files.read", json!({ "path": "f", "max_bytes": 700 })).await;
    assert!(whole["content"] == text.as_str());
    assert_eq!(whole["lines"], json!({ "start": 1, "count": 300_001, "total": 300_001 }));
    assert_eq!((&whole["next"], &whole["truncated"]), (&Value::Null, &json!(false)));
    assert_eq!(part["lines"], json!({ "start": 1, "count": 100, "total": 300_001 }));
    for field in ["etag", "size", "mtime"] {
        assert_eq!(whole[field], part[field], "{field}");
    }
    let names = |read: &Value| read.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>());
    assert_eq!(names(&whole), names(&part));
}

#[tokio::test]
async fn a_missing_path_gets_a_suggestion() {
    let space = TestWorkspace::new();
    space.put("src/main.rs", "");
    space.put("src/Other.rs", "");
    space.put("README.md", "");
    space.symlink("gone/far", "link");
    for (path, message) in [
        ("src/mian.rs", "`src/mian.rs` does not exist; did you mean `src/main.rs`?"),
        ("src/other.rs", "`src/other.rs` does not exist; did you mean `src/Other.rs`?"),
        ("SRC/main.rs", "`SRC/main.rs` does not exist; did you mean `src/main.rs`?"),
        ("SRC/quite/else", "`SRC/quite/else` does not exist; did you mean `src`?"),
        ("readme", "`readme` does not exist; did you mean `README.md`?"),
        ("quite_else", "`quite_else` does not exist"),
        ("link", "`link` is a symlink to `gone/far`, which does not exist"),
        (
            "link/f",
            "`link/f` does not exist: `link` is a symlink to `gone/far`, which does not exist",
        ),
    ] {
        let failed = space.fails("files.read", json!({ "path": path })).await;
        assert_eq!((failed.reason, failed.message.as_str()), ("not_found", message));
    }
    let edits = json!([{ "old": "a", "new": "b" }]);
    for (tool, input) in [
        ("files.edit", json!({ "path": "src/Main.rs", "edits": edits })),
        ("files.delete", json!({ "path": "src/Main.rs" })),
        ("files.move", json!({ "source": "src/Main.rs", "destination": "b" })),
        ("files.copy", json!({ "source": "src/Main.rs", "destination": "b" })),
        ("files.write", json!({ "path": "src/Main.rs", "content": "", "create": false })),
    ] {
        let failed = space.fails(tool, input).await;
        assert!(failed.message.ends_with("; did you mean `src/main.rs`?"), "{tool}: {failed:?}");
    }
    let failed = space.fails("files.read", json!({ "path": "src" })).await;
    assert!(failed.message.contains("files_list"), "{failed:?}");
    let write = json!({ "path": "link", "content": "x", "overwrite": true });
    let failed = space.fails("files.write", write).await;
    assert!(failed.message.contains("a symlink to `gone/far`, which"), "{failed:?}");
}

#[tokio::test]
async fn lines_are_read_up_to_the_end_line() {
    let space = TestWorkspace::new();
    space.put("f", "1\n2\n3\n4\n5\n");
    for (input, content) in [
        (json!({ "path": "f", "end_line": 2 }), "1\n2\n"),
        (json!({ "path": "f", "start_line": 2, "end_line": 3 }), "2\n3\n"),
        (json!({ "path": "f", "start_line": 4, "end_line": 99 }), "4\n5\n"),
    ] {
        assert_eq!(space.ok("files.read", input.clone()).await["content"], content, "{input}");
    }
    for input in [
        json!({ "path": "f", "start_line": 3, "end_line": 2 }),
        json!({ "path": "f", "start_line": -2, "end_line": 2 }),
        json!({ "path": "f", "end_line": 2, "line_count": 1 }),
    ] {
        assert_eq!(
            space.fails("files.read", input.clone()).await.pointer(),
            "/end_line",
            "{input}"
        );
    }
}

#[tokio::test]
async fn several_files_are_read_at_once_and_a_missing_one_is_reported_beside_them() {
    let space = TestWorkspace::new();
    space.put("a", "one\n");
    space.put("b", "two\nthree");
    let input = json!({ "paths": ["missing", "a", "b"] });
    let read = space.ok("files.read", input.clone()).await;
    assert_eq!((&read["path"], &read["content"]), (&json!("a"), &json!("one\n")));
    assert_eq!(read["others"][0]["path"], "missing");
    assert!(read["others"][0]["error"].as_str().unwrap().contains("missing"), "{read}");
    assert_eq!(read["others"][1]["content"], "two\nthree");
    let text = space.text("files.read", input).await;
    assert!(text.starts_with("==> a <==\none\n[etag "), "{text}");
    assert!(text.contains("==> b <==\ntwo\nthree\n[etag "), "{text}");
    let none = space.fails("files.read", json!({ "paths": ["x", "y"] })).await;
    assert_eq!(none.reason, "not_found");
    let both = space.fails("files.read", json!({ "path": "a", "paths": ["b"] })).await;
    assert_eq!(both.pointer(), "/paths");
}

#[tokio::test]
async fn a_picture_with_a_long_edge_is_scaled_down_and_the_note_says_so() {
    let space = TestWorkspace::new();
    let mut png = Cursor::new(Vec::new());
    image::DynamicImage::new_rgb8(3000, 30).write_to(&mut png, image::ImageFormat::Png).unwrap();
    space.put("wide.png", png.into_inner());
    for input in [json!({ "path": "wide.png" }), json!({ "paths": ["wide.png"] })] {
        let output = space.run("files.read", input).await.unwrap();
        assert_eq!(output.value["scaled_from"], json!({ "width": 3000, "height": 30 }));
        let note = output.text.note.clone().unwrap_or_default();
        assert!(note.starts_with("image/png; scaled down from 3000 × 30 pixels; "), "{note}");
        let ContentBody::Image(shown) = &output.content[0].shown else { panic!("no image") };
        let decoded = image::load_from_memory(&shown.data.0).unwrap();
        assert_eq!((decoded.width(), decoded.height()), (1568, 16));
    }
}

#[tokio::test]
async fn a_picture_is_returned_as_an_image_unless_an_encoding_or_a_range_is_given() {
    let space = TestWorkspace::new();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    space.put("p.txt", png);
    let output = space.run("files.read", json!({ "path": "p.txt" })).await.unwrap();
    assert_eq!(output.value["media_type"], "image/png");
    assert_eq!(output.value["content"], json!(null));
    let ContentBody::Image(image) = &output.content[0].shown else { panic!("no image") };
    assert_eq!((&image.media_type[..], &image.data.0[..]), ("image/png", &png[..]));
    let bytes = space.ok("files.read", json!({ "path": "p.txt", "encoding": "base64" })).await;
    assert!(bytes["content"].is_string(), "{bytes}");
    let refused = space.fails("files.read", json!({ "path": "p.txt", "encoding": "utf-8" })).await;
    assert_eq!(refused.pointer(), "/encoding");
}
