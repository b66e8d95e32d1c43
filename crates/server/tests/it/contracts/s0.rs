//! Synesthetic: its adapter's contract over standard streams.
//!
//! `s0/fixture` is laid out as `synesthetic-schemas` is, with schemas and examples of our own.

mod adapter;
mod backend;
mod wire;
mod order;
mod process;
mod assets;
mod listing;
mod validation;
mod diff;
mod python;
mod populate;
mod command_line;
mod http;
mod whole;
