//! Entry point of `toolgate-sandbox`, the program that confines the programs of tools. It contains
//! the sandbox helper and nothing else, so that it takes little memory.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolgate_world::sandbox::run_helper_if_asked();
    // Only toolgate can start a helper.
    ExitCode::from(127)
}
