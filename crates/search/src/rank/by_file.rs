//! Ranks files by their chunks.

use std::collections::HashMap;

use super::{
    ChunkCandidate, IndexStatistics, RankedCandidate, RankingRules, ScoredCandidate, WeightedQuery,
    place_candidates, spread_scores,
};

/// Maximum number of chunks of a file that are scored and returned in addition to the file's best
/// chunk.
pub const MORE_MAX: usize = 3;
/// Smallest score of an additional chunk of a file, as a share of the score of the file's best
/// chunk.
const MORE_SCORE_SHARE_MIN: f32 = 0.25;

/// A file in the search result, and its best chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedFile {
    /// The best chunk of the file, with the score of the file.
    pub best: RankedCandidate,
    /// Indexes of additional chunks of the file in the list of candidates, the best first. At most
    /// [`MORE_MAX`].
    pub more: Vec<usize>,
}

impl From<RankedCandidate> for RankedFile {
    /// Creates the result for a file of which only one chunk was found.
    fn from(best: RankedCandidate) -> Self {
        Self { best, more: Vec::new() }
    }
}

/// Ranks the files of the candidates, and returns at most `top` of them, the best first. Additional
/// good chunks of a file improve its rank. Exact matches come first, as in
/// [`super::rank_by_rules`].
pub fn rank_files(
    rules: &RankingRules,
    question: &WeightedQuery,
    averages: &IndexStatistics,
    candidates: &[ChunkCandidate],
    rerank: bool,
    top: usize,
) -> Vec<RankedFile> {
    let placed = place_candidates(rules, question, averages, candidates, rerank);
    let mut files: Vec<(ScoredCandidate, Vec<usize>)> = group(placed, candidates)
        .into_iter()
        .map(|chunks| {
            let best = chunks[0];
            let score = file_score(rules.more_chunks_weight, chunks.iter().map(|it| it.score));
            let is_good = |it: &&ScoredCandidate| it.score >= MORE_SCORE_SHARE_MIN * best.score;
            let more = chunks[1..].iter().filter(is_good).take(MORE_MAX).map(|it| it.index);
            (ScoredCandidate { score, ..best }, more.collect())
        })
        .collect();
    // The sort is stable: among equal files, that with the better chunk stays first.
    files.sort_by(|(a, _), (b, _)| b.exact.cmp(&a.exact).then(b.score.total_cmp(&a.score)));
    files.truncate(top);
    let (best, more): (Vec<ScoredCandidate>, Vec<Vec<usize>>) = files.into_iter().unzip();
    let ranked = spread_scores(best).into_iter().zip(more);
    ranked.map(|(best, more)| RankedFile { best, more }).collect()
}

/// Groups the candidates `ranked` by file and keeps the order of the best chunks. Returns at most
/// `top` files.
pub fn group_by_file(
    ranked: Vec<RankedCandidate>,
    candidates: &[ChunkCandidate],
    top: usize,
) -> Vec<RankedFile> {
    let mut files: Vec<RankedFile> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for it in ranked {
        let path = candidates[it.index].summary.path.as_str();
        match places.get(path) {
            Some(at) if files[*at].more.len() < MORE_MAX => files[*at].more.push(it.index),
            Some(_) => {}
            None => {
                places.insert(path, files.len());
                files.push(it.into());
            }
        }
    }
    files.truncate(top);
    files
}

/// Groups the candidates by file, in order. The order of the files is that of their best chunks.
fn group(placed: Vec<ScoredCandidate>, candidates: &[ChunkCandidate]) -> Vec<Vec<ScoredCandidate>> {
    let mut files: Vec<Vec<ScoredCandidate>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for it in placed {
        let path = candidates[it.index].summary.path.as_str();
        let at = *places.entry(path).or_insert(files.len());
        match files.get_mut(at) {
            Some(chunks) => chunks.push(it),
            None => files.push(vec![it]),
        }
    }
    files
}

/// Returns the score of a file from the `scores` of its best chunks: the probability that any of
/// these chunks matches, if they were independent. `weight` applies to every score but the first.
fn file_score(weight: f32, scores: impl Iterator<Item = f32>) -> f32 {
    let misses = scores.take(1 + MORE_MAX).enumerate().map(|(at, score)| match at {
        0 => 1.0 - score,
        _ => 1.0 - weight * score,
    });
    1.0 - misses.product::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_chunks_raise_the_score_of_a_file_and_it_stays_a_probability() {
        let score = |scores: &[f32]| file_score(0.3, scores.iter().copied());
        assert!((score(&[0.5]) - 0.5).abs() < 1e-6);
        assert!(score(&[0.5, 0.4]) > score(&[0.5, 0.1]));
        assert!(score(&[0.5, 0.4]) < score(&[0.7]));
        assert!(score(&[1.0, 1.0, 1.0, 1.0, 1.0]) <= 1.0);
        assert!((score(&[0.5, 0.4, 0.4, 0.4]) - score(&[0.5, 0.4, 0.4, 0.4, 0.4])).abs() < 1e-6);
    }
}
