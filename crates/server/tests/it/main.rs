//! Tests of the toolgate program from outside, over its network and stream interfaces, as clients
//! use it.
//!
//! Each module covers one subject. The module `support` starts the real program and sends messages
//! to it, with code that shares nothing with toolgate's own.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test sets up its environment itself and prints what it did"
)]
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]
#![allow(clippy::needless_pass_by_value, reason = "a message is written where it is sent")]

mod support;

mod revisions;
mod mcp;
mod gate;
mod telemetry;
mod identity;
mod concurrency;
mod shutdown;
mod http;
mod bad_input;
mod exact_numbers;
mod cli;
mod jobs;
mod shared_jobs;
mod fleet;
mod fleet_sessions;
mod fleet_partition;
mod fleet_upgrade;
mod fleet_files;
mod fleet_bucket;
mod zyra;
mod commands;
mod sandbox;
mod toolsets_git;
mod toolsets_ci;
mod toolsets_search;
mod search_engines;
mod toolsets_text;
mod toolsets_names;
mod toolsets_docs;
mod contracts;
mod gateway;
mod clients;
mod console;
