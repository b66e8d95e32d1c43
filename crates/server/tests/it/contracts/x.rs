//! Tests across all contracts: one server and one catalog serve them, the same checks apply to all,
//! and no message mixes two contracts.

mod setup;
mod together;
mod apart;
mod secrets;
