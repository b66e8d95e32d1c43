//! Removes a file, a symlink, or a directory with all its contents.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::meta::EntryKind;
use super::path::quoted_path;
use super::refusal::refusal;
use super::tree::{each_directory, open_tree_directory};
use super::work::DiskWorkMonitor;

/// The entries that an operation covers: only the entry itself, or a directory with all its
/// contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryOperationScope {
    /// The entry itself. If it is a directory, it must be empty.
    Entry,
    /// The entry and, if it is a directory, all its contents.
    Tree,
}

impl Root {
    /// Removes the entry at `path` and returns the number of removed entries. Removes symlinks, but
    /// never their targets.
    pub fn remove(
        &self,
        path: &str,
        extent: DirectoryOperationScope,
        watch: &DiskWorkMonitor,
    ) -> Result<u64, ToolError> {
        let place = self.removable_place(path)?;
        let path = place.path.as_str();
        let fail = |err| refusal(path, err);
        let Some(found) = place.stat()? else {
            return Err(self.refusal(path, Errno::NOENT));
        };
        let removed = match (found.kind(), extent) {
            (EntryKind::Dir, DirectoryOperationScope::Tree) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let name = Path::new(&place.name);
                let dir = beneath::open(place.dir.as_fd(), name, flags, SymlinkPolicy::Refuse)
                    .map_err(fail)?;
                self.check_tree_unprotected(&dir, &[&place.real_path], path, watch)?;
                let removed = self.remove_contents(&dir, &place.real_path, path, watch)?;
                let _lock = self.handle.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR).map_err(fail)?;
                removed + 1
            }
            (EntryKind::Dir, DirectoryOperationScope::Entry) => {
                let _lock = self.handle.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR).map_err(|err| match err {
                    Errno::NOTEMPTY | Errno::EXIST => {
                        let path = quoted_path(path);
                        let message = format!(
                            "{path} is a directory that is not empty; pass recursive: true to \
                             delete all in it"
                        );
                        ToolError::invalid("/recursive", message)
                    }
                    err => fail(err),
                })?;
                1
            }
            (
                EntryKind::File | EntryKind::Symlink | EntryKind::Other,
                DirectoryOperationScope::Entry | DirectoryOperationScope::Tree,
            ) => {
                let _lock = self.handle.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::empty()).map_err(fail)?;
                1
            }
        };
        place.sync();
        Ok(removed)
    }

    /// Removes the contents of the directory `top`, which has the path `at`. Returns the number of
    /// removed entries. Messages name `path`.
    fn remove_contents(
        &self,
        top: &OwnedFd,
        at: &Path,
        path: &str,
        watch: &DiskWorkMonitor,
    ) -> Result<u64, ToolError> {
        let mut removed = 0;
        remove_contents(top, path, watch, &mut removed, |inner| {
            self.check_entry_unprotected(&at.join(inner), inner, path)
        })
        .map_err(|err| match err.fault {
            ToolErrorKind::Canceled => err,
            fault => {
                let message =
                    format!("{}; {removed} entries were removed before that", err.message);
                ToolError { fault, message, ..err }
            }
        })?;
        Ok(removed)
    }
}

/// Removes the contents of the directory `top`, and adds the number of removed entries to
/// `removed`. Calls `may` for each entry before its removal, and stops at an error.
pub(super) fn remove_contents(
    top: &OwnedFd,
    path: &str,
    watch: &DiskWorkMonitor,
    removed: &mut u64,
    may: impl Fn(&Path) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let fail = |at: &Path, err| refusal(&Path::new(path).join(at).to_string_lossy(), err);
    let mut dirs: Vec<PathBuf> = Vec::new();
    each_directory(top, path, watch, |branch| {
        for (name, kind) in &branch.entries {
            watch.check_cancelled()?;
            let inner = branch.path.join(name);
            may(&inner)?;
            match kind {
                EntryKind::Dir => dirs.push(inner),
                EntryKind::File | EntryKind::Symlink | EntryKind::Other => {
                    match unlinkat(&branch.dir, name, AtFlags::empty()) {
                        Ok(()) => *removed += 1,
                        Err(Errno::NOENT) => {}
                        Err(err) => return Err(fail(&inner, err)),
                    }
                }
            }
        }
        watch.report_progress(*removed, None, "entries removed");
        Ok(())
    })?;
    for at in dirs.iter().rev() {
        watch.check_cancelled()?;
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
        let outcome = open_tree_directory(top, parent)
            .and_then(|parent| unlinkat(&parent, name, AtFlags::REMOVEDIR));
        match outcome {
            Ok(()) => *removed += 1,
            Err(Errno::NOENT) => {}
            Err(err) => return Err(fail(at, err)),
        }
    }
    Ok(())
}
