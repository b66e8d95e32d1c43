//! Attacks a real toolgate server as its callers, its files and its programs could.
//!
//! Each attack case is attempted in every dialect over every transport that offers its tool. Each
//! attempt is a separate process with separate folders, and adopts every process that the server
//! leaves running.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test program, which owns the folders it runs in and prints for a person"
)]

mod program;
mod case_test;
mod case;
mod plan;
mod variants;
mod offered_tools;
mod attempt_process;
mod report;
mod attempt;
mod folders;
mod server;
mod client;
mod http;
mod dialects;
mod setup;
mod repositories;
mod exploits;
mod listeners;
mod perform;
mod absent_tools;
mod etag_cases;
mod stream_cases;
mod console_cases;
mod network_cases;
mod extra_cases;
mod race_cases;
mod program_cases;
mod search_cases;
mod http_cases;
mod hostile_files;
mod resource_cases;
mod fault_cases;
mod resource_run;
mod invariants;
mod oracle;
#[cfg(test)]
mod oracle_tests;

pub use case_test::{AttackCaseTest, AttackCaseTestOutcome};
pub use program::run_program;
