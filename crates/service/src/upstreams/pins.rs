//! Approved upstream tools: reads and writes `toolgate.lock` in the workspace.
#![allow(clippy::disallowed_methods, reason = "the owner's file, which tools may not change")]

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use toolgate_upstream::pins::PinLock;

use crate::owned_files::{self, OwnedFileSymlinkPolicy};

/// Name of the lock file with approved upstream tools in the workspace.
pub(crate) const LOCK_FILE_NAME: &str = "toolgate.lock";
/// Largest lock file of approved tools that is read: 64 MiB.
const LOCK_FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads the lock `file` with the approved upstream tools. Returns `None` if the file does not
/// exist.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is invalid. The error describes the problem.
pub(crate) fn read_lock_file(file: &Path) -> Result<Option<PinLock>, String> {
    if fs::symlink_metadata(file).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = owned_files::read_text(file, OwnedFileSymlinkPolicy::Refused, LOCK_FILE_BYTES_MAX)
        .map_err(|why| format!("{why:#}"))?;
    PinLock::parse(&text).map(Some)
}
