//! What is looked for, taken apart and weighed by how rare its words are.

use std::collections::HashMap;

use toolgate_chunks::words::concepts;

/// A question in words.
#[derive(Debug, Clone)]
pub struct Question {
    /// As it was asked.
    pub text: String,
    /// What it asks for, each once, in order.
    pub concepts: Vec<Weighed>,
    at: HashMap<String, usize>,
}

/// One word that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    /// The word, as [`toolgate_chunks::words`] spells it.
    pub word: String,
    /// How rare it is: BM25's inverse document frequency.
    pub rarity: f32,
}

/// A question of more words is cut: no one asks for so many things.
pub const CONCEPTS_MAX: usize = 64;

impl Question {
    /// What `text` asks for, of an index with `chunks` chunks, `holding` of which hold a word in any
    /// of their fields.
    pub fn new(text: &str, chunks: u64, mut holding: impl FnMut(&str) -> u64) -> Self {
        let weigh = |word: String| Weighed { rarity: rarity(holding(&word), chunks), word };
        let words = concepts(text).into_iter().map(|it| it.word).take(CONCEPTS_MAX);
        let concepts: Vec<Weighed> = words.map(weigh).collect();
        let at = concepts.iter().enumerate().map(|(at, it)| (it.word.clone(), at)).collect();
        Self { text: text.to_owned(), concepts, at }
    }

    /// Which concept asks for `word`.
    pub fn at(&self, word: &str) -> Option<usize> {
        self.at.get(word).copied()
    }
}

/// BM25's inverse document frequency of a word that `holding` of `chunks` have.
#[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
pub fn rarity(holding: u64, chunks: u64) -> f32 {
    let (holding, chunks) = (holding.min(chunks) as f32, chunks as f32);
    (1.0 + (chunks - holding + 0.5) / (holding + 0.5)).ln()
}
