//! BM25F: how well a chunk's words answer a question's, by field.

use super::{Averages, FIELDS, Question};

/// What a word counts in each field.
pub const WEIGHTS: [f32; FIELDS] = [3.0, 1.5, 1.5, 1.5, 1.5, 1.0];
/// How much a long field is held against its words.
pub const LONG: [f32; FIELDS] = [0.5, 0.3, 0.3, 0.5, 0.6, 0.7];
/// How soon a word that comes again counts no more.
pub const K1: f32 = 1.2;

/// What each field's counts are worth in a chunk whose fields have `lengths` words.
#[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
pub fn worths(averages: &Averages, lengths: &[u32; FIELDS]) -> [f32; FIELDS] {
    std::array::from_fn(|field| {
        let average = averages.lengths[field].max(1.0);
        let long = 1.0 - LONG[field] + LONG[field] * lengths[field] as f32 / average;
        WEIGHTS[field] / long
    })
}

/// What a word that counts so much in all fields together adds, as a part of its rarity.
pub fn saturated(count: f32) -> f32 {
    count * (K1 + 1.0) / (K1 + count)
}

/// The score of a chunk with `counts` of each concept by field.
pub fn score(
    question: &Question,
    averages: &Averages,
    counts: &[[u16; FIELDS]],
    lengths: &[u32; FIELDS],
) -> f32 {
    let worths = worths(averages, lengths);
    let add = |(concept, counts): (&super::Weighed, &[u16; FIELDS])| {
        let count: f32 = counts.iter().zip(worths).map(|(it, worth)| f32::from(*it) * worth).sum();
        concept.rarity * saturated(count)
    };
    question.concepts.iter().zip(counts).map(add).sum()
}

/// The score that no chunk exceeds: every word of the question as often as can be.
pub fn most(question: &Question) -> f32 {
    question.concepts.iter().map(|it| it.rarity).sum::<f32>() * (K1 + 1.0)
}
