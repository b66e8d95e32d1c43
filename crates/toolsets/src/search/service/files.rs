//! What is known of the files of a folder, and which of them are to be read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use toolgate_contract::{Fault, ToolError};

use super::reading::{Stale, Taken, What};
use crate::search::engines;
use crate::world::Root;
use crate::world::root::Watch;
use crate::world::watch::{Looked, News, Tracker};

/// How many files are read before they are put into the index.
const BATCH_FILES: usize = 256;
/// And how many bytes of them.
const BATCH_BYTES: u64 = 2 << 20;

/// The files of a folder, those that are in the index and those that are not.
pub(super) struct Files {
    root: Root,
    pub(super) tracker: Tracker,
    known: BTreeMap<String, Known>,
    bounds: Bounds,
    texts: usize,
    bytes: u64,
    /// Files were left out since there are too many.
    cut: bool,
}

/// How much goes into an index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) files_max: usize,
    pub(super) bytes_max: u64,
}

struct Known {
    stamp: Box<[u8]>,
    /// Of text that is in the index.
    etag: Option<Box<str>>,
    bytes: u64,
}

/// What is to be done to make the index as the folder is.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) read: Vec<Stale>,
    pub(super) gone: Vec<String>,
}

/// What came of a batch, for the index.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) put: Vec<engines::Put>,
    pub(super) remove: Vec<String>,
}

impl Files {
    /// The files of `root`, of which the index has `documents`.
    pub(super) fn new(
        root: &Root,
        tracker: Tracker,
        documents: BTreeMap<String, engines::Known>,
        bounds: Bounds,
    ) -> Self {
        let texts = documents.len();
        let known = documents.into_iter().map(|(path, it)| {
            let engines::Known { stamp, etag } = it;
            let known = Known { stamp: stamp.into(), etag: Some(etag.into()), bytes: 0 };
            (path, known)
        });
        let known = known.collect();
        Self { root: root.clone(), tracker, known, bounds, texts, bytes: 0, cut: false }
    }

    /// How many files with text there are, beneath `prefix`.
    pub(super) fn texts(&self) -> usize {
        self.texts
    }

    /// Whether every text file is in the index.
    pub(super) fn is_complete(&self) -> bool {
        !self.cut && self.tracker.unread() == 0
    }

    /// What is to be done, after all that happened since this was asked last.
    ///
    /// # Errors
    /// When the folder cannot be looked into, or nobody wants to know any more.
    pub(super) fn news(&mut self, watch: &Watch) -> Result<Todo, ToolError> {
        // The kernel does not say that a folder is gone which is held open.
        if self.root.is_gone() {
            let why = "the workspace is not there any more";
            return Err(ToolError::new(Fault::Unavailable, why));
        }
        match self.tracker.news() {
            News::Everything => self.look_through(watch),
            News::In(folders) => {
                let mut todo = Todo::default();
                for (folder, names) in folders {
                    let looked = self.tracker.look_into(&folder, &names, watch)?;
                    self.compare(looked, &mut todo, watch)?;
                }
                Ok(todo)
            }
        }
    }

    /// What is to be done, after a look at every file.
    ///
    /// # Errors
    /// When the folder cannot be looked into, or nobody wants to know any more.
    pub(super) fn look_through(&mut self, watch: &Watch) -> Result<Todo, ToolError> {
        let looked = self.tracker.look_through(watch)?;
        self.cut = false;
        let mut todo = Todo::default();
        self.compare(looked, &mut todo, watch)?;
        Ok(todo)
    }

    fn compare(&mut self, looked: Looked, todo: &mut Todo, watch: &Watch) -> Result<(), ToolError> {
        let Looked { files, whole, gone } = looked;
        // A name that is no text could not be told to anybody.
        let files: BTreeSet<String> =
            files.into_iter().filter_map(|path| path.into_os_string().into_string().ok()).collect();
        for folder in &whole {
            todo.gone.extend(self.beneath(folder).filter(|path| !files.contains(*path)).cloned());
        }
        for path in &gone {
            todo.gone.extend(self.beneath(path).filter(|path| !files.contains(*path)).cloned());
        }
        for path in files {
            watch.check()?;
            let Ok(file) = self.root.open_walked(Path::new(&path)) else {
                if self.known.contains_key(&path) {
                    todo.gone.push(path);
                }
                continue;
            };
            let (stamp, size) = (file.meta().stamp().bytes(), file.meta().size());
            match self.known.get_mut(&path) {
                Some(known) if *known.stamp == stamp => {
                    if known.etag.is_some() {
                        self.bytes = self.bytes + size - known.bytes;
                        known.bytes = size;
                    }
                }
                known => {
                    let etag = known.and_then(|it| it.etag.as_deref()).map(str::to_owned);
                    todo.read.push(Stale { path, etag, size });
                }
            }
        }
        for path in &todo.gone {
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

    /// All that is known at `path` and beneath.
    fn beneath(&self, path: &Path) -> impl Iterator<Item = &String> {
        let at = path.to_str().unwrap_or("\0").to_owned();
        let folder = if at.is_empty() { String::new() } else { format!("{at}/") };
        let from = self.known.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded));
        let itself = self.known.get_key_value(&at).map(|(path, _)| path);
        let beneath = from.map(|(path, _)| path).take_while(move |it| it.starts_with(&folder));
        itself.into_iter().chain(beneath.collect::<Vec<_>>())
    }

    /// What goes into the index of what was `taken`.
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
                        self.cut = true;
                        self.forget(path, &mut batch);
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

    /// Takes `paths` out.
    pub(super) fn removed(&mut self, paths: Vec<String>) -> Batch {
        let mut batch = Batch::default();
        paths.into_iter().for_each(|path| self.forget(path, &mut batch));
        batch
    }

    fn forget(&mut self, path: String, batch: &mut Batch) {
        if let Some(Known { etag: Some(_), bytes, .. }) = self.known.remove(&path) {
            self.texts -= 1;
            self.bytes -= bytes;
            batch.remove.push(path);
        }
    }
}

/// `files` in parts that are read and put together. The first are small: something is found soon.
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

/// Where the index lies, if that is in the folder itself: nothing there is looked at.
pub(super) fn left_out(root: &Root, folders: &[&Path]) -> Vec<PathBuf> {
    let inside = |folder: &&Path| Some(folder.strip_prefix(root.path()).ok()?.to_owned());
    folders.iter().filter_map(inside).filter(|path| !path.as_os_str().is_empty()).collect()
}
