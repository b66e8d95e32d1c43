//! Paths that no tool may read even inside a workspace, for example the key of the audit log.
//!
//! The list of hidden paths applies to all roots of the process. Opened files are compared with the
//! list only if a root contains a hidden path.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use toolgate_contract::{ToolError, lock_read, lock_write};

use super::beneath;
use super::path::quoted_path;

/// The paths that are hidden from callers in every workspace, with symlinks resolved.
static HIDDEN_PATHS: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());
/// `true` once a workspace root has been opened that contains a hidden path or is inside one.
static HIDDEN_IN_REACH: AtomicBool = AtomicBool::new(false);

/// Hides `path` and everything below it from every root that is opened later.
pub fn hide_path(path: &Path) {
    let path = resolve_existing(path);
    let mut hidden = lock_write(&HIDDEN_PATHS);
    if !hidden.contains(&path) {
        hidden.push(path);
    }
}

/// Records that a root was opened at `root`. If a hidden path is inside `root` or contains it,
/// every file that is opened from now on is checked.
pub(super) fn note_root_opened(root: &Path) {
    let hidden = lock_read(&HIDDEN_PATHS);
    let in_reach = |path: &PathBuf| path.starts_with(root) || root.starts_with(path);
    if hidden.iter().any(in_reach) {
        HIDDEN_IN_REACH.store(true, Ordering::Relaxed);
    }
}

/// Fails if the open file `fd` is hidden from callers. `path` is the path that the caller used.
pub(super) fn check_visible(fd: BorrowedFd<'_>, path: &str) -> Result<(), ToolError> {
    if !HIDDEN_IN_REACH.load(Ordering::Relaxed) {
        return Ok(());
    }
    let hidden = lock_read(&HIDDEN_PATHS);
    // The kernel's path is compared, so that links do not matter.
    let at = beneath::path_of_fd(fd).map_err(|err| {
        ToolError::with_cause(format!("cannot check whether {} is hidden", quoted_path(path)), err)
    })?;
    match hidden.iter().any(|hidden| at.starts_with(hidden)) {
        true => Err(ToolError::not_allowed(format!(
            "{} belongs to toolgate (keys, records, jobs): no tool may read it",
            quoted_path(path)
        ))),
        false => Ok(()),
    }
}

/// Returns `path` with symlinks resolved, as far as the path exists.
#[allow(clippy::disallowed_methods, reason = "the user's own paths, before the server starts")]
fn resolve_existing(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => resolve_existing(parent).join(name),
        _ => path.to_owned(),
    }
}
