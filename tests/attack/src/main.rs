//! `toolgate-attack [--case ID].. [--dialect NAME] [--bin FILE] [--keep] [--verbose]` attacks a
//! server and prints a line for each case. `toolgate-attack --resources [--minutes N] [--seed S]
//! [--untimed] [--bin FILE] [--keep]` makes resource attacks in random order while other callers
//! use the server. `cargo xtask attack` builds the program and starts it.
#![allow(clippy::print_stderr, reason = "a test program, which prints for a person")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match toolgate_attack::run_program(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("toolgate-attack: {err:#}");
            ExitCode::FAILURE
        }
    }
}
