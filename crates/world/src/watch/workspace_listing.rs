//! Tracks the files of the workspace, to notice when their list changes.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use super::folder_watches::{
    FolderWatchError, FolderWatchEventKinds, FolderWatches, contains_ignore_rules,
    repository_of_ignore_rules,
};
use crate::Root;
use crate::root::{
    DiskWorkMonitor, EntryKind, EntryMeta, FileTime, WalkFilter, WalkFolder, WalkStartPoint,
};

/// The maximum number of folders to watch for new and removed files.
const FOLDERS_MAX: usize = 8192;
/// The filter of the listed folders, which includes all entries except ignored ones.
const WORKSPACE_FILTER: WalkFilter = WalkFilter { include_ignored: false, include_hidden: true };

/// The list of the workspace's folders except ignored ones, from which changes of the file list are
/// recognized.
pub(super) struct WorkspaceListing {
    folders: BTreeMap<PathBuf, ListedWorkspaceFolder>,
    /// Folders in which names appeared or disappeared since the last refresh.
    stale: BTreeSet<PathBuf>,
    /// Folders that may have been replaced.
    replaced: BTreeSet<PathBuf>,
    /// `true` if the whole listing must be read again, including the ignore rules.
    is_stale: bool,
    /// `true` if the warning about unwatched folders was logged.
    has_warned: bool,
}

/// A folder of the workspace, with a hash of the names of its files.
struct ListedWorkspaceFolder {
    /// The folder without its own ignore rules. Reading the folder again adds these rules.
    folder: WalkFolder,
    /// A hash of the names of the files in the folder. 0 if there are none.
    names_hash: u64,
}

impl WorkspaceListing {
    /// Lists the folders of the workspace and watches them. Returns the listing, and `true` if any
    /// part of the workspace changed after `since`.
    pub(super) fn new(root: &Root, places: &mut FolderWatches, since: FileTime) -> (Self, bool) {
        let mut listing = Self {
            folders: BTreeMap::new(),
            stale: BTreeSet::new(),
            replaced: BTreeSet::new(),
            is_stale: false,
            has_warned: false,
        };
        let is_recent = listing.add_all(root, places, Some(since));
        (listing, is_recent)
    }

    /// Returns `true` if the folder at `path` belongs to the listing, or has ignore rules of one
    /// that does.
    pub(super) fn needs_folder(&self, path: &Path) -> bool {
        self.contains(repository_of_ignore_rules(path).unwrap_or(path))
    }

    fn contains(&self, path: &Path) -> bool {
        self.folders.contains_key(path)
    }

    /// Returns `true` if the listing must be refreshed.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale || !self.stale.is_empty() || !self.replaced.is_empty()
    }

    /// Records that `name` appeared in or disappeared from `folder`.
    pub(super) fn note_name_change(&mut self, folder: &Path, name: &OsStr) {
        self.note_write(folder, name);
        if !self.contains(folder) {
            return;
        }
        let path = folder.join(name);
        if self.contains(&path) {
            self.replaced.insert(path);
        }
        self.stale.insert(folder.to_owned());
    }

    /// Records that the entry `name` in `folder` was written.
    pub(super) fn note_write(&mut self, folder: &Path, name: &OsStr) {
        self.is_stale |= match repository_of_ignore_rules(folder) {
            Some(repository) => contains_ignore_rules(folder, name) && self.contains(repository),
            None => {
                self.contains(folder)
                    && [".git", ".gitignore", ".ignore"].iter().any(|it| name == *it)
            }
        };
    }

    /// Records that the folder at `path` was moved or removed.
    pub(super) fn note_folder_gone(&mut self, path: &Path) {
        if let Some(repository) = repository_of_ignore_rules(path) {
            self.is_stale |= self.contains(repository);
        } else if self.contains(path) {
            self.replaced.insert(path.to_owned());
        }
    }

    /// Marks the complete listing as outdated, because events were lost.
    pub(super) fn invalidate(&mut self) {
        self.is_stale = true;
    }

    /// Refreshes the changed parts of the listing. Returns `true` if the file list has changed.
    pub(super) fn refresh(&mut self, root: &Root, places: &mut FolderWatches) -> bool {
        let replaced = std::mem::take(&mut self.replaced);
        let stale = std::mem::take(&mut self.stale);
        if std::mem::take(&mut self.is_stale) {
            let before = self.names_hash(Path::new(""));
            self.folders.clear();
            self.add_all(root, places, None);
            return self.names_hash(Path::new("")) != before;
        }
        let mut changed = false;
        for path in replaced {
            let Some(ListedWorkspaceFolder { folder, .. }) = self.folders.get(&path) else {
                continue;
            };
            let folder = folder.clone();
            let before = self.names_hash(&path);
            self.remove(&path);
            self.add(root, places, folder, None);
            changed |= self.names_hash(&path) != before;
        }
        for path in stale {
            changed |= self.refresh_folder(root, places, &path);
        }
        changed
    }

    /// Refreshes the folder at `path`. Returns `true` if its files have changed.
    fn refresh_folder(&mut self, root: &Root, places: &mut FolderWatches, path: &Path) -> bool {
        let Some(listed) = self.folders.get(path) else { return false };
        let Some(ReadWorkspaceFolder { inner, names_hash, folders, .. }) =
            read_folder(&listed.folder, root)
        else {
            let changed = self.has_files(path);
            self.remove(path);
            return changed;
        };
        let mut changed = names_hash != listed.names_hash;
        if let Some(listed) = self.folders.get_mut(path) {
            listed.names_hash = names_hash;
        }
        let is_child = |folder: &&PathBuf| folder.parent() == Some(path) && **folder != *path;
        let known = self.folders_below(path).map(|(path, _)| path).filter(is_child);
        let removed: Vec<PathBuf> =
            known.filter(|folder| !folders.contains(*folder)).cloned().collect();
        for folder in removed {
            changed |= self.has_files(&folder);
            self.remove(&folder);
        }
        for folder in folders {
            if !self.contains(&folder)
                && let Some(name) = folder.file_name()
            {
                self.add(root, places, inner.child(&name.to_owned()), None);
                changed |= self.has_files(&folder);
            }
        }
        changed
    }

    /// Adds all folders of the workspace to the listing. Returns true if any folder changed after
    /// `since`.
    fn add_all(
        &mut self,
        root: &Root,
        places: &mut FolderWatches,
        since: Option<FileTime>,
    ) -> bool {
        match root.walk_start(".") {
            Ok(WalkStartPoint::Folder(top)) => self.add(root, places, top, since),
            Ok(WalkStartPoint::File(_)) | Err(_) => false,
        }
    }

    /// Adds the folder `top` and everything below it to the listing. Returns `true` if any of these
    /// folders changed after `since`.
    fn add(
        &mut self,
        root: &Root,
        places: &mut FolderWatches,
        top: WalkFolder,
        since: Option<FileTime>,
    ) -> bool {
        let mut is_recent = false;
        let mut waiting = vec![top];
        while let Some(folder) = waiting.pop() {
            if self.folders.len() >= FOLDERS_MAX {
                self.warn_full();
                break;
            }
            // The watch is set before reading, so that no change is missed.
            let handle = match places.watch(root, &folder.path, FolderWatchEventKinds::Names) {
                Ok(handle) => handle,
                Err(FolderWatchError::Absent) => continue,
                Err(FolderWatchError::Full) => {
                    self.warn_full();
                    break;
                }
            };
            let mut looked = read_folder(&folder, root);
            if looked.as_ref().is_some_and(|listed| listed.has_git)
                && places.watch_ignore_rules(root, &folder.path)
            {
                // The rules may have changed between reading and watching them.
                looked = read_folder(&folder, root);
            }
            // The time is checked after reading. An earlier change is part of the listing, and only
            // its time shows that it is new.
            let is_changed = |since| {
                fstat(&handle).is_ok_and(|stat| EntryMeta::from(stat).has_changed_since(since))
            };
            is_recent |= since.is_some_and(is_changed);
            let Some(ReadWorkspaceFolder { inner, names_hash, folders, .. }) = looked else {
                continue;
            };
            let inside = folders.iter().filter_map(|folder| folder.file_name());
            waiting.extend(inside.map(|name| inner.child(&name.to_owned())));
            self.folders.insert(folder.path.clone(), ListedWorkspaceFolder { folder, names_hash });
        }
        is_recent
    }

    /// Removes the folder at `path` and everything below it from the listing. Keeps the watches,
    /// because other subscribers may need them: [`FolderWatches::retain`] removes them later.
    fn remove(&mut self, path: &Path) {
        let paths: Vec<PathBuf> = self.folders_below(path).map(|(path, _)| path.clone()).collect();
        for path in paths {
            self.folders.remove(&path);
        }
    }

    /// Returns a hash of the file names in the folder at `path` and below it.
    fn names_hash(&self, path: &Path) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (path, listed) in self.folders_below(path).filter(|(_, listed)| listed.names_hash != 0)
        {
            (path, listed.names_hash).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn has_files(&self, path: &Path) -> bool {
        self.folders_below(path).any(|(_, listed)| listed.names_hash != 0)
    }

    fn folders_below(
        &self,
        path: &Path,
    ) -> impl Iterator<Item = (&PathBuf, &ListedWorkspaceFolder)> {
        let from = self.folders.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(folder, _)| folder.starts_with(path))
    }

    fn warn_full(&mut self) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "the workspace has more folders than are watched ({}): new and removed files in \
                 the others are not reported",
                self.folders.len()
            );
        }
    }
}

/// The content of a folder.
struct ReadWorkspaceFolder {
    /// The folder with its own ignore rules.
    inner: WalkFolder,
    /// A hash of the names of the files in the folder. 0 if there are none.
    names_hash: u64,
    /// The paths of the subfolders.
    folders: BTreeSet<PathBuf>,
    /// `true` if the folder has an entry `.git`.
    has_git: bool,
}

/// Reads `folder`. Returns `None` if it cannot be read.
fn read_folder(folder: &WalkFolder, root: &Root) -> Option<ReadWorkspaceFolder> {
    // Reading a folder adds its ignore rules, which must happen only once.
    let mut inner = folder.clone();
    let open = inner.open_and_list(root, WORKSPACE_FILTER, &DiskWorkMonitor::default()).ok()?;
    let mut hasher = DefaultHasher::new();
    let mut files = 0_u64;
    let mut folders = BTreeSet::new();
    for (name, kind) in &open.entries {
        match kind {
            EntryKind::File => {
                name.hash(&mut hasher);
                files += 1;
            }
            EntryKind::Dir => {
                folders.insert(folder.path.join(name));
            }
            EntryKind::Symlink | EntryKind::Other => {}
        }
    }
    let names_hash = if files == 0 { 0 } else { hasher.finish() | 1 };
    Some(ReadWorkspaceFolder { inner, names_hash, folders, has_git: open.has_git })
}
