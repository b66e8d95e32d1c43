//! Definitions are found by what they are called.

use super::*;
use crate::index::How;

fn check(query: &str, expected: &[(&str, How)]) {
    let docs = [
        Doc::new(
            "src/parse.rs",
            "parse_header a\n\nParseHeader b\n\nparse_header_map c",
            &["rust"],
        ),
        Doc::new("src/session.rs", "Session d\n\nnew e\n\nheaderParser f", &["rust"]),
        Doc::new("src/other.rs", "new g\n\ntokenizer h", &["rust"]),
    ];
    let (_index, now) = filled(&docs);
    let named = now.named(query, &Filter::default(), 10).unwrap();
    let found: Vec<(String, How)> =
        named.into_iter().map(|it| (format!("{}:{}", it.shown.path, it.name), it.how)).collect();
    let expected: Vec<(String, How)> =
        expected.iter().map(|(name, how)| ((*name).to_owned(), *how)).collect();
    assert_eq!(found, expected, "{query}");
}

#[test]
fn the_very_name_comes_before_what_is_like_it() {
    check(
        "parse_header",
        &[
            ("src/parse.rs:parse_header", How::Exact),
            ("src/parse.rs:parse_header_map", How::Prefix),
            ("src/parse.rs:ParseHeader", How::Words),
            ("src/session.rs:headerParser", How::Words),
        ],
    );
    check(
        "parseheader",
        &[("src/parse.rs:ParseHeader", How::Case), ("src/parse.rs:parse_header", How::Words)],
    );
    check("tokeniser", &[("src/other.rs:tokenizer", How::Misspelt)]);
    check("Sesion", &[("src/session.rs:Session", How::Misspelt)]);
    check("nex", &[]);
    check("  ", &[]);
}

#[test]
fn what_stands_before_the_name_tells_which_is_meant() {
    check(
        "Session::new()",
        &[("src/session.rs:new", How::Exact), ("src/other.rs:new", How::Exact)],
    );
    check("other.new", &[("src/other.rs:new", How::Exact), ("src/session.rs:new", How::Exact)]);
}
