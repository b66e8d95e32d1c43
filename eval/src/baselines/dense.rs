//! Baseline that ranks functions by a sentence model alone, over the unchanged code.

use super::QuestionScores;
use crate::set::EvalPackage;
use crate::vectors::CachedModelVectors;

/// Number of tokens at the start of a function that the model reads.
pub const TOKENS: usize = 128;

/// Returns the score of each function for each question in `questions`: one plus the cosine of
/// their vectors, 0 to 2.
pub fn scores<T: AsRef<str>>(
    package: &EvalPackage,
    questions: &[T],
    vectors: &mut CachedModelVectors,
) -> anyhow::Result<QuestionScores> {
    let bodies: Vec<&str> = package.units.iter().map(|it| it.body.as_str()).collect();
    let units = vectors.embed(&bodies)?;
    let questions = vectors.embed(questions)?;
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let scores_of =
        |question: &Vec<f32>| units.iter().map(|it| 1.0 + cosine(question, it)).collect();
    Ok(questions.iter().map(scores_of).collect())
}
