//! A search index of text chunks, by words and by meaning.
//!
//! The index stores documents and does not read files. Its owner supplies the documents and
//! receives the results.

mod fields;
pub mod document;
pub mod embedder;
pub mod static_model;
pub mod rank;
pub mod vectors;
pub mod index;

pub use document::{ChunkHash, ChunkSummary, DocumentFilter, IndexDocument, is_at_or_below};
pub use embedder::{Embedder, EmbeddingUsage, VectorSpace};
