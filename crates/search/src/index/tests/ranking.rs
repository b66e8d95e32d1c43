//! Tests that the first stage of a search gives exactly the BM25F scores over all fields of every
//! chunk.

use proptest::collection::vec;
use proptest::prelude::*;
use tantivy::fieldnorm::FieldNormReader;

use super::*;
use crate::rank::{ALL_FIELDS, FIELDS, bm25f, count_words};

const WORDS: [&str; 12] = [
    "parse",
    "http_header",
    "HeaderMap",
    "error",
    "fn",
    "Vec",
    "session",
    "stored",
    "cache",
    "x2",
    "größe",
    "認証",
];

fn text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(&WORDS[..]);
    let line = vec(word, 0..12).prop_map(|words| words.join(" "));
    vec(line, 1..6).prop_map(|lines| lines.join("\n\n"))
}

fn about(length: u32) -> u32 {
    FieldNormReader::id_to_fieldnorm(FieldNormReader::fieldnorm_to_id(length))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn the_best_chunks_by_words_equal_those_of_a_full_scan(
        texts in vec(text(), 1..12),
        query in vec(prop::sample::select(&WORDS[..]), 1..5),
        limit in 1_usize..20,
    ) {
        let docs: Vec<TestDocument> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| TestDocument::new(&format!("src/file_{at}.rs"), text, &[]))
            .collect();
        let (_index, now) = filled(&docs);
        let question = now.weigh_question(&query.join(" ")).unwrap();
        let averages = now.statistics();
        let mut scores = Vec::new();
        let mut all_lengths = [0.0_f32; FIELDS];
        for doc in &docs {
            let chunks = doc.chunks();
            for chunk in &chunks {
                let document = doc.document(b"", &chunks);
                let texts = document.texts(chunk);
                let (counts, lengths) = count_words(&question, &borrow_texts(&texts));
                for field in ALL_FIELDS {
                    all_lengths[field as usize] += lengths[field as usize] as f32;
                }
                let score = bm25f::score(&question, &averages, &counts, &lengths.map(about));
                if score > 0.0 {
                    scores.push((doc.path.clone(), chunk.first, counts, score));
                }
            }
        }
        // A document with only empty texts has no chunk.
        let chunks = averages.chunks.max(1) as f32;
        for field in ALL_FIELDS {
            let ours = averages.lengths[field as usize];
            let theirs = all_lengths[field as usize] / chunks;
            prop_assert!((ours - theirs).abs() <= 0.001 * theirs.max(1.0), "{field:?} {ours} {theirs}");
        }
        scores.sort_by(|a, b| b.3.total_cmp(&a.3));
        let found = ask(&now, &question, &DocumentFilter::default(), limit);
        prop_assert_eq!(found.total, scores.len() as u64);
        prop_assert!(found.candidates.len() >= limit.min(scores.len()));
        // The choice among equal scores is unspecified.
        let least = scores.get(limit - 1).map_or(0.0, |it| it.3) * 0.9999;
        for candidate in &found.candidates {
            let shown = &candidate.summary;
            let same = |it: &&(String, u32, Vec<[u16; FIELDS]>, f32)| it.0 == shown.path && it.1 == shown.first;
            let (_, _, counts, score) = scores.iter().find(same).unwrap();
            prop_assert_eq!(counts, &candidate.counts);
            // Definitions of a requested name are candidates in any case.
            let is_named = question.literals.is_defined_by(shown);
            prop_assert!(*score >= least || is_named, "{} is not among the best", score);
        }
    }
}

#[test]
fn several_segments_rank_like_one() {
    let docs: Vec<TestDocument> = (0..30)
        .map(|at| {
            let text = format!("parse {}\n\nheader parse {at}", "filler ".repeat(at));
            TestDocument::new(&format!("f{at:02}"), &text, &[])
        })
        .collect();
    let (_one, at_once) = filled(&docs);
    let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    for few in docs.chunks(7) {
        few.iter().for_each(|doc| doc.put(&mut writer, b"1"));
        writer.commit().unwrap();
    }
    let in_parts = index.snapshot().unwrap();
    assert!(in_parts.inner.segments.len() > 1);
    assert_eq!(in_parts.statistics(), at_once.statistics());
    let sorted = |snapshot: &IndexSnapshot| {
        let question = snapshot.weigh_question("parse header").unwrap();
        let found = ask(snapshot, &question, &DocumentFilter::default(), 10);
        let mut paths: Vec<String> =
            found.candidates.into_iter().map(|it| it.summary.path).collect();
        paths.sort();
        paths
    };
    assert_eq!(sorted(&in_parts), sorted(&at_once));
}
