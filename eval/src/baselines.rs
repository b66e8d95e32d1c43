//! What our search is compared with, all in the same run over the same functions.

pub mod bm25;
pub mod dense;
pub mod ripgrep;

/// For each question what each function is worth; 0 where it is not found at all.
pub type Scores = Vec<Vec<f32>>;

/// Words that nobody would look for; the baselines but plain BM25 leave them out.
pub const SAID_BY_ALL: [&str; 46] = [
    "a", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "do", "does",
    "for", "from", "has", "have", "if", "in", "into", "is", "it", "its", "not", "of", "on", "or",
    "so", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was",
    "when", "where", "which", "will", "with", "you",
];

/// Half of each, after the least is 0 and the most 1 among the functions: the fusion that the
/// literature finds hardest to beat.
pub fn convex(one: &Scores, other: &Scores) -> Scores {
    let half = |scores: &[f32]| {
        let least = scores.iter().copied().fold(f32::INFINITY, f32::min);
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let spread = (most - least).max(f32::MIN_POSITIVE);
        scores.iter().map(|it| (it - least) / spread / 2.0).collect::<Vec<_>>()
    };
    let both = one.iter().zip(other);
    both.map(|(one, other)| half(one).iter().zip(half(other)).map(|(a, b)| a + b).collect())
        .collect()
}

/// In which place, from 1, a function is; `None` where it is not found.
///
/// Of those that are worth the same it is in the middle.
pub fn place(scores: &[f32], unit: usize) -> Option<usize> {
    let worth = scores[unit];
    let above = scores.iter().filter(|it| **it > worth).count();
    let same = scores.iter().filter(|it| **it >= worth).count() - above - 1;
    (worth > 0.0).then_some(above + same / 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_fair_among_equals() {
        let scores = [0.5, 0.0, 2.0, 0.5, 0.5];
        assert_eq!(place(&scores, 2), Some(1));
        assert_eq!(place(&scores, 0), Some(3));
        assert_eq!(place(&scores, 1), None);
    }

    #[test]
    fn a_fusion_weighs_both_the_same() {
        let fused = convex(&vec![vec![0.0, 5.0, 10.0]], &vec![vec![0.9, 0.8, -0.1]]);
        assert!((fused[0][0] - 0.5).abs() < 1e-6, "{fused:?}");
        assert!((fused[0][1] - 0.7).abs() < 1e-6, "{fused:?}");
    }
}
