//! Removes a file, a link, or a directory with all its contents.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::meta::Kind;
use super::path::shown;
use super::refusal::refusal;
use super::tree::{each_branch, open_branch};
use super::work::Watch;

/// The part of a directory that an operation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The entry alone. A directory must be empty.
    Entry,
    /// The directory with all its contents.
    Tree,
}

impl Root {
    /// Removes the entry at `path` and returns the number of removed entries. Symlinks are removed,
    /// never their targets.
    pub(crate) fn remove(
        &self,
        path: &str,
        extent: Extent,
        watch: &Watch,
    ) -> Result<u64, ToolError> {
        let place = self.place_to_clear(path)?;
        let path = place.path.as_str();
        let fail = |err| refusal(path, err);
        let Some(found) = place.look()? else {
            return Err(self.refusal(path, Errno::NOENT));
        };
        let removed = match (found.kind(), extent) {
            (Kind::Dir, Extent::Tree) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let name = Path::new(&place.name);
                let dir = beneath::open(place.dir.as_fd(), name, flags, Symlinks::Refuse)
                    .map_err(fail)?;
                self.guard_tree(&dir, &[&place.at], path, watch)?;
                let removed = self.clear(&dir, &place.at, path, watch)?;
                let _lock = self.held.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR).map_err(fail)?;
                removed + 1
            }
            (Kind::Dir, Extent::Entry) => {
                let _lock = self.held.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR).map_err(|err| match err {
                    Errno::NOTEMPTY | Errno::EXIST => {
                        let path = shown(path);
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
            (Kind::File | Kind::Symlink | Kind::Other, Extent::Entry | Extent::Tree) => {
                let _lock = self.held.locks.lock(&place, watch)?;
                unlinkat(&place.dir, &place.name, AtFlags::empty()).map_err(fail)?;
                1
            }
        };
        place.sync();
        Ok(removed)
    }

    /// Removes the contents of the directory `top` at `at` and returns the number of removed
    /// entries.
    fn clear(&self, top: &OwnedFd, at: &Path, path: &str, watch: &Watch) -> Result<u64, ToolError> {
        let mut removed = 0;
        clear(top, path, watch, &mut removed, |inner| {
            self.guard_entry(&at.join(inner), inner, path)
        })
        .map_err(|err| match err.fault {
            Fault::Canceled => err,
            fault => {
                let message =
                    format!("{}; {removed} entries were removed before that", err.message);
                ToolError { fault, message, ..err }
            }
        })?;
        Ok(removed)
    }
}

/// Removes the contents of the directory `top` and counts them in `removed`. Stops at an entry that
/// `may` refuses.
pub(super) fn clear(
    top: &OwnedFd,
    path: &str,
    watch: &Watch,
    removed: &mut u64,
    may: impl Fn(&Path) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let fail = |at: &Path, err| refusal(&Path::new(path).join(at).to_string_lossy(), err);
    let mut dirs: Vec<PathBuf> = Vec::new();
    each_branch(top, path, watch, |branch| {
        for (name, kind) in &branch.entries {
            watch.check()?;
            let inner = branch.at.join(name);
            may(&inner)?;
            match kind {
                Kind::Dir => dirs.push(inner),
                Kind::File | Kind::Symlink | Kind::Other => {
                    match unlinkat(&branch.dir, name, AtFlags::empty()) {
                        Ok(()) => *removed += 1,
                        Err(Errno::NOENT) => {}
                        Err(err) => return Err(fail(&inner, err)),
                    }
                }
            }
        }
        watch.progress(*removed, None, "entries removed");
        Ok(())
    })?;
    for at in dirs.iter().rev() {
        watch.check()?;
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
        let outcome =
            open_branch(top, parent).and_then(|parent| unlinkat(&parent, name, AtFlags::REMOVEDIR));
        match outcome {
            Ok(()) => *removed += 1,
            Err(Errno::NOENT) => {}
            Err(err) => return Err(fail(at, err)),
        }
    }
    Ok(())
}
