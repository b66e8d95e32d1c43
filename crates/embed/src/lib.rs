//! Local sentence embeddings, from a folder with a BERT model.
//!
//! The crate computes vectors and does not depend on their use. It is plain Rust: the network is a
//! sequence of matrix products and elementwise functions.

mod error;
mod folder;
mod tokens;
mod weights;
mod activations;
mod kernel;
mod matrix;
mod bert;
mod model;

pub use error::ModelFolderError;
pub use model::{CheckedModelFolder, EmbeddingError, EmbeddingModel, ModelVectorSpace};
