//! Ranks chunks by how well their words and vectors match a query.

pub mod question;
pub mod bm25f;
pub mod features;
pub mod network;
mod reranker;

pub use crate::fields::{ALL_FIELDS, ChunkField, ChunkTexts, FIELDS};
pub use question::{WeighedConcept, WeighedQuestion};

use toolgate_chunks::words::words;

use crate::ChunkSummary;

/// A chunk that may match a query.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Key that the index assigned to the chunk.
    pub key: u64,
    /// Number of occurrences of each concept's word in each field.
    pub counts: Vec<[u16; FIELDS]>,
    /// Number of words in each field.
    pub lengths: [u32; FIELDS],
    /// Cosine of the chunk's and the query's static vectors.
    pub static_cosine: f32,
    /// Cosine of the chunk's and the query's model vectors, if both exist.
    pub model_cosine: Option<f32>,
    /// Description of the chunk for search results.
    pub summary: ChunkSummary,
}

/// Counts the words of `question` in each of `texts`, and the total words of each text.
pub fn count_words(
    question: &WeighedQuestion,
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
    /// Number of chunks.
    pub chunks: u64,
    /// Average number of words in each field.
    pub lengths: [f32; FIELDS],
}

/// Rank of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedCandidate {
    /// Index in the list of candidates.
    pub index: usize,
    /// Estimated probability that the candidate matches, from 0 to 1. If only vectors are compared,
    /// the cosine from -1 to 1.
    pub score: f32,
}

/// Ranks the candidates, and returns at most `top` of them, the best first. Equal candidates are
/// ordered by path and line.
///
/// If `rerank` is set, a network scores them. Otherwise, the order follows from words and vectors
/// alone.
pub fn rank(
    question: &WeighedQuestion,
    averages: &IndexStatistics,
    candidates: &[Candidate],
    rerank: bool,
    top: usize,
) -> Vec<RankedCandidate> {
    let scores = match rerank {
        true => reranker::match_probabilities(question, averages, candidates),
        false => fused_scores(question, averages, candidates),
    };
    let ranked =
        scores.into_iter().enumerate().map(|(at, score)| RankedCandidate { index: at, score });
    let mut ranked: Vec<RankedCandidate> = ranked.collect();
    ranked.sort_by(|a, b| {
        let place = |it: &RankedCandidate| {
            (&candidates[it.index].summary.path, candidates[it.index].summary.first)
        };
        b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
    });
    ranked.truncate(top);
    ranked
}

/// Name of the reranker.
pub const RERANK_METHOD: &str = reranker::RERANKER_NAME;

/// Averages the score by words and the score by vectors, each relative to the best score.
fn fused_scores(
    question: &WeighedQuestion,
    averages: &IndexStatistics,
    candidates: &[Candidate],
) -> Vec<f32> {
    let words = |it: &Candidate| bm25f::score(question, averages, &it.counts, &it.lengths);
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
