//! Tracks the workspace's files and reports changed files on request. Nothing runs in the
//! background.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::folder_watches::{
    FolderWatchError, FolderWatchEventKinds, FolderWatches, contains_ignore_rules,
    repository_of_ignore_rules,
};
use super::queue_reader;
use crate::root::{DiskWorkMonitor, EntryKind, EntryMeta, WalkFilter, WalkFolder, WalkStartPoint};
use crate::{Root, root};

/// The filter of the tracked folders, which includes all entries except ignored ones.
const WORKSPACE_FILTER: WalkFilter = WalkFilter { include_ignored: false, include_hidden: true };

/// A tracker of all folders of a workspace except ignored ones. The tracker watches these folders
/// as far as the system allows.
pub struct FileTracker {
    root: Root,
    /// The watched folders. `None` if no folder is watched.
    watches: Option<FolderWatches>,
    /// The tracked folders, as before they were read. Reading a folder adds its ignore rules.
    folders: BTreeMap<PathBuf, WalkFolder>,
    /// Folders to skip, for example the folder of the search index.
    excluded: Vec<PathBuf>,
    is_whole: bool,
    /// `true` if the warning about unwatched folders was logged.
    has_warned: bool,
    /// Tracked folders that could not be read.
    unread: BTreeSet<PathBuf>,
}

/// The changes of tracked files since the last query.
#[derive(Debug, PartialEq, Eq)]
pub enum FileChanges {
    /// Any file may have changed. Call [`rescan`](FileTracker::rescan) to read all files again.
    Everything,
    /// The names of the changed entries, by the folder that contains them.
    Entries(BTreeMap<PathBuf, BTreeSet<OsString>>),
}

/// The result of a scan of tracked folders: their files, and the entries that no longer exist.
#[derive(Debug, Default)]
pub struct TrackedFolderUpdate {
    /// The files in the folder. If the folder is new or its ignore rules changed, also all files
    /// below it.
    pub files: Vec<(PathBuf, EntryMeta)>,
    /// Folders whose files are all in `files`. Every other file that was known below them no longer
    /// exists.
    pub complete_folders: Vec<PathBuf>,
    /// Files and folders that no longer exist, with everything below them.
    pub removed: Vec<PathBuf>,
}

impl TrackedFolderUpdate {
    /// Adds the file `name` in `folder`, whose path is `path`, to the update, if it is still a
    /// file.
    fn add(&mut self, folder: &root::OpenWalkFolder, name: &OsString, path: PathBuf) {
        let meta = folder.meta(name).filter(|meta| meta.kind() == EntryKind::File);
        self.files.extend(meta.map(|meta| (path, meta)));
    }
}

impl FileTracker {
    /// Creates a tracker of `root` without the folders `excluded`. Reads nothing yet. If `watched`
    /// is `false` or watching fails, the tracker gets no file events, so that each query reports
    /// that any file may have changed.
    pub fn new(root: &Root, excluded: Vec<PathBuf>, watched: bool) -> Self {
        let watches = watched.then(FolderWatches::new).and_then(|places| {
            places.inspect_err(|err| tracing::info!("the workspace is not watched: {err}")).ok()
        });
        Self {
            root: root.clone(),
            watches,
            folders: BTreeMap::new(),
            excluded,
            is_whole: true,
            has_warned: false,
            unread: BTreeSet::new(),
        }
    }

    /// Returns the number of tracked folders that could not be read.
    pub fn unread(&self) -> usize {
        self.unread.len()
    }

    /// Returns the descriptor that becomes readable when an event of a watched folder arrives.
    /// Returns `None` if no folder is watched.
    pub fn queue(&self) -> io::Result<Option<AsyncFd<Arc<OwnedFd>>>> {
        self.watches.as_ref().map(|places| queue_reader(places.queue())).transpose()
    }

    /// Returns the changes since the last call, without blocking.
    pub fn read_changes(&mut self) -> FileChanges {
        let Some(places) = &mut self.watches else { return FileChanges::Everything };
        if !self.is_whole {
            return FileChanges::Everything;
        }
        let news = places.read_events();
        if news.has_overflowed || news.gone.contains(Path::new("")) {
            return FileChanges::Everything;
        }
        let mut stale: BTreeMap<PathBuf, BTreeSet<OsString>> = BTreeMap::new();
        for (folder, name, _) in news.entries {
            if let Some(repository) = repository_of_ignore_rules(&folder) {
                if contains_ignore_rules(&folder, &name) && self.folders.contains_key(repository) {
                    stale.entry(repository.to_owned()).or_default().insert(".gitignore".into());
                }
                continue;
            }
            if self.folders.contains_key(&folder) {
                stale.entry(folder).or_default().insert(name);
            }
        }
        // A removed folder is handled in its parent.
        for path in news.gone {
            if let Some(repository) = repository_of_ignore_rules(&path)
                && self.folders.contains_key(repository)
            {
                stale.entry(repository.to_owned()).or_default().insert(".gitignore".into());
            } else if let (Some(above), Some(name)) = (path.parent(), path.file_name())
                && self.folders.contains_key(above)
            {
                stale.entry(above.to_owned()).or_default().insert(name.to_owned());
            }
        }
        FileChanges::Entries(stale)
    }

    /// Reads all files. Each folder is watched before it is read, so that no change is missed.
    ///
    /// # Errors
    /// The root cannot be read, or the work is cancelled.
    pub fn rescan(&mut self, watch: &DiskWorkMonitor) -> Result<TrackedFolderUpdate, ToolError> {
        self.folders.clear();
        self.unread.clear();
        self.is_whole = true;
        let WalkStartPoint::Folder(top) = self.root.walk_start(".")? else {
            return Err(ToolError::failed("the workspace is a file, not a folder"));
        };
        let mut looked = TrackedFolderUpdate {
            complete_folders: vec![PathBuf::new()],
            ..TrackedFolderUpdate::default()
        };
        self.add(top, &mut looked, watch)?;
        self.drop_unneeded();
        if self.unread.contains(Path::new("")) {
            return Err(ToolError::new(ToolErrorKind::Unavailable, "the workspace cannot be read"));
        }
        Ok(looked)
    }

    /// Reads the folder at `path`, in which the entries `names` changed.
    ///
    /// # Errors
    /// The work is cancelled.
    pub fn rescan_folder(
        &mut self,
        path: &Path,
        names: &BTreeSet<OsString>,
        watch: &DiskWorkMonitor,
    ) -> Result<TrackedFolderUpdate, ToolError> {
        let mut looked = TrackedFolderUpdate::default();
        let Some(outer) = self.folders.get(path).cloned() else { return Ok(looked) };
        if names.iter().any(|name| name == ".gitignore" || name == ".ignore" || name == ".git") {
            // Other ignore rules may select other files.
            self.remove(path);
            looked.complete_folders.push(path.to_owned());
            self.add(outer, &mut looked, watch)?;
            self.drop_unneeded();
            return Ok(looked);
        }
        let mut inner = outer;
        let open = match inner.open_and_list(&self.root, WORKSPACE_FILTER, watch) {
            Ok(open) => open,
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Err(_) => {
                self.remove(path);
                looked.removed.push(path.to_owned());
                self.drop_unneeded();
                return Ok(looked);
            }
        };
        let mut folders = BTreeSet::new();
        for (name, kind) in &open.entries {
            let at = path.join(name);
            match kind {
                EntryKind::File if names.contains(name) => looked.add(&open, name, at),
                EntryKind::Dir => {
                    folders.insert(at);
                }
                EntryKind::File | EntryKind::Symlink | EntryKind::Other => {}
            }
        }
        let is_child = |folder: &PathBuf| folder.parent() == Some(path) && folder != path;
        let known = self.folders_below(path).filter(|folder| is_child(folder));
        // A folder that replaced another one is new, even under the same name.
        let is_other = |folder: &PathBuf| {
            !folders.contains(folder) || folder.file_name().is_some_and(|it| names.contains(it))
        };
        let removed: Vec<PathBuf> = known.filter(|folder| is_other(folder)).cloned().collect();
        for folder in removed {
            self.remove(&folder);
            match folders.contains(&folder) {
                true => looked.complete_folders.push(folder),
                false => looked.removed.push(folder),
            }
        }
        let files: BTreeSet<PathBuf> = looked.files.iter().map(|it| it.0.clone()).collect();
        let at = names.iter().map(|name| path.join(name));
        looked.removed.extend(at.filter(|at| !files.contains(at) && !folders.contains(at)));
        for folder in folders {
            if !self.folders.contains_key(&folder)
                && let Some(name) = folder.file_name().map(OsStr::to_owned)
            {
                // Everything known under this name before is gone.
                looked.complete_folders.push(folder);
                self.add(inner.child(&name), &mut looked, watch)?;
            }
        }
        self.drop_unneeded();
        Ok(looked)
    }

    /// Adds the folder `top` and everything below it to the tracked folders, and their files to
    /// `looked`.
    fn add(
        &mut self,
        top: WalkFolder,
        looked: &mut TrackedFolderUpdate,
        watch: &DiskWorkMonitor,
    ) -> Result<(), ToolError> {
        let mut waiting = vec![top];
        while let Some(folder) = waiting.pop() {
            watch.check_cancelled()?;
            if self.excluded.contains(&folder.path) {
                continue;
            }
            // A path that is not UTF-8 could not be reported.
            if folder.path.to_str().is_none() {
                continue;
            }
            let Ok(handle) = folder.open_handle(&self.root) else {
                self.unread.insert(folder.path);
                continue;
            };
            let watched = self.watches.as_mut().filter(|_| self.is_whole).map(|places| {
                places.watch_open(handle.as_fd(), &folder.path, FolderWatchEventKinds::Content)
            });
            if let Some(Err(FolderWatchError::Full)) = watched {
                self.is_whole = false;
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        "the workspace has more folders than can be watched: it is scanned before \
                         each search instead"
                    );
                }
            }
            let mut inner = folder.clone();
            let mut listed = inner.list_opened(handle, WORKSPACE_FILTER, watch);
            let is_watched = listed.as_ref().is_ok_and(|open| open.has_git && self.is_whole);
            if let Some(places) = self.watches.as_mut().filter(|_| is_watched)
                && places.watch_ignore_rules(&self.root, &folder.path)
            {
                // The rules may have changed between reading and watching them.
                inner = folder.clone();
                listed = inner.open_and_list(&self.root, WORKSPACE_FILTER, watch);
            }
            let open = match listed {
                Ok(open) => open,
                Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
                Err(_) => {
                    self.unread.insert(folder.path);
                    continue;
                }
            };
            for (name, kind) in &open.entries {
                match kind {
                    EntryKind::File => looked.add(&open, name, folder.path.join(name)),
                    EntryKind::Dir => waiting.push(inner.child(name)),
                    EntryKind::Symlink | EntryKind::Other => {}
                }
            }
            self.unread.remove(&folder.path);
            self.folders.insert(folder.path.clone(), folder);
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) {
        let paths: Vec<PathBuf> = self.folders_below(path).cloned().collect();
        for path in paths {
            self.folders.remove(&path);
        }
        self.unread.retain(|folder| !folder.starts_with(path));
    }

    fn folders_below(&self, path: &Path) -> impl Iterator<Item = &PathBuf> {
        let from = self.folders.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.map(|(folder, _)| folder).take_while(move |folder| folder.starts_with(path))
    }

    /// Removes the watches of folders that are no longer tracked.
    fn drop_unneeded(&mut self) {
        let Self { watches: places, folders, .. } = self;
        if let Some(places) = places {
            places.retain(|path| {
                folders.contains_key(repository_of_ignore_rules(path).unwrap_or(path))
            });
        }
    }
}
