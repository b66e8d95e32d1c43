//! Tests of `files.search`: matches, their order, and the files that a search skips.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::space::TestWorkspace;
use crate::files::FileToolLimits;

/// Returns the matches of a search as lines `PATH:LINE`.
async fn lines(space: &TestWorkspace, input: Value) -> Vec<String> {
    let found = space.ok("files.search", input).await;
    let matches = found["matches"].as_array().unwrap();
    matches
        .iter()
        .map(|found| format!("{}:{}", found["path"].as_str().unwrap(), found["line"]))
        .collect()
}

async fn names(space: &TestWorkspace, glob: &str) -> Vec<String> {
    let found = space.ok("files.search", json!({ "glob": glob })).await;
    let files = found["files"].as_array().unwrap();
    files.iter().map(|found| found["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn lines_are_found_in_order_and_shown_like_ripgrep() {
    let space = TestWorkspace::new();
    space.put("b/two.rs", "fn two() {}\n");
    space.put("a.rs", "// x\nfn one() {}\nlet y;\n");
    space.put("b.rs", "fn three() {}\r\n");
    let text = space.text("files.search", json!({ "query": "fn \\w+\\(\\) \\{\\}$" })).await;
    assert_eq!(
        text,
        "a.rs:2:fn one() {}\nb/two.rs:1:fn two() {}\nb.rs:1:fn three() {}\n[3 matches; 3 searched]"
    );
    let found = space.ok("files.search", json!({ "query": "one" })).await;
    let expected = json!({ "path": "a.rs", "line": 2, "column": 4, "text": "fn one() {}", "before": [], "after": [] });
    assert_eq!(found["matches"], json!([expected]));
    let text = space.text("files.search", json!({ "query": "nowhere" })).await;
    assert_eq!(text, "[no matches; 3 searched]");
    assert_eq!(lines(&space, json!({ "query": "fn", "path": "b" })).await, ["b/two.rs:1"]);
    assert_eq!(lines(&space, json!({ "query": "fn", "path": "a.rs" })).await, ["a.rs:2"]);
    assert_eq!(lines(&space, json!({ "query": "fn", "glob": "b*" })).await, ["b.rs:1"]);
}

#[tokio::test]
async fn context_is_shown_once_with_a_separator_between_groups() {
    let space = TestWorkspace::new();
    space.put("f", "1\nhit\n3\nhit\n5\n6\n7\n8\nhit\n");
    let text = space.text("files.search", json!({ "query": "hit", "context": 1 })).await;
    let expected = "f-1-1\nf:2:hit\nf-3-3\nf:4:hit\nf-5-5\n--\nf-8-8\nf:9:hit\n";
    assert_eq!(text, format!("{expected}[3 matches; 1 searched]"));
}

#[tokio::test]
async fn case_sensitivity_follows_the_option() {
    let space = TestWorkspace::new();
    space.put("f", "Foo\nfoo\nFOO\n");
    let count = async |text: &str, case: &str| {
        lines(&space, json!({ "query": text, "case": case })).await.len()
    };
    assert_eq!(count("foo", "smart").await, 3);
    assert_eq!(count("Foo", "smart").await, 1);
    assert_eq!(count("foo", "sensitive").await, 1);
    assert_eq!(count("FOO", "insensitive").await, 3);
}

#[tokio::test]
async fn literal_text_is_not_an_expression() {
    let space = TestWorkspace::new();
    space.put("f", "a.b(c)\naxb(c)\n");
    assert_eq!(lines(&space, json!({ "query": "a.b(c)", "literal": true })).await, ["f:1"]);
    assert_eq!(space.fails("files.search", json!({ "query": "" })).await.pointer(), "");
    assert_eq!(space.fails("files.search", json!({})).await.pointer(), "");
}

#[tokio::test]
async fn an_unsupported_expression_is_refused_with_the_reason() {
    let space = TestWorkspace::new();
    for (text, reason) in [
        ("(a)\\1", "backreferences are not supported"),
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("(?<!a)b", "look-around"),
        ("a(", "unclosed group"),
    ] {
        let failed = space.fails("files.search", json!({ "query": text })).await;
        assert_eq!(failed.pointer(), "/query");
        assert!(
            failed.message.contains(reason) && failed.message.contains("literal: true"),
            "{failed:?}"
        );
        assert!(!failed.message.contains('\n'), "{failed:?}");
    }
    for text in ["a\nb", "a\\nb"] {
        assert_eq!(space.fails("files.search", json!({ "query": text })).await.pointer(), "/query");
    }
    assert_eq!(space.fails("files.search", json!({ "glob": "a{b" })).await.pointer(), "/glob");
}

#[tokio::test]
async fn names_are_found_by_glob() {
    let space = TestWorkspace::new();
    for path in [
        "src/main.rs",
        "src/lib.rs",
        "src/deep/mod.rs",
        "Cargo.toml",
        ".github/ci.yml",
        "docs/src/x.md",
    ] {
        space.put(path, "");
    }
    assert_eq!(names(&space, "*.rs").await, ["src/deep/mod.rs", "src/lib.rs", "src/main.rs"]);
    assert_eq!(names(&space, "src/*.rs").await, ["src/lib.rs", "src/main.rs"]);
    assert_eq!(
        names(&space, "**/src/*").await,
        ["docs/src/x.md", "src/deep", "src/lib.rs", "src/main.rs"]
    );
    assert_eq!(names(&space, "{Cargo.*,*.yml}").await, [".github/ci.yml", "Cargo.toml"]);
    assert_eq!(names(&space, "src").await, ["docs/src", "src"]);
    let text = space.text("files.search", json!({ "glob": "deep", "path": "src" })).await;
    assert_eq!(text, "src/deep/\n[1 match; 4 searched]");
    let found = space.ok("files.search", json!({ "glob": "*.rs", "path": "src/lib.rs" })).await;
    assert_eq!(found["files"][0]["path"], "src/lib.rs");
    let found = space.ok("files.search", json!({ "glob": "*.yml", "hidden": false })).await;
    assert_eq!(found["files"], json!([]));
}

#[tokio::test]
async fn ignored_files_are_left_out_unless_included() {
    let space = TestWorkspace::new();
    for path in [
        "src/a",
        "node_modules/p/a",
        "deep/node_modules/p/a",
        "build/a",
        "build/keep",
        "sub/build/a",
        "x.log",
        "sub/x.log",
        "sub/important.log",
        ".git/a",
        "excluded/a",
    ] {
        space.put(path, "needle\n");
    }
    space.put(".gitignore", "node_modules/\n/build/*\n!/build/keep\n*.log\n");
    space.put("sub/.gitignore", "!important.log\n");
    space.put(".git/info/exclude", "excluded\n");
    let expected = ["build/keep:1", "src/a:1", "sub/build/a:1", "sub/important.log:1"];
    assert_eq!(lines(&space, json!({ "query": "needle" })).await, expected);
    // Rules in folders above the start of the search apply, too.
    assert_eq!(lines(&space, json!({ "query": "needle", "path": "sub" })).await, expected[2..]);
    assert_eq!(
        lines(&space, json!({ "query": "needle", "path": "node_modules/p" })).await,
        ["node_modules/p/a:1"]
    );
    let all = lines(&space, json!({ "query": "needle", "include_ignored": true })).await;
    assert_eq!(all.len(), 10, "{all:?}");
    assert!(!all.iter().any(|path| path.starts_with(".git/")));
}

#[tokio::test]
async fn a_gitignore_that_links_outside_is_not_used() {
    let space = TestWorkspace::new();
    fs::write(space.evil.join("rules"), "*\n").unwrap();
    space.symlink(space.evil.join("rules"), ".gitignore");
    space.put("f", "needle");
    assert_eq!(lines(&space, json!({ "query": "needle" })).await, ["f:1"]);
}

#[tokio::test]
async fn a_cursor_continues_where_the_answer_was_cut() {
    let space = TestWorkspace::new();
    for at in 0..7 {
        space.put(&format!("d{at}/f"), "hit\nmiss\nhit\nhit\n");
    }
    let full = lines(&space, json!({ "query": "hit" })).await;
    assert_eq!(full.len(), 21);
    for limit in [1, 2, 4, 20, 21] {
        let mut seen = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let input = json!({ "query": "hit", "limit": limit, "cursor": cursor });
            let found = space.ok("files.search", input.clone()).await;
            cursor = found["cursor"].clone();
            seen.extend(lines(&space, input).await);
            assert_eq!(found["truncated"], !cursor.is_null());
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(seen, full, "{limit}");
    }
    let first = space.ok("files.search", json!({ "glob": "f", "limit": 3 })).await;
    let rest = space.ok("files.search", json!({ "glob": "f", "cursor": first["cursor"] })).await;
    assert_eq!(rest["files"].as_array().unwrap().len(), 4);
    assert_eq!(rest["files"][0]["path"], "d3/f");
}

#[tokio::test]
async fn long_lines_are_shown_in_part_and_answers_are_bounded() {
    let space =
        TestWorkspace::limited(FileToolLimits { answer_bytes: 3000, ..FileToolLimits::default() });
    space.put("long", format!("{}needle{}\n", "é".repeat(2_500_000), "x".repeat(5_000_000)));
    for at in 0..50 {
        space.put(&format!("many/{at}"), format!("{}needle\n", "y".repeat(300)));
    }
    let found = space.ok("files.search", json!({ "query": "needle" })).await;
    let text = found["matches"][0]["text"].as_str().unwrap();
    assert!(
        text.len() < 520
            && text.contains("éneedlex")
            && text.starts_with('…')
            && text.ends_with('…'),
        "{text}"
    );
    assert_eq!(found["matches"][0]["column"], 5_000_001);
    assert_eq!(found["truncated"], true);
    let matches = found["matches"].as_array().unwrap().len();
    assert!((2..=10).contains(&matches), "{matches}");
    let rest =
        space.ok("files.search", json!({ "query": "needle", "cursor": found["cursor"] })).await;
    assert!(!rest["matches"].as_array().unwrap().is_empty());
    space.put("endless", "z".repeat(20 << 20));
    let found = space.ok("files.search", json!({ "query": "zzz needle", "path": "endless" })).await;
    assert_eq!(found["skipped"]["long_lines"], 1);
}

#[tokio::test]
async fn files_that_cannot_be_searched_are_counted_as_skipped() {
    let space = TestWorkspace::new();
    space.put("binary", b"needle\0\xff");
    space.put("locked", "needle");
    space.put("utf16", b"\xff\xfen\0e\0e\0d\0l\0e\0\n\0");
    space.put("latin", b"caf\xe9 needle\n");
    fs::set_permissions(space.ws.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let found = space.ok("files.search", json!({ "query": "needle" })).await;
    assert_eq!(found["skipped"]["binary"], 1);
    let paths: Vec<_> = found["matches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["path"].as_str().unwrap())
        .collect();
    assert!(paths.contains(&"utf16") && paths.contains(&"latin"), "{paths:?}");
    let text = space.text("files.search", json!({ "query": "needle" })).await;
    assert!(text.contains("; 1 skipped (not text)"), "{text}");
}

#[tokio::test]
async fn a_utf_16_file_is_searched_in_either_byte_order_with_and_without_a_mark() {
    let space = TestWorkspace::new();
    for (name, mark) in [("marked", "\u{feff}"), ("plain", "")] {
        let text = format!("{mark}first\n\u{fc}ber needle\n");
        let units = || text.encode_utf16();
        space.put(&format!("{name}-be"), units().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
        space.put(&format!("{name}-le"), units().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    }
    let found = lines(&space, json!({ "query": "\u{fc}ber needle" })).await;
    assert_eq!(found, ["marked-be:2", "marked-le:2", "plain-be:2", "plain-le:2"]);
}

#[tokio::test]
async fn an_empty_option_counts_as_missing() {
    let space = TestWorkspace::new();
    space.put("a.rs", "needle\n");
    assert_eq!(lines(&space, json!({ "query": "needle", "glob": "" })).await, ["a.rs:1"]);
    let found = space.ok("files.search", json!({ "query": "", "glob": "*.rs" })).await;
    assert_eq!(found["files"][0]["path"], "a.rs");
}

#[tokio::test]
async fn a_glob_can_start_at_the_root_in_any_notation() {
    let space = TestWorkspace::new();
    space.put("a.rs", "");
    space.put("src/b.rs", "");
    assert_eq!(names(&space, "./*.rs").await, ["a.rs"]);
    assert_eq!(names(&space, "./src/*.rs").await, ["src/b.rs"]);
    let root = fs::canonicalize(&space.ws).unwrap();
    let root = root.to_str().unwrap();
    assert_eq!(names(&space, &format!("{root}/*.rs")).await, ["a.rs"]);
    assert_eq!(names(&space, &format!("{root}/**/*.rs")).await, ["a.rs", "src/b.rs"]);
    assert_eq!(names(&space, &format!("{root}_evil/*.rs")).await, [""; 0]);
}

#[tokio::test]
async fn the_note_counts_ignored_files_if_nothing_was_searched() {
    let space = TestWorkspace::new();
    space.put(".gitignore", "*\n");
    space.put("a", "needle\n");
    space.put("b/c", "needle\n");
    let text = space.text("files.search", json!({ "query": "needle" })).await;
    assert_eq!(
        text,
        "[no matches; 0 searched; 3 excluded by .gitignore, pass include_ignored: true]"
    );
    let text = space.text("files.search", json!({ "query": "needle", "glob": "c" })).await;
    assert!(text.contains("; 1 excluded by .gitignore"), "{text}");
    let text = space.text("files.search", json!({ "query": "needle", "glob": "nowhere" })).await;
    assert_eq!(text, "[no matches; 0 searched]");
}

/// Returns the peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn an_expression_with_many_states_uses_little_memory() {
    let space = TestWorkspace::new();
    let mut seed = 1_u32;
    let mut letter = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if seed >> 31 == 0 { 'a' } else { 'b' }
    };
    let line: String = (0..300_000).map(|_| letter()).collect();
    space.put("f", line);
    space.ok("files.search", json!({ "query": "b" })).await;
    let before = peak_kib();
    assert_eq!(lines(&space, json!({ "query": "a.{60}c" })).await, [""; 0]);
    let grown = peak_kib() - before;
    assert!(grown < 40 << 10, "memory grew by {grown} KiB");
}

#[tokio::test]
async fn matches_beyond_the_answer_use_little_memory() {
    let space = TestWorkspace::new();
    for at in 0..200 {
        space.put(&format!("{at:03}"), "needle\n".repeat(20_000));
    }
    let search = json!({ "query": "needle", "limit": 10_000, "context": 2 });
    space.ok("files.search", json!({ "query": "nowhere" })).await;
    let before = peak_kib();
    let found = space.ok("files.search", search.clone()).await;
    let grown = peak_kib() - before;
    assert!(grown < 20 << 10, "memory grew by {grown} KiB");
    assert_eq!(found["truncated"], true);
    for _ in 0..5 {
        assert_eq!(space.ok("files.search", search.clone()).await, found);
    }
}

#[tokio::test]
async fn a_very_long_gitignore_uses_little_memory_and_is_cut_between_rules() {
    let space = TestWorkspace::new();
    space.put("f", "needle\n");
    let before = peak_kib();
    space.put(".gitignore", "**/a*b*[c-x]*{d,e}*?/**/z*\n".repeat(40_000));
    assert_eq!(lines(&space, json!({ "query": "needle", "glob": "f" })).await, ["f:1"]);
    let grown = peak_kib() - before;
    assert!(grown < 200 << 10, "memory grew by {grown} KiB");
    // The 64 KiB end after the `*` of the last rule.
    let rule = format!("{}\n*.log\n", "#".repeat((64 << 10) - 2));
    space.put(".gitignore", rule);
    assert_eq!(lines(&space, json!({ "query": "needle", "glob": "f" })).await, ["f:1"]);
}
