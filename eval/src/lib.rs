//! Measures how well code search ranks against baselines, and trains its built-in models.
#![allow(
    clippy::disallowed_methods,
    missing_docs,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a tool for developers: it owns the checkout that it runs in and prints for a person"
)]

pub mod run;
pub mod set;
pub mod sources;
pub mod baselines;
pub mod ours;
pub mod vectors;
pub mod measure;
pub mod summary;
pub mod lookup;
pub mod rules;
pub mod commits;
pub mod real_files;
mod chunked;
pub mod page;
pub mod train;
pub mod tools;
