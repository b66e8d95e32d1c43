//! Entry point of the `toolgate` program.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: toolgate::heap::HugePageAllocator = toolgate::heap::HugePageAllocator;

fn main() -> ExitCode {
    // These calls come first: workers and sandbox helpers are this binary under another name, unless
    // `toolgate-parser` and `toolgate-sandbox` are there. They never return in such a process.
    toolgate_world::sandbox::run_helper_if_asked();
    toolgate_toolsets::grammars::run_worker_if_asked();
    toolgate::heap::configure_allocator();
    toolgate::cli::main()
}
