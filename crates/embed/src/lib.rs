//! Sentence embeddings on this machine, from a folder with a BERT model.
//!
//! It knows how such a model computes, and nothing of what its vectors are for. All of it is plain
//! Rust: the network is some products of matrices with a few curves between them.

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
