//! Walks a workspace in path order, without following symlinks.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec;

use rustix::fs::{AtFlags, OFlags, statat};
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::entries::each_visible_entry;
use super::file::WorkspaceFile;
use super::ignore_rules::{IgnoreRuleFiles, IgnoreRules};
use super::meta::{EntryKind, EntryMeta};
use super::path::path_text;
use super::place::or_dot;
use super::refusal::{FileOperationError, refusal};
use super::work::DiskWorkMonitor;

/// A filter of the entries that a walk returns. A walk enters `.git` only if it starts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkFilter {
    /// `true` to include entries that the ignore rules exclude.
    pub include_ignored: bool,
    /// `true` to include entries whose names begin with a dot.
    pub include_hidden: bool,
}

/// A directory to list, and the ignore rules that apply there.
#[derive(Clone)]
pub struct WalkFolder {
    /// The directory's path, relative to the root. Empty for the root itself.
    pub path: PathBuf,
    rules: Option<Arc<IgnoreRules>>,
}

/// A directory that a walk has opened, and its entries.
pub struct OpenWalkFolder {
    dir: OwnedFd,
    /// `true` if the directory contains a `.git` entry, which is not listed.
    pub(crate) has_git: bool,
    /// Entries of the directory, sorted by name.
    pub entries: Vec<(OsString, EntryKind)>,
}

/// An entry that a walk found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    /// The entry's path, relative to the root.
    pub path: PathBuf,
    /// The kind of the entry.
    pub kind: EntryKind,
}

/// Starting point of a walk: a directory or a file.
pub enum WalkStartPoint {
    /// Directory at which the walk starts. The walk visits its entries.
    Folder(WalkFolder),
    /// File that is the only entry of the walk.
    File(WalkEntry),
}

impl Root {
    /// Resolves `path` for a walk. For a directory, also loads the ignore rules of its parents.
    pub fn walk_start(&self, path: &str) -> Result<WalkStartPoint, ToolError> {
        let path = self.relative(path)?;
        let fail = |err| self.refusal(path, err);
        let fd = self.resolve(path, OFlags::PATH).map_err(fail)?;
        let meta = EntryMeta::from(rustix::fs::fstat(&fd).map_err(fail)?);
        let at = self.path_in_root(&fd).map_err(fail)?;
        if meta.kind() != EntryKind::Dir {
            super::file::require_regular(&meta, path)?;
            return Ok(WalkStartPoint::File(WalkEntry { path: at, kind: meta.kind() }));
        }
        let mut above = PathBuf::new();
        let mut rules = self.ignored_above.clone();
        for name in &at {
            if let Ok(dir) = self.open_unfollowed(&above, OFlags::RDONLY | OFlags::DIRECTORY) {
                let names = IgnoreRuleFiles { git: true, ignore: true };
                rules = IgnoreRules::for_directory(&dir, &above, rules, names);
            }
            above.push(name);
        }
        Ok(WalkStartPoint::Folder(WalkFolder { path: at, rules }))
    }

    /// Opens the file at `path` that a walk found. Fails if it is no longer a regular file.
    pub fn open_walked(&self, path: &Path) -> Result<WorkspaceFile, ToolError> {
        let shown = path.to_string_lossy();
        let fd = self.open_unfollowed(path, OFlags::RDONLY).map_err(|err| refusal(&shown, err))?;
        WorkspaceFile::new(fd, &shown)
    }

    fn open_unfollowed(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
        beneath::open(self.dir(), or_dot(path), flags, SymlinkPolicy::Refuse)
    }
}

impl WalkFolder {
    /// Returns the entries of the directory that `sight` includes, sorted by name, and loads the
    /// directory's ignore rules.
    pub fn list(
        &mut self,
        root: &Root,
        sight: WalkFilter,
        watch: &DiskWorkMonitor,
    ) -> Result<Vec<(OsString, EntryKind)>, ToolError> {
        self.open_and_list(root, sight, watch).map(|looked| looked.entries)
    }

    /// Opens the directory, loads its ignore rules and lists its entries. Opening files from the
    /// result is faster than opening them by their full paths.
    pub fn open_and_list(
        &mut self,
        root: &Root,
        sight: WalkFilter,
        watch: &DiskWorkMonitor,
    ) -> Result<OpenWalkFolder, ToolError> {
        let dir = self.open_handle(root)?;
        self.list_opened(dir, sight, watch)
    }

    /// Opens the directory of this value, for [`WalkFolder::list_opened`].
    pub(crate) fn open_handle(&self, root: &Root) -> Result<OwnedFd, ToolError> {
        let dir = root.open_unfollowed(&self.path, OFlags::RDONLY | OFlags::DIRECTORY);
        dir.map_err(|err| refusal(&self.path.to_string_lossy(), err))
    }

    /// Lists the directory `dir`, which is already open, as [`WalkFolder::open_and_list`] does.
    pub(crate) fn list_opened(
        &mut self,
        dir: OwnedFd,
        sight: WalkFilter,
        watch: &DiskWorkMonitor,
    ) -> Result<OpenWalkFolder, ToolError> {
        self.read(dir, sight, watch)
            .map_err(|err| err.into_tool_error(&self.path.to_string_lossy()))
    }

    fn read(
        &mut self,
        dir: OwnedFd,
        sight: WalkFilter,
        watch: &DiskWorkMonitor,
    ) -> Result<OpenWalkFolder, FileOperationError> {
        let mut entries = Vec::new();
        let mut names = IgnoreRuleFiles::default();
        each_visible_entry(dir.as_fd(), watch, |name, kind| {
            names.git |= name == ".git";
            names.ignore |= name == ".gitignore" || name == ".ignore";
            let hidden = name.as_encoded_bytes().starts_with(b".");
            if name != ".git" && (sight.include_hidden || !hidden) {
                entries.push((name.to_owned(), kind));
            }
            Ok(())
        })?;
        if !sight.include_ignored {
            self.rules = IgnoreRules::for_directory(&dir, &self.path, self.rules.take(), names);
            if let Some(rules) = &self.rules {
                entries.retain(|(name, kind)| !rules.is_ignored(&self.path.join(name), *kind));
            }
        }
        entries.sort_unstable();
        Ok(OpenWalkFolder { dir, has_git: names.git, entries })
    }

    /// Returns the subdirectory `name`. Call [`WalkFolder::list`] first, because it loads the
    /// ignore rules that the subdirectory inherits.
    pub fn child(&self, name: &OsString) -> Self {
        Self { path: self.path.join(name), rules: self.rules.clone() }
    }
}

impl OpenWalkFolder {
    /// Returns the metadata of the entry `name` without opening it. `None` if the entry is gone.
    pub(crate) fn meta(&self, name: &OsString) -> Option<EntryMeta> {
        statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(EntryMeta::from)
    }

    /// Opens the file `name` in this directory. Fails if it is no longer a regular file. `path` is
    /// for messages.
    pub fn open_file(&self, name: &OsString, path: &Path) -> Result<WorkspaceFile, ToolError> {
        let shown = path_text(path);
        let name = Path::new(name);
        let fd = beneath::open(self.dir.as_fd(), name, OFlags::RDONLY, SymlinkPolicy::Refuse)
            .map_err(|err| refusal(&shown, err))?;
        WorkspaceFile::new(fd, &shown)
    }
}

/// A walk below a folder in path order, parents before their contents.
pub struct TreeWalk<'r> {
    root: &'r Root,
    filter: WalkFilter,
    watch: &'r DiskWorkMonitor,
    /// The path at which the walk resumes. The walk skips the entries before it.
    resume_at: Option<PathBuf>,
    open: Vec<(WalkFolder, vec::IntoIter<(OsString, EntryKind)>)>,
    /// The number of directories that the walk could not read so far.
    pub unread_folders: u64,
}

impl<'r> TreeWalk<'r> {
    /// Starts a walk of `folder` at the entry `from`, or at the first entry. `sight` selects the
    /// entries.
    pub fn new(
        root: &'r Root,
        mut folder: WalkFolder,
        sight: WalkFilter,
        from: Option<PathBuf>,
        watch: &'r DiskWorkMonitor,
    ) -> Result<Self, ToolError> {
        let entries = folder.list(root, sight, watch)?;
        let open = vec![(folder, entries.into_iter())];
        Ok(Self { root, filter: sight, watch, resume_at: from, open, unread_folders: 0 })
    }

    /// Returns the next entry of the walk, or `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<WalkEntry>, ToolError> {
        while let Some((folder, entries)) = self.open.last_mut() {
            self.watch.check_cancelled()?;
            let Some((name, kind)) = entries.next() else {
                self.open.pop();
                continue;
            };
            let path = folder.path.join(&name);
            let from = self.resume_at.as_deref().unwrap_or(Path::new(""));
            let passed = path.as_path() < from;
            if passed && !from.starts_with(&path) {
                continue;
            }
            if kind == EntryKind::Dir {
                let mut inner = folder.child(&name);
                match inner.list(self.root, self.filter, self.watch) {
                    Ok(entries) => self.open.push((inner, entries.into_iter())),
                    Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
                    Err(_) => self.unread_folders += 1,
                }
            }
            if !passed {
                return Ok(Some(WalkEntry { path, kind }));
            }
        }
        Ok(None)
    }
}
