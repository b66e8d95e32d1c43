//! Splits a search query into words and weighs them by rarity.

use std::collections::HashMap;

use toolgate_chunks::words::concepts;

use super::literals::QueryLiterals;

/// A parsed search query with the weights of its words.
#[derive(Debug, Clone)]
pub struct WeightedQuery {
    /// Original text of the query.
    pub text: String,
    /// Distinct words of the query, in order.
    pub concepts: Vec<WeightedQueryWord>,
    /// Names and paths that the query spells out.
    pub literals: QueryLiterals,
    index_by_word: HashMap<String, usize>,
}

/// One word of a query and its weight in an index.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedQueryWord {
    /// The word, as [`toolgate_chunks::words`] spells it.
    pub word: String,
    /// Rarity of the word: BM25's inverse document frequency.
    pub rarity: f32,
}

/// Maximum number of words of a query. Further words are ignored.
pub const CONCEPTS_MAX: usize = 64;

impl WeightedQuery {
    /// Parses the query `text` for an index with `chunks` chunks. `holding` returns the number of
    /// chunks that contain a word.
    pub fn new(text: &str, chunks: u64, mut holding: impl FnMut(&str) -> u64) -> Self {
        let weigh =
            |word: String| WeightedQueryWord { rarity: rarity(holding(&word), chunks), word };
        let words = concepts(text).into_iter().map(|it| it.word).take(CONCEPTS_MAX);
        let concepts: Vec<WeightedQueryWord> = words.map(weigh).collect();
        let index_by_word =
            concepts.iter().enumerate().map(|(at, it)| (it.word.clone(), at)).collect();
        let literals = QueryLiterals::parse(text);
        Self { text: text.to_owned(), concepts, literals, index_by_word }
    }

    /// Returns the index of `word` among the words of the query. `None` if the query does not
    /// contain `word`.
    pub fn concept_index(&self, word: &str) -> Option<usize> {
        self.index_by_word.get(word).copied()
    }
}

/// Returns BM25's inverse document frequency of a word that occurs in `holding` of `chunks` chunks:
/// `ln(1 + (chunks - holding + 0.5) / (holding + 0.5))`.
#[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
pub fn rarity(holding: u64, chunks: u64) -> f32 {
    let holding = holding.min(chunks) as f32;
    let chunks = chunks as f32;
    (1.0 + (chunks - holding + 0.5) / (holding + 0.5)).ln()
}
