//! Computes the features of a candidate that the reranker's network weighs.

use toolgate_chunks::words::identifier_parts;

use super::{ChunkCandidate, ChunkField, FIELDS, IndexStatistics, WeightedQuery, bm25f};
use crate::static_model::{StaticEmbeddingModel, WordVector};

/// Number of features by which the ranking network scores a candidate.
pub const FEATURES: usize = 30;
/// Maximum number of words of a definition's name or signature that features use.
const WORDS_MAX: usize = 24;

/// Returns the features of all `candidates` for the ranking network, in order.
pub fn extract_features(
    table: &StaticEmbeddingModel,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
) -> Vec<[f32; FEATURES]> {
    let concept_vectors: Vec<Option<WordVector>> =
        question.concepts.iter().map(|it| table.word_in_query(&it.word)).collect();
    let lexical: Vec<f32> = candidates
        .iter()
        .map(|it| bm25f::score(question, averages, &it.counts, &it.lengths))
        .collect();
    let near: Vec<f32> = candidates.iter().map(|it| it.static_cosine).collect();
    let model: Vec<f32> = candidates.iter().map(|it| it.model_cosine.unwrap_or(0.0)).collect();
    let best = BestCandidateScores {
        lexical: largest(&lexical),
        near: largest(&near),
        model: largest(&model),
    };
    let places = [reciprocal_ranks(&lexical), reciprocal_ranks(&near), reciprocal_ranks(&model)];
    let look = RankingFeatureExtractor { table, question, query_rows: &concept_vectors, best };
    candidates
        .iter()
        .enumerate()
        .map(|(at, it)| {
            look.features(it, lexical[at], [places[0][at], places[1][at], places[2][at]])
        })
        .collect()
}

/// Best score of all candidates by words, by the built-in vectors and by the configured model's
/// vectors.
#[derive(Clone, Copy)]
struct BestCandidateScores {
    lexical: f32,
    near: f32,
    model: f32,
}

/// Extractor of the features by which the candidates of a search are ranked.
struct RankingFeatureExtractor<'l> {
    table: &'l StaticEmbeddingModel,
    question: &'l WeightedQuery,
    query_rows: &'l [Option<WordVector>],
    best: BestCandidateScores,
}

impl RankingFeatureExtractor<'_> {
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn features(&self, it: &ChunkCandidate, lexical: f32, places: [f32; 3]) -> [f32; FEATURES] {
        let covered = |fields: &[ChunkField]| self.coverage(it, fields);
        // Of several names, the one that matches the query best is used.
        let names = it.summary.names.iter().map(|name| self.name_features(name));
        let name = names.max_by(|a, b| a.total().total_cmp(&b.total())).unwrap_or_default();
        let within = self.distinct_words(&it.summary.within);
        let head = self.distinct_words(std::slice::from_ref(&it.summary.head));
        let soft_within = self.match_similar(&within);
        let soft_head = self.match_similar(&head);
        let model = it.model_cosine.unwrap_or(0.0);
        let all = self.question.concepts.len().max(1) as f32;
        let there = it.counts.iter().filter(|it| it.iter().any(|it| *it > 0)).count() as f32;
        [
            lexical / self.best.lexical.max(1e-6),
            lexical / bm25f::max_score(self.question).max(1e-6),
            places[0],
            it.static_cosine,
            it.static_cosine - self.best.near,
            places[1],
            model,
            model - self.best.model,
            places[2],
            name.covered,
            covered(&[ChunkField::Within]),
            covered(&[ChunkField::Path]),
            covered(&[ChunkField::Head]),
            covered(&[ChunkField::Doc, ChunkField::Body]),
            covered(&super::ALL_FIELDS),
            covered(&[ChunkField::Name, ChunkField::Within]),
            name.share,
            2.0 * name.covered * name.share / (name.covered + name.share).max(1e-6),
            name.similar.covered,
            name.similar.share,
            soft_within.covered,
            soft_within.share,
            soft_head.covered,
            name.first_word.0,
            name.first_word.1,
            (1.0 + it.lengths[ChunkField::Body as usize] as f32).ln(),
            (1.0 + name.parts).ln(),
            there / all,
            all.ln(),
            f32::from(u8::from(it.summary.within.is_empty())),
        ]
    }

    /// Returns the share (0 to 1), weighted by rarity, of the query's words that occur in any of
    /// the `fields` of the candidate `it`.
    fn coverage(&self, it: &ChunkCandidate, fields: &[ChunkField]) -> f32 {
        let mut has = 0.0;
        let mut all = 0.0;
        for (concept, counts) in self.question.concepts.iter().zip(&it.counts) {
            all += concept.rarity;
            if fields.iter().any(|field| counts[*field as usize] > 0) {
                has += concept.rarity;
            }
        }
        has / f32::max(all, 1e-6)
    }

    /// Returns the distinct words of `texts`. An identifier contributes its parts, but not the
    /// complete identifier.
    fn distinct_words<T: AsRef<str>>(&self, texts: &[T]) -> Vec<RankingQueryWord> {
        let mut found: Vec<RankingQueryWord> = Vec::new();
        for text in texts {
            identifier_parts(text.as_ref(), |word| {
                if found.len() < WORDS_MAX && found.iter().all(|it| it.word != word) {
                    found.push(RankingQueryWord {
                        row: self.table.word_in_code(word),
                        concept: self.question.concept_index(word),
                        word: word.to_owned(),
                    });
                }
            });
        }
        found
    }

    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn name_features(&self, name: &str) -> NameMatchFeatures {
        let words = self.distinct_words(&[name]);
        let concepts = words.iter().filter_map(|it| it.concept);
        let has: f32 = concepts.clone().map(|at| self.question.concepts[at].rarity).sum();
        let all: f32 = self.question.concepts.iter().map(|it| it.rarity).sum();
        NameMatchFeatures {
            covered: has / all.max(1e-6),
            share: concepts.count() as f32 / words.len().max(1) as f32,
            similar: self.match_similar(&words),
            first_word: self.match_first(&words),
            parts: words.len() as f32,
        }
    }

    /// Compares `words` with the query, counting similar words in proportion to their similarity.
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    fn match_similar(&self, words: &[RankingQueryWord]) -> WordSimilarityFeatures {
        let mut of_words = vec![0.0_f32; words.len()];
        let mut has = 0.0;
        let mut all = 0.0;
        for (at, concept) in self.question.concepts.iter().enumerate() {
            let mut best = 0.0_f32;
            for (place, word) in words.iter().enumerate() {
                let like = if word.concept == Some(at) { 1.0 } else { self.similarity(at, word) };
                best = best.max(like);
                of_words[place] = of_words[place].max(like);
            }
            has += best * concept.rarity;
            all += concept.rarity;
        }
        WordSimilarityFeatures {
            covered: has / f32::max(all, 1e-6),
            share: of_words.iter().sum::<f32>() / words.len().max(1) as f32,
        }
    }

    fn similarity(&self, concept: usize, word: &RankingQueryWord) -> f32 {
        match (&self.query_rows[concept], &word.row) {
            (Some(query), Some(found)) => query.cosine(found).max(0.0),
            (Some(_) | None, _) => 0.0,
        }
    }

    /// Compares the first word of the query with the first word of a definition's name, usually a
    /// verb. Returns equality (0 or 1) and similarity.
    fn match_first(&self, name: &[RankingQueryWord]) -> (f32, f32) {
        let Some(word) = name.first() else { return (0.0, 0.0) };
        let same = f32::from(u8::from(word.concept == Some(0)));
        let like = if self.query_rows.is_empty() { 0.0 } else { self.similarity(0, word) };
        (same, like.max(same))
    }
}

/// Word of the query with the data that ranking features need.
struct RankingQueryWord {
    word: String,
    row: Option<WordVector>,
    concept: Option<usize>,
}

/// Match of a definition's name with the query.
#[derive(Default)]
struct NameMatchFeatures {
    /// Share of the query's words that the name contains, weighted by rarity, from 0 to 1.
    covered: f32,
    /// Share of the words in a definition's name that are in the query, from 0 to 1.
    share: f32,
    similar: WordSimilarityFeatures,
    /// Match of the first word of the name with that of the query: equality (0 or 1) and
    /// similarity.
    first_word: (f32, f32),
    parts: f32,
}

impl NameMatchFeatures {
    fn total(&self) -> f32 {
        self.covered + self.share + self.similar.covered + self.similar.share
    }
}

/// Features that compare the words of a candidate and the query by their similarity.
#[derive(Clone, Copy, Default)]
struct WordSimilarityFeatures {
    covered: f32,
    share: f32,
}

fn largest(all: &[f32]) -> f32 {
    all.iter().copied().fold(0.0, f32::max)
}

/// Returns the reciprocal rank of each number: 1 for the largest, 1/2 for the second, and so on. A
/// number that is not positive gets 0.
#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn reciprocal_ranks(all: &[f32]) -> Vec<f32> {
    let mut order: Vec<usize> = (0..all.len()).filter(|at| all[*at] > 0.0).collect();
    order.sort_by(|a, b| all[*b].total_cmp(&all[*a]));
    let mut places = vec![0.0; all.len()];
    for (place, at) in order.into_iter().enumerate() {
        places[at] = 1.0 / (1.0 + place as f32);
    }
    places
}

const _: () = assert!(FIELDS == 6, "the features cover each field");
