//! Tests of the contract S0 (Synesthetic), whose adapter runs over standard streams.
//!
//! The folder `s0/fixture` has the layout of the repository `synesthetic-schemas`, with schemas and
//! examples made for these tests.

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
