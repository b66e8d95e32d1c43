//! Entry point of `toolgate-parser`, the program that parses code. The program contains the
//! grammars and little else. Releases append it to the executable of `toolgate` in compressed form.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolgate_chunks::set_grammars(Some(toolgate_grammars::find_grammar));
    toolgate_parser::run_worker_if_asked();
    // Only toolgate can start a parser.
    ExitCode::from(127)
}
