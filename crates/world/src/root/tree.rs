//! Visits a directory and everything below it without following symlinks.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use toolgate_contract::ToolError;

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::entries::each_entry;
use super::meta::EntryKind;
use super::path::quoted_path;
use super::place::or_dot;
use super::refusal::refusal;
use super::work::DiskWorkMonitor;

/// The maximum number of entries of a tree that one operation may change.
const ENTRIES_MAX: u64 = 2_000_000;

/// A directory that a traversal of a directory tree has opened.
pub(super) struct WorkspaceTreeDirectory<'t> {
    /// The directory's path, relative to the top of the tree. Empty for the top itself.
    pub(super) path: &'t Path,
    pub(super) dir: OwnedFd,
    pub(super) entries: Vec<(OsString, EntryKind)>,
}

/// Passes `top` and each directory below it to `visit`, parents first.
///
/// Directories are opened one at a time by their path from `top`, so that neither the stack nor the
/// number of open files grows with the depth. `path` is for messages.
pub(super) fn each_directory(
    top: &OwnedFd,
    path: &str,
    watch: &DiskWorkMonitor,
    mut visit: impl FnMut(WorkspaceTreeDirectory<'_>) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let mut waiting = vec![PathBuf::new()];
    let mut seen = 0;
    while let Some(at) = waiting.pop() {
        let inner = || Path::new(path).join(&at).to_string_lossy().into_owned();
        let dir = open_tree_directory(top, &at).map_err(|err| refusal(&inner(), err))?;
        let mut entries = Vec::new();
        each_entry(dir.as_fd(), watch, |name, kind| {
            entries.push((name.to_owned(), kind));
            Ok(())
        })
        .map_err(|err| err.into_tool_error(&inner()))?;
        seen += entries.len() as u64;
        if seen > ENTRIES_MAX {
            let path = quoted_path(path);
            let message = format!("{path} has more than {ENTRIES_MAX} entries; use a part of it");
            return Err(ToolError::new(toolgate_contract::ToolErrorKind::TooLarge, message));
        }
        let dirs = entries.iter().filter(|(_, kind)| *kind == EntryKind::Dir);
        waiting.extend(dirs.map(|(name, _)| at.join(name)));
        visit(WorkspaceTreeDirectory { path: &at, dir, entries })?;
    }
    Ok(())
}

/// Opens the directory with the path `at` in the tree of `top`.
pub(super) fn open_tree_directory(top: &OwnedFd, at: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    beneath::open(top.as_fd(), or_dot(at), flags, SymlinkPolicy::Refuse)
}

impl Root {
    /// Fails if the tree of `top` contains a name that may not be deleted, copied or moved as part
    /// of a directory. Checks the tree as if it were at each of the paths `places`.
    pub(super) fn check_tree_unprotected(
        &self,
        top: &OwnedFd,
        places: &[&Path],
        path: &str,
        watch: &DiskWorkMonitor,
    ) -> Result<(), ToolError> {
        each_directory(top, path, watch, |branch| {
            for (name, _) in &branch.entries {
                let inner = branch.path.join(name);
                for place in places {
                    self.check_entry_unprotected(&place.join(&inner), &inner, path)?;
                }
            }
            Ok(())
        })
    }

    /// Fails if the path `at` may not be deleted, copied or moved as part of a directory. The
    /// message names `inner`, the path of the entry relative to `path`.
    pub(super) fn check_entry_unprotected(
        &self,
        at: &Path,
        inner: &Path,
        path: &str,
    ) -> Result<(), ToolError> {
        if self.rules.protected.find_in_tree(&at.to_string_lossy()).is_none() {
            return Ok(());
        }
        let inner = Path::new(path).join(inner);
        Err(ToolError::not_allowed(format!(
            "{} contains {}, which is protected: tools can read it, not change it; use other paths",
            quoted_path(path),
            quoted_path(&inner.to_string_lossy())
        )))
    }
}
