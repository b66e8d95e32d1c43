//! A sentence model alone, over code as it stands.

use super::Scores;
use crate::set::Package;
use crate::vectors::Vectors;

/// How much of a function the model reads.
pub const TOKENS: usize = 128;

/// What each function of `package` is worth for each of `questions`: cosines, from 0 to 2.
pub fn scores<T: AsRef<str>>(
    package: &Package,
    questions: &[T],
    vectors: &mut Vectors,
) -> anyhow::Result<Scores> {
    let bodies: Vec<&str> = package.units.iter().map(|it| it.body.as_str()).collect();
    let units = vectors.of(&bodies)?;
    let questions = vectors.of(questions)?;
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let of = |question: &Vec<f32>| units.iter().map(|it| 1.0 + cosine(question, it)).collect();
    Ok(questions.iter().map(of).collect())
}
