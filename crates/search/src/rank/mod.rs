//! Which chunks are likeliest meant: from what matches by words and by vectors, the best first.

pub mod question;
pub mod bm25f;
pub mod features;
pub mod network;
mod closer;

pub use question::{Question, Weighed};

use toolgate_chunks::words::words;

use crate::Shown;

/// The parts of a chunk that words are looked for in, each with counts and a length of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Field {
    /// The names it defines.
    Name = 0,
    /// What those stand in: types, modules, headings.
    Within = 1,
    /// The path of its file.
    Path = 2,
    /// How its definition reads.
    Head = 3,
    /// Its doc comment.
    Doc = 4,
    /// All its text but its doc comment; its head is in it.
    Body = 5,
}

/// How many fields there are.
pub const FIELDS: usize = 6;

/// All of them, in order.
pub const ALL: [Field; FIELDS] =
    [Field::Name, Field::Within, Field::Path, Field::Head, Field::Doc, Field::Body];

/// A chunk that may be meant.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which it is, to whoever found it.
    pub key: u64,
    /// For each concept of the question how often its word stands in each field.
    pub counts: Vec<[u16; FIELDS]>,
    /// How many words each field has.
    pub lengths: [u32; FIELDS],
    /// How alike its static vector is to the question's: a cosine.
    pub near: f32,
    /// How alike its vector by the configured model is, where both have one.
    pub model: Option<f32>,
    /// What else is known of it.
    pub shown: Shown,
}

/// The texts of a chunk by field, in the order of [`ALL`].
pub type Texts<'t> = [&'t str; FIELDS];

/// How often the words of `question` stand in `texts`, and how many words those have.
pub fn count(question: &Question, texts: &Texts<'_>) -> (Vec<[u16; FIELDS]>, [u32; FIELDS]) {
    let mut counts = vec![[0_u16; FIELDS]; question.concepts.len()];
    let mut lengths = [0_u32; FIELDS];
    for (field, text) in texts.iter().enumerate() {
        words(text, |word| {
            lengths[field] += 1;
            if let Some(at) = question.at(word) {
                counts[at][field] = counts[at][field].saturating_add(1);
            }
        });
    }
    (counts, lengths)
}

/// What is known of a whole index: by it a count weighs what it does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Averages {
    /// How many chunks there are.
    pub chunks: u64,
    /// How many words each field has on average.
    pub lengths: [f32; FIELDS],
}

/// A candidate's place among the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Which of the candidates.
    pub at: usize,
    /// How likely it is meant, from 0 to 1.
    pub score: f32,
}

/// The candidates in order, the best first, at most `top` of them; among equals in the order of
/// their paths and lines.
///
/// `rerank` takes a closer look; without it, order is by words and vectors alone.
pub fn rank(
    question: &Question,
    averages: &Averages,
    candidates: &[Candidate],
    rerank: bool,
    top: usize,
) -> Vec<Ranked> {
    let scores = match rerank {
        true => closer::scores(question, averages, candidates),
        false => fused(question, averages, candidates),
    };
    let ranked = scores.into_iter().enumerate().map(|(at, score)| Ranked { at, score });
    let mut ranked: Vec<Ranked> = ranked.collect();
    ranked.sort_by(|a, b| {
        let place = |it: &Ranked| (&candidates[it.at].shown.path, candidates[it.at].shown.first);
        b.score.total_cmp(&a.score).then_with(|| place(a).cmp(&place(b)))
    });
    ranked.truncate(top);
    ranked
}

/// What the closer look is called.
pub const RERANK: &str = closer::NAME;

/// Words and vectors, each as a part of the best there is, on average.
fn fused(question: &Question, averages: &Averages, candidates: &[Candidate]) -> Vec<f32> {
    let words = |it: &Candidate| bm25f::score(question, averages, &it.counts, &it.lengths);
    let mut ways = vec![part_of_best(candidates.iter().map(words))];
    ways.push(part_of_best(candidates.iter().map(|it| it.near)));
    if candidates.iter().any(|it| it.model.is_some()) {
        ways.push(part_of_best(candidates.iter().map(|it| it.model.unwrap_or_default())));
    }
    #[allow(clippy::cast_precision_loss, reason = "two or three")]
    let count = ways.len() as f32;
    (0..candidates.len()).map(|at| ways.iter().map(|way| way[at]).sum::<f32>() / count).collect()
}

fn part_of_best(scores: impl Iterator<Item = f32>) -> Vec<f32> {
    let scores: Vec<f32> = scores.map(|it| it.max(0.0)).collect();
    let best = scores.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    scores.into_iter().map(|it| it / best).collect()
}
