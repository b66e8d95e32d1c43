//! Tracks the files of a folder and decides which to read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use toolgate_contract::{Fault, ToolError};

use super::reading::{Stale, Taken, What};
use crate::search::engines;
use crate::world::Root;
use crate::world::root::{Meta, Watch};
use crate::world::watch::{Looked, News, Tracker};

/// The largest number of files in a batch.
const BATCH_FILES: usize = 256;
/// The largest size of a batch, in bytes.
const BATCH_BYTES: u64 = 2 << 20;

/// The files of a folder, indexed or not.
pub(super) struct Files {
    root: Root,
    pub(super) tracker: Tracker,
    known: BTreeMap<String, Known>,
    bounds: Bounds,
    texts: usize,
    bytes: u64,
    /// Files that are left out because of a limit, with their sizes in bytes.
    cut: BTreeMap<String, u64>,
}

/// The limits of an index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) files_max: usize,
    pub(super) bytes_max: u64,
}

struct Known {
    stamp: Box<[u8]>,
    /// The etag of the indexed text; `None` if the file is not in the index.
    etag: Option<Box<str>>,
    bytes: u64,
}

/// The work that brings the index up to date.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) read: Vec<Stale>,
    pub(super) gone: Vec<String>,
}

/// The changes of a batch, for the index.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) put: Vec<engines::Put>,
    pub(super) remove: Vec<String>,
}

impl Files {
    /// Compares the `documents` in the index with the files of `root`, and returns the work to do.
    ///
    /// `first` is the initial scan that `tracker` made.
    ///
    /// # Errors
    ///
    /// If the work is canceled.
    pub(super) fn new(
        root: &Root,
        (tracker, first): (Tracker, Looked),
        documents: BTreeMap<String, engines::Known>,
        bounds: Bounds,
        watch: &Watch,
    ) -> Result<(Self, Todo), ToolError> {
        let texts = documents.len();
        let known = documents.into_iter().map(|(path, it)| {
            let engines::Known { stamp, etag } = it;
            let known = Known { stamp: stamp.into(), etag: Some(etag.into()), bytes: 0 };
            (path, known)
        });
        let known = known.collect();
        let root = root.clone();
        let cut = BTreeMap::new();
        let mut files = Self { root, tracker, known, bounds, texts, bytes: 0, cut };
        let mut todo = Todo::default();
        files.compare(first, &mut todo, watch)?;
        files.leave_excess(&mut todo);
        Ok((files, todo))
    }

    /// Returns the number of files with text.
    pub(super) fn texts(&self) -> usize {
        self.texts
    }

    /// Returns true if every text file is in the index.
    pub(super) fn is_complete(&self) -> bool {
        self.cut.is_empty() && self.tracker.unread() == 0
    }

    /// Returns the work to do for all changes since the last call, and for the files `changed`.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or the work is canceled.
    pub(super) fn news(
        &mut self,
        changed: BTreeSet<PathBuf>,
        watch: &Watch,
    ) -> Result<Todo, ToolError> {
        // The kernel does not report the removal of a folder that is held open.
        if self.root.is_gone() {
            let why = "the workspace is not there any more";
            return Err(ToolError::new(Fault::Unavailable, why));
        }
        let mut todo = Todo::default();
        match self.tracker.news() {
            News::Everything => {
                let looked = self.tracker.look_through(watch)?;
                self.compare(looked, &mut todo, watch)?;
            }
            News::In(mut folders) => {
                for path in changed {
                    let folder = path.parent();
                    let name = path.file_name();
                    if let (Some(folder), Some(name)) = (folder, name) {
                        folders.entry(folder.into()).or_default().insert(name.into());
                    }
                }
                for (folder, names) in folders {
                    let looked = self.tracker.look_into(&folder, &names, watch)?;
                    self.compare(looked, &mut todo, watch)?;
                }
            }
        }
        self.take_back(&mut todo);
        Ok(todo)
    }

    /// Returns true if another text file of `bytes` fits the limits.
    fn has_room(&self, bytes: u64) -> bool {
        self.texts < self.bounds.files_max && self.bytes + bytes <= self.bounds.bytes_max
    }

    /// Adds files to `todo` that were left out and fit the limits now.
    fn take_back(&mut self, todo: &mut Todo) {
        if self.cut.is_empty() {
            return;
        }
        let Bounds { files_max, bytes_max } = self.bounds;
        let mut texts = self.texts;
        let mut bytes = self.bytes;
        let leaves = todo.gone.iter().filter_map(|path| self.known.get(path));
        for known in leaves.filter(|known| known.etag.is_some()) {
            (texts, bytes) = (texts - 1, bytes - known.bytes);
        }
        let mut back = Vec::new();
        for (path, size) in &self.cut {
            if texts >= files_max {
                break;
            }
            if bytes + size <= bytes_max {
                (texts, bytes) = (texts + 1, bytes + size);
                back.push(Stale { path: path.clone(), etag: None, size: *size });
            }
        }
        for stale in &back {
            self.cut.remove(&stale.path);
        }
        todo.read.extend(back);
    }

    /// Removes files that exceed the limits, which may be lower than before.
    fn leave_excess(&mut self, todo: &mut Todo) {
        let mut texts = self.texts;
        let mut bytes = self.bytes;
        let in_it = self.known.iter().rev().filter(|(_, known)| known.etag.is_some());
        for (path, known) in in_it {
            if texts <= self.bounds.files_max && bytes <= self.bounds.bytes_max {
                break;
            }
            (texts, bytes) = (texts - 1, bytes - known.bytes);
            todo.read.retain(|stale| stale.path != *path);
            todo.gone.push(path.clone());
            self.cut.insert(path.clone(), known.bytes);
        }
    }

    fn compare(&mut self, looked: Looked, todo: &mut Todo, watch: &Watch) -> Result<(), ToolError> {
        let Looked { files, whole, gone } = looked;
        // Paths that are not UTF-8 cannot be shown to callers.
        let named =
            |(path, meta): (PathBuf, Meta)| Some((path.into_os_string().into_string().ok()?, meta));
        let files: BTreeMap<String, Meta> = files.into_iter().filter_map(named).collect();
        for folder in &whole {
            todo.gone
                .extend(self.beneath(folder).filter(|path| !files.contains_key(*path)).cloned());
        }
        for path in &gone {
            todo.gone.extend(self.beneath(path).filter(|path| !files.contains_key(*path)).cloned());
        }
        for (path, meta) in files {
            watch.check()?;
            let stamp = meta.stamp().bytes();
            let size = meta.size();
            match self.known.get_mut(&path) {
                Some(known) if *known.stamp == stamp => {
                    if known.etag.is_some() {
                        self.bytes = self.bytes + size - known.bytes;
                        known.bytes = size;
                    }
                }
                known => {
                    let etag = known.and_then(|it| it.etag.as_deref()).map(str::to_owned);
                    self.cut.remove(&path);
                    if etag.is_none() && !self.has_room(size) {
                        self.leave_out(path, stamp.into(), size);
                    } else {
                        todo.read.push(Stale { path, etag, size });
                    }
                }
            }
        }
        for path in &todo.gone {
            self.cut.remove(path);
            if !self.known.contains_key(path) {
                continue;
            }
            if self.known[path].etag.is_none() {
                self.known.remove(path);
            }
        }
        let known = &self.known;
        todo.gone.retain(|path| known.contains_key(path));
        Ok(())
    }

    /// Returns the known files at `path` and beneath.
    fn beneath(&self, path: &Path) -> impl Iterator<Item = &String> {
        let at = path.to_str().unwrap_or("\0").to_owned();
        let folder = if at.is_empty() { String::new() } else { format!("{at}/") };
        let from = self.known.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded));
        let itself = self.known.get_key_value(&at).map(|(path, _)| path);
        let beneath = from.map(|(path, _)| path).take_while(move |it| it.starts_with(&folder));
        itself.into_iter().chain(beneath.collect::<Vec<_>>())
    }

    /// Updates the known files after reading, and returns the changes for the index.
    pub(super) fn took(&mut self, taken: Vec<Taken>) -> Batch {
        let mut batch = Batch::default();
        for Taken { path, stamp, what } in taken {
            let stamp = stamp.into_boxed_slice();
            match what {
                What::Text(put) => {
                    let bytes = put.text.len() as u64;
                    let was = self.known.get(&path).filter(|it| it.etag.is_some());
                    let (texts, before) = was.map_or((0, 0), |it| (1, it.bytes));
                    let all = self.bytes - before + bytes;
                    if self.texts - texts >= self.bounds.files_max || all > self.bounds.bytes_max {
                        self.forget(path.clone(), &mut batch);
                        self.leave_out(path, stamp, bytes);
                        continue;
                    }
                    self.texts += 1 - texts;
                    self.bytes = all;
                    let etag = Some(put.etag.as_str().into());
                    self.known.insert(path, Known { stamp, etag, bytes });
                    batch.put.push(*put);
                }
                What::Same => {
                    if let Some(known) = self.known.get_mut(&path) {
                        known.stamp = stamp;
                    }
                }
                What::Other => {
                    self.forget(path.clone(), &mut batch);
                    self.known.insert(path, Known { stamp, etag: None, bytes: 0 });
                }
                What::Gone => self.forget(path, &mut batch),
            }
        }
        batch
    }

    /// Removes `paths` and returns the changes for the index.
    pub(super) fn removed(&mut self, paths: Vec<String>) -> Batch {
        let mut batch = Batch::default();
        for path in paths {
            let stamp = self.known.get(&path).map(|it| it.stamp.clone());
            let left_out = self.cut.get(&path).copied().zip(stamp);
            self.forget(path.clone(), &mut batch);
            if let Some((bytes, stamp)) = left_out {
                self.leave_out(path, stamp, bytes);
            }
        }
        batch
    }

    /// Marks the file at `path` as left out. It is not read until it fits the limits.
    fn leave_out(&mut self, path: String, stamp: Box<[u8]>, bytes: u64) {
        self.cut.insert(path.clone(), bytes);
        self.known.insert(path, Known { stamp, etag: None, bytes: 0 });
    }

    fn forget(&mut self, path: String, batch: &mut Batch) {
        if let Some(Known { etag: Some(_), bytes, .. }) = self.known.remove(&path) {
            self.texts -= 1;
            self.bytes -= bytes;
            batch.remove.push(path);
        }
    }
}

/// Splits `files` into batches. The first ones are small, so that searches soon find something.
pub(super) fn batches(files: Vec<Stale>) -> Vec<Vec<Stale>> {
    let mut batches: Vec<Vec<Stale>> = Vec::new();
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

/// Returns the folders of the index that lie in `root`, relative to it. They are not searched.
pub(super) fn left_out(root: &Root, folders: &[&Path]) -> Vec<PathBuf> {
    let inside = |folder: &&Path| Some(folder.strip_prefix(root.path()).ok()?.to_owned());
    folders.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect()
}
