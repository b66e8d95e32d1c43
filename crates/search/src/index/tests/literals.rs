//! Tests that exact names and paths rank before similar ones.

use super::*;
use crate::rank::{RankingRules, rank, rank_files};

/// Checks that the best chunks of `docs` for `query` are `expected`, written as `PATH:LINE`. The
/// searches by words and by vectors return only one candidate each.
fn check(docs: &[(&str, &str)], query: &str, expected: &[&str]) {
    let docs: Vec<TestDocument> =
        docs.iter().map(|(path, text)| TestDocument::new(path, text, &[])).collect();
    let (_index, now) = filled(&docs);
    let question = now.weigh_question(query).unwrap();
    let found = ask(&now, &question, &DocumentFilter::default(), 1).candidates;
    let ranked = rank(&question, &now.statistics(), &found, true, expected.len());
    assert!(ranked.is_sorted_by(|a, b| a.score >= b.score), "{ranked:?}");
    let places: Vec<String> = ranked
        .iter()
        .map(|it| &found[it.index].summary)
        .map(|it| format!("{}:{}", it.path, it.first))
        .collect();
    assert_eq!(places, expected, "{query}");
}

#[test]
fn a_definition_with_the_exact_name_ranks_first_and_one_in_another_case_second() {
    let docs = [
        ("a.rs", "tokenize tokenizer tokenize tokenizer tokenize"),
        ("b.rs", "tokenizer makes one"),
        ("c.rs", "Tokenizer with a long body that says something else and more of it"),
    ];
    check(&docs, "Tokenizer", &["c.rs:1", "b.rs:1"]);
    check(&docs, "tokenizer", &["b.rs:1", "c.rs:1"]);
}

#[test]
fn a_name_is_found_first_by_its_words_in_order() {
    let docs = [
        ("a.rs", "read_json json reader json reader json reader"),
        ("b.rs", "JsonReader with a long body that says something else and more of it"),
        ("c.rs", "readerjson other"),
    ];
    check(&docs, "json reader", &["b.rs:1", "a.rs:1"]);
}

#[test]
fn a_file_is_found_by_its_name_or_path_even_if_others_have_its_words_more_often() {
    let docs = [
        ("web/vitest/config.ts", "vitest config ts vitest config ts vitest config ts"),
        ("web/vitest.config.ts", "defineConfig something else"),
        ("old/vitest.config.ts", "oldConfig something else"),
    ];
    check(&docs, "web/vitest.config.ts", &["web/vitest.config.ts:1"]);
    check(&docs, "old/vitest.config.ts", &["old/vitest.config.ts:1"]);
}

#[test]
fn the_rest_of_a_query_selects_the_place_in_the_file_that_it_begins_with() {
    let docs = [
        ("src/linker.c", "linker_stub stub for the linker, a stub for the linker"),
        ("src/unix/aix.c", "open_file reads all\n\nload_symbols stub for the linker"),
    ];
    check(&docs, "aix.c: stub for the linker", &["src/unix/aix.c:3", "src/unix/aix.c:1"]);
}

#[test]
fn a_filter_also_applies_to_exact_names_and_paths() {
    let docs = [
        TestDocument::new("src/a.rs", "Router one", &["rust"]),
        TestDocument::new("web/a.rs", "Router two", &["rust"]),
    ];
    let (_index, now) = filled(&docs);
    for query in ["Router", "a.rs"] {
        let question = now.weigh_question(query).unwrap();
        let filter = DocumentFilter { prefixes: vec!["web".to_owned()], tags: Vec::new() };
        let found = ask(&now, &question, &filter, 1).candidates;
        assert_eq!(paths(&found), ["web/a.rs"], "{query}");
    }
}

#[test]
fn a_file_is_one_result_with_its_best_chunk_and_up_to_three_others() {
    let one = "parse_a the header\n\nparse_b the header\n\nparse_c the header\n\n\
               parse_d the header\n\nparse_e the header";
    let docs = [
        TestDocument::new("many.rs", one, &[]),
        TestDocument::new("few.rs", "parse_f the header", &[]),
    ];
    let (_index, now) = filled(&docs);
    let question = now.weigh_question("parse the header").unwrap();
    let found = ask(&now, &question, &DocumentFilter::default(), 100).candidates;
    let rules = RankingRules::TOOLS;
    let files = rank_files(&rules, &question, &now.statistics(), &found, true, 10);
    let shown: Vec<(&str, usize)> = files
        .iter()
        .map(|it| (found[it.best.index].summary.path.as_str(), it.more.len()))
        .collect();
    assert_eq!(shown, [("many.rs", 3), ("few.rs", 0)]);
    assert!(files.iter().all(|it| it.best.score > 0.0 && it.best.score <= 1.0), "{files:?}");
}
