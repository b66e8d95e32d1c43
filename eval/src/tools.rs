//! Measures tool search: how well it ranks, what it costs in tokens, and how long it takes.

pub mod sets;
pub mod baselines;
pub mod ours;
pub mod recall;
pub mod memory;
pub mod equality;
pub mod tokens;
pub mod latency;
pub mod report;
