//! Local sentence embeddings, from a folder with a BERT model.
//!
//! The crate computes vectors and knows nothing of their use. Everything is plain Rust: the network
//! is a sequence of matrix products and elementwise functions.

mod model;
mod wrong;
mod folder;
mod tokens;
mod bert;
mod weights;
mod curves;
mod matrix;
mod kernel;

pub use model::{Failed, Model, ModelFolder, Space};
pub use wrong::NotAModel;
