//! Tests of the search for definitions by name.

use super::*;
use crate::index::NameMatchKind;

fn check(query: &str, expected: &[(&str, NameMatchKind)]) {
    let docs = [
        TestDocument::new(
            "src/parse.rs",
            "parse_header a\n\nParseHeader b\n\nparse_header_map c",
            &["rust"],
        ),
        TestDocument::new("src/session.rs", "Session d\n\nnew e\n\nheaderParser f", &["rust"]),
        TestDocument::new("src/other.rs", "new g\n\ntokenizer h", &["rust"]),
    ];
    let (_index, now) = filled(&docs);
    let named = now.find_named(query, &DocumentFilter::default(), 10).unwrap();
    let found: Vec<(String, NameMatchKind)> = named
        .into_iter()
        .map(|it| (format!("{}:{}", it.summary.path, it.name), it.match_kind))
        .collect();
    let expected: Vec<(String, NameMatchKind)> =
        expected.iter().map(|(name, how)| ((*name).to_owned(), *how)).collect();
    assert_eq!(found, expected, "{query}");
}

#[test]
fn an_exact_name_ranks_before_similar_ones() {
    check(
        "parse_header",
        &[
            ("src/parse.rs:parse_header", NameMatchKind::Exact),
            ("src/parse.rs:parse_header_map", NameMatchKind::Prefix),
            ("src/parse.rs:ParseHeader", NameMatchKind::Words),
            ("src/session.rs:headerParser", NameMatchKind::Words),
        ],
    );
    check(
        "parseheader",
        &[
            ("src/parse.rs:ParseHeader", NameMatchKind::CaseInsensitive),
            ("src/parse.rs:parse_header", NameMatchKind::Words),
        ],
    );
    check(
        "parse_header_*",
        &[
            ("src/parse.rs:parse_header_map", NameMatchKind::Prefix),
            ("src/parse.rs:ParseHeader", NameMatchKind::Words),
            ("src/parse.rs:parse_header", NameMatchKind::Words),
            ("src/session.rs:headerParser", NameMatchKind::Words),
        ],
    );
    check("*", &[]);
    check("tokeniser", &[("src/other.rs:tokenizer", NameMatchKind::Misspelled)]);
    check("Sesion", &[("src/session.rs:Session", NameMatchKind::Misspelled)]);
    check("nex", &[]);
    check("  ", &[]);
}

#[test]
fn the_container_before_a_name_selects_the_match() {
    check(
        "Session::new()",
        &[("src/session.rs:new", NameMatchKind::Exact), ("src/other.rs:new", NameMatchKind::Exact)],
    );
    check(
        "other.new",
        &[("src/other.rs:new", NameMatchKind::Exact), ("src/session.rs:new", NameMatchKind::Exact)],
    );
}

#[test]
fn a_definition_in_code_ranks_before_the_same_name_in_a_test() {
    let docs = [
        TestDocument::new("a_test.rs", "Router a", &["rust", "test"]),
        TestDocument::new("b.rs", "Router b", &["rust"]),
    ];
    let (_index, now) = filled(&docs);
    let named = now.find_named("Router", &DocumentFilter::default(), 10).unwrap();
    let paths: Vec<&str> = named.iter().map(|it| it.summary.path.as_str()).collect();
    assert_eq!(paths, ["b.rs", "a_test.rs"]);
}
