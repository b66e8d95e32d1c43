//! Locations of entries to change. A location is an open directory and a name in it.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fsync, mkdirat, readlinkat, statat, unlinkat};
use rustix::io::Errno;
use toolgate_contract::ToolError;

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};
use super::path::{self, quoted_path};
use super::refusal::refusal;
use super::temp;

/// Policy for missing parent directories of an entry to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingParentPolicy {
    /// Create the missing parent directories.
    Make,
    /// Refuse the change if a parent directory is missing.
    Require,
}

/// The location of an entry to change: an open directory below the root, and a name in it. Neither
/// the name nor the path is protected.
pub(super) struct EntryLocation {
    /// The directory of the entry, open for reading.
    pub(super) dir: OwnedFd,
    /// The name in the directory: one component, never `.` or `..`.
    pub(super) name: OsString,
    /// The path of the entry relative to the root, as the kernel reports it.
    pub(super) real_path: PathBuf,
    /// The path of the entry as the caller wrote it.
    pub(super) path: String,
    created_parents: CreatedParentDirectories,
}

/// The parent directories that were created for a change. Dropping this value removes them, unless
/// the change was made.
struct CreatedParentDirectories {
    root: Root,
    /// The paths of the new directories relative to the root, parents first.
    paths: RefCell<Vec<PathBuf>>,
}

/// Policy for names that are reserved for unfinished files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TempFileNamePolicy {
    Refuse,
    Allow,
}

impl Root {
    /// Returns the location of the entry at `path`, for a change.
    ///
    /// Both the caller's spelling and the resolved path are compared with the protected names, so
    /// that neither a spelling nor a symlink evades them.
    pub(super) fn place(
        &self,
        path: &str,
        parents: MissingParentPolicy,
    ) -> Result<EntryLocation, ToolError> {
        self.open_place(path, TempFileNamePolicy::Refuse, |dir, path, made| {
            self.open_parent(dir, path, parents, made)
        })
    }

    /// Returns the location of the existing entry at `path`, for a move or replacement of that
    /// entry.
    pub(super) fn existing_place(&self, path: &str) -> Result<EntryLocation, ToolError> {
        self.open_existing_place(path, TempFileNamePolicy::Refuse)
    }

    /// Returns the location of the existing entry at `path`, for its removal. Accepts the reserved
    /// name of an unfinished copy, so that a copy that was interrupted can be removed.
    pub(super) fn removable_place(&self, path: &str) -> Result<EntryLocation, ToolError> {
        self.open_existing_place(path, TempFileNamePolicy::Allow)
    }

    fn open_existing_place(
        &self,
        path: &str,
        halves: TempFileNamePolicy,
    ) -> Result<EntryLocation, ToolError> {
        self.open_place(path, halves, |dir, path, _| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            self.resolve(dir, flags).map_err(|err| self.refusal(path, err))
        })
    }

    fn open_place(
        &self,
        path: &str,
        halves: TempFileNamePolicy,
        open: impl FnOnce(&str, &str, &CreatedParentDirectories) -> Result<OwnedFd, ToolError>,
    ) -> Result<EntryLocation, ToolError> {
        let path = self.relative(path)?;
        let Some((dir, name)) = path::split_name(path) else {
            let path = quoted_path(path);
            return Err(ToolError::invalid("/path", format!("{path} does not end in a name")));
        };
        if halves == TempFileNamePolicy::Refuse && temp::is_temp(OsStr::new(name)) {
            let message = format!(
                "{} is a name reserved for temporary files; it can only be deleted",
                quoted_path(path)
            );
            return Err(ToolError::not_allowed(message));
        }
        self.check_unprotected(path, path)?;
        let made = CreatedParentDirectories { root: self.clone(), paths: RefCell::default() };
        let dir = open(dir, path, &made)?;
        let at = self.path_in_root(&dir).map_err(|err| self.refusal(path, err))?.join(name);
        self.check_unprotected(&at.to_string_lossy(), path)?;
        Ok(EntryLocation {
            dir,
            name: name.into(),
            real_path: at,
            path: path.to_owned(),
            created_parents: made,
        })
    }

    /// Returns the location that a write to `place` changes: `place` itself, or the target of a
    /// symlink within the root. Also returns the metadata of the entry there, if one exists.
    pub(super) fn write_target(
        &self,
        place: EntryLocation,
    ) -> Result<(EntryLocation, Option<EntryMeta>), ToolError> {
        match place.stat()? {
            Some(meta) if meta.kind() == EntryKind::Symlink => {
                let place = self.follow_symlink(&place)?;
                let found = place.stat()?;
                Ok((place, found))
            }
            found => Ok((place, found)),
        }
    }

    /// Fails if the entry at `path` may not be changed, whatever the change is.
    pub fn check_changeable(&self, path: &str) -> Result<(), ToolError> {
        self.write_target(self.existing_place(path)?).map(|_| ())
    }

    /// Returns the location of the target of the symlink at `place`.
    fn follow_symlink(&self, place: &EntryLocation) -> Result<EntryLocation, ToolError> {
        let path = &place.path;
        let target = self.resolve(path, OFlags::PATH).map_err(|err| match err {
            Errno::NOENT => {
                let target = readlinkat(&place.dir, &place.name, Vec::new()).unwrap_or_default();
                let path = quoted_path(path);
                let target = quoted_path(&target.to_string_lossy());
                ToolError::not_allowed(format!(
                    "{path} is a symlink to {target}, which does not exist; use that path instead"
                ))
            }
            err => self.refusal(path, err),
        })?;
        let at = self.path_in_root(&target).map_err(|err| self.refusal(path, err))?;
        self.check_unprotected(&at.to_string_lossy(), path)?;
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
            return Err(refusal(path, Errno::ISDIR));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = beneath::open(self.dir(), or_dot(parent), flags, SymlinkPolicy::Refuse)
            .map_err(|err| refusal(path, err))?;
        let made = CreatedParentDirectories { root: self.clone(), paths: RefCell::default() };
        Ok(EntryLocation {
            dir,
            name: name.to_owned(),
            path: path.clone(),
            real_path: at,
            created_parents: made,
        })
    }

    /// Returns `true` if any part of the path `at` is protected: tools can read such a path but not
    /// change it.
    pub fn is_protected(&self, at: &str) -> bool {
        self.rules.protected.find_protected(at).is_some()
    }

    /// Fails if any part of the path `at` is protected. `path` is the caller's spelling.
    pub(super) fn check_unprotected(&self, at: &str, path: &str) -> Result<(), ToolError> {
        let Some(name) = self.rules.protected.find_protected(at) else { return Ok(()) };
        let (shown, protected) = (quoted_path(path), quoted_path(name));
        Err(ToolError::not_allowed(match (at == path, name == path) {
            (true, true) => format!("{shown} is protected: tools can read it, not change it"),
            (true, false) => {
                format!(
                    "{shown} is protected, because {protected} is protected: tools can read it, \
                     not change it"
                )
            }
            (false, _) => {
                format!(
                    "{shown} leads into {protected}, which is protected: tools can read it, not \
                     change it"
                )
            }
        }))
    }

    /// Returns the current path of the open `fd` relative to the root. Fails with `EXDEV` if `fd`
    /// is no longer below the root.
    pub(super) fn path_in_root(&self, fd: &OwnedFd) -> Result<PathBuf, Errno> {
        let root = beneath::path_of_fd(self.dir())?;
        let path = beneath::path_of_fd(fd.as_fd())?;
        path.strip_prefix(&root).map(Path::to_owned).map_err(|_| Errno::XDEV)
    }

    /// Creates the directory `path`, and its missing parents if `parents` allows it. Returns `true`
    /// if the directory is new.
    pub fn make_dir(&self, path: &str, parents: MissingParentPolicy) -> Result<bool, ToolError> {
        let place = self.place(path, parents)?;
        match mkdirat(&place.dir, &place.name, Mode::from_raw_mode(0o777)) {
            Ok(()) => {
                place.keep_parents();
                Ok(true)
            }
            Err(Errno::EXIST) => {
                self.open_dir(path)?;
                Ok(false)
            }
            Err(err) => Err(refusal(&place.path, err)),
        }
    }

    fn open_parent(
        &self,
        dir: &str,
        path: &str,
        parents: MissingParentPolicy,
        made: &CreatedParentDirectories,
    ) -> Result<OwnedFd, ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match (self.resolve(dir, flags), parents) {
            (Err(Errno::NOENT), MissingParentPolicy::Make) => self.make_parents(dir, path, made),
            (Err(Errno::NOENT), MissingParentPolicy::Require) => {
                let message = format!("the directory {} does not exist", quoted_path(dir));
                Err(ToolError::invalid("/path", message))
            }
            (opened, MissingParentPolicy::Make | MissingParentPolicy::Require) => {
                opened.map_err(|err| self.refusal(path, err))
            }
        }
    }

    /// Creates the missing directories of the path `dir`, and adds them to `made`. Each directory
    /// is created below its open parent. Returns the last directory, open.
    fn make_parents(
        &self,
        dir: &str,
        path: &str,
        made: &CreatedParentDirectories,
    ) -> Result<OwnedFd, ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fail = |err| self.refusal(path, err);
        let mut open = self.resolve(".", flags).map_err(fail)?;
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for prefix in ends.map(|end| &dir[..end]).filter(|prefix| !prefix.is_empty()) {
            open = match (self.resolve(prefix, flags), path::split_name(prefix)) {
                (Err(Errno::NOENT), Some((_, name))) => {
                    let at = self.path_in_root(&open).map_err(fail)?.join(name);
                    self.check_unprotected(&at.to_string_lossy(), path)?;
                    match mkdirat(&open, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) => made.paths.borrow_mut().push(at),
                        Err(Errno::EXIST) => {}
                        Err(err) => return Err(fail(err)),
                    }
                    self.resolve(prefix, flags).map_err(fail)?
                }
                (opened, _) => opened.map_err(fail)?,
            };
        }
        Ok(open)
    }
}

impl EntryLocation {
    /// Returns the metadata of the entry that is now at this location, or `None` if nothing is
    /// there. Does not follow a symlink.
    pub(super) fn stat(&self) -> Result<Option<EntryMeta>, ToolError> {
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(err) => Err(refusal(&self.path, err)),
        }
    }

    /// Keeps the created parent directories when this location is dropped. Call this after the
    /// change has been made.
    pub(super) fn keep_parents(&self) {
        self.created_parents.paths.take();
    }

    /// Flushes the directory to disk, so that created and renamed entries survive a power cut.
    pub(super) fn sync(&self) {
        // The change has already been made, so a file system without fsync is no error.
        let _ = fsync(&self.dir);
    }
}

impl Drop for CreatedParentDirectories {
    fn drop(&mut self) {
        for at in self.paths.take().iter().rev() {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            if let Ok(dir) =
                beneath::open(self.root.dir(), or_dot(parent), flags, SymlinkPolicy::Refuse)
            {
                // Only empty directories are removed: files that others created there stay.
                let _ = unlinkat(&dir, name, AtFlags::REMOVEDIR);
            }
        }
    }
}

/// Returns `path`, or `.` if `path` is empty.
pub(super) fn or_dot(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
