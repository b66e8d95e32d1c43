//! An index of chunks that can be searched by words and by meaning.
//!
//! It knows documents, not files: whoever owns it says what is in it and hears what was found.

pub mod document;
pub mod embedder;
pub mod index;
pub mod rank;
pub mod static_model;
pub mod vectors;

pub use document::{ChunkHash, Document, Filter, Shown};
pub use embedder::{Embedder, Space, Usage};
