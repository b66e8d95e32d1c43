//! Walks a workspace in path order, without following symlinks.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec;

use rustix::fs::{AtFlags, OFlags, statat};
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::entries::each;
use super::file::File;
use super::ignores::{Ignores, RuleFiles};
use super::meta::{Kind, Meta};
use super::place::dot;
use super::refusal::{Stopped, refusal};
use super::work::Watch;

/// The entries that a walk includes. `.git` is only walked if it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Include entries that the workspace ignores.
    pub(crate) ignored: bool,
    /// Include entries whose names begin with a dot.
    pub(crate) hidden: bool,
}

/// A directory to list, and the ignore rules that apply there.
#[derive(Clone)]
pub(crate) struct Folder {
    /// The path relative to the root. Empty for the root itself.
    pub(crate) path: PathBuf,
    rules: Option<Arc<Ignores>>,
}

/// An open directory and its entries.
pub(crate) struct Looked {
    dir: OwnedFd,
    /// `true` if the directory contains a `.git`, which is not listed.
    pub(crate) has_git: bool,
    /// The entries, sorted by name.
    pub(crate) entries: Vec<(OsString, Kind)>,
}

/// An entry that a walk found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The path relative to the root.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

/// The starting point of a walk.
pub(crate) enum Start {
    Folder(Folder),
    File(Found),
}

impl Root {
    /// Resolves `path` for a walk. For a directory, it also loads the ignore rules of its parents.
    pub(crate) fn start(&self, path: &str) -> Result<Start, ToolError> {
        let path = self.relative(path)?;
        let fail = |err| self.refusal(path, err);
        let fd = self.resolve(path, OFlags::PATH).map_err(fail)?;
        let meta = Meta::from(rustix::fs::fstat(&fd).map_err(fail)?);
        let at = self.real(&fd).map_err(fail)?;
        if meta.kind() != Kind::Dir {
            super::file::regular(&meta, path)?;
            return Ok(Start::File(Found { path: at, kind: meta.kind() }));
        }
        let mut above = PathBuf::new();
        let mut rules = None;
        for name in &at {
            if let Ok(dir) = self.open_found(&above, OFlags::RDONLY | OFlags::DIRECTORY) {
                let names = RuleFiles { git: true, ignore: true };
                rules = Ignores::of(&dir, &above, rules, names);
            }
            above.push(name);
        }
        Ok(Start::Folder(Folder { path: at, rules }))
    }

    /// Opens a file that a walk found. Fails if it has become something else.
    pub(crate) fn open_walked(&self, path: &Path) -> Result<File, ToolError> {
        let shown = path.to_string_lossy();
        let fd = self.open_found(path, OFlags::RDONLY).map_err(|err| refusal(&shown, err))?;
        File::new(fd, &shown)
    }

    fn open_found(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
        beneath::open(self.dir(), dot(path), flags, Symlinks::Refuse)
    }
}

impl Folder {
    /// Returns the entries sorted by name, and loads the ignore rules of this directory.
    pub(crate) fn look(
        &mut self,
        root: &Root,
        sight: Sight,
        watch: &Watch,
    ) -> Result<Vec<(OsString, Kind)>, ToolError> {
        self.open(root, sight, watch).map(|looked| looked.entries)
    }

    /// Returns the open directory and its entries. Files open faster from it than by their full
    /// paths.
    pub(crate) fn open(
        &mut self,
        root: &Root,
        sight: Sight,
        watch: &Watch,
    ) -> Result<Looked, ToolError> {
        let dir = self.handle(root)?;
        self.open_at(dir, sight, watch)
    }

    /// Opens the directory itself, for [`Folder::open_at`].
    pub(crate) fn handle(&self, root: &Root) -> Result<OwnedFd, ToolError> {
        let dir = root.open_found(&self.path, OFlags::RDONLY | OFlags::DIRECTORY);
        dir.map_err(|err| refusal(&self.path.to_string_lossy(), err))
    }

    /// Lists the open directory `dir`, as [`Folder::open`] does.
    pub(crate) fn open_at(
        &mut self,
        dir: OwnedFd,
        sight: Sight,
        watch: &Watch,
    ) -> Result<Looked, ToolError> {
        self.read(dir, sight, watch).map_err(|err| err.at(&self.path.to_string_lossy()))
    }

    fn read(&mut self, dir: OwnedFd, sight: Sight, watch: &Watch) -> Result<Looked, Stopped> {
        let mut entries = Vec::new();
        let mut names = RuleFiles::default();
        each(dir.as_fd(), watch, |name, kind| {
            names.git |= name == ".git";
            names.ignore |= name == ".gitignore" || name == ".ignore";
            let hidden = name.as_encoded_bytes().starts_with(b".");
            if name != ".git" && (sight.hidden || !hidden) {
                entries.push((name.to_owned(), kind));
            }
            Ok(())
        })?;
        if !sight.ignored {
            self.rules = Ignores::of(&dir, &self.path, self.rules.take(), names);
            if let Some(rules) = &self.rules {
                entries.retain(|(name, kind)| !rules.ignore(&self.path.join(name), *kind));
            }
        }
        entries.sort_unstable();
        Ok(Looked { dir, has_git: names.git, entries })
    }

    /// Returns the subdirectory `name`. Call [`Folder::look`] first.
    pub(crate) fn enter(&self, name: &OsString) -> Self {
        Self { path: self.path.join(name), rules: self.rules.clone() }
    }
}

impl Looked {
    /// Returns the metadata of the entry `name` without opening it. `None` if it is gone.
    pub(crate) fn meta(&self, name: &OsString) -> Option<Meta> {
        statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(Meta::from)
    }

    /// Opens the file `name` in this directory. Fails if it has become something else. `path` is
    /// for messages.
    pub(crate) fn file(&self, name: &OsString, path: &Path) -> Result<File, ToolError> {
        let shown = path.to_string_lossy();
        let name = Path::new(name);
        let fd = beneath::open(self.dir.as_fd(), name, OFlags::RDONLY, Symlinks::Refuse)
            .map_err(|err| refusal(&shown, err))?;
        File::new(fd, &shown)
    }
}

/// A walk below a folder in path order, parents before their contents.
pub(crate) struct Walk<'r> {
    root: &'r Root,
    sight: Sight,
    watch: &'r Watch,
    /// The path to resume at. Entries before it are skipped.
    from: Option<PathBuf>,
    open: Vec<(Folder, vec::IntoIter<(OsString, Kind)>)>,
    /// The number of directories that could not be read.
    pub(crate) unread: u64,
}

impl<'r> Walk<'r> {
    /// Starts a walk of `folder` at the entry `from`.
    pub(crate) fn new(
        root: &'r Root,
        mut folder: Folder,
        sight: Sight,
        from: Option<PathBuf>,
        watch: &'r Watch,
    ) -> Result<Self, ToolError> {
        let entries = folder.look(root, sight, watch)?;
        let open = vec![(folder, entries.into_iter())];
        Ok(Self { root, sight, watch, from, open, unread: 0 })
    }

    /// Returns the next entry.
    pub(crate) fn next(&mut self) -> Result<Option<Found>, ToolError> {
        while let Some((folder, entries)) = self.open.last_mut() {
            self.watch.check()?;
            let Some((name, kind)) = entries.next() else {
                self.open.pop();
                continue;
            };
            let path = folder.path.join(&name);
            let from = self.from.as_deref().unwrap_or(Path::new(""));
            let passed = path.as_path() < from;
            if passed && !from.starts_with(&path) {
                continue;
            }
            if kind == Kind::Dir {
                let mut inner = folder.enter(&name);
                match inner.look(self.root, self.sight, self.watch) {
                    Ok(entries) => self.open.push((inner, entries.into_iter())),
                    Err(err) if err.fault == Fault::Canceled => return Err(err),
                    Err(_) => self.unread += 1,
                }
            }
            if !passed {
                return Ok(Some(Found { path, kind }));
            }
        }
        Ok(None)
    }
}
