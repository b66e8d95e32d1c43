//! Tests of `files.edit`: its changes, the content that it keeps, and its errors.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{Caller, ToolContext, ToolError, WriteBudget, WriteRateBudget};

use super::space::TestWorkspace;
use crate::files::FileToolLimits;

/// Returns the content of a file that contained `before`, after `edits` succeeded.
pub(crate) async fn apply_edits(before: impl AsRef<[u8]>, edits: Value) -> Vec<u8> {
    let space = TestWorkspace::new();
    space.put("f", before);
    space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
    space.get("f")
}

/// Checks that `edits` of a file with the content `before` are refused and change nothing. Returns
/// the JSON Pointer and the message of the error.
pub(crate) async fn expect_refusal(before: impl AsRef<[u8]>, edits: Value) -> (String, String) {
    let space = TestWorkspace::new();
    space.put("f", &before);
    let failed = space.fails("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert_eq!(space.get("f"), before.as_ref());
    (failed.pointer().to_owned(), failed.message)
}

#[tokio::test]
async fn an_edit_returns_the_diff_and_the_new_metadata() {
    let space = TestWorkspace::new();
    space.put("src/f", "one\ntwo\nthree\n");
    let input = json!({ "path": "src/f", "edits": [{ "old": "two", "new": "TWO" }] });
    let edit = space.ok("files.edit", input).await;
    assert_eq!(
        edit["diff"],
        "--- a/src/f\n+++ b/src/f\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
    );
    assert_eq!(
        (&edit["replacements"], &edit["size"], &edit["dry_run"]),
        (&json!(1), &json!(14), &json!(false))
    );
    let read = space.ok("files.read", json!({ "path": "src/f" })).await;
    assert_eq!((&edit["etag"], &edit["mtime"]), (&read["etag"], &read["mtime"]));
    let input =
        json!({ "path": "src/f", "edits": [{ "old": "TWO", "new": "2" }], "dry_run": true });
    let text = space.text("files.edit", input).await;
    assert!(
        text.ends_with(&format!(
            "+2\n three\n[1 place would be changed (dry run); etag {}; 14 bytes]",
            read["etag"].as_str().unwrap()
        )),
        "{text}"
    );
    assert_eq!(space.get("src/f"), b"one\nTWO\nthree\n");
}

#[tokio::test]
async fn an_edit_keeps_crlf_line_endings() {
    let file = "one\r\ntwo\r\nthree\r\n";
    assert_eq!(
        apply_edits(file, json!([{ "old": "two", "new": "TWO" }])).await,
        b"one\r\nTWO\r\nthree\r\n"
    );
    let over_lines = json!([{ "old": "one\ntwo\n", "new": "1\n2\n2.5\n" }]);
    assert_eq!(apply_edits(file, over_lines).await, b"1\r\n2\r\n2.5\r\nthree\r\n");
    let lines = json!([{ "start_line": 2, "end_line": 3, "new": "2\n3" }]);
    assert_eq!(apply_edits(file, lines).await, b"one\r\n2\r\n3\r\n");
    // CRLF in an edit becomes LF if the file has LF.
    assert_eq!(
        apply_edits("a\nb\n", json!([{ "old": "a\r\nb", "new": "c\r\nd" }])).await,
        b"c\nd\n"
    );
}

#[tokio::test]
async fn a_file_with_mixed_line_endings_keeps_each_of_them() {
    let file = "a\r\nb\nc\r\nd\n";
    assert_eq!(
        apply_edits(file, json!([{ "old": "a\nb\nc", "new": "A\nB\nC" }])).await,
        b"A\r\nB\nC\r\nd\n"
    );
    // An inserted line changes no line ending around it.
    assert_eq!(
        apply_edits(file, json!([{ "old": "a\nb\nc\n", "new": "a\nnew\nb\nc\n" }])).await,
        b"a\r\nnew\r\nb\nc\r\nd\n"
    );
    assert_eq!(
        apply_edits(file, json!([{ "start_line": 2, "new": "x\ny" }])).await,
        b"a\r\nx\ny\nc\r\nd\n"
    );
    assert_eq!(apply_edits(file, json!([{ "old": "b\n", "new": "" }])).await, b"a\r\nc\r\nd\n");
}

#[tokio::test]
async fn an_edit_keeps_byte_order_mark_mode_and_a_missing_final_newline() {
    let space = TestWorkspace::new();
    space.put("f", b"\xef\xbb\xbfa");
    fs::set_permissions(space.ws.join("f"), fs::Permissions::from_mode(0o750)).unwrap();
    space.ok("files.edit", json!({ "path": "f", "edits": [{ "old": "a", "new": "b" }] })).await;
    assert_eq!(space.get("f"), b"\xef\xbb\xbfb");
    assert_eq!(fs::metadata(space.ws.join("f")).unwrap().mode() & 0o7777, 0o750);
    for (edits, after) in [
        (json!([{ "start_line": 2, "new": "B\n" }]), "a\nB"),
        (json!([{ "start_line": 2, "new": "B" }]), "a\nB"),
        (json!([{ "start_line": 3, "end_line": 2, "new": "c\n" }]), "a\nb\nc"),
        (json!([{ "start_line": 1, "end_line": 0, "new": "0" }]), "0\na\nb"),
        // The file had no newline at the end, so it gets none.
        (json!([{ "start_line": 2, "new": "" }]), "a"),
        (json!([{ "start_line": 1, "new": "A" }, { "start_line": 2, "new": "" }]), "A"),
        (json!([{ "start_line": 1, "end_line": 2, "new": "" }]), ""),
        (json!([{ "start_line": 1, "new": "" }]), "b"),
    ] {
        assert_eq!(apply_edits("a\nb", edits.clone()).await, after.as_bytes(), "{edits}");
    }
    assert_eq!(
        apply_edits("", json!([{ "start_line": 1, "end_line": 0, "new": "a" }])).await,
        b"a\n"
    );
}

#[tokio::test]
async fn several_edits_apply_to_the_original_file() {
    let edits = json!([
        { "start_line": 3, "new": "C\nC2" },
        { "old": "a", "new": "A\nA2" },
        { "start_line": 5, "end_line": 4, "new": "d2" },
    ]);
    assert_eq!(apply_edits("a\nb\nc\nd\n", edits).await, b"A\nA2\nb\nC\nC2\nd\nd2\n");
    // Adjacent edits do not overlap.
    let edits = json!([{ "old": "b", "new": "B" }, { "old": "a", "new": "A" }]);
    assert_eq!(apply_edits("abc", edits).await, b"ABc");
    let edits = json!([
        { "start_line": 2, "end_line": 1, "new": "first" },
        { "start_line": 2, "end_line": 1, "new": "second" },
    ]);
    assert_eq!(apply_edits("a\nb\n", edits).await, b"a\nfirst\nsecond\nb\n");
}

#[tokio::test]
async fn no_edit_is_made_if_one_does_not_match() {
    let edits = json!([{ "old": "a", "new": "A" }, { "old": "missing entirely", "new": "B" }]);
    let (pointer, message) = expect_refusal("a\nb\n", edits).await;
    assert_eq!(pointer, "/edits/1/old");
    assert!(message.contains("no similar text"), "{message}");
}

#[tokio::test]
async fn overlapping_edits_are_refused() {
    let edits = json!([{ "old": "abcd", "new": "X" }, { "old": "cdef", "new": "Y" }]);
    let (pointer, message) = expect_refusal("abcdef\n", edits).await;
    assert_eq!(
        (pointer.as_str(), message.as_str()),
        ("/edits/1", "it overlaps edit 0 at line 1; merge the two edits")
    );
    let edits = json!([{ "start_line": 1, "end_line": 2, "new": "X" }, { "old": "b", "new": "Y" }]);
    assert_eq!(
        expect_refusal("a\r\nb\r\nc\r\n", edits).await.1,
        "it overlaps edit 0 at line 2; merge the two edits"
    );
    let edits = json!([{ "old": "a", "new": "X" }, { "old": "a", "new": "Y" }]);
    assert_eq!(expect_refusal("abc", edits).await.0, "/edits/1");
}

#[tokio::test]
async fn text_that_occurs_more_than_once_needs_replace_all_or_count() {
    let file = "x = 1\ny\nx = 1\nx = 1\n";
    let (pointer, message) =
        expect_refusal(file, json!([{ "old": "x = 1", "new": "x = 2" }])).await;
    assert_eq!(pointer, "/edits/0/old");
    assert!(message.starts_with("it occurs 3 times, at lines 1, 3, 4; "), "{message}");
    let all = json!([{ "old": "x = 1", "new": "x = 2", "replace_all": true }]);
    assert_eq!(apply_edits(file, all).await, b"x = 2\ny\nx = 2\nx = 2\n");
    let three = json!([{ "old": "x = 1", "new": "x = 2", "count": 3 }]);
    assert_eq!(apply_edits(file, three).await, b"x = 2\ny\nx = 2\nx = 2\n");
    let two = json!([{ "old": "x = 1", "new": "x = 2", "count": 2 }]);
    assert!(expect_refusal(file, two).await.1.starts_with("it occurs 3 times"));
    // Overlapping occurrences are ambiguous, too.
    assert!(
        expect_refusal("aaa\n", json!([{ "old": "aa", "new": "b" }]))
            .await
            .1
            .starts_with("it occurs 2 times")
    );
    let (_, message) = expect_refusal("x\n".repeat(50), json!([{ "old": "x", "new": "y" }])).await;
    assert!(
        message.starts_with("it occurs 50 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …;"),
        "{message}"
    );
}

#[tokio::test]
async fn similar_text_is_shown_with_the_difference_and_the_text_to_use() {
    for (file, old, part) in [
        (
            "fn a() {\n\tlet x = 1;\n}\n",
            "    let x = 1;\n",
            r#"the text at line 2 differs only in whitespace, quotes or Unicode normalization: one side is indented with tabs, the other with spaces, at line 2: the file has "\tlet x = 1;", old has "    let x = 1;"; use as old: "\tlet x = 1;\n""#,
        ),
        (
            "if a {  \n    b\n}\n",
            "if a {\n    b\n}",
            r#"trailing whitespace differs at line 1: the file has "if a {  ", old has "if a {"; use as old: "if a {  \n    b\n}""#,
        ),
        (
            "say(“hi”)\n",
            "say(\"hi\")",
            r#"quotes, dashes or unusual whitespace differ at line 1: the file has "say(“hi”)", old has "say(\"hi\")"; use as old: "say(“hi”)""#,
        ),
        (
            "caf\u{e9} = 1\n",
            "cafe\u{301} = 1",
            r#"the Unicode normalization differs (NFC or NFD) at line 1: the file has "café = 1", old has "cafe\u0301 = 1"; use as old: "café = 1""#,
        ),
        (
            "cafe\u{301} = 1\n",
            "caf\u{e9} = 1",
            r#"the file has "cafe\u0301 = 1", old has "café = 1"; use as old: "cafe\u0301 = 1""#,
        ),
        (
            "fn a() {\n    b();\n}\n",
            "     1\tfn a() {\n     2\t    b();\n",
            r#"the text contains line numbers, and the file does not; use as old: "fn a() {\n    b();\n""#,
        ),
        (
            "a \u{201c}b\u{201d} \u{2019}c\n",
            "a \"b\" 'c",
            "quotes, dashes or unusual whitespace differ",
        ),
        (
            "longvariable_name = 5\n",
            "longvariable\n",
            r#"the most similar text is in line 1, which continues: "longvariable_name = 5""#,
        ),
        ("a\u{a0}= b;\n", "a = b;", r#"the file has "a\u00a0= b;", old has "a = b;""#),
        (
            "foo(a, b)\n",
            "foo(a,b)",
            r#"whitespace differs at line 1: the file has "foo(a, b)", old has "foo(a,b)"; use as old: "foo(a, b)""#,
        ),
        (
            "foo(\n    a,\n)\n",
            "foo(a,)",
            r#"line 1: the file has "foo(", old has "foo(a,)"; use as old: "foo(\n    a,\n)""#,
        ),
    ] {
        let (pointer, message) = expect_refusal(file, json!([{ "old": old, "new": "new" }])).await;
        assert_eq!(pointer, "/edits/0/old");
        assert!(message.contains(part), "{message}\n{part}");
    }
}

#[tokio::test]
async fn a_difference_far_into_a_long_line_is_shown() {
    let long = "x".repeat(1000);
    let (_, message) = expect_refusal(
        format!("{long}a  b{long}\n"),
        json!([{ "old": format!("{long}a b{long}"), "new": "" }]),
    )
    .await;
    assert!(message.contains("xa  bx") && message.contains("xa bx"), "{message}");
    assert!(message.len() < 3500, "{message}");
}

#[tokio::test]
async fn the_suggested_text_matches() {
    let space = TestWorkspace::new();
    space.put("f", "a\r\n\tif (x) {\u{a0} \r\n\t\treturn ‘y’;\r\n\t}\r\nz\r\n");
    let old = "  if (x) {\n    return 'y';\n  }\n";
    let failed = space
        .fails("files.edit", json!({ "path": "f", "edits": [{ "old": old, "new": "" }] }))
        .await;
    let suggested = failed.message.split("use as old: ").nth(1).unwrap();
    let suggested: String = serde_json::from_str(suggested).unwrap();
    let edits = json!([{ "old": suggested, "new": "" }]);
    space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert_eq!(space.get("f"), b"a\r\nz\r\n");
}

#[tokio::test]
async fn partly_matching_text_is_shown_where_it_differs() {
    let file = "fn first() {\n    one();\n    two();\n    three();\n}\n";
    let (_, message) =
        expect_refusal(file, json!([{ "old": "    one();\n    2();\n", "new": "" }])).await;
    assert!(
        message.contains(
            r#"is the same up to line 3, where the file has "    two();" and `old` has "    2();""#
        ),
        "{message}"
    );
    let (_, message) =
        expect_refusal(file, json!([{ "old": "    zero();\n    three();\n}", "new": "" }])).await;
    assert!(message.contains("is the same after line 3"), "{message}");
    let edits =
        json!([{ "old": "one();", "new": "brand_new();" }, { "old": "brand_new();", "new": "x" }]);
    let (pointer, message) = expect_refusal(file, edits).await;
    assert_eq!(pointer, "/edits/1/old");
    assert!(message.contains("only in the text that edit 0 inserts"), "{message}");
}

#[tokio::test]
async fn a_malformed_edit_is_invalid() {
    assert_eq!(expect_refusal("a\n", json!([])).await.0, "/edits");
    for (edit, pointer) in [
        (json!({ "new": "x" }), "/edits/0"),
        (json!({ "old": "a", "start_line": 1, "new": "x" }), "/edits/0"),
        (json!({ "old": "", "new": "x" }), "/edits/0/old"),
        (json!({ "old": "a", "new": "a" }), "/edits/0/new"),
        (json!({ "old": "a", "end_line": 1, "new": "x" }), "/edits/0/end_line"),
        (json!({ "start_line": 0, "new": "x" }), "/edits/0/start_line"),
        (json!({ "start_line": 3, "new": "x" }), "/edits/0/end_line"),
        (json!({ "start_line": 4, "end_line": 3, "new": "x" }), "/edits/0/start_line"),
        (json!({ "start_line": 2, "end_line": 9, "new": "x" }), "/edits/0/end_line"),
        (json!({ "start_line": 2, "end_line": 0, "new": "x" }), "/edits/0/end_line"),
        (json!({ "start_line": 1, "end_line": u64::MAX, "new": "x" }), "/edits/0/end_line"),
        (json!({ "start_line": u64::MAX, "new": "x" }), "/edits/0/start_line"),
        (json!({ "start_line": 1, "new": "x", "replace_all": true }), "/edits/0"),
    ] {
        assert_eq!(expect_refusal("a\nb\n", json!([edit])).await.0, pointer, "{edit}");
    }
}

#[tokio::test]
async fn an_edit_with_a_stale_etag_is_refused() {
    let space = TestWorkspace::new();
    space.put("f", "v1");
    let stale = space.ok("files.read", json!({ "path": "f" })).await["etag"].clone();
    space.put("f", "v2");
    let edits = json!([{ "start_line": 1, "new": "v3" }]);
    let input = json!({ "path": "f", "edits": edits, "if_match": stale });
    let failed = space.fails("files.edit", input).await;
    assert_eq!(failed.details()["expected"], stale);
    assert_eq!(space.get("f"), b"v2");
    let input = json!({ "path": "f", "edits": edits, "if_match": failed.details()["actual"] });
    space.ok("files.edit", input).await;
    assert_eq!(
        space.fails("files.edit", json!({ "path": "no", "edits": edits })).await.reason,
        "not_found"
    );
}

#[tokio::test]
async fn a_missing_text_in_a_large_file_is_reported_quickly() {
    let space = TestWorkspace::limited(FileToolLimits {
        write_bytes_max: 32 << 20,
        ..FileToolLimits::default()
    });
    let line = "the same line again and again, with nothing new in it\n";
    space.put("f", line.repeat((2 << 20) / line.len()));
    let old = line.repeat(500) + "but not this";
    let started = Instant::now();
    let failed = space
        .fails("files.edit", json!({ "path": "f", "edits": [{ "old": old, "new": "" }] }))
        .await;
    assert!(failed.message.contains("is the same up to"), "{failed:?}");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test]
async fn a_long_diff_is_cut_and_marked_as_truncated() {
    let space =
        TestWorkspace::limited(FileToolLimits { answer_bytes: 200, ..FileToolLimits::default() });
    space.put("f", "old €\n".repeat(1000));
    let edits = json!([{ "old": "old", "new": "new", "replace_all": true }]);
    let edit = space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert_eq!((&edit["diff_truncated"], &edit["replacements"]), (&json!(true), &json!(1000)));
    assert!(edit["diff"].as_str().unwrap().len() <= 200);
    assert_eq!(space.get("f"), "new €\n".repeat(1000).as_bytes());
}

#[tokio::test]
async fn deleting_a_last_line_without_newline_deletes_the_newline_before_it() {
    let delete = json!([{ "start_line": 2, "new": "" }]);
    assert_eq!(apply_edits("a\r\nb", delete.clone()).await, b"a");
    assert_eq!(apply_edits("a\nb\n", delete).await, b"a\n");
}

#[tokio::test]
async fn the_byte_order_mark_stays_first_and_unique() {
    let file = "\u{feff}a\nb\n";
    for (edit, after) in [
        (json!({ "start_line": 1, "new": "A" }), "\u{feff}A\nb\n"),
        (json!({ "start_line": 1, "new": "\u{feff}A" }), "\u{feff}A\nb\n"),
        (json!({ "start_line": 1, "end_line": 0, "new": "0\n" }), "\u{feff}0\na\nb\n"),
        (json!({ "start_line": 1, "end_line": 2, "new": "" }), "\u{feff}"),
        (json!({ "old": "a", "new": "\u{feff}A" }), "\u{feff}A\nb\n"),
        (json!({ "old": "\u{feff}a", "new": "\u{feff}A" }), "\u{feff}A\nb\n"),
    ] {
        assert_eq!(apply_edits(file, json!([edit])).await, after.as_bytes(), "{edit}");
    }
    let insert = json!([{ "start_line": 1, "end_line": 0, "new": "a" }]);
    assert_eq!(apply_edits("\u{feff}", insert).await, "\u{feff}a\n".as_bytes());
}

#[tokio::test]
async fn two_hundred_thousand_places_in_one_line_are_changed_quickly() {
    let space = TestWorkspace::new();
    space.put("f", "a ".repeat(200_000) + "\r\n");
    for (old, new, size) in [("a ", "b ", 400_002), ("b ", "c\n", 600_002)] {
        let started = Instant::now();
        let edits = json!([{ "old": old, "new": new, "replace_all": true }]);
        let edit = space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
        assert_eq!((&edit["replacements"], &edit["size"]), (&json!(200_000), &json!(size)));
        let took = started.elapsed();
        assert!(took < Duration::from_secs(12), "{took:?}");
    }
}

#[tokio::test]
async fn a_cancelled_edit_changes_nothing() {
    let space = TestWorkspace::new();
    space.put("f", "a\n".repeat(1000));
    let cancel = tokio_util::sync::CancellationToken::new();
    cancel.cancel();
    let edits = json!([{ "old": "a", "new": "b", "replace_all": true }]);
    let input = json!({ "path": "f", "edits": edits });
    let failed = space.run_until("files.edit", input, cancel).await.unwrap_err();
    assert_eq!(failed.reason, "canceled");
    assert_eq!(space.get("f"), b"a\n".repeat(1000));
}

#[tokio::test]
async fn more_than_1000_edits_are_refused() {
    let edits: Vec<Value> =
        (0..1001).map(|line| json!({ "start_line": line + 1, "new": "x" })).collect();
    assert_eq!(expect_refusal("a\n".repeat(2000), json!(edits)).await.0, "/edits");
    assert_eq!(apply_edits("a\n".repeat(1000), json!(edits[..1000])).await, b"x\n".repeat(1000));
}

#[tokio::test]
async fn the_diff_of_a_change_far_into_a_file_has_its_line_numbers() {
    let space = TestWorkspace::new();
    space.put("f", (1..=100).map(|line| format!("{line}\n")).collect::<String>());
    for (edit, hunk) in [
        (
            json!({ "start_line": 50, "new": "x" }),
            "@@ -47,7 +47,7 @@\n 47\n 48\n 49\n-50\n+x\n 51\n",
        ),
        (json!({ "start_line": 100, "new": "" }), "@@ -97,4 +97,3 @@\n 97\n 98\n 99\n-100\n"),
        (json!({ "start_line": 1, "end_line": 0, "new": "0" }), "@@ -1,3 +1,4 @@\n+0\n 1\n"),
    ] {
        let input = json!({ "path": "f", "edits": [edit], "dry_run": true });
        let edit = space.ok("files.edit", input).await;
        let diff = edit["diff"].as_str().unwrap();
        assert!(diff.starts_with(&format!("--- a/f\n+++ b/f\n{hunk}")), "{diff}");
    }
}

#[tokio::test]
async fn a_wrong_count_and_a_wrong_letter_case_are_explained() {
    let file = "a\nx = 1\nb\nc\nd\nx = 1\n";
    let (_, message) =
        expect_refusal(file, json!([{ "old": "x = 1", "new": "y", "count": 1 }])).await;
    assert_eq!(message, "it occurs 2 times (lines 2, 6), but count is 1");
    let (_, message) = expect_refusal(file, json!([{ "old": "b", "new": "y", "count": 3 }])).await;
    assert_eq!(message, "it occurs once (line 3), but count is 3");
    let (_, message) =
        expect_refusal("let fooBar = 1;\n", json!([{ "old": "let foobar", "new": "y" }])).await;
    assert!(message.contains("the text at line 1 differs only in letter case"), "{message}");
    assert!(message.ends_with(r#"use as old: "let fooBar""#), "{message}");
}

#[tokio::test]
async fn a_huge_diff_is_computed_only_as_far_as_it_is_shown() {
    let space = TestWorkspace::new();
    space.put("f", "a\n".repeat(1_000_002) + "b");
    let edits = json!([
        { "start_line": 1, "end_line": 1_000_000, "new": "x" },
        { "start_line": 1_000_003, "new": "" },
    ]);
    let edit = space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert_eq!(edit["diff_truncated"], true);
    assert_eq!(space.get("f"), b"x\na\na");
    space.put("f", "a\n".repeat(900_000) + &"c\n".repeat(1_100_000));
    let started = Instant::now();
    let edits = json!([{ "old": "a", "new": "b", "replace_all": true }]);
    let edit = space.ok("files.edit", json!({ "path": "f", "edits": edits })).await;
    assert!(edit["diff"].as_str().unwrap().len() > 100_000 && edit["diff_truncated"] == true);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test]
async fn edits_of_several_files_are_all_made_or_none() {
    let space = TestWorkspace::new();
    space.put("a", "one\n");
    space.put("b", "two\n");
    let edits = |old: &str| {
        json!({ "edits": [
            { "path": "a", "old": "one", "new": "1" },
            { "path": "b", "old": old, "new": "2" },
        ] })
    };
    let failed = space.fails("files.edit", edits("three")).await;
    assert_eq!(failed.pointer(), "/edits/1/old");
    assert_eq!(space.get("a"), b"one\n");
    let text = space.text("files.edit", edits("two")).await;
    assert!(text.contains("-one\n+1\n[a: 1 place changed; etag "), "{text}");
    assert!(text.contains("-two\n+2\n[b: 1 place changed; etag "), "{text}");
    assert_eq!((space.get("a"), space.get("b")), (b"1\n".to_vec(), b"2\n".to_vec()));
    let edited = space
        .ok(
            "files.edit",
            json!({ "path": "a", "edits": [
        { "old": "1", "new": "one" },
        { "path": "b", "old": "2", "new": "two" },
    ] }),
        )
        .await;
    assert_eq!((&edited["path"], &edited["others"][0]["path"]), (&json!("a"), &json!("b")));
    let twice = json!({ "edits": [
        { "path": "a", "old": "one", "new": "1" },
        { "path": "./a", "old": "one", "new": "2" },
    ] });
    assert_eq!(space.fails("files.edit", twice).await.pointer(), "/edits");
    let mut conditional = edits("two");
    conditional["if_match"] = json!("x");
    assert_eq!(space.fails("files.edit", conditional).await.pointer(), "/if_match");
    let nowhere = space.fails("files.edit", json!({ "edits": [{ "old": "a", "new": "b" }] })).await;
    assert!(nowhere.message.contains("`path` is missing"), "{nowhere:?}");
}

/// Write budget that changes a file when bytes are reserved. This happens after the check of all
/// edits and before the first write.
struct FileChangingWriteBudget(PathBuf);

impl WriteRateBudget for FileChangingWriteBudget {
    fn reserve(&self, _bytes: u64) -> Result<(), ToolError> {
        fs::write(&self.0, "three\n").map_err(|err| ToolError::with_cause("no file", err))
    }

    fn charge(&self, _bytes: u64) {}
}

#[tokio::test]
async fn a_write_that_fails_names_the_files_that_were_written_and_those_that_were_not() {
    let space = TestWorkspace::new();
    let paths = ["a", "b", "c"];
    for path in paths {
        space.put(path, "one\n");
    }
    let write_budget = WriteBudget::new(Arc::new(FileChangingWriteBudget(space.ws.join("b"))));
    let deadline = Instant::now() + Duration::from_secs(60);
    let ctx = ToolContext { write_budget, ..ToolContext::detached(Caller::local(), deadline) };
    let edits = paths.map(|path| json!({ "path": path, "old": "one", "new": "1" }));
    let failed = space.run_as(&ctx, "files.edit", json!({ "edits": edits })).await.err().unwrap();
    assert_eq!(failed.reason, "conflict", "{failed:?}");
    assert!(failed.message.ends_with("; written: `a`; not written: `b`, `c`"), "{failed:?}");
    let contents = paths.map(|path| space.get(path));
    assert_eq!(contents, [&b"1\n"[..], b"three\n", b"one\n"]);
}
