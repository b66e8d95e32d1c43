//! Entry point of the `toolgate` program.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This call comes first: sandbox helpers are this binary under another name and never return.
    toolgate_world::sandbox::run_helper_if_asked();
    cli::main()
}
