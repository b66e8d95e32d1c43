//! Tests of rules for the chunks of every text: chunks are complete lines, in order, and only blank
//! lines are left out.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use toolgate_chunks::{ChunkKind, TextChunk, chunks};

const PATHS: [&str; 24] = [
    "a.rs", "a.py", "a.ts", "a.tsx", "a.js", "a.go", "a.java", "a.c", "a.h", "a.cpp", "a.cs",
    "a.rb", "a.sh", "a.kt", "a.sql", "a.md", "a.rst", "a.adoc", "a.toml", "a.yaml", "a.json",
    "a.ini", "a.tf", "a",
];

/// Cuts `text` into chunks, checks the rules that hold for every text, and returns the chunks.
#[track_caller]
fn check(path: &str, text: &str) -> Vec<TextChunk> {
    let found = chunks(path, text);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let bare = |line: &str| {
        line.strip_suffix('\n').map_or(line.len(), |it| {
            it.trim_end_matches('\r').len().max(it.len() - usize::from(it.ends_with('\r')))
        })
    };
    let starts: Vec<usize> = lines
        .iter()
        .scan(0, |at, line| {
            *at += line.len();
            Some(*at - line.len())
        })
        .collect();
    let is_blank = |from: usize, to: usize| lines[from..to].iter().all(|it| it.trim().is_empty());
    let mut next = 0;
    for chunk in &found {
        let first = chunk.first as usize - 1;
        let last = chunk.last as usize - 1;
        assert!(next <= first && first <= last && last < lines.len(), "{path} {chunk:?}");
        assert!(is_blank(next, first), "{path}: lost before {chunk:?}");
        assert!(last - first < 66, "{path}: too long {chunk:?}");
        assert!(first == last || chunk.bytes.len() <= 8 << 10, "{path}: too large {chunk:?}");
        assert!(!lines[first].trim().is_empty() && !lines[last].trim().is_empty(), "{chunk:?}");
        assert_eq!(chunk.bytes.start, starts[first], "{path} {chunk:?}");
        assert_eq!(chunk.bytes.end, starts[last] + bare(lines[last]), "{path} {chunk:?}");
        assert!(text.is_char_boundary(chunk.bytes.start) && text.is_char_boundary(chunk.bytes.end));
        let mut doc_next = chunk.bytes.start;
        for doc in &chunk.doc_bytes {
            assert!(doc_next <= doc.start && doc.end <= chunk.bytes.end, "{path} {chunk:?}");
            assert!(text.get(doc.clone()).is_some(), "{path} {chunk:?}");
            doc_next = doc.end;
        }
        assert!(chunk.head.len() <= 512 && chunk.names.len() <= 8, "{path} {chunk:?}");
        assert!(chunk.names.iter().all(|name| !name.is_empty()), "{path} {chunk:?}");
        next = last + 1;
    }
    assert!(is_blank(next, lines.len()), "{path}: lost at the end: {text:?}");
    found
}

/// Checks that the chunks of `text`, the file at `path`, include the function `name`, which starts
/// at line `first`.
#[track_caller]
fn finds(path: &str, text: &str, name: &str, first: u32) {
    let found = check(path, text);
    let is_it = |chunk: &&TextChunk| chunk.names.iter().any(|it| it == name);
    let chunk = found.iter().find(is_it).unwrap_or_else(|| panic!("no {name} in {found:#?}"));
    assert!(chunk.kind == ChunkKind::Function && chunk.first == first, "{chunk:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn chunks_are_ordered_lines_and_lose_nothing(
        text in "(fn a\\(\\) \\{|\\}|# T\n|\\[t\\]|k: v|  |\\{|x|```|\r?\n|\n\n|\n|é|\"|'|/\\*|\\*/|/// d\n|//|#|class B|def c\\(\\):|end|\\(|\\)|=|;|,|\"\"\"|impl|export |=====\n|@d\n|\t){0,160}"
    ) {
        for path in PATHS {
            check(path, &text);
        }
    }

    #[test]
    fn damaged_code_is_still_cut_into_chunks(
        which in 0..WHOLE.len(), from in 0usize..4000, len in 0usize..200, put in "[{}()\"'/*#=\\\\\n ]{0,6}"
    ) {
        let (path, text) = split_case(WHOLE[which]);
        let from = text.floor_char_boundary(from % text.len());
        let to = text.floor_char_boundary((from + len).min(text.len()));
        let mixed = [&text[..from], &put, &text[to..]].concat();
        check(path, &mixed);
        check(path, &mixed.replace('\n', "\r\n"));
    }

    #[test]
    fn any_text_is_cut_into_chunks(text in "(\\PC|[\0\n\r\t ]){0,200}", which in 0..PATHS.len()) {
        check(PATHS[which], &text);
    }
}

const WHOLE: [&str; 11] = [
    include_str!("languages/rust.txt"),
    include_str!("languages/python.txt"),
    include_str!("languages/typescript.txt"),
    include_str!("languages/javascript.txt"),
    include_str!("languages/go.txt"),
    include_str!("languages/java.txt"),
    include_str!("languages/c.txt"),
    include_str!("languages/cpp.txt"),
    include_str!("languages/csharp.txt"),
    include_str!("languages/ruby.txt"),
    include_str!("languages/shell.txt"),
];

/// Returns the path and the text in `case`, the content of a file of `tests/languages`.
fn split_case(case: &str) -> (&str, &str) {
    let (path, rest) = case.split_once('\n').expect("a path");
    (path, rest.split_once("==== chunks\n").expect("a text").0)
}

#[test]
fn a_doc_comment_within_a_docstring_is_included_once() {
    check(
        "a.py",
        "\"\"\"\n=====\n/// d\nclass B\"\"\"/*\"\"\"\"\"\"class Bdef c():(x//{k: v# T\n\n```{\"{class Bfn a() {fn a() {",
    );
}

#[test]
fn a_function_after_an_unfinished_one_is_found() {
    let rust = "fn broken(a: u8 {\n    let x = vec![1, 2;\n    if x {\n\n\
                /// Good.\nfn good() -> u8 {\n    let a = 1;\n    let b = 2;\n    a + b\n}\n";
    finds("a.rs", rust, "good", 5);
    let python =
        "def broken(a, b:\n    x = [1, 2\n\n\ndef good(a):\n    b = a\n    c = b\n    return c\n";
    finds("a.py", python, "good", 5);
    let typescript = "class A {\n  broken(a: string {\n    const x = [1, 2;\n  }\n\n  good(b: number): number {\n    const c = b;\n    const d = c;\n    return d;\n  }\n}\n";
    finds("a.ts", typescript, "good", 6);
    let javascript = "function broken(a {\n  if (x {\n\nfunction good(b) {\n  const c = b;\n  const d = c;\n  return d;\n}\n";
    finds("a.js", javascript, "good", 4);
    let go = "package a\n\nfunc broken(a int {\n\tx := []int{1, 2\n\nfunc good(b int) int {\n\tc := b\n\td := c\n\treturn d\n}\n";
    finds("a.go", go, "good", 6);
    let java = "class A {\n  void broken(int a {\n    if (x {\n  }\n\n  int good(int b) {\n    int c = b;\n    int d = c;\n    return d;\n  }\n}\n";
    finds("A.java", java, "good", 6);
    let c = "int broken(int a {\n  if (x {\n    y(;\n\nint good(int b) {\n  int c = b;\n  int d = c;\n  return d;\n}\n";
    finds("a.c", c, "good", 5);
    let cpp = "namespace n {\nint broken(int a {\n  if (x {\n    y(;\n\nint good(int b) {\n  int c = b;\n  int d = c;\n  return d;\n}\n}\n";
    finds("a.cpp", cpp, "good", 6);
    let csharp = "class A {\n  void Broken(int a {\n    if (x {\n  }\n\n  int Good(int b) {\n    int c = b;\n    int d = c;\n    return d;\n  }\n}\n";
    finds("A.cs", csharp, "Good", 6);
    let ruby = "class A\n  def broken(a\n    if x\n  end\n\n  def good(b)\n    c = b\n    d = c\n    d\n  end\nend\n";
    finds("a.rb", ruby, "good", 6);
    let shell =
        "broken() {\n  if [ x\n  echo \"a\n}\n\ngood() {\n  echo 1\n  echo 2\n  echo 3\n}\n";
    finds("a.sh", shell, "good", 6);
}

#[test]
fn an_unfinished_function_hides_no_other() {
    let before = "fn one() -> u8 {\n    let a = 1;\n    let b = 2;\n    a + b\n}\n\n";
    let after = "\n\nfn three() -> u8 {\n    let a = 1;\n    let b = 2;\n    a + b\n}\n";
    let typed = "/// Two.\npub fn two(a: &str) -> Result<u8, Error> {\n    match a {\n        \"x\" => call(1, [2]),\n    }\n}";
    for end in (0..=typed.len()).step_by(3) {
        let text = [before, &typed[..end], after].concat();
        finds("a.rs", &text, "one", 1);
        let line = text.lines().position(|it| it == "fn three() -> u8 {").expect("three");
        let found = check("a.rs", &text);
        let is_three =
            |it: &TextChunk| it.names.contains(&"three".to_owned()) && it.last as usize >= line + 5;
        assert!(found.iter().any(is_three), "{text}\n{found:#?}");
    }
}

#[test]
fn a_long_function_is_cut_between_statements_and_keeps_its_name() {
    let mut text = "/// Long.\nfn long() {\n".to_owned();
    for at in 0..40 {
        text += &format!(
            "    if ready({at}) {{\n        step(\n            {at},\n        );\n    }}\n"
        );
    }
    text += "}\n";
    let found = check("a.rs", &text);
    let lines: Vec<&str> = text.lines().collect();
    assert!(found.len() > 2, "{found:#?}");
    for (at, chunk) in found.iter().enumerate() {
        assert!(chunk.names == ["long"] && chunk.head == "fn long()", "{chunk:#?}");
        assert_eq!(chunk.doc.is_empty(), at > 0, "{chunk:#?}");
        let first = lines[chunk.first as usize - 1];
        assert!(at == 0 || first.starts_with("    if"), "{first}");
    }
}

#[test]
fn a_function_inside_a_long_one_is_found_by_its_name() {
    let mut text = "function outer() {\n".to_owned();
    text += &"  step();\n".repeat(40);
    text += "  function inner(a) {\n    one(a);\n    two(a);\n    return a;\n  }\n";
    text += &"  step();\n".repeat(40);
    text += "}\n";
    let found = check("a.js", &text);
    let inner = found.iter().find(|it| it.names == ["inner"]).expect("inner");
    assert_eq!((inner.first, &inner.within[..]), (42, &["outer".to_owned()][..]));
    assert!(found.iter().filter(|it| it.names == ["outer"]).count() >= 2, "{found:#?}");
}

#[test]
fn small_definitions_share_a_chunk() {
    let found = check("a.rs", "fn a() {}\nfn b() {}\nfn c() {}\n");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].names, ["a", "b", "c"]);
}

#[test]
fn a_long_doc_comment_is_split_over_its_chunks() {
    let mut text: String = (0..200).map(|at| format!("//! Line {at}.\n")).collect();
    text += "\nfn main() {}\n";
    let found = check("a.rs", &text);
    assert!(found.len() > 3, "{found:#?}");
    assert!(found[0].doc.starts_with("Line 0.\nLine 1.\n") && !found[0].doc.contains("Line 100."));
    assert!(found[1].doc.lines().count() < 66 && !found[1].doc.is_empty(), "{found:#?}");
}

#[test]
fn pathological_code_is_still_cut_into_chunks() {
    let deep = |open: &str, close: &str| [open.repeat(200), close.repeat(200)].concat();
    let texts = [
        "x".repeat(100_000),
        "a(".repeat(300),
        "\0".repeat(2_000),
        deep("[", "]"),
        deep("{", "}"),
        deep("fn a() {\n", "}\n"),
        deep("class A {\n", "}\n"),
        deep("if x:\n", "\n"),
        (0..50).map(|at| " ".repeat(at) + "def a():\n").collect(),
        (0..50).map(|at| " ".repeat(at) + "k:\n").collect(),
        "\n".repeat(2_000),
        "# a\n".repeat(400),
        "k: v\n".repeat(400),
        "'\"`".repeat(1_000),
        "<<A\n".repeat(200),
    ];
    for text in &texts {
        for path in PATHS {
            check(path, text);
        }
    }
}

#[test]
fn a_line_of_a_hundred_mebibytes_is_one_chunk() {
    let text = "let x = 1; ".repeat(10 << 20);
    for path in ["a.rs", "a.md", "a.json", "a"] {
        assert_eq!(check(path, &text).len(), 1);
    }
}

#[test]
fn code_that_takes_too_long_to_parse_is_cut_by_lines() {
    let text = "\0(".repeat(400_000) + "\n\nfn good() {\n    a();\n    b();\n    c();\n}\n";
    let started = Instant::now();
    finds("a.rs", &text, "good", 3);
    // The parser stops after a limit of work or time. The rest is a margin for a busy machine.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn the_enclosing_names_of_a_chunk_are_limited() {
    let check_enclosing_names = |path, text: &str, innermost: &str| {
        let found = check(path, text);
        let is_function = |it: &&TextChunk| it.kind == ChunkKind::Function;
        let functions: Vec<&TextChunk> = found.iter().filter(is_function).collect();
        assert!(functions.len() > 4, "{path}");
        for chunk in functions {
            let bytes: usize = chunk.within.iter().map(String::len).sum();
            assert!(chunk.within.len() <= 16 && bytes <= 1024, "{path} {chunk:?}");
            assert!(chunk.within.iter().any(|it| it == innermost), "{path} {chunk:?}");
        }
    };
    let many: String = (0..1000).map(|at| format!("n{at}::\n")).collect();
    let function = |at| format!("int f{at}() {{\n  a();\n  b();\n  c();\n}}\n");
    let functions: String = (0..8).map(function).collect();
    check_enclosing_names("a.cpp", &format!("namespace {many}last {{\n{functions}}}\n"), "last");
    let method = "function () {\n  a();\n  b();\n  c();\n};\n";
    let assigned = format!("a.{}last.f = {method}", "b.\n".repeat(1000));
    check_enclosing_names("a.js", &assigned.repeat(8), "last");
    let many = many.replace("::", ".");
    check_enclosing_names(
        "a.cs",
        &format!("namespace {many}last;\nclass A {{\n{functions}}}\n"),
        "last",
    );
    let long = "m".repeat(150);
    let nested: String = (0..12).map(|at| format!("mod {long}{at} {{\n")).collect();
    let functions = functions.replace("int ", "fn ");
    let closed = "}\n".repeat(12);
    check_enclosing_names("a.rs", &format!("{nested}{functions}{closed}"), &format!("{long}11"));
}

#[test]
fn a_file_has_at_most_four_thousand_chunks() {
    let count = 9_000;
    let section = |at| format!("# Heading {at}\n\nSome words.\n\n");
    let function = |at| format!("/// Does {at}.\nfn f{at}() {{\n    a();\n    b();\n}}\n\n");
    for (path, text) in [
        ("a.md", (0..count).map(section).collect::<String>()),
        ("a.rs", (0..count).map(function).collect()),
        ("a.md", "# a\n".repeat(4 * count)),
        ("a.yaml", "k:\n".repeat(4 * count)),
        ("a.kt", "fun a() {\n".repeat(4 * count)),
    ] {
        let found = check(path, &text);
        assert!((100..=4000).contains(&found.len()), "{path}: {}", found.len());
        assert!(found.iter().any(|it| !it.names.is_empty()), "{path}");
    }
}

#[test]
fn the_time_grows_linearly_with_the_text() {
    let names = |at| format!("a{at},{}", if at % 40 == 0 { "\n" } else { "" });
    let many: String = (0..100_000).map(names).collect();
    let below = format!("/// <summary>\n{}", format!("/// {}\n", "<".repeat(372)).repeat(2_500));
    for (path, text) in [
        ("a.c", format!("int {many}z;\n")),
        ("a.rs", format!("{below}fn good() {{\n    a();\n    b();\n}}\n")),
    ] {
        let started = Instant::now();
        check(path, &text);
        // Comparing each definition with all others took a minute.
        assert!(started.elapsed() < Duration::from_secs(12), "{path}: {:?}", started.elapsed());
    }
}
