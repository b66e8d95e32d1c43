//! BM25F: scores the words of a chunk for a query, by field.

use super::{FIELDS, IndexStatistics, WeightedQuery};

/// Weight of a word occurrence in each field of a chunk.
pub const FIELD_WEIGHTS: [f32; FIELDS] = [3.0, 1.5, 1.5, 1.5, 1.5, 1.0];
/// Length normalization of each field of a chunk (`b` of BM25).
pub const LENGTH_NORMALIZATION: [f32; FIELDS] = [0.5, 0.3, 0.3, 0.5, 0.6, 0.7];
/// Saturation of repeated words (`k1` of BM25): with a smaller value, repetitions count less.
pub const K1: f32 = 1.2;

/// Returns the weight of one word occurrence in each field of a chunk, whose fields have these
/// `lengths` in words.
#[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
pub fn field_weights(averages: &IndexStatistics, lengths: &[u32; FIELDS]) -> [f32; FIELDS] {
    std::array::from_fn(|field| {
        let average = averages.lengths[field].max(1.0);
        let long = 1.0 - LENGTH_NORMALIZATION[field]
            + LENGTH_NORMALIZATION[field] * lengths[field] as f32 / average;
        FIELD_WEIGHTS[field] / long
    })
}

/// Returns the contribution of a word with the weighted count `count` to the score, as a multiple
/// of the word's rarity.
pub fn saturate(count: f32) -> f32 {
    count * (K1 + 1.0) / (K1 + count)
}

/// Returns the score (BM25F) of a chunk with `counts` of each query word by field.
pub fn score(
    question: &WeightedQuery,
    averages: &IndexStatistics,
    counts: &[[u16; FIELDS]],
    lengths: &[u32; FIELDS],
) -> f32 {
    let worths = field_weights(averages, lengths);
    let add = |(concept, counts): (&super::WeightedQueryWord, &[u16; FIELDS])| {
        let count: f32 = counts.iter().zip(worths).map(|(it, worth)| f32::from(*it) * worth).sum();
        concept.rarity * saturate(count)
    };
    question.concepts.iter().zip(counts).map(add).sum()
}

/// Returns the upper bound of all scores: every word of the query with an unlimited count.
pub fn max_score(question: &WeightedQuery) -> f32 {
    question.concepts.iter().map(|it| it.rarity).sum::<f32>() * (K1 + 1.0)
}
