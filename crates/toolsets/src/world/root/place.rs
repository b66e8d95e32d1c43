//! The place of a change: a name in a directory that is held open.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fsync, mkdirat, readlinkat, statat, unlinkat};
use rustix::io::Errno;
use toolgate_contract::ToolError;

use super::Root;
use super::beneath::{self, Symlinks};
use super::meta::{Kind, Meta};
use super::path::{self, shown};
use super::refusal::refusal;
use super::temp;

/// Handling of missing parent directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// Create them.
    Make,
    /// Refuse the change.
    Require,
}

/// A name in a directory below the root. It was checked: nothing about it is protected.
pub(super) struct Place {
    /// The directory, open for reading.
    pub(super) dir: OwnedFd,
    /// The name in it: one component, never `.` or `..`.
    pub(super) name: OsString,
    /// The path relative to the root, as the kernel reports it.
    pub(super) at: PathBuf,
    /// The path as the caller wrote it.
    pub(super) path: String,
    made: Made,
}

/// The parent directories that were created for a place. They are removed when dropped, unless
/// kept.
struct Made {
    root: Root,
    /// The paths relative to the root, parents first.
    at: RefCell<Vec<PathBuf>>,
}

/// Handling of names that are reserved for unfinished files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halves {
    Refuse,
    Allow,
}

impl Root {
    /// Returns the place of `path` for a change.
    ///
    /// Both the caller's spelling and the resolved path are compared with the protected names, so
    /// that neither a spelling nor a symlink evades them.
    pub(super) fn place(&self, path: &str, parents: Parents) -> Result<Place, ToolError> {
        self.place_in(path, Halves::Refuse, |dir, path, made| {
            self.open_parent(dir, path, parents, made)
        })
    }

    /// Returns the place of `path` for moving or replacing an existing entry.
    pub(super) fn place_of(&self, path: &str) -> Result<Place, ToolError> {
        self.place_there(path, Halves::Refuse)
    }

    /// Returns the place of `path` for removal. Accepts the leftover of a copy that was killed.
    pub(super) fn place_to_clear(&self, path: &str) -> Result<Place, ToolError> {
        self.place_there(path, Halves::Allow)
    }

    fn place_there(&self, path: &str, halves: Halves) -> Result<Place, ToolError> {
        self.place_in(path, halves, |dir, path, _| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            self.resolve(dir, flags).map_err(|err| self.refusal(path, err))
        })
    }

    fn place_in(
        &self,
        path: &str,
        halves: Halves,
        open: impl FnOnce(&str, &str, &Made) -> Result<OwnedFd, ToolError>,
    ) -> Result<Place, ToolError> {
        let path = self.relative(path)?;
        let Some((dir, name)) = path::split(path) else {
            let path = shown(path);
            return Err(ToolError::invalid("/path", format!("{path} does not end in a name")));
        };
        if halves == Halves::Refuse && temp::is_temp(OsStr::new(name)) {
            let message = format!(
                "{} is a name kept for half-written files; it can only be deleted",
                shown(path)
            );
            return Err(ToolError::not_allowed(message));
        }
        self.guard(path, path)?;
        let made = Made { root: self.clone(), at: RefCell::default() };
        let dir = open(dir, path, &made)?;
        let at = self.real(&dir).map_err(|err| self.refusal(path, err))?.join(name);
        self.guard(&at.to_string_lossy(), path)?;
        Ok(Place { dir, name: name.into(), at, path: path.to_owned(), made })
    }

    /// Returns the place that a write to `place` goes to, and the entry there. Follows a symlink
    /// that stays inside.
    pub(super) fn target(&self, place: Place) -> Result<(Place, Option<Meta>), ToolError> {
        match place.look()? {
            Some(meta) if meta.kind() == Kind::Symlink => {
                let place = self.followed(&place)?;
                let found = place.look()?;
                Ok((place, found))
            }
            found => Ok((place, found)),
        }
    }

    /// Fails if no change to `path` would be allowed.
    pub(crate) fn may_change(&self, path: &str) -> Result<(), ToolError> {
        self.target(self.place_of(path)?).map(|_| ())
    }

    /// Returns the place that the symlink at `place` leads to.
    fn followed(&self, place: &Place) -> Result<Place, ToolError> {
        let path = &place.path;
        let target = self.resolve(path, OFlags::PATH).map_err(|err| match err {
            Errno::NOENT => {
                let target = readlinkat(&place.dir, &place.name, Vec::new()).unwrap_or_default();
                let path = shown(path);
                let target = shown(&target.to_string_lossy());
                ToolError::not_allowed(format!(
                    "{path} is a symlink to {target}, which does not exist; name that instead"
                ))
            }
            err => self.refusal(path, err),
        })?;
        let at = self.real(&target).map_err(|err| self.refusal(path, err))?;
        self.guard(&at.to_string_lossy(), path)?;
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
            return Err(refusal(path, Errno::ISDIR));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = beneath::open(self.dir(), dot(parent), flags, Symlinks::Refuse)
            .map_err(|err| refusal(path, err))?;
        let made = Made { root: self.clone(), at: RefCell::default() };
        Ok(Place { dir, name: name.to_owned(), path: path.clone(), at, made })
    }

    /// Fails if any part of the path `at` is protected. `path` is the caller's spelling.
    pub(super) fn guard(&self, at: &str, path: &str) -> Result<(), ToolError> {
        let Some(name) = self.rules.protected.find(at) else { return Ok(()) };
        let name = shown(name);
        Err(ToolError::not_allowed(if at == path {
            format!("{} is protected by {name}: it can be read, not changed", shown(path))
        } else {
            format!(
                "{} leads into {name}, which is protected: it can be read, not changed",
                shown(path)
            )
        }))
    }

    /// Returns the current path of `fd` relative to the root. `EXDEV` if it is no longer below.
    pub(super) fn real(&self, fd: &OwnedFd) -> Result<PathBuf, Errno> {
        let root = beneath::whereabouts(self.dir())?;
        let path = beneath::whereabouts(fd.as_fd())?;
        path.strip_prefix(&root).map(Path::to_owned).map_err(|_| Errno::XDEV)
    }

    /// Creates the directory `path`, and missing parents if `parents` allows it. Returns `true` if
    /// it is new.
    pub(crate) fn make_dir(&self, path: &str, parents: Parents) -> Result<bool, ToolError> {
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
        parents: Parents,
        made: &Made,
    ) -> Result<OwnedFd, ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match (self.resolve(dir, flags), parents) {
            (Err(Errno::NOENT), Parents::Make) => self.make_parents(dir, path, made),
            (Err(Errno::NOENT), Parents::Require) => {
                let message = format!("the directory {} does not exist", shown(dir));
                Err(ToolError::invalid("/path", message))
            }
            (opened, Parents::Make | Parents::Require) => {
                opened.map_err(|err| self.refusal(path, err))
            }
        }
    }

    /// Creates the missing parts of `dir`, each in the directory just opened.
    fn make_parents(&self, dir: &str, path: &str, made: &Made) -> Result<OwnedFd, ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fail = |err| self.refusal(path, err);
        let mut open = self.resolve(".", flags).map_err(fail)?;
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for prefix in ends.map(|end| &dir[..end]).filter(|prefix| !prefix.is_empty()) {
            open = match (self.resolve(prefix, flags), path::split(prefix)) {
                (Err(Errno::NOENT), Some((_, name))) => {
                    let at = self.real(&open).map_err(fail)?.join(name);
                    self.guard(&at.to_string_lossy(), path)?;
                    match mkdirat(&open, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) => made.at.borrow_mut().push(at),
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

impl Place {
    /// Returns the metadata of the entry there now, without following a symlink.
    pub(super) fn look(&self) -> Result<Option<Meta>, ToolError> {
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(err) => Err(refusal(&self.path, err)),
        }
    }

    /// Keeps the created parent directories, because the change has been made.
    pub(super) fn keep_parents(&self) {
        self.made.at.take();
    }

    /// Makes the directory's names survive a power cut.
    pub(super) fn sync(&self) {
        // The change has already been made, so a file system without fsync is no error.
        let _ = fsync(&self.dir);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for at in self.at.take().iter().rev() {
            let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { continue };
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            if let Ok(dir) = beneath::open(self.root.dir(), dot(parent), flags, Symlinks::Refuse) {
                // Only empty directories are removed: files that others created there stay.
                let _ = unlinkat(&dir, name, AtFlags::REMOVEDIR);
            }
        }
    }
}

/// Returns `path`, or `.` if it is empty.
pub(super) fn dot(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
