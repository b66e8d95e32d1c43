//! Tracks the workspace's files and reports the changed ones on request. Nothing runs in the
//! background.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use toolgate_contract::{Fault, ToolError};

use super::places::{Keen, Places, Unwatched};
use super::readable;
use crate::world::root::{Folder, Kind, Meta, Sight, Start, Watch};
use crate::world::{Root, root};

/// Includes everything but ignored entries.
const SIGHT: Sight = Sight { ignored: false, hidden: true };

/// The folder of git's additional ignore rules.
const RULES_OF_GIT: &str = ".git/info";

/// The folders of a workspace without ignored ones, watched as far as the system allows.
pub(crate) struct Tracker {
    root: Root,
    /// `None` if nothing is watched.
    places: Option<Places>,
    /// The folders before reading, because reading adds their ignore rules.
    folders: BTreeMap<PathBuf, Folder>,
    /// Folders to skip, for example the one of the index itself.
    left_out: Vec<PathBuf>,
    is_whole: bool,
    /// `true` if the warning about unwatched folders was logged.
    is_told: bool,
    /// Folders that could not be read.
    unread: BTreeSet<PathBuf>,
}

/// Changes since the last query.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Anything may have changed: [read everything](Tracker::look_through) again.
    Everything,
    /// The changed names by folder.
    In(BTreeMap<PathBuf, BTreeSet<OsString>>),
}

/// The current state of a folder.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// The files in it. If it is new or its rules changed, also all files below it.
    pub(crate) files: Vec<(PathBuf, Meta)>,
    /// Folders whose files are all in `files`. Anything else known below them is gone.
    pub(crate) whole: Vec<PathBuf>,
    /// Files and folders that no longer exist, with everything below.
    pub(crate) gone: Vec<PathBuf>,
}

impl Looked {
    /// Adds the file `name` of `folder` at `path`, if it is still a file.
    fn add(&mut self, folder: &root::Looked, name: &OsString, path: PathBuf) {
        let meta = folder.meta(name).filter(|meta| meta.kind() == Kind::File);
        self.files.extend(meta.map(|meta| (path, meta)));
    }
}

impl Tracker {
    /// Creates a tracker of `root` without the folders `left_out`. It reads nothing yet. If
    /// `watched` is false or watching fails, it receives no events.
    pub(crate) fn new(root: &Root, left_out: Vec<PathBuf>, watched: bool) -> Self {
        let places = watched.then(Places::new).and_then(|places| {
            places.inspect_err(|err| tracing::info!("files are not watched: {err}")).ok()
        });
        Self {
            root: root.clone(),
            places,
            folders: BTreeMap::new(),
            left_out,
            is_whole: true,
            is_told: false,
            unread: BTreeSet::new(),
        }
    }

    /// Returns the number of folders that could not be read.
    pub(crate) fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Returns the descriptor that becomes readable when an event arrives.
    pub(crate) fn queue(&self) -> io::Result<Option<AsyncFd<Arc<OwnedFd>>>> {
        self.places.as_ref().map(|places| readable(places.queue())).transpose()
    }

    /// Returns the changes since the last call, without blocking.
    pub(crate) fn news(&mut self) -> News {
        let Some(places) = &mut self.places else { return News::Everything };
        if !self.is_whole {
            return News::Everything;
        }
        let news = places.news();
        if news.lost || news.gone.contains(Path::new("")) {
            return News::Everything;
        }
        let mut stale: BTreeMap<PathBuf, BTreeSet<OsString>> = BTreeMap::new();
        for (folder, name, _) in news.entries {
            if let Some(ruled) = ruled_from(&folder) {
                if name == "exclude" && self.folders.contains_key(ruled) {
                    stale.entry(ruled.to_owned()).or_default().insert(".gitignore".into());
                }
                continue;
            }
            if self.folders.contains_key(&folder) {
                stale.entry(folder).or_default().insert(name);
            }
        }
        // A removed folder is handled in its parent.
        for path in news.gone {
            if let (Some(above), Some(name)) = (path.parent(), path.file_name())
                && self.folders.contains_key(above)
            {
                stale.entry(above.to_owned()).or_default().insert(name.to_owned());
            }
        }
        News::In(stale)
    }

    /// Reads all files. Each folder is watched before it is read, so that no change is missed.
    ///
    /// # Errors
    /// If the root cannot be read, or the work is cancelled.
    pub(crate) fn look_through(&mut self, watch: &Watch) -> Result<Looked, ToolError> {
        self.folders.clear();
        self.unread.clear();
        self.is_whole = true;
        let Start::Folder(top) = self.root.start(".")? else {
            return Err(ToolError::failed("the workspace is a file, not a folder"));
        };
        let mut looked = Looked { whole: vec![PathBuf::new()], ..Looked::default() };
        self.add(top, &mut looked, watch)?;
        self.leave_rest();
        if self.unread.contains(Path::new("")) {
            return Err(ToolError::new(Fault::Unavailable, "the workspace cannot be read"));
        }
        Ok(looked)
    }

    /// Reads the folder at `path`, in which `names` changed.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn look_into(
        &mut self,
        path: &Path,
        names: &BTreeSet<OsString>,
        watch: &Watch,
    ) -> Result<Looked, ToolError> {
        let mut looked = Looked::default();
        let Some(outer) = self.folders.get(path).cloned() else { return Ok(looked) };
        if names.iter().any(|name| name == ".gitignore" || name == ".ignore" || name == ".git") {
            // Other ignore rules may select other files.
            self.remove(path);
            looked.whole.push(path.to_owned());
            self.add(outer, &mut looked, watch)?;
            self.leave_rest();
            return Ok(looked);
        }
        let mut inner = outer;
        let open = match inner.open(&self.root, SIGHT, watch) {
            Ok(open) => open,
            Err(err) if err.fault == Fault::Canceled => return Err(err),
            Err(_) => {
                self.remove(path);
                looked.gone.push(path.to_owned());
                self.leave_rest();
                return Ok(looked);
            }
        };
        let mut folders = BTreeSet::new();
        for (name, kind) in &open.entries {
            let at = path.join(name);
            match kind {
                Kind::File if names.contains(name) => looked.add(&open, name, at),
                Kind::Dir => {
                    folders.insert(at);
                }
                Kind::File | Kind::Symlink | Kind::Other => {}
            }
        }
        let is_child = |folder: &PathBuf| folder.parent() == Some(path) && folder != path;
        let known = self.beneath(path).filter(|folder| is_child(folder));
        // A folder that replaced another one is new, even under the same name.
        let is_other = |folder: &PathBuf| {
            !folders.contains(folder) || folder.file_name().is_some_and(|it| names.contains(it))
        };
        let gone: Vec<PathBuf> = known.filter(|folder| is_other(folder)).cloned().collect();
        for folder in gone {
            self.remove(&folder);
            match folders.contains(&folder) {
                true => looked.whole.push(folder),
                false => looked.gone.push(folder),
            }
        }
        let files: BTreeSet<PathBuf> = looked.files.iter().map(|it| it.0.clone()).collect();
        let at = names.iter().map(|name| path.join(name));
        looked.gone.extend(at.filter(|at| !files.contains(at) && !folders.contains(at)));
        for folder in folders {
            if !self.folders.contains_key(&folder)
                && let Some(name) = folder.file_name().map(OsStr::to_owned)
            {
                // Everything known under this name before is gone.
                looked.whole.push(folder);
                self.add(inner.enter(&name), &mut looked, watch)?;
            }
        }
        self.leave_rest();
        Ok(looked)
    }

    /// Adds the folder `top` and everything below.
    fn add(&mut self, top: Folder, looked: &mut Looked, watch: &Watch) -> Result<(), ToolError> {
        let mut waiting = vec![top];
        while let Some(folder) = waiting.pop() {
            watch.check()?;
            if self.left_out.contains(&folder.path) {
                continue;
            }
            // A path that is not UTF-8 could not be reported.
            if folder.path.to_str().is_none() {
                continue;
            }
            let Ok(handle) = folder.handle(&self.root) else {
                self.unread.insert(folder.path);
                continue;
            };
            let watched = self
                .places
                .as_mut()
                .filter(|_| self.is_whole)
                .map(|places| places.watch_open(handle.as_fd(), &folder.path, Keen::Content));
            if let Some(Err(Unwatched::Full)) = watched {
                self.is_whole = false;
                if !std::mem::replace(&mut self.is_told, true) {
                    tracing::warn!(
                        "the workspace has more folders than can be watched: it is looked through \
                         before each search instead"
                    );
                }
            }
            let mut inner = folder.clone();
            let open = match inner.open_at(handle, SIGHT, watch) {
                Ok(open) => open,
                Err(err) if err.fault == Fault::Canceled => return Err(err),
                Err(_) => {
                    self.unread.insert(folder.path);
                    continue;
                }
            };
            if let Some(places) = self.places.as_mut().filter(|_| open.has_git) {
                // Not every repository has that folder.
                let _ = places.watch(&self.root, &folder.path.join(RULES_OF_GIT), Keen::Names);
            }
            for (name, kind) in &open.entries {
                match kind {
                    Kind::File => looked.add(&open, name, folder.path.join(name)),
                    Kind::Dir => waiting.push(inner.enter(name)),
                    Kind::Symlink | Kind::Other => {}
                }
            }
            self.unread.remove(&folder.path);
            self.folders.insert(folder.path.clone(), folder);
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) {
        let paths: Vec<PathBuf> = self.beneath(path).cloned().collect();
        for path in paths {
            self.folders.remove(&path);
        }
        self.unread.retain(|folder| !folder.starts_with(path));
    }

    fn beneath(&self, path: &Path) -> impl Iterator<Item = &PathBuf> {
        let from = self.folders.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.map(|(folder, _)| folder).take_while(move |folder| folder.starts_with(path))
    }

    /// Removes watches of folders that no longer belong to the workspace.
    fn leave_rest(&mut self) {
        let Self { places, folders, .. } = self;
        if let Some(places) = places {
            places.keep(|path| folders.contains_key(ruled_from(path).unwrap_or(path)));
        }
    }
}

/// Returns the repository's folder if `folder` is the one of its additional ignore rules.
fn ruled_from(folder: &Path) -> Option<&Path> {
    folder.ends_with(RULES_OF_GIT).then(|| folder.parent()?.parent()).flatten()
}
