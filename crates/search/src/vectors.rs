//! Stores vectors of one model by content hash: compact on disk, and searchable.
//!
//! Vectors are in a folder of immutable files, called blocks. The process that holds the index's
//! write lock writes. Any number of processes read. A reader holds a snapshot that later writes do
//! not change. `docs/design/vectors.md` explains why there is no graph index.
#![allow(clippy::disallowed_methods, reason = "the index's own folder, handed in by its owner")]

mod block;
mod vector_snapshot;
mod kernels;
mod slot_table;
mod quantised;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{VectorBlock, VectorBlockDraft, VectorBlockError, VectorBlockName, VectorRowSource};
pub use quantised::QuantizedQueryVector;
pub use slots::VectorSlotSet;
pub use vector_snapshot::VectorSnapshot;

use crate::{ChunkHash, VectorSpace};

/// Maximum number of vectors of a merged block (a file of vectors), unless there are [`BLOCKS_MAX`]
/// blocks.
const MERGED_VECTORS_MAX: usize = 32_768;
/// Number of blocks from which on all blocks of vectors are merged. Each block is an open file.
const BLOCKS_MAX: usize = 48;
/// Maximum number of attempts to read a folder of vectors that changes during the reading.
const READ_ATTEMPTS_MAX: usize = 10;

/// Reason for a failed operation on stored vectors.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// The vector is invalid: it cannot be stored or searched for.
    #[error("{0}")]
    Refused(String),
    /// The caller cancelled the search.
    #[error("the search was cancelled")]
    Canceled,
    /// The folder of the vectors could not be read or written.
    #[error("cannot store the vectors in `{}`: {cause}", folder.display())]
    Disk {
        /// Folder of the vectors.
        folder: PathBuf,
        /// Error from the operating system.
        cause: io::Error,
    },
}

/// The precision with which vectors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum VectorPrecision {
    /// Each number of a vector takes one byte.
    Fine,
    /// Each number of a vector takes two bits, a quarter of [`VectorPrecision::Fine`]. Use this
    /// precision if the cosine is only one of several scores.
    Coarse,
}

/// A store of vectors that belong to one vector space.
#[derive(Debug, Clone)]
pub struct VectorStore {
    inner: Arc<VectorStoreInner>,
}

#[derive(Debug)]
struct VectorStoreInner {
    /// Folder of the blocks (files of vectors). `None` for a store in memory.
    folder: Option<PathBuf>,
    space: VectorSpace,
    precision: VectorPrecision,
    state: Mutex<VectorStoreState>,
}

#[derive(Debug)]
struct VectorStoreState {
    snapshot: VectorSnapshot,
    /// Files to ignore: damaged blocks of vectors, and blocks that a merged block supersedes.
    ignored_files: BTreeSet<VectorBlockName>,
    /// Number that the next append to the store gets.
    next_append: u64,
}

impl VectorStore {
    /// Opens the store of vectors of `space` in `folder`, which is created if missing. Also returns
    /// a message for each unusable block (file of vectors). The vectors of such a block must be
    /// computed again. Fails if the folder is unreadable or `space` has too many dimensions.
    pub fn open(
        folder: &Path,
        space: &VectorSpace,
        precision: VectorPrecision,
    ) -> Result<(Self, Vec<String>), VectorsError> {
        let store = Self::new(Some(folder.to_owned()), space, precision)?;
        std::fs::create_dir_all(folder).map_err(|cause| store.inner.disk_error(cause))?;
        let messages = store.refresh()?;
        Ok((store, messages))
    }

    /// Creates an empty store of vectors in memory. Fails if `space` has no dimensions or too many.
    pub fn in_memory(
        space: &VectorSpace,
        precision: VectorPrecision,
    ) -> Result<Self, VectorsError> {
        Self::new(None, space, precision)
    }

    fn new(
        folder: Option<PathBuf>,
        space: &VectorSpace,
        precision: VectorPrecision,
    ) -> Result<Self, VectorsError> {
        let most = quantised::DIMENSIONS_MAX;
        let has = space.dimensions;
        if has == 0 || has > most {
            let model = &space.model;
            return Err(VectorsError::Refused(format!(
                "vectors of `{model}` have {has} numbers; 1 to {most} are supported"
            )));
        }
        let now = VectorSnapshot::new(space, Vec::new());
        let state = Mutex::new(VectorStoreState {
            snapshot: now,
            ignored_files: BTreeSet::new(),
            next_append: 1,
        });
        let space = space.clone();
        Ok(Self { inner: Arc::new(VectorStoreInner { folder, space, precision, state }) })
    }

    /// Returns the vector space of the stored vectors.
    pub fn space(&self) -> &VectorSpace {
        &self.inner.space
    }

    /// Returns a snapshot of the vectors that are stored now.
    pub fn snapshot(&self) -> VectorSnapshot {
        self.inner.state().snapshot.clone()
    }

    /// Loads blocks (files of vectors) that other processes wrote, and drops damaged blocks.
    /// Returns a message for each unusable block. Fails if the folder is unreadable.
    pub fn refresh(&self) -> Result<Vec<String>, VectorsError> {
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)
    }

    /// Stores `vectors` durably. A hash that already has a vector keeps that vector. Only the
    /// process that holds the index's write lock may call this. Batches of some thousand vectors
    /// are best. Fails if a vector is invalid or the file cannot be written.
    pub fn append(&self, vectors: &[(ChunkHash, Vec<f32>)]) -> Result<(), VectorsError> {
        let VectorStoreInner { folder, space, precision, .. } = &*self.inner;
        let precision = *precision;
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)?;
        let mut rows = Vec::new();
        let mut codes = Vec::new();
        let mut new = BTreeMap::new();
        for (hash, vector) in vectors {
            let wanted = state.snapshot.slot_of(*hash).is_none() && !new.contains_key(&hash.0);
            if wanted {
                new.insert(hash.0, new.len());
                quantised::quantise(vector, space, precision, &mut rows, &mut codes)?;
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let row = quantised::QuantizedVectorRow::byte_len(space.dimensions, precision);
        let code = quantised::code_bytes(space.dimensions);
        let blocks = state.snapshot.blocks().to_vec();
        let (kept, merged) = blocks.split_at(merge_start(&blocks, new.len()));
        let mut parts: BTreeMap<u64, VectorRowSource<'_>> = existing_rows(merged).collect();
        parts.extend(new.into_iter().map(|(hash, at)| {
            let row = &rows[at * row..][..row];
            let code = &codes[at * code..][..code];
            (hash, VectorRowSource::New { row, code })
        }));
        let first = merged.first().map_or(state.next_append, |it| it.name.first);
        let last = state.next_append;
        let parts = parts.into_iter().collect();
        let draft = VectorBlockDraft { first, last, space, precision, rows: parts };
        let made = draft.write(folder.as_deref()).map_err(|err| self.inner.disk_error(err))?;
        let blocks = kept.iter().cloned().chain([Arc::new(made)]).collect();
        self.inner.replace(&mut state, blocks);
        Ok(())
    }

    /// Removes the vectors of hashes for which `wanted` returns false, and merges the rest into one
    /// block. Returns the number of removed vectors. Only the process that holds the index's write
    /// lock may call this. Fails if the block cannot be written.
    pub fn retain(&self, wanted: &dyn Fn(ChunkHash) -> bool) -> Result<usize, VectorsError> {
        let VectorStoreInner { folder, space, precision, .. } = &*self.inner;
        let precision = *precision;
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)?;
        let blocks = state.snapshot.blocks().to_vec();
        let before: usize = blocks.iter().map(|block| block.len()).sum();
        let all: BTreeMap<u64, VectorRowSource<'_>> = existing_rows(&blocks).collect();
        let parts: Vec<_> = all.into_iter().filter(|(hash, _)| wanted(ChunkHash(*hash))).collect();
        let gone = before - parts.len();
        let (Some(first), true) = (blocks.first(), gone > 0 || blocks.len() > 1) else {
            return Ok(0);
        };
        let mut left = Vec::new();
        if !parts.is_empty() {
            let first = first.name.first;
            let last = state.next_append;
            let draft = VectorBlockDraft { first, last, space, precision, rows: parts };
            left = vec![Arc::new(
                draft.write(folder.as_deref()).map_err(|err| self.inner.disk_error(err))?,
            )];
        }
        self.inner.replace(&mut state, left);
        Ok(gone)
    }
}

impl VectorStoreInner {
    fn state(&self) -> MutexGuard<'_, VectorStoreState> {
        // The state is replaced as a whole, so a panic leaves the previous one intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk_error(&self, cause: io::Error) -> VectorsError {
        let folder = self.folder.clone().unwrap_or_default();
        VectorsError::Disk { folder, cause }
    }

    fn refresh(&self, state: &mut VectorStoreState) -> Result<Vec<String>, VectorsError> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let mut messages = Vec::new();
        for block in state.snapshot.blocks().iter().filter(|block| block.is_damaged()) {
            state.ignored_files.insert(block.name);
            messages.push(unusable_message(folder, block.name, "a row's checksum is wrong"));
        }
        for _ in 0..READ_ATTEMPTS_MAX {
            let there = block_names(folder).map_err(|cause| self.disk_error(cause))?;
            let held: BTreeSet<VectorBlockName> =
                state.snapshot.blocks().iter().map(|it| it.name).collect();
            state.ignored_files.retain(|name| there.contains(name));
            if there.iter().filter(|name| !state.ignored_files.contains(name)).eq(&held) {
                return Ok(messages);
            }
            if let Some(blocks) = self.read_blocks(folder, &there, state, &mut messages)? {
                let last = blocks.iter().map(|block| block.name.last).max().unwrap_or_default();
                state.next_append = state.next_append.max(last + 1);
                state.snapshot = VectorSnapshot::new(&self.space, blocks);
                return Ok(messages);
            }
        }
        // The folder changes faster than it can be read. The previous snapshot stays valid.
        Ok(messages)
    }

    /// Opens the usable blocks of vectors among the files `there` in `folder`, in order. Appends a
    /// message about each unusable block to `messages`. Returns `None` if a file has vanished
    /// meanwhile. Fails if a file is unreadable.
    fn read_blocks(
        &self,
        folder: &Path,
        there: &BTreeSet<VectorBlockName>,
        state: &mut VectorStoreState,
        messages: &mut Vec<String>,
    ) -> Result<Option<Vec<Arc<VectorBlock>>>, VectorsError> {
        // The widest blocks come first, because blocks that they supersede need not be opened.
        let mut names: Vec<VectorBlockName> = there.iter().copied().collect();
        names.sort_by_key(|name| (std::cmp::Reverse(name.last.saturating_sub(name.first)), *name));
        let mut blocks: Vec<Arc<VectorBlock>> = Vec::new();
        for name in names.into_iter().filter(|name| name.last < u64::MAX) {
            if blocks.iter().any(|block| block.name.supersedes(name)) {
                state.ignored_files.insert(name);
            }
            if state.ignored_files.contains(&name) {
                continue;
            }
            let held = state.snapshot.blocks().iter().find(|block| block.name == name);
            if let Some(held) = held {
                blocks.push(held.clone());
                continue;
            }
            match VectorBlock::open(folder, name, &self.space, self.precision) {
                Ok(block) => blocks.push(Arc::new(block)),
                Err(VectorBlockError::Missing) => return Ok(None),
                Err(VectorBlockError::Invalid(why)) => {
                    state.ignored_files.insert(name);
                    messages.push(unusable_message(folder, name, &why));
                }
                Err(VectorBlockError::Disk(cause)) => return Err(self.disk_error(cause)),
            }
        }
        blocks.sort_by_key(|block| block.name);
        Ok(Some(blocks))
    }

    /// Makes `blocks` the current blocks of the store, and deletes every other block file.
    fn replace(&self, state: &mut VectorStoreState, blocks: Vec<Arc<VectorBlock>>) {
        state.next_append += 1;
        state.snapshot = VectorSnapshot::new(&self.space, blocks);
        let Some(folder) = &self.folder else { return };
        let held: BTreeSet<VectorBlockName> =
            state.snapshot.blocks().iter().map(|it| it.name).collect();
        // A file that cannot be deleted now is superseded anyway, and deleted later.
        for name in block_names(folder).unwrap_or_default().difference(&held) {
            let _ = std::fs::remove_file(folder.join(name.file_name()));
        }
        state.ignored_files.clear();
    }
}

/// Returns the index of the first block that is merged with `new` new vectors. A block is merged if
/// it is not much larger than everything after it. So there are few blocks, and each vector is
/// rewritten only a few times.
fn merge_start(blocks: &[Arc<VectorBlock>], new: usize) -> usize {
    let crowded = blocks.len() >= BLOCKS_MAX;
    let mut from = blocks.len();
    let mut after = new;
    for (at, block) in blocks.iter().enumerate().rev() {
        let fits = block.len() + after <= MERGED_VECTORS_MAX && block.len() <= 2 * after;
        if !fits && !crowded {
            break;
        }
        (from, after) = (at, after + block.len());
    }
    from
}

/// Lists the stored vectors in `blocks`. If several blocks contain a hash, its newest vector comes
/// last.
fn existing_rows(blocks: &[Arc<VectorBlock>]) -> impl Iterator<Item = (u64, VectorRowSource<'_>)> {
    blocks.iter().flat_map(|block| {
        let hashes = block.hashes().iter().enumerate();
        hashes.map(|(index, hash)| (*hash, VectorRowSource::Existing { block, index }))
    })
}

fn block_names(folder: &Path) -> io::Result<BTreeSet<VectorBlockName>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        names.extend(entry?.file_name().to_str().and_then(VectorBlockName::parse));
    }
    Ok(names)
}

fn unusable_message(folder: &Path, name: VectorBlockName, why: &str) -> String {
    let path = folder.join(name.file_name());
    format!("the vectors in `{}` are unusable and will be recreated: {why}", path.display())
}
