//! Tests of `files.edit` in files of other encodings than UTF-8.

use serde_json::json;

use super::editing::{apply_edits, expect_refusal};
use super::space::TestWorkspace;

/// Returns `text` in UTF-16, as PowerShell 5 writes it.
fn utf16le(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn utf16be(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_be_bytes).collect()
}

#[tokio::test]
async fn ascii_in_a_file_of_another_encoding_is_edited_byte_for_byte() {
    let latin = b"caf\xe9\r\nth\xe9\r\n";
    assert_eq!(
        apply_edits(latin, json!([{ "old": "th", "new": "T\nh" }])).await,
        b"caf\xe9\r\nT\r\nh\xe9\r\n"
    );
    assert_eq!(
        apply_edits(latin, json!([{ "start_line": 2, "new": "tea" }])).await,
        b"caf\xe9\r\ntea\r\n"
    );
}

#[tokio::test]
async fn a_utf_16_file_stays_utf_16_after_an_edit_by_text_or_line() {
    for mark in ["\u{feff}", ""] {
        for encode in [utf16le, utf16be] {
            let file = |text: &str| encode(&format!("{mark}{text}"));
            let before = file("name = \u{e9}\r\nlast = \u{1f600}\r\nend");
            for (edit, after) in [
                (
                    json!({ "start_line": 1, "new": "n = \u{a0a}" }),
                    "n = \u{a0a}\r\nlast = \u{1f600}\r\nend",
                ),
                (
                    json!({ "start_line": 3, "end_line": 2, "new": "a\nb" }),
                    "name = \u{e9}\r\nlast = \u{1f600}\r\na\r\nb\r\nend",
                ),
                (json!({ "start_line": 2, "new": "" }), "name = \u{e9}\r\nend"),
                (
                    json!({ "old": "\u{1f600}\nend", "new": "\u{4e2d}\n\u{6587}" }),
                    "name = \u{e9}\r\nlast = \u{4e2d}\r\n\u{6587}",
                ),
                (
                    json!({ "old": "n", "new": "N", "replace_all": true }),
                    "Name = \u{e9}\r\nlast = \u{1f600}\r\neNd",
                ),
            ] {
                assert_eq!(apply_edits(&before, json!([edit])).await, file(after), "{edit}");
            }
        }
    }
}

#[tokio::test]
async fn the_diff_of_a_utf_16_file_is_its_text() {
    let space = TestWorkspace::new();
    space.put("f", utf16le("\u{feff}one\ntwo\n"));
    let input = json!({ "path": "f", "edits": [{ "start_line": 2, "new": "zwei" }] });
    let edit = space.ok("files.edit", input).await;
    assert_eq!(edit["diff"], "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n \u{feff}one\n-two\n+zwei\n");
    assert_eq!(edit["size"], space.get("f").len());
    let missing = json!([{ "old": "three", "new": "x" }]);
    let (pointer, message) = expect_refusal(utf16be("\u{feff}one\n"), missing).await;
    assert_eq!(pointer, "/edits/0/old");
    assert!(message.starts_with("the text to replace is not in `f`"), "{message}");
}

#[tokio::test]
async fn a_file_whose_text_cannot_be_written_back_is_not_edited() {
    let utf32: Vec<u8> = "\u{feff}ab\n".chars().flat_map(|c| u32::from(c).to_be_bytes()).collect();
    let half = [utf16le("\u{feff}a\n"), vec![b'x']].concat();
    let lone = [utf16be("\u{feff}a\n"), vec![0xd8, 0, 0, b'b']].concat();
    for (file, part) in [
        (&utf32[..], "is UTF-32BE"),
        (&half, "begins like UTF-16LE, but is not valid at byte 6"),
        (&lone, "begins like UTF-16BE, but is not valid at byte 6"),
        (b"\x7fELF\x02\0\n\0a\n", "is binary"),
        (b"\x89PNG\r\n\x1a\n\x05a\n", "is binary"),
    ] {
        let (pointer, message) =
            expect_refusal(file, json!([{ "start_line": 1, "new": "x" }])).await;
        assert_eq!(pointer, "/path", "{message}");
        assert!(message.starts_with(&format!("`f` {part}")), "{message}");
    }
}

#[tokio::test]
async fn a_file_in_units_of_several_bytes_is_recognized_without_a_byte_order_mark() {
    let wide =
        |text: &str| -> Vec<u8> { text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect() };
    for edit in [json!({ "old": "a", "new": "xy" }), json!({ "start_line": 1, "new": "x" })] {
        let (pointer, message) = expect_refusal(&wide("ab\n"), json!([edit])).await;
        assert_eq!(pointer, "/path", "{message}");
        assert!(message.starts_with("`f` is UTF-32LE"), "{message}");
    }
    let space = TestWorkspace::new();
    space.put("f", wide("ab\n"));
    let failed = space.fails("files.read", json!({ "path": "f" })).await;
    assert_eq!(failed.message, "`f` is not UTF-8 at byte 1 (UTF-32LE); use encoding base64");
    let greek = "\u{3b1}\u{3b2} \u{3b3}\n\u{3b4}\n";
    for encode in [utf16le, utf16be] {
        let edits = json!([{ "start_line": 2, "new": "\u{3c9}" }]);
        let after = encode("\u{3b1}\u{3b2} \u{3b3}\n\u{3c9}\n");
        assert_eq!(apply_edits(&encode(greek), edits).await, after);
    }
}

#[tokio::test]
async fn a_read_file_of_a_7_bit_encoding_is_named() {
    let space = TestWorkspace::new();
    space.put("f", b"\x1b$B4A;z\x1b(B\nplan\n");
    let read = space.ok("files.read", json!({ "path": "f" })).await;
    assert_eq!(read["file_encoding"], "ISO-2022-JP");
    let base64 = space.ok("files.read", json!({ "path": "f", "encoding": "base64" })).await;
    assert_eq!(base64.get("file_encoding"), None);
    space.put("g", b"\x1b[1mbold\x1b[0m\n");
    assert_eq!(space.ok("files.read", json!({ "path": "g" })).await.get("file_encoding"), None);
}

#[tokio::test]
async fn exact_text_among_nul_bytes_is_edited_if_all_is_utf_8() {
    let edits = json!([{ "old": "gr\u{fc}n", "new": "rot" }]);
    assert_eq!(apply_edits("one\0gr\u{fc}n\0two\0", edits).await, b"one\0rot\0two\0");
}

#[tokio::test]
async fn only_ascii_is_inserted_into_a_file_of_a_guessed_encoding() {
    // Windows-1251, EUC-JP, Big5, EUC-KR and ISO-2022-JP.
    for (file, name) in [
        (&b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0\nplan\n"[..], "windows-1251"),
        (b"\xc6\xfc\xcb\xdc\xb8\xec\xa4\xce\xa5\xc6\xa5\xad\xa5\xb9\xa5\xc8\nplan\n", "EUC-JP"),
        (b"\xa4\xa4\xa4\xe5\xa4\xe5\xa6r\xb4\xfa\xb8\xd5\nplan\n", "Big5"),
        (b"\xc7\xd1\xb1\xb9\xbe\xee \xb9\xae\xbc\xad\nplan\n", "EUC-KR"),
        (b"\x1b$B4A;z\x1b(B\nplan\n", "ISO-2022-JP"),
    ] {
        for (edit, field) in [
            (json!({ "old": "plan", "new": "pl\u{e4}n" }), "new"),
            (json!({ "start_line": 2, "new": "\u{8a08}" }), "new"),
            (json!({ "old": "\u{8a08}", "new": "plan" }), "old"),
        ] {
            let (pointer, message) = expect_refusal(file, json!([edit])).await;
            assert_eq!(pointer, format!("/edits/0/{field}"));
            assert!(message.contains(&format!("is not UTF-8 (perhaps {name})")), "{message}");
        }
        let first = file.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let expected = [&file[..first], b"done\n"].concat();
        for edit in
            [json!({ "old": "plan", "new": "done" }), json!({ "start_line": 2, "new": "done" })]
        {
            assert_eq!(apply_edits(file, json!([edit])).await, expected, "{name}");
        }
        let without = json!([{ "start_line": 1, "new": "" }]);
        assert_eq!(apply_edits(file, without).await, b"plan\n", "{name}");
    }
}

#[tokio::test]
async fn text_that_may_begin_inside_a_character_is_not_replaced() {
    // The last bytes of these characters are letters, a brace and a bar.
    for (file, old) in [
        (&b"int \x83A\x83b; // A\n"[..], "b"),
        (b"\x8f\x5c \x94\x5c\n", "\\ "),
        (b"\xa4\x7b\xa5\x7c\n", "|"),
        (b"\x1b$B4A;z\x1b(B plan\n", "A;"),
        (b"na\xefve\n", "ve"),
    ] {
        let edits = json!([{ "old": old, "new": "x", "replace_all": true }]);
        let (pointer, message) = expect_refusal(file, edits).await;
        assert_eq!(pointer, "/edits/0/old", "{message}");
        assert!(message.starts_with("it may begin inside a character, and `f`"), "{message}");
    }
    let file = b"\xe9t\xe9 (un plan)\n";
    assert_eq!(
        apply_edits(file, json!([{ "old": " (un", "new": " [un" }])).await,
        b"\xe9t\xe9 [un plan)\n"
    );
    assert_eq!(
        apply_edits(file, json!([{ "old": "plan", "new": "but" }])).await,
        b"\xe9t\xe9 (un but)\n"
    );
}
