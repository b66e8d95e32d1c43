//! Programs: their lookup in `PATH`, their start, and the numbers that mark their processes.

#![allow(clippy::disallowed_methods, reason = "programs and /proc are this module's to touch")]

mod program;
mod image;
mod mark;

pub(crate) use image::{
    ChildProcess, EXTRA_FD, EXTRA_FD_SOURCE_MIN, HELPER_NAME, PreparedProgram, SERVER_FILE,
    StandardStreams, kill_and_wait,
};
pub use mark::ServerProcessMark;
pub(crate) use mark::{ProgramRunTag, RunTagLimits};
pub use program::{ProgramLookupError, ResolvedProgram, nearest_program};
