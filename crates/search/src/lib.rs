//! A search index of text chunks, by words and by meaning.
//!
//! The index knows documents, not files. Its owner supplies the documents and receives the results.

pub mod document;
pub mod embedder;
pub mod index;
mod fields;
pub mod rank;
pub mod static_model;
pub mod vectors;

pub use document::{ChunkHash, ChunkSummary, DocumentFilter, IndexDocument};
pub use embedder::{Embedder, EmbeddingUsage, VectorSpace};
