//! Interface of embedders, which turn texts into vectors.

use std::future::Future;
use std::pin::Pin;

use toolgate_chunks::words::plain_words;

/// Vector space of one embedding model. Only vectors of the same space are comparable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VectorSpace {
    /// Name of the embedding model, including its version.
    pub model: String,
    /// Number of dimensions of the model's vectors.
    pub dimensions: usize,
}

/// Role of a text that is turned into a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingRole {
    /// The text is a search query.
    Query,
    /// The text is content that a search can find.
    Chunk,
}

/// Number of tokens and cost of turning texts into vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EmbeddingUsage {
    /// Number of tokens that the model counted. 0 if the model does not count tokens.
    pub tokens: u64,
    /// Money spent, in the currency of the configured price.
    pub cost: f64,
}

/// Result of turning texts into vectors: one vector of length 1 for each text, in order, and the
/// usage.
pub type EmbeddingResult = Result<(Vec<Vec<f32>>, EmbeddingUsage), EmbedderUnavailable>;

/// Reason why the embedding model returned no vectors. A search by words still works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EmbedderUnavailable(pub String);

/// A model that turns texts into vectors. It is in a folder, or behind an HTTP endpoint.
pub trait Embedder: Send + Sync {
    /// Returns the vector space of the model.
    fn space(&self) -> &VectorSpace;

    /// Returns the maximum number of texts that one call may embed.
    fn batch_max(&self) -> usize;

    /// Turns `texts` into vectors. Dropping the future cancels as much of the work as possible.
    fn embed<'e>(
        &'e self,
        texts: &'e [String],
        role: EmbeddingRole,
    ) -> Pin<Box<dyn Future<Output = EmbeddingResult> + Send + 'e>>;
}

/// Maximum number of bytes of a chunk that an embedding model receives. A model that reads 256
/// tokens needs fewer.
const TEXT_BYTES_MAX: usize = 2_000;

/// Returns the text of a chunk for an embedding model, built from `texts`. It contains the names as
/// plain words, then the doc comment and the body.
pub fn embedding_text(texts: &crate::fields::ChunkTexts<'_>) -> String {
    let [names, within, _, _, doc, body] = texts;
    let mut text = plain_words(names);
    for part in [plain_words(within).as_str(), doc, body] {
        if !part.is_empty() && text.len() < TEXT_BYTES_MAX {
            text.push('\n');
            text.push_str(part);
        }
    }
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or_default());
    text
}
