//! Entry point of `toolgate-parser`, the program that parses code. It contains the grammars and
//! little else, and is compressed in the file of `toolgate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolgate_parser::run_worker_if_asked();
    // Only toolgate can start a parser.
    ExitCode::from(127)
}
