//! What no tool of this process reads, though it lies in a folder that is served: what the process
//! itself is held by, such as the key of its audit log.
//!
//! It is known to all roots of the process, since each could be asked for it, and looked at only
//! where one of them has some of it in reach.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use toolgate_contract::ToolError;

use super::beneath;
use super::path::shown;

/// Where it is, all symlinks resolved.
static HIDDEN: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());
/// Whether a root has any of it in reach.
static IN_REACH: AtomicBool = AtomicBool::new(false);

/// Keeps every root that is opened from now on from reading what lies at `path`, and beneath it.
pub fn hide(path: &Path) {
    let path = real(path);
    let mut hidden = HIDDEN.write().unwrap_or_else(PoisonError::into_inner);
    if !hidden.contains(&path) {
        hidden.push(path);
    }
}

/// A root is opened at `root`.
pub(super) fn opened(root: &Path) {
    let hidden = HIDDEN.read().unwrap_or_else(PoisonError::into_inner);
    let in_reach = |path: &PathBuf| path.starts_with(root) || root.starts_with(path);
    if hidden.iter().any(in_reach) {
        IN_REACH.store(true, Ordering::Relaxed);
    }
}

/// Refuses to read `fd` where that is hidden; `path` is what it was asked for by.
pub(super) fn shows(fd: BorrowedFd<'_>, path: &str) -> Result<(), ToolError> {
    if !IN_REACH.load(Ordering::Relaxed) {
        return Ok(());
    }
    let hidden = HIDDEN.read().unwrap_or_else(PoisonError::into_inner);
    // By where the kernel says that it is, whatever links led there.
    let at = beneath::whereabouts(fd).map_err(|err| {
        ToolError::because(format!("{} cannot be told from what is hidden", shown(path)), err)
    })?;
    match hidden.iter().any(|hidden| at.starts_with(hidden)) {
        true => Err(ToolError::not_allowed(format!(
            "{} is toolgate's own (its keys, its records, its jobs): no tool reads it",
            shown(path)
        ))),
        false => Ok(()),
    }
}

/// The one name of `path`, as far as it is there already.
#[allow(clippy::disallowed_methods, reason = "the person's own paths, before anything is served")]
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}
