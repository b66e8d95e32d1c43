//! Entry point of the `toolgate` program.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // These calls come first: workers are this binary under another name, and so are sandbox helpers
    // unless `toolgate-sandbox` is there. They never return.
    toolgate_world::sandbox::run_helper_if_asked();
    toolgate_toolsets::grammars::run_worker_if_asked();
    toolgate::heap::configure_allocator();
    cli::main()
}
