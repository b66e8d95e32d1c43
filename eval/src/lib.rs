//! How well code search ranks: the set of questions, what it is compared with, what learns from it.
#![allow(
    clippy::disallowed_methods,
    missing_docs,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a developer's tool, which owns the checkout it runs in and talks to a person"
)]

pub mod run;
pub mod set;
pub mod sources;
pub mod baselines;
pub mod ours;
pub mod vectors;
pub mod measure;
pub mod lookup;
pub mod page;
pub mod train;
