//! Programs: their lookup in `PATH`, their start, and the numbers that mark their processes.

#![allow(clippy::disallowed_methods, reason = "programs and /proc are this module's to touch")]

mod program;
mod image;
mod appended;
mod mark;

pub(crate) use appended::{FileChangeStamp, create_memory, find_part, seal_memory};
pub(crate) use image::{
    ChildProcess, EXTRA_FD, HELPER_NAME, PreparedProgram, SERVER_FILE, StandardStreams,
    kill_and_wait,
};
pub use mark::ServerProcessMark;
pub(crate) use mark::{ProgramRunTag, RlimitLocksValues};
pub use program::{ProgramLookupError, ResolvedProgram, nearest_program};
