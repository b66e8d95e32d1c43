//! Entry point of the `toolgate` program.

use std::process::ExitCode;

use toolgate_toolsets::grammars::GrammarLookup;

#[global_allocator]
static ALLOCATOR: toolgate_service::heap::HugePageAllocator =
    toolgate_service::heap::HugePageAllocator;

/// The grammars of this program. If it has none, the server needs the program `toolgate-parser`.
#[cfg(feature = "grammars")]
const GRAMMARS: Option<GrammarLookup> = Some(toolgate_grammars::find_grammar);
#[cfg(not(feature = "grammars"))]
const GRAMMARS: Option<GrammarLookup> = None;

fn main() -> ExitCode {
    // These calls come first: workers and sandbox helpers are this binary under another name, unless
    // `toolgate-parser` and `toolgate-sandbox` are there. They never return in such a process.
    toolgate_world::sandbox::run_helper_if_asked();
    toolgate_toolsets::grammars::run_worker_if_asked(GRAMMARS);
    toolgate_service::heap::configure_allocator();
    toolgate::cli::main()
}
