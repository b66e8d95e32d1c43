//! Tests that a search with a filter returns the best of exactly the documents that match the
//! filter.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn path() -> impl Strategy<Value = String> {
    let folder = prop::sample::select(&["src/", "src/a/", "tests/", "", "ünï/", "s"][..]);
    (folder, "[a-c]{1,2}").prop_map(|(folder, name)| format!("{folder}{name}.rs"))
}

fn tags() -> impl Strategy<Value = Vec<String>> {
    let tag = prop::sample::select(&["rust", "Test", "DOCS"][..]);
    vec(tag.prop_map(str::to_owned), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_filter_is_exact_and_applies_before_the_selection(
        docs in vec((path(), tags(), 0_usize..9), 1..25),
        deleted in vec(0_usize..25, 0..4),
        prefixes in vec(prop::sample::select(&["src/", "s", "src/a", "tests/b", "ü", "zzz", ""][..]), 0..3),
        wanted in vec(prop::sample::select(&["rust", "TEST", "docs"][..]), 0..2),
        limit in 1_usize..10,
    ) {
        let docs: Vec<TestDocument> = docs
            .into_iter()
            .map(|(path, tags, filler)| {
                let text = format!("word {}", "filler ".repeat(filler));
                TestDocument { path, text, tags }
            })
            .collect();
        let (index, _) = filled(&docs);
        let mut writer = index.writer().unwrap().unwrap();
        for doc in deleted.iter().filter_map(|at| docs.get(*at)) {
            writer.remove(&doc.path).unwrap();
        }
        writer.commit().unwrap();
        let now = index.snapshot().unwrap();
        let filter = DocumentFilter {
            prefixes: prefixes.into_iter().map(str::to_owned).collect(),
            tags: wanted.into_iter().map(str::to_owned).collect(),
        };
        // The query spells out no name, so that the limit holds.
        let question = now.weigh_question("the word").unwrap();
        let all = ask(&now, &question, &DocumentFilter::default(), usize::MAX);
        let fits = |it: &&ChunkCandidate| filter.matches(&it.summary.path, &it.summary.tags);
        let mut fitting: Vec<u64> = all.candidates.iter().filter(fits).map(|it| it.key).collect();
        let found = ask(&now, &question, &filter, usize::MAX);
        let mut keys: Vec<u64> = found.candidates.iter().map(|it| it.key).collect();
        fitting.sort_unstable();
        keys.sort_unstable();
        prop_assert_eq!(&keys, &fitting);
        prop_assert_eq!(found.total, keys.len() as u64);
        let few = ask(&now, &question, &filter, limit);
        prop_assert_eq!(few.candidates.len(), limit.min(keys.len()));
        let names = now.find_named("word", &filter, usize::MAX).unwrap();
        prop_assert_eq!(names.len(), keys.len());
        prop_assert!(names.iter().all(|it| filter.matches(&it.summary.path, &it.summary.tags)));
        // Static vectors find the same chunks, because every chunk here has one.
        let near = crate::static_model::embed_query("word filler").unwrap();
        let sought = CandidateSearchQuery { static_vector: Some(&near), model_vector: None, filter: &filter, limit: 1_000 };
        let near = now.candidates(None, &sought, &|| true).unwrap();
        prop_assert!(near.candidates.iter().all(|it| filter.matches(&it.summary.path, &it.summary.tags)));
        prop_assert_eq!(near.candidates.len(), keys.len());
    }
}
