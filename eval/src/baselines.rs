//! Search methods of other projects to compare toolgate's search with, over the same functions in
//! the same run.

pub mod bm25;
pub mod dense;
pub mod ripgrep;

/// Score of each function for each question: the outer list is by question, the inner one by
/// function. The score is 0 if the function is not found.
pub type QuestionScores = Vec<Vec<f32>>;

/// Words that questions contain but nobody searches for. All baselines except plain BM25 ignore
/// them.
pub const STOP_WORDS: [&str; 46] = [
    "a", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "do", "does",
    "for", "from", "has", "have", "if", "in", "into", "is", "it", "its", "not", "of", "on", "or",
    "so", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was",
    "when", "where", "which", "will", "with", "you",
];

/// Returns the average of the scores of two methods, each scaled from 0 to 1 over the functions of
/// a question. The literature finds this fusion hardest to beat.
pub fn convex(one: &QuestionScores, other: &QuestionScores) -> QuestionScores {
    let half = |scores: &[f32]| {
        let min = scores.iter().copied().fold(f32::INFINITY, f32::min);
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let spread = (max - min).max(f32::MIN_POSITIVE);
        scores.iter().map(|it| (it - min) / spread / 2.0).collect::<Vec<_>>()
    };
    let both = one.iter().zip(other);
    both.map(|(one, other)| half(one).iter().zip(half(other)).map(|(a, b)| a + b).collect())
        .collect()
}

/// Returns the rank of the function with the index `unit`, starting at 1, or `None` if its score is
/// 0. A function with the same score as others gets the middle of their ranks.
pub fn rank_of(scores: &[f32], unit: usize) -> Option<usize> {
    let own = scores[unit];
    let above = scores.iter().filter(|it| **it > own).count();
    let same = scores.iter().filter(|it| **it >= own).count() - above - 1;
    (own > 0.0).then_some(above + same / 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_the_same_score_share_the_middle_rank() {
        let scores = [0.5, 0.0, 2.0, 0.5, 0.5];
        assert_eq!(rank_of(&scores, 2), Some(1));
        assert_eq!(rank_of(&scores, 0), Some(3));
        assert_eq!(rank_of(&scores, 1), None);
    }

    #[test]
    fn both_scores_weigh_the_same_in_a_fusion() {
        let fused = convex(&vec![vec![0.0, 5.0, 10.0]], &vec![vec![0.9, 0.8, -0.1]]);
        assert!((fused[0][0] - 0.5).abs() < 1e-6, "{fused:?}");
        assert!((fused[0][1] - 0.7).abs() < 1e-6, "{fused:?}");
    }
}
