//! Tracks the files of a folder, and decides which files to read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use toolgate_contract::{ToolError, ToolErrorKind};

use super::reading::{IndexFileReadOutcome, IndexableContent, StaleIndexedFile};
use crate::search::{IndexLimits, engines};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryMeta};
use toolgate_world::watch::{FileChanges, FileTracker, TrackedFolderUpdate};

/// The maximum number of files that are indexed in one batch.
const BATCH_FILES: usize = 256;
/// The maximum size of the files that are indexed in one batch, in bytes.
const BATCH_BYTES: u64 = 2 << 20;

/// The files of a folder that a search index tracks. Some of them may not be indexed.
pub(super) struct TrackedFiles {
    root: Root,
    pub(super) tracker: FileTracker,
    tracked: BTreeMap<String, TrackedFile>,
    limits: IndexLimits,
    text_count: usize,
    bytes: u64,
    /// Files that are not indexed because of a limit, with their sizes in bytes.
    left_out: BTreeMap<String, u64>,
}

/// State of a file that a search index tracks.
struct TrackedFile {
    stamp: Box<[u8]>,
    /// The etag of the indexed text; `None` if the file is not in the index.
    etag: Option<Box<str>>,
    bytes: u64,
}

/// The files to read and to remove to bring an index up to date.
#[derive(Debug, Default)]
pub(super) struct PendingIndexWork {
    pub(super) read: Vec<StaleIndexedFile>,
    pub(super) gone: Vec<String>,
}

/// The changes of the index for one batch of files.
#[derive(Debug, Default)]
pub(super) struct IndexBatchChanges {
    pub(super) put: Vec<engines::StoredDocument>,
    pub(super) remove: Vec<String>,
}

impl TrackedFiles {
    /// Compares the `documents` in the index with the files of `root`, and returns the differences
    /// to process.
    ///
    /// `first` is the initial scan of the folder by `tracker`.
    ///
    /// # Errors
    /// Fails if the work is canceled.
    pub(super) fn new(
        root: &Root,
        (tracker, first): (FileTracker, TrackedFolderUpdate),
        documents: BTreeMap<String, engines::StoredDocumentVersion>,
        limits: IndexLimits,
        watch: &DiskWorkMonitor,
    ) -> Result<(Self, PendingIndexWork), ToolError> {
        let documents_count = documents.len();
        let tracked = documents.into_iter().map(|(path, it)| {
            let engines::StoredDocumentVersion { stamp, etag } = it;
            let file = TrackedFile { stamp: stamp.into(), etag: Some(etag.into()), bytes: 0 };
            (path, file)
        });
        let mut files = Self {
            root: root.clone(),
            tracker,
            tracked: tracked.collect(),
            limits,
            text_count: documents_count,
            bytes: 0,
            left_out: BTreeMap::new(),
        };
        let mut work = PendingIndexWork::default();
        files.compare(first, &mut work, watch)?;
        files.drop_excess(&mut work);
        Ok((files, work))
    }

    /// Returns the number of tracked text files.
    pub(super) fn text_count(&self) -> usize {
        self.text_count
    }

    /// Returns true if every text file of the folder is in the index.
    pub(super) fn is_complete(&self) -> bool {
        self.left_out.is_empty() && self.tracker.unread() == 0
    }

    /// Returns the files to process because of all changes since the last call, and because of the
    /// reported paths `changed`.
    ///
    /// # Errors
    /// Fails if the folder cannot be read or the work is canceled.
    pub(super) fn find_changes(
        &mut self,
        changed: BTreeSet<PathBuf>,
        watch: &DiskWorkMonitor,
    ) -> Result<PendingIndexWork, ToolError> {
        // The kernel does not report the removal of a folder that is held open.
        if self.root.is_deleted() {
            let why = "the workspace no longer exists";
            return Err(ToolError::new(ToolErrorKind::Unavailable, why));
        }
        let mut work = PendingIndexWork::default();
        match self.tracker.read_changes() {
            FileChanges::Everything => {
                let update = self.tracker.rescan(watch)?;
                self.compare(update, &mut work, watch)?;
            }
            FileChanges::Entries(mut folders) => {
                for path in changed {
                    let folder = path.parent();
                    let name = path.file_name();
                    if let (Some(folder), Some(name)) = (folder, name) {
                        folders.entry(folder.into()).or_default().insert(name.into());
                    }
                }
                for (folder, names) in folders {
                    let update = self.tracker.rescan_folder(&folder, &names, watch)?;
                    self.compare(update, &mut work, watch)?;
                }
            }
        }
        self.restore_left_out(&mut work);
        Ok(work)
    }

    /// Returns true if another text file of `bytes` bytes fits into the limits of the index.
    fn has_room(&self, bytes: u64) -> bool {
        self.text_count < self.limits.files_max && self.bytes + bytes <= self.limits.text_bytes_max
    }

    /// Adds files to `work` that were not indexed because of a limit, but fit now.
    fn restore_left_out(&mut self, work: &mut PendingIndexWork) {
        if self.left_out.is_empty() {
            return;
        }
        let IndexLimits { files_max, text_bytes_max, .. } = self.limits;
        let mut texts = self.text_count;
        let mut bytes = self.bytes;
        let removed = work.gone.iter().filter_map(|path| self.tracked.get(path));
        for file in removed.filter(|file| file.etag.is_some()) {
            (texts, bytes) = (texts - 1, bytes - file.bytes);
        }
        let mut restored = Vec::new();
        for (path, size) in &self.left_out {
            if texts >= files_max {
                break;
            }
            if bytes + size <= text_bytes_max {
                (texts, bytes) = (texts + 1, bytes + size);
                restored.push(StaleIndexedFile { path: path.clone(), etag: None, size: *size });
            }
        }
        for stale in &restored {
            self.left_out.remove(&stale.path);
        }
        work.read.extend(restored);
    }

    /// Removes files from the index that exceed the limits, which may have been higher before. Adds
    /// the removals to `work`.
    fn drop_excess(&mut self, work: &mut PendingIndexWork) {
        let mut texts = self.text_count;
        let mut bytes = self.bytes;
        let indexed = self.tracked.iter().rev().filter(|(_, file)| file.etag.is_some());
        for (path, file) in indexed {
            if texts <= self.limits.files_max && bytes <= self.limits.text_bytes_max {
                break;
            }
            (texts, bytes) = (texts - 1, bytes - file.bytes);
            work.read.retain(|stale| stale.path != *path);
            work.gone.push(path.clone());
            self.left_out.insert(path.clone(), file.bytes);
        }
    }

    fn compare(
        &mut self,
        update: TrackedFolderUpdate,
        work: &mut PendingIndexWork,
        watch: &DiskWorkMonitor,
    ) -> Result<(), ToolError> {
        let TrackedFolderUpdate { files, complete_folders, removed } = update;
        // Paths that are not UTF-8 cannot be shown to callers.
        let named = |(path, meta): (PathBuf, EntryMeta)| {
            Some((path.into_os_string().into_string().ok()?, meta))
        };
        let files: BTreeMap<String, EntryMeta> = files.into_iter().filter_map(named).collect();
        for folder in &complete_folders {
            work.gone.extend(
                self.paths_beneath(folder).filter(|path| !files.contains_key(*path)).cloned(),
            );
        }
        for path in &removed {
            work.gone.extend(
                self.paths_beneath(path).filter(|path| !files.contains_key(*path)).cloned(),
            );
        }
        for (path, meta) in files {
            watch.check_cancelled()?;
            let stamp = meta.stamp().to_bytes();
            let size = meta.size();
            match self.tracked.get_mut(&path) {
                Some(file) if *file.stamp == stamp => {
                    if file.etag.is_some() {
                        self.bytes = self.bytes + size - file.bytes;
                        file.bytes = size;
                    }
                }
                file => {
                    let etag = file.and_then(|it| it.etag.as_deref()).map(str::to_owned);
                    self.left_out.remove(&path);
                    if etag.is_none() && !self.has_room(size) {
                        self.mark_left_out(path, stamp.into(), size);
                    } else {
                        work.read.push(StaleIndexedFile { path, etag, size });
                    }
                }
            }
        }
        for path in &work.gone {
            self.left_out.remove(path);
            if !self.tracked.contains_key(path) {
                continue;
            }
            if self.tracked[path].etag.is_none() {
                self.tracked.remove(path);
            }
        }
        let tracked = &self.tracked;
        work.gone.retain(|path| tracked.contains_key(path));
        Ok(())
    }

    /// Returns the paths of tracked files at `path` and below it.
    fn paths_beneath(&self, path: &Path) -> impl Iterator<Item = &String> {
        let at = path.to_str().unwrap_or("\0").to_owned();
        let folder = if at.is_empty() { String::new() } else { format!("{at}/") };
        let from =
            self.tracked.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded));
        let itself = self.tracked.get_key_value(&at).map(|(path, _)| path);
        let beneath = from.map(|(path, _)| path).take_while(move |it| it.starts_with(&folder));
        itself.into_iter().chain(beneath.collect::<Vec<_>>())
    }

    /// Records the results of reading files, and returns the changes for the index.
    pub(super) fn record_read(&mut self, readings: Vec<IndexFileReadOutcome>) -> IndexBatchChanges {
        let mut batch = IndexBatchChanges::default();
        for IndexFileReadOutcome { path, stamp, content } in readings {
            let stamp = stamp.into_boxed_slice();
            match content {
                IndexableContent::Text(put) => {
                    let bytes = put.text.len() as u64;
                    let previous = self.tracked.get(&path).filter(|it| it.etag.is_some());
                    let (texts, previous_bytes) = previous.map_or((0, 0), |it| (1, it.bytes));
                    let total_bytes = self.bytes - previous_bytes + bytes;
                    if self.text_count - texts >= self.limits.files_max
                        || total_bytes > self.limits.text_bytes_max
                    {
                        self.forget(path.clone(), &mut batch);
                        self.mark_left_out(path, stamp, bytes);
                        continue;
                    }
                    self.text_count += 1 - texts;
                    self.bytes = total_bytes;
                    let etag = Some(put.etag.as_str().into());
                    self.tracked.insert(path, TrackedFile { stamp, etag, bytes });
                    batch.put.push(*put);
                }
                IndexableContent::Unchanged => {
                    if let Some(known) = self.tracked.get_mut(&path) {
                        known.stamp = stamp;
                    }
                }
                IndexableContent::Unsearched => {
                    self.forget(path.clone(), &mut batch);
                    self.tracked.insert(path, TrackedFile { stamp, etag: None, bytes: 0 });
                }
                IndexableContent::Gone => self.forget(path, &mut batch),
            }
        }
        batch
    }

    /// Stops tracking the files `paths`, and returns the changes for the index.
    pub(super) fn remove_paths(&mut self, paths: Vec<String>) -> IndexBatchChanges {
        let mut batch = IndexBatchChanges::default();
        for path in paths {
            let stamp = self.tracked.get(&path).map(|it| it.stamp.clone());
            let left_out = self.left_out.get(&path).copied().zip(stamp);
            self.forget(path.clone(), &mut batch);
            if let Some((bytes, stamp)) = left_out {
                self.mark_left_out(path, stamp, bytes);
            }
        }
        batch
    }

    /// Records that the file at `path` is not indexed because of a limit. It is not read until it
    /// fits into the limits.
    fn mark_left_out(&mut self, path: String, stamp: Box<[u8]>, bytes: u64) {
        self.left_out.insert(path.clone(), bytes);
        self.tracked.insert(path, TrackedFile { stamp, etag: None, bytes: 0 });
    }

    fn forget(&mut self, path: String, batch: &mut IndexBatchChanges) {
        if let Some(TrackedFile { etag: Some(_), bytes, .. }) = self.tracked.remove(&path) {
            self.text_count -= 1;
            self.bytes -= bytes;
            batch.remove.push(path);
        }
    }
}

/// Splits `files` into batches. The first batches are small, so that searches soon have results.
pub(super) fn split_batches(files: Vec<StaleIndexedFile>) -> Vec<Vec<StaleIndexedFile>> {
    let mut batches: Vec<Vec<StaleIndexedFile>> = Vec::new();
    let mut bytes = u64::MAX;
    for file in files {
        // Larger files are not read.
        let size = file.size.min(1 << 20);
        let part = 8 >> batches.len().min(3);
        let is_full = batches.last().is_none_or(|last| last.len() >= BATCH_FILES / part);
        if is_full || bytes.saturating_add(size) > BATCH_BYTES / part as u64 {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(last) = batches.last_mut() {
            last.push(file);
        }
    }
    batches
}

/// Returns the paths, relative to `root`, of those index folders in `folders` that are inside
/// `root`. Searches exclude these folders.
pub(super) fn excluded_folders(root: &Root, folders: &[&Path]) -> Vec<PathBuf> {
    let inside = |folder: &&Path| Some(folder.strip_prefix(root.path()).ok()?.to_owned());
    folders.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect()
}
