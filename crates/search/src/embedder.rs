//! Whoever makes vectors of texts.

use std::future::Future;
use std::pin::Pin;

use toolgate_chunks::words::spelled;

/// The vectors of one model: only those of the same space can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Space {
    /// What the model is called, with what tells its versions apart.
    pub model: String,
    /// How many numbers a vector has.
    pub dimensions: usize,
}

/// What a text is to an embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// What is looked for.
    Query,
    /// What can be found.
    Chunk,
}

/// What making vectors has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens, where the model counts them.
    pub tokens: u64,
    /// Money, in the currency that the settings name a price in.
    pub cost: f64,
}

/// Vectors, one for each text, in order, each of length 1.
pub type Embedded = Result<(Vec<Vec<f32>>, Usage), Away>;

/// Why there are no vectors. What is asked by words is answered all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Away(pub String);

/// Makes vectors of texts: a model in a folder, or at an endpoint.
pub trait Embedder: Send + Sync {
    /// The space of its vectors.
    fn space(&self) -> &Space;

    /// How many texts it takes at once at most.
    fn batch_max(&self) -> usize;

    /// The vectors of `texts`. Dropping the future ends what can be ended.
    fn embed<'e>(
        &'e self,
        texts: &'e [String],
        role: Role,
    ) -> Pin<Box<dyn Future<Output = Embedded> + Send + 'e>>;
}

/// How much of a chunk is told to an embedder, in bytes; more than a model of 256 tokens reads.
const TOLD_BYTES_MAX: usize = 2_000;

/// What an embedder is told of a chunk, of `texts` by field: what it is called, as people write,
/// then what it says.
pub fn told(texts: &crate::rank::Texts<'_>) -> String {
    let [names, within, _, _, doc, body] = texts;
    let mut told = spelled(names);
    for part in [spelled(within).as_str(), doc, body] {
        if !part.is_empty() && told.len() < TOLD_BYTES_MAX {
            told.push('\n');
            told.push_str(part);
        }
    }
    let end = (0..=TOLD_BYTES_MAX.min(told.len())).rev().find(|at| told.is_char_boundary(*at));
    told.truncate(end.unwrap_or_default());
    told
}
