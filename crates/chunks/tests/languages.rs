//! Cuts one file of each language into chunks.
//!
//! Each file in `tests/languages` has a path, a text, and below a line `==== chunks` the expected
//! chunks, as `lines kind names | within | head | doc`.

use toolgate_chunks::{TextChunk, chunks};

/// Checks the definitions and chunks of the file `case` against its expected results.
#[track_caller]
fn check(case: &str) {
    let (path, rest) = case.split_once('\n').expect("a path");
    let (text, wanted) = rest.split_once("==== chunks\n").expect("what is wanted");
    let found: String =
        chunks(path, text).iter().map(|chunk| describe(text, chunk) + "\n").collect();
    assert!(found == wanted, "found in {path}:\n{found}\nwanted:\n{wanted}");
}

fn describe(text: &str, chunk: &TextChunk) -> String {
    for doc in &chunk.doc_bytes {
        assert!(chunk.bytes.start <= doc.start && doc.end <= chunk.bytes.end, "{chunk:?}");
        assert!(!text[doc.clone()].trim().is_empty(), "{chunk:?}");
    }
    assert_eq!(chunk.doc.is_empty(), chunk.doc_bytes.is_empty(), "{chunk:?}");
    let lines = format!("{}-{}", chunk.first, chunk.last);
    let parts = [
        format!("{lines} {:?} {}", chunk.kind, chunk.names.join(" ")),
        chunk.within.join("."),
        chunk.head.clone(),
        chunk.doc.replace('\n', " / "),
    ];
    parts.join(" | ").trim_end_matches([' ', '|']).to_owned()
}

macro_rules! languages {
    ($($name:ident: $language:literal,)*) => {
        $(
            #[test]
            fn $name() {
                check(include_str!(concat!("languages/", $language, ".txt")));
            }
        )*
    };
}

languages! {
    rust_is_cut_at_its_items: "rust",
    python_is_cut_at_its_definitions: "python",
    typescript_is_cut_at_its_definitions: "typescript",
    javascript_is_cut_at_its_functions: "javascript",
    go_is_cut_at_its_declarations: "go",
    java_is_cut_at_its_members: "java",
    c_is_cut_at_its_functions: "c",
    cpp_is_cut_at_its_members: "cpp",
    csharp_is_cut_at_its_members: "csharp",
    ruby_is_cut_at_its_methods: "ruby",
    shell_is_cut_at_its_functions: "shell",
    a_language_without_a_grammar_is_cut_by_its_lines: "kotlin",
    markdown_is_cut_at_its_headings: "markdown",
    restructuredtext_is_cut_at_its_titles: "restructuredtext",
    asciidoc_is_cut_at_its_titles: "asciidoc",
    toml_is_cut_at_its_tables: "toml",
    yaml_is_cut_at_its_keys: "yaml",
    json_is_cut_at_its_keys: "json",
    ini_is_cut_at_its_sections: "ini",
    terraform_is_cut_at_its_blocks: "terraform",
    prose_is_cut_at_its_paragraphs: "prose",
}
