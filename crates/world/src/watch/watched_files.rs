//! The watched files: the last known state and the subscribers of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::fstat;
use toolgate_contract::{ChangeFeed, ServerChange};

use super::folder_watches::{FolderWatchError, FolderWatchEventKinds, FolderWatches};
use crate::Root;
use crate::root::{EntryMeta, FileTime, WalkStartPoint};

/// The watched files by URI.
#[derive(Default)]
pub(super) struct WatchedFiles {
    files: BTreeMap<Arc<str>, WatchedFile>,
    /// The URIs of the watched files, by path. Contains the targets of watched symlinks, too.
    by_path: BTreeMap<PathBuf, BTreeSet<Arc<str>>>,
}

/// A watched file with its subscribers and last known state.
struct WatchedFile {
    path: PathBuf,
    /// The target if the file is a symlink, relative to the root.
    real_path: Option<PathBuf>,
    snapshot: WatchedFileSnapshot,
    listeners: Vec<(u64, ChangeFeed)>,
}

/// The last known state of a watched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct WatchedFileSnapshot {
    /// The metadata that identifies the file's state. `None` if the file was missing or unreadable.
    stamp: Option<WatchedFileStamp>,
    /// `true` if the file changed so recently that its next change may have the same stamp.
    is_fresh: bool,
}

/// The metadata of a watched file by which a change is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WatchedFileStamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl WatchedFiles {
    /// Subscribes `changes` to changes of the file at `path`. `number` identifies the subscriber,
    /// and `uri` is the URI of the file.
    pub(super) fn add(
        &mut self,
        root: &Root,
        places: &mut FolderWatches,
        (number, changes): (u64, ChangeFeed),
        (path, uri): (&str, &Arc<str>),
    ) -> Result<(), FolderWatchError> {
        if let Some(file) = self.files.get_mut(uri) {
            file.listeners.push((number, changes));
            return Ok(());
        }
        let path = PathBuf::from(path);
        let file = WatchedFile {
            path: path.clone(),
            real_path: None,
            snapshot: WatchedFileSnapshot::default(),
            listeners: vec![(number, changes)],
        };
        self.files.insert(uri.clone(), file);
        self.by_path.entry(path).or_default().insert(uri.clone());
        let looked = self.check_file(root, places, uri);
        if looked.is_err() {
            self.remove(number);
        }
        looked.map(drop)
    }

    /// Removes the subscriber with this `number` from all watched files.
    pub(super) fn remove(&mut self, number: u64) {
        let mut unheard = Vec::new();
        for (uri, file) in &mut self.files {
            file.listeners.retain(|(listener, _)| *listener != number);
            if file.listeners.is_empty() {
                unheard.push(uri.clone());
            }
        }
        for uri in unheard {
            if let Some(WatchedFile { path, real_path: real, .. }) = self.files.remove(&uri) {
                self.forget(&path, &uri);
                real.iter().for_each(|real| self.forget(real, &uri));
            }
        }
    }

    fn forget(&mut self, path: &Path, uri: &Arc<str>) {
        if let Some(uris) = self.by_path.get_mut(path) {
            uris.remove(uri);
            if uris.is_empty() {
                self.by_path.remove(path);
            }
        }
    }

    /// Returns the numbers of all subscribers to watched files.
    pub(super) fn listeners(&self) -> BTreeSet<u64> {
        let files = self.files.values();
        files.flat_map(|file| file.listeners.iter().map(|(number, _)| *number)).collect()
    }

    /// Returns `true` if a watched file is in the folder at `path` or below it.
    pub(super) fn needs_folder(&self, path: &Path) -> bool {
        self.files_below(path).any(|(file, _)| file != path)
    }

    /// Returns the URIs of the files that an event at `path` may have changed.
    pub(super) fn uris_at(&self, path: &Path) -> BTreeSet<Arc<str>> {
        self.files_below(path).flat_map(|(_, uris)| uris.iter().cloned()).collect()
    }

    /// Returns the URIs of all watched files.
    pub(super) fn all_uris(&self) -> BTreeSet<Arc<str>> {
        self.files.keys().cloned().collect()
    }

    fn files_below(&self, path: &Path) -> impl Iterator<Item = (&PathBuf, &BTreeSet<Arc<str>>)> {
        // Paths are ordered by component, so everything below `path` follows it directly.
        let from = self.by_path.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
        from.take_while(move |(file, _)| file.starts_with(path))
    }

    /// Returns `true` if the file with the URI `uri` has changed since the last check. Also watches
    /// the folders on the file's path.
    pub(super) fn check_file(
        &mut self,
        root: &Root,
        places: &mut FolderWatches,
        uri: &Arc<str>,
    ) -> Result<bool, FolderWatchError> {
        let Some(file) = self.files.get_mut(uri) else { return Ok(false) };
        let mut enough = watch_parents(root, places, &file.path);
        let real = real_file(root, &file.path).filter(|real| *real != file.path);
        if let Some(real) = &real {
            enough = enough.and(watch_parents(root, places, real));
        }
        // The state is read after the watch is set, so that later changes are reported.
        let seen = WatchedFileSnapshot::take(root, &file.path);
        let changed = seen.stamp != file.snapshot.stamp || file.snapshot.is_fresh;
        file.snapshot = seen;
        if file.real_path != real {
            let before = std::mem::replace(&mut file.real_path, real.clone());
            before.iter().for_each(|before| self.forget(before, uri));
            if let Some(real) = real {
                self.by_path.entry(real).or_default().insert(uri.clone());
            }
        }
        enough.map(|()| changed)
    }

    /// Sends a notification about the file with the URI `uri` to its subscribers.
    pub(super) fn notify(&self, uri: &Arc<str>) {
        let Some(file) = self.files.get(uri) else { return };
        notify_once(
            file.listeners.iter().map(|(_, changes)| changes),
            &ServerChange::Resource(uri.clone()),
        );
    }
}

impl WatchedFileSnapshot {
    fn take(root: &Root, path: &Path) -> Self {
        let now = FileTime::now();
        let path = path.to_str().unwrap_or_default();
        let stat = root.open_file(path).ok().and_then(|file| fstat(&file).ok());
        let Some(stat) = stat else { return Self::default() };
        let stamp = WatchedFileStamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            changed: (stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
        };
        Self { stamp: Some(stamp), is_fresh: EntryMeta::from(stat).has_changed_since(now) }
    }
}

/// Sends `change` once to each distinct subscriber in `listeners`.
pub(super) fn notify_once<'c>(
    listeners: impl Iterator<Item = &'c ChangeFeed>,
    change: &ServerChange,
) {
    let mut notified: Vec<&ChangeFeed> = Vec::new();
    for changes in listeners {
        if !notified.iter().any(|one| one.is_same(changes)) {
            changes.publish(change);
            notified.push(changes);
        }
    }
}

/// Watches every folder on the path to the file `path`, so that inotify reports the creation of the
/// file.
fn watch_parents(
    root: &Root,
    places: &mut FolderWatches,
    path: &Path,
) -> Result<(), FolderWatchError> {
    let above: Vec<&Path> = path.ancestors().skip(1).collect();
    for (below, folder) in above.iter().enumerate().rev() {
        let detail =
            if below == 0 { FolderWatchEventKinds::Content } else { FolderWatchEventKinds::Names };
        match places.watch(root, folder, detail) {
            Ok(_) => {}
            Err(FolderWatchError::Absent) => break,
            Err(FolderWatchError::Full) => return Err(FolderWatchError::Full),
        }
    }
    Ok(())
}

/// Returns the real path of the file at `path`, relative to the root. `None` if `path` is not a
/// file.
fn real_file(root: &Root, path: &Path) -> Option<PathBuf> {
    match root.walk_start(path.to_str()?) {
        Ok(WalkStartPoint::File(found)) => Some(found.path),
        Ok(WalkStartPoint::Folder(_)) | Err(_) => None,
    }
}
