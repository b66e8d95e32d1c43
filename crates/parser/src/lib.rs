//! The worker that parses code. Code is parsed in a separate process because hostile text can crash
//! a parser.
//!
//! A worker is a process of `toolgate-parser`, the small program of this crate, or of the server's
//! own executable.

use std::time::Duration;

use toolgate_chunks::{PARSE_REQUEST_BYTES_MAX, answer_parse_request};
use toolgate_world::sandbox::{self, WorkerProcessLimits};

/// The name (`argv[0]`) of a worker process that parses code, and of the program `toolgate-parser`.
pub const PARSER_NAME: &str = "toolgate-parser";
/// The limits of a worker process that parses code. A parse gives up by itself at 64 MiB and 1.5 s
/// of processor time.
const WORKER_LIMITS: WorkerProcessLimits = WorkerProcessLimits {
    memory_bytes: 256 << 20,
    request_seconds: 6,
    request_bytes_max: PARSE_REQUEST_BYTES_MAX,
    idle_timeout: Duration::from_secs(60),
};

/// Runs a worker that parses code if this process was started as one, and never returns in that
/// case. Call this in `main` before any thread starts.
pub fn run_worker_if_asked() {
    sandbox::run_worker_if_asked(PARSER_NAME, WORKER_LIMITS, answer_parse_request);
}
