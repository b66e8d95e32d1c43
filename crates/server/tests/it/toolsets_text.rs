//! Tests of `search.text` with a running server: matches, their order and enclosing definitions,
//! and skipped files.

use serde_json::{Value, json};

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, over_both_with, refusal,
    structured,
};

const STORE: &str = "//! Keeps things.\n\nuse std::fs;\n\n/// Keeps.\npub struct Store {\n    at: u32,\n}\n\n\
    impl Store {\n    /// Opens a store.\n    pub fn open_store(path: &str) -> Self {\n        fs::read(path);\n\
    \x20       Self { at: 0 }\n    }\n}\n";
const MAIN: &str = "fn main() {\n    let a = Store::open_store(\"a\");\n    let b = Store::open_store(\"b\");\n\
    \x20   OPEN_STORE(a, b);\n}\n";

fn code() -> TempWorkspace {
    TempWorkspace::new()
        .file("src/zz/store.rs", STORE)
        .file("src/main.rs", MAIN)
        .file("src/once.rs", "fn once() {\n    open_store();\n}\n")
        .file("tests/store_test.py", "def test_open_store():\n    open_store()\n    open_store()\n")
        .file(
            "docs/guide.md",
            "# Guide\n\nText.\n\n## Opening\n\nCall `open_store` first: open_store.\n",
        )
        .file("vendor/store.rs", "pub fn open_store() {}\n")
        .file("built/out.rs", "fn open_store() {}\n")
        .file(".gitignore", "/built/\n")
        .file(".hidden.toml", "[open]\nopen_store = 1\n")
        .file("pic.bin", b"open_store\0open_store\n")
        .link("loop", ".")
}

#[test]
fn the_ignore_rules_above_a_served_folder_apply_and_are_not_shown() {
    let repository = TempWorkspace::new()
        .file(".git/HEAD", "ref: refs/heads/main\n")
        .file(".gitignore", "target/\n*.min.js\n")
        .file("crates/one/src/lib.rs", "fn wombat() {}\n")
        .file("crates/one/src/lib.min.js", "wombat\n")
        .file("crates/one/target/debug/out.rs", "fn wombat() {}\n")
        .file("crates/.gitignore", "!two.min.js\n")
        .file("crates/one/two.min.js", "wombat\n");
    let launch = ServerLaunchOptions::at(&repository.path("crates/one"));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let found = search(&mut client, json!({ "text": "wombat" }));
    assert_eq!(paths(&found), ["src/lib.rs", "two.min.js"]);
    let outside = client.call("files_read", json!({ "path": "../.gitignore" }));
    assert!(!refusal(&outside).contains("min.js"), "{outside}");
}

fn paths(found: &Value) -> Vec<&str> {
    found["files"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect()
}

fn search(client: &mut TestMcpClient, input: Value) -> Value {
    structured(&client.call("search_text", input)).clone()
}

#[test]
fn definitions_come_first_and_tests_documents_and_vendored_files_last() {
    over_both(&code(), |client| {
        let answer = client.call("search_text", json!({ "text": "open_store", "hidden": false }));
        let found = structured(&answer);
        let order = [
            "src/zz/store.rs",
            "src/main.rs",
            "src/once.rs",
            "tests/store_test.py",
            "docs/guide.md",
            "vendor/store.rs",
        ];
        assert_eq!(paths(found), order);
        assert_eq!((&found["matches_total"], &found["files_total"]), (&json!(10), &json!(6)));
        assert_eq!((&found["truncated"], &found["cursor"]), (&json!(false), &Value::Null));
        assert_eq!(found["skipped"], json!({ "binary": 1, "unreadable": 0, "too_long": 0 }));
        let store = json!({ "path": "src/zz/store.rs", "lang": "rust", "tags": ["rust", "code"],
            "count": 1, "matches": [{ "line": 12, "column": 12,
                "text": "    pub fn open_store(path: &str) -> Self {", "definition": true,
                "symbol": { "name": "open_store", "kind": "function", "container": ["Store"],
                    "line": 12 } }] });
        assert_eq!(found["files"][0], store);
        let uses = found["files"][1]["matches"].as_array().unwrap();
        let lines: Vec<_> = uses.iter().map(|it| (&it["line"], &it["symbol"]["name"])).collect();
        let main = json!("main");
        assert_eq!(lines, [(&json!(2), &main), (&json!(3), &main), (&json!(4), &main)]);
        assert!(uses.iter().all(|it| it["definition"] == false), "{uses:?}");
        let section =
            json!({ "name": "Opening", "kind": "section", "container": ["Guide"], "line": 5 });
        assert_eq!(found["files"][4]["matches"][0]["symbol"], section);
        assert_eq!(
            client.call("search_text", json!({ "text": "open_store", "hidden": false }))["result"],
            answer["result"]
        );
        let shown = answer["result"]["content"][0]["text"].as_str().unwrap();
        let beginning = "src/zz/store.rs\n 12:    pub fn open_store(path: &str) -> Self {\nsrc/main.rs\n \
            in function main, line 1\n 2:    let a = Store::open_store(\"a\");\n";
        assert!(shown.starts_with(beginning), "{shown}");
        let note = answer["result"]["content"][1]["text"].as_str().unwrap();
        assert!(note.contains("10 matches in 6 files"), "{note}");
    });
}

#[test]
fn a_match_after_a_definition_is_not_shown_under_its_heading() {
    let text = "def first():\n    okapi()\n\ndef okapi():\n    okapi()\n\nokapi()\n";
    let workspace = TempWorkspace::new().file("a.py", text);
    over_both(&workspace, |client| {
        let answer = client.call("search_text", json!({ "text": "okapi", "path": "a.py" }));
        let shown = answer["result"]["content"][0]["text"].as_str().unwrap();
        let expected = "a.py\n in function first, line 1\n 2:    okapi()\n \
            in function okapi, line 4\n 4:def okapi():\n 5:    okapi()\n at the top level\n \
            7:okapi()\n";
        assert_eq!(shown, expected);
    });
}

#[test]
fn filters_restrict_a_text_search() {
    let settings = [("search_namespaces", "guides=docs")];
    over_both_with(&code(), &settings, |client| {
        let mut matches_of = |more: Value| {
            let mut input = json!({ "text": "open_store" });
            input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let found = search(client, input);
            let mut paths: Vec<String> = paths(&found).into_iter().map(str::to_owned).collect();
            paths.sort();
            (paths.join(" "), found["matches_total"].as_u64().unwrap())
        };
        let check = |(paths, count): (String, u64), expected: (&str, u64)| {
            assert_eq!((paths.as_str(), count), expected);
        };
        let rust = "src/main.rs src/once.rs src/zz/store.rs vendor/store.rs";
        check(matches_of(json!({ "langs": ["Rust"] })), (rust, 6));
        check(
            matches_of(json!({ "langs": ["python", "toml"] })),
            (".hidden.toml tests/store_test.py", 4),
        );
        check(matches_of(json!({ "tags": ["code", "test"] })), ("tests/store_test.py", 3));
        check(
            matches_of(json!({ "globs": ["*.rs", "!src/zz/**", "!vendor/**"] })),
            ("src/main.rs src/once.rs", 4),
        );
        check(matches_of(json!({ "globs": ["src/*/*"] })), ("src/zz/store.rs", 1));
        check(matches_of(json!({ "path": "src/zz" })), ("src/zz/store.rs", 1));
        check(matches_of(json!({ "path": "src/main.rs" })), ("src/main.rs", 3));
        check(matches_of(json!({ "globs": ["built/**"] })), ("", 0));
        check(
            matches_of(json!({ "globs": ["built/**"], "include_ignored": true })),
            ("built/out.rs", 1),
        );
        check(matches_of(json!({ "namespace": "guides" })), ("docs/guide.md", 1));
        check(
            matches_of(json!({ "namespace": "workspace", "path": "docs" })),
            ("docs/guide.md", 1),
        );
        check(matches_of(json!({ "text": "OPEN_STORE" })), ("src/main.rs", 1));
        check(matches_of(json!({ "text": "open", "word": true })), (".hidden.toml", 1));
        check(
            matches_of(json!({ "case": "sensitive", "path": "src/main.rs" })),
            ("src/main.rs", 2),
        );
        check(
            matches_of(json!({ "text": "OPEN_STORE", "case": "insensitive", "path": "src" })),
            ("src/main.rs src/once.rs src/zz/store.rs", 5),
        );
        check(
            matches_of(json!({ "text": "open_store(", "literal": true, "path": "src" })),
            ("src/main.rs src/once.rs src/zz/store.rs", 5),
        );
        let outside = json!({ "text": "x", "namespace": "guides", "path": "src" });
        let message = refusal(&client.call("search_text", outside));
        assert!(message.contains("it is outside the namespace `guides`"), "{message}");
    });
}

#[test]
fn pages_continue_after_the_previous_one_and_counts_have_no_lines() {
    let mut workspace = TempWorkspace::new();
    for file in 0..7 {
        workspace = workspace.file(&format!("f{file}.txt"), "needle\n".repeat(file + 1));
    }
    over_both(&workspace, |client| {
        let counts = search(client, json!({ "text": "needle", "counts_only": true }));
        let counts_and_shown: Vec<_> = counts["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["count"].as_u64().unwrap(), it["matches"].as_array().unwrap().len()))
            .collect();
        assert_eq!(counts_and_shown, [(7, 0), (6, 0), (5, 0), (4, 0), (3, 0), (2, 0), (1, 0)]);
        assert_eq!(counts["matches_total"], 28);
        for limits in
            [json!({ "limit": 4, "per_file": 2 }), json!({ "limit": 3, "counts_only": true })]
        {
            let mut all = Vec::new();
            let mut cursor = Value::Null;
            let mut pages = 0;
            loop {
                let mut input = limits.clone();
                input["text"] = json!("needle");
                input["cursor"] = cursor;
                let page = search(client, input);
                assert_eq!(page["matches_total"], 28);
                all.extend(paths(&page).into_iter().map(str::to_owned));
                pages += 1;
                cursor = page["cursor"].clone();
                assert_eq!(page["truncated"], json!(!cursor.is_null()));
                if cursor.is_null() {
                    break;
                }
            }
            assert_eq!(all, ["f6.txt", "f5.txt", "f4.txt", "f3.txt", "f2.txt", "f1.txt", "f0.txt"]);
            assert!((3..=4).contains(&pages), "{pages}");
        }
        let one = search(client, json!({ "text": "needle", "path": "f6.txt" }));
        assert_eq!(one["files"][0]["matches"].as_array().unwrap().len(), 7);
        let page = search(client, json!({ "text": "needle", "limit": 1 }));
        let other = json!({ "text": "needles", "limit": 1, "cursor": page["cursor"] });
        let message = refusal(&client.call("search_text", other));
        assert!(message.contains("it is not a cursor of an earlier answer"), "{message}");
    });
}

#[test]
fn the_number_of_matches_that_are_not_shown_is_reported() {
    let workspace = TempWorkspace::new().file("many.txt", "zap\n".repeat(120));
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let input = |limit: u64| json!({ "text": "zap", "path": "many.txt", "limit": limit });
    let answer = client.call("search_text", input(50));
    assert_eq!(structured(&answer)["truncated"], true, "{answer}");
    assert!(answer.to_string().contains("70 more in these files"), "{answer}");
    let full = client.call("search_text", input(200));
    assert_eq!(structured(&full)["truncated"], false, "{full}");
}

#[test]
fn a_multiline_match_works_with_any_line_ending() {
    let text = "foo(\r\n  1);\r\nend\r\n";
    over_both(&TempWorkspace::new().file("a.js", text), |client| {
        for (text, literal) in [
            ("foo\\(\\n  1", false),
            ("foo\\($", false),
            ("(?s)foo.*end", false),
            ("[(]\\r?\\n", false),
            ("(?x) foo [(] # what begins\n \\n", false),
            ("o[^]\nx]\\n", false),
            ("1);\nend", true),
            ("1);\r\nend", true),
        ] {
            let input = json!({ "text": text, "literal": literal, "multiline": true });
            assert_eq!(search(client, input)["matches_total"], 1, "{text:?}");
        }
        let rejected = client.call("search_text", json!({ "text": "1);\nend", "literal": true }));
        assert!(refusal(&rejected).contains("multiline: true"), "{rejected}");
    });
}

#[test]
fn an_unknown_language_or_tag_is_rejected_and_rs_means_rust() {
    over_both(&code(), |client| {
        let rust = search(client, json!({ "text": "open_store", "langs": ["rs"] }));
        let same = search(client, json!({ "text": "open_store", "langs": ["Rust"] }));
        assert_eq!(paths(&rust), paths(&same));
        assert!(!paths(&rust).is_empty());
        let tests = search(client, json!({ "text": "open_store", "tags": ["tests"] }));
        assert_eq!(paths(&tests), ["tests/store_test.py"]);
        for (input, expected) in [
            (json!({ "text": "x", "langs": ["rst2"] }), "unknown language `rst2`"),
            (json!({ "text": "x", "tags": ["testing"] }), "has the tag `testing`"),
        ] {
            let message = refusal(&client.call("search_text", input));
            assert!(message.contains(expected), "{message}");
        }
    });
}

#[test]
fn a_multiline_match_is_shown_with_its_context() {
    let text = "one!();\nfn open(\n    a: u8,\n) {\n    two();\n    three();\n}\n";
    over_both(&TempWorkspace::new().file("a.rs", text), |client| {
        let multiline = search(
            client,
            json!({ "text": "fn open\\([^)]*\\)", "multiline": true, "context": 1 }),
        );
        let expected = json!([{ "line": 2, "line_end": 4, "column": 1, "definition": true,
            "text": "fn open(\n    a: u8,\n) {", "before": ["one!();"], "after": ["    two();"],
            "symbol": { "name": "open", "kind": "function", "line": 2 } }]);
        assert_eq!(multiline["files"][0]["matches"], expected, "{multiline}");
        let single_line = search(client, json!({ "text": "fn open\\([^)]*\\)" }));
        assert_eq!(single_line["matches_total"], 0);
        let several = search(client, json!({ "text": "^    t", "context": 2 }));
        let contexts: Vec<_> = several["files"][0]["matches"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["line"].clone(), it["before"].clone(), it["after"].clone()))
            .collect();
        let lines = |lines: &[&str]| if lines.is_empty() { Value::Null } else { json!(lines) };
        assert_eq!(
            contexts,
            [
                (json!(5), lines(&["    a: u8,", ") {"]), lines(&[])),
                (json!(6), lines(&[]), lines(&["}"])),
            ]
        );
    });
}

#[test]
fn a_text_search_finds_the_same_lines_as_files_search() {
    let workspace = TempWorkspace::new().file("wide.txt", b"\xff\xfen\0e\0e\0d\0l\0e\0\n\0");
    for file in 0..600 {
        let text: String = (0..40)
            .map(|line| if (line * 7 + file) % 31 == 0 { "a needle here\r\n" } else { "hay\n" })
            .collect();
        workspace.put(&format!("d{}/e{}/f{file}.txt", file % 3, file % 17), text.into_bytes());
    }
    for file in 0..700 {
        workspace.put(&format!("many/n{file:03}.txt"), b"needle");
    }
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let mut expected = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let input = json!({ "text": "needle", "limit": 10000, "cursor": cursor });
        let answer = client.call("files_search", input);
        let page = structured(&answer);
        expected.extend(
            page["matches"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| (it["path"].as_str().unwrap().to_owned(), it["line"].as_u64().unwrap())),
        );
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert!(expected.len() > 1000, "{}", expected.len());
    let mut lines_found = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let input = json!({ "text": "needle", "limit": 1000, "per_file": 100, "cursor": cursor });
        let page = search(&mut client, input);
        assert_eq!(page["matches_total"], expected.len());
        for file in page["files"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            let lines = file["matches"].as_array().unwrap();
            assert_eq!(file["count"], lines.len());
            lines_found
                .extend(lines.iter().map(|it| (path.to_owned(), it["line"].as_u64().unwrap())));
        }
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    expected.sort();
    lines_found.sort();
    assert_eq!(lines_found, expected);
    assert!(lines_found.iter().any(|(path, _)| path == "wide.txt"));
}

#[test]
fn few_matches_of_a_file_are_shown_and_definitions_are_preferred() {
    let uses = "    needle();\n".repeat(7);
    let long: String = (0..30).map(|line| format!("  long {line}\n")).collect();
    let workspace = TempWorkspace::new()
        .file("many.rs", format!("fn main() {{\n{uses}}}\nfn needle() {{}}\n"))
        .file("long.txt", format!("begin\n{long}end\n"))
        // Code in a document defines nothing.
        .file("docs/one.md", "fn needle() {}\n")
        .file("docs/two.md", "Call needle,\nand the needle is called.\n");
    over_both(&workspace, |client| {
        let all = search(client, json!({ "text": "needle" }));
        assert_eq!(paths(&all), ["many.rs", "docs/two.md", "docs/one.md"]);
        let many = &all["files"][0];
        let line = |it: &Value| it["line"].as_u64().unwrap();
        let lines: Vec<_> = many["matches"].as_array().unwrap().iter().map(line).collect();
        assert_eq!((many["count"].as_u64(), lines), (Some(8), vec![2, 3, 4, 5, 10]));
        assert_eq!(many["matches"][4]["definition"], true);
        assert_eq!(all["files"][2]["matches"][0]["definition"], false);
        let multiline = search(client, json!({ "text": "(?s)begin.*end", "multiline": true }));
        let one = &multiline["files"][0]["matches"][0];
        assert_eq!((&one["line"], &one["line_end"]), (&json!(1), &json!(32)));
        assert_eq!(one["text"].as_str().unwrap().lines().count(), 20);
    });
}

#[test]
fn an_answer_is_limited_in_size_and_the_next_page_continues() {
    let mut workspace = TempWorkspace::new();
    for file in 0..9 {
        let line = format!("needle {}\n", "x".repeat(300));
        workspace = workspace.file(&format!("f{file}.txt"), line.repeat((9 - file) * 25));
    }
    let workspace =
        workspace.file("wide.txt", format!("thread {}\n", "x".repeat(300)).repeat(1000));
    // An answer has 100 KiB of matches.
    over_both(&workspace, |client| {
        let wide = search(client, json!({ "text": "thread", "per_file": 1000, "limit": 1000 }));
        assert!(wide["files"].to_string().len() < 150_000, "{wide}");
        let shown = wide["files"][0]["matches"].as_array().unwrap().len();
        assert!((1..1000).contains(&shown) && wide["files"][0]["count"] == 1000, "{shown}");
        let mut all = Vec::new();
        let mut cursor = Value::Null;
        let mut pages = 0;
        loop {
            let input =
                json!({ "text": "needle", "per_file": 225, "limit": 1000, "cursor": cursor });
            let page = search(client, input);
            let files = page["files"].as_array().unwrap();
            assert!(page["files"].to_string().len() < 150_000, "{page}");
            assert!(files.iter().all(|it| !it["matches"].as_array().unwrap().is_empty()));
            all.extend(paths(&page).into_iter().map(str::to_owned));
            (cursor, pages) = (page["cursor"].clone(), pages + 1);
            if cursor.is_null() {
                break;
            }
        }
        let expected: Vec<_> = (0..9).map(|file| format!("f{file}.txt")).collect();
        assert_eq!(all, expected);
        assert!((4..9).contains(&pages), "{pages}");
    });
}

#[test]
fn invalid_input_is_rejected_with_its_pointer() {
    over_both(&code(), |client| {
        for (input, pointer, why) in [
            (json!({ "query": "" }), "/query", "it is empty"),
            (json!({ "query": "a(" }), "/query", "set literal: true"),
            (json!({ "query": "a\nb", "literal": true }), "/query", "a match cannot span lines"),
            (json!({ "text": "a", "limit": 0 }), "/limit", ""),
            (json!({ "text": "a", "per_file": 1001 }), "/per_file", ""),
            (json!({ "text": "a", "context": 21 }), "/context", ""),
            (json!({ "text": "a", "glob": ["x", "[z"] }), "/glob/1", "it is not a glob"),
            (json!({ "text": "a", "path": "nowhere" }), "", "does not exist"),
            (json!({ "text": "a", "path": "../x" }), "", ""),
            (json!({ "text": "a", "namespace": "nowhere" }), "/namespace", "unknown namespace"),
            (json!({ "text": "a", "cursor": "zzz" }), "/cursor", "omit it"),
        ] {
            let message = refusal(&client.call("search_text", input.clone()));
            assert!(message.contains(pointer) && message.contains(why), "{input}: {message}");
        }
    });
}

#[test]
fn long_lines_large_files_and_binary_files_do_not_hide_other_matches() {
    let workspace =
        TempWorkspace::new().file("good.txt", "needle\n").link("out.txt", "/etc/passwd");
    let mut long = vec![b'x'; 20 << 20];
    long.extend_from_slice(b" needle\n");
    workspace.put("long.txt", long);
    let large: String = (0..200_000).map(|line| format!("line {line} of many\n")).collect();
    workspace.put("large.txt", (large + "needle at the end\n").into_bytes());
    workspace.put("latin.txt", b"caf\xe9 needle\n");
    let sparse = std::fs::File::create(workspace.path("sparse.bin")).unwrap();
    sparse.set_len(2 << 30).unwrap();
    over_both(&workspace, |client| {
        let found = search(client, json!({ "text": "needle" }));
        let mut paths = paths(&found);
        paths.sort_unstable();
        assert_eq!(paths, ["good.txt", "large.txt", "latin.txt"]);
        assert_eq!(found["skipped"], json!({ "binary": 1, "unreadable": 0, "too_long": 1 }));
        let files = found["files"].as_array().unwrap();
        let large = files.iter().find(|it| it["path"] == "large.txt").unwrap();
        assert_eq!(large["matches"][0]["line"], 200_001);
    });
}
