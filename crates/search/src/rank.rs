//! Ranks chunks by how well their words and vectors match a query.

pub mod literals;
pub mod question;
pub mod bm25f;
pub mod features;
pub mod network;
pub mod rules;
pub mod by_file;
mod reranker;

pub use crate::fields::{ALL_FIELDS, ChunkField, ChunkTexts, FIELDS};
pub use by_file::{RankedFile, group_by_file, rank_files};
pub use literals::{ExactMatchLevel, QueryLiterals};
pub use question::{WeightedQuery, WeightedQueryWord};
pub use rules::RankingRules;

use toolgate_chunks::words::words;

use crate::ChunkSummary;

/// A chunk of an index that may match a query.
#[derive(Debug, Clone)]
pub struct ChunkCandidate {
    /// Key of the chunk in the index.
    pub key: u64,
    /// Number of occurrences of each word of the query in each field of the chunk.
    pub counts: Vec<[u16; FIELDS]>,
    /// Number of words in each field of the chunk.
    pub lengths: [u32; FIELDS],
    /// Cosine, from -1 to 1, of the chunk's and the query's vectors by the built-in model. 0 if a
    /// vector is missing.
    pub static_cosine: f32,
    /// Cosine, from -1 to 1, of the chunk's and the query's vectors by the configured model, if
    /// both vectors exist.
    pub model_cosine: Option<f32>,
    /// Description of the chunk for search results.
    pub summary: ChunkSummary,
}

/// Counts the words of `question` in each of `texts`, and the total words of each text.
pub fn count_words(
    question: &WeightedQuery,
    texts: &ChunkTexts<'_>,
) -> (Vec<[u16; FIELDS]>, [u32; FIELDS]) {
    let mut counts = vec![[0_u16; FIELDS]; question.concepts.len()];
    let mut lengths = [0_u32; FIELDS];
    for (field, text) in texts.iter().enumerate() {
        words(text, |word| {
            lengths[field] += 1;
            if let Some(at) = question.concept_index(word) {
                counts[at][field] = counts[at][field].saturating_add(1);
            }
        });
    }
    (counts, lengths)
}

/// Statistics of an index, from which word weights are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IndexStatistics {
    /// Number of chunks in the index.
    pub chunks: u64,
    /// Average number of words in each field of a chunk.
    pub lengths: [f32; FIELDS],
}

/// A candidate in the ranking of a search, with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedCandidate {
    /// Index of the candidate in the list of candidates that was ranked.
    pub index: usize,
    /// Estimated probability that the candidate matches, from 0 to 1. If only vectors are compared,
    /// the cosine from -1 to 1.
    pub score: f32,
}

/// Ranks the candidates of a search by [`RankingRules::TOOLS`], and returns at most `top` of them,
/// the best first. See [`rank_by_rules`].
pub fn rank(
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
    rerank: bool,
    top: usize,
) -> Vec<RankedCandidate> {
    rank_by_rules(&RankingRules::TOOLS, question, averages, candidates, rerank, top)
}

/// Ranks the candidates of a search, and returns at most `top` of them, the best first. Equal
/// candidates are ordered by path and line.
///
/// If `rerank` is set, a network scores them, and a candidate that matches a name or path of the
/// query exactly comes before all others. Otherwise, the order follows from words and vectors
/// alone.
pub fn rank_by_rules(
    rules: &RankingRules,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
    rerank: bool,
    top: usize,
) -> Vec<RankedCandidate> {
    let mut placed = place_candidates(rules, question, averages, candidates, rerank);
    placed.truncate(top);
    spread_scores(placed)
}

/// A candidate with the two numbers that decide its rank: exactness and score.
#[derive(Debug, Clone, Copy)]
struct ScoredCandidate {
    index: usize,
    exact: ExactMatchLevel,
    score: f32,
}

/// Returns the candidates in the order of their rank, the best first.
fn place_candidates(
    rules: &RankingRules,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
    rerank: bool,
) -> Vec<ScoredCandidate> {
    let scores = match rerank {
        true => reranker::match_probabilities(rules, question, averages, candidates),
        false => fused_scores(question, averages, candidates),
    };
    let is_exact_first = rerank && rules.exact_first && !question.literals.is_empty();
    let exact = |it: &ChunkCandidate| match is_exact_first {
        true => question.literals.exact_match(question, it),
        false => ExactMatchLevel::Near,
    };
    let scored = candidates.iter().zip(scores).enumerate();
    let mut placed: Vec<ScoredCandidate> = scored
        .map(|(index, (it, score))| ScoredCandidate { index, exact: exact(it), score })
        .collect();
    placed.sort_by(|a, b| {
        let place = |it: &ScoredCandidate| {
            (&candidates[it.index].summary.path, candidates[it.index].summary.first)
        };
        let by_score = b.score.total_cmp(&a.score);
        b.exact.cmp(&a.exact).then(by_score).then_with(|| place(a).cmp(&place(b)))
    });
    placed
}

/// Converts each candidate's exactness and score to one score from 0 to 1. Sorting by this score
/// gives the order of `placed`.
fn spread_scores(placed: Vec<ScoredCandidate>) -> Vec<RankedCandidate> {
    let levels = placed.first().map_or(0, |it| it.exact as u8);
    let ranked = placed.into_iter().map(|ScoredCandidate { index, exact, score }| {
        let score = match levels {
            0 => score,
            _ => (f32::from(exact as u8) + score) / f32::from(levels + 1),
        };
        RankedCandidate { index, score }
    });
    ranked.collect()
}

/// Name of the network that ranks the candidates.
pub const RERANK_METHOD: &str = reranker::RERANKER_NAME;

/// Returns a score for each candidate: the average of its score by words and its score by vectors,
/// each relative to the best candidate's score.
fn fused_scores(
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
) -> Vec<f32> {
    let words = |it: &ChunkCandidate| bm25f::score(question, averages, &it.counts, &it.lengths);
    let mut scores_by_method = vec![relative_to_best(candidates.iter().map(words))];
    scores_by_method.push(relative_to_best(candidates.iter().map(|it| it.static_cosine)));
    if candidates.iter().any(|it| it.model_cosine.is_some()) {
        scores_by_method.push(relative_to_best(
            candidates.iter().map(|it| it.model_cosine.unwrap_or_default()),
        ));
    }
    #[allow(clippy::cast_precision_loss, reason = "two or three")]
    let count = scores_by_method.len() as f32;
    (0..candidates.len())
        .map(|at| scores_by_method.iter().map(|way| way[at]).sum::<f32>() / count)
        .collect()
}

fn relative_to_best(scores: impl Iterator<Item = f32>) -> Vec<f32> {
    let scores: Vec<f32> = scores.map(|it| it.max(0.0)).collect();
    let best = scores.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    scores.into_iter().map(|it| it / best).collect()
}
