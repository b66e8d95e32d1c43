//! The command line.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // What it is asked for here is no command, and nothing may come before.
    toolgate_toolsets::world::sandbox::enter_if_asked();
    cli::main()
}
