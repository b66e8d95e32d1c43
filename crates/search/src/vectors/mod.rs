//! Stores vectors of one model by content hash: compact on disk, and searchable.
//!
//! Vectors are in a folder of immutable blocks. The process that holds the index's write lock
//! writes; any number of processes read. A reader holds a snapshot that later writes do not change.
//! `docs/design/vectors.md` explains why there is no graph index.
#![allow(clippy::disallowed_methods, reason = "the index's own folder, handed in by its owner")]

mod block;
mod found;
mod kernels;
mod places;
mod quantised;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Block, Draft, Name, Part, Unusable};
pub use found::Vectors;
pub use quantised::Query;
pub use slots::Slots;

use crate::{ChunkHash, Space};

/// Most vectors of a merged block, unless there are [`BLOCKS_MAX`] blocks.
const MERGED_MAX: usize = 32_768;
/// Number of blocks from which all are merged. Each block is an open file.
const BLOCKS_MAX: usize = 48;
/// Most attempts to read a folder that changes meanwhile.
const READINGS_MAX: usize = 10;

/// Reason for a failed operation on vectors.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// The vector cannot be stored or searched for.
    #[error("{0}")]
    Refused(String),
    /// The caller canceled the search.
    #[error("the search was given up")]
    Canceled,
    /// The folder could not be read or written.
    #[error("the vectors in `{}` cannot be kept: {cause}", folder.display())]
    Disk {
        /// Folder of the vectors.
        folder: PathBuf,
        /// Error from the operating system.
        cause: io::Error,
    },
}

/// Precision of stored vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Precision {
    /// One byte per number.
    Fine,
    /// Two bits per number, a quarter of [`Precision::Fine`]. Suits vectors that are one signal
    /// among others.
    Coarse,
}

/// Vectors of one space.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Folder of the blocks; `None` for a store in memory.
    folder: Option<PathBuf>,
    space: Space,
    precision: Precision,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: Vectors,
    /// Files to ignore: damaged blocks, and blocks that a merged block supersedes.
    useless: BTreeSet<Name>,
    /// Number of the next append.
    next: u64,
}

impl Store {
    /// Opens the vectors of `space` in `folder`, which is created if missing. Also returns a
    /// message for each unusable block, whose vectors must be made again.
    pub fn open(
        folder: &Path,
        space: &Space,
        precision: Precision,
    ) -> Result<(Self, Vec<String>), VectorsError> {
        let store = Self::new(Some(folder.to_owned()), space, precision)?;
        std::fs::create_dir_all(folder).map_err(|cause| store.inner.disk(cause))?;
        let told = store.refresh()?;
        Ok((store, told))
    }

    /// Creates an empty store in memory.
    pub fn in_memory(space: &Space, precision: Precision) -> Result<Self, VectorsError> {
        Self::new(None, space, precision)
    }

    fn new(
        folder: Option<PathBuf>,
        space: &Space,
        precision: Precision,
    ) -> Result<Self, VectorsError> {
        let most = quantised::DIMENSIONS_MAX;
        let has = space.dimensions;
        if has == 0 || has > most {
            let model = &space.model;
            return Err(VectorsError::Refused(format!(
                "vectors of `{model}` have {has} numbers; from 1 to {most} can be kept"
            )));
        }
        let now = Vectors::of(space, Vec::new());
        let state = Mutex::new(State { now, useless: BTreeSet::new(), next: 1 });
        let space = space.clone();
        Ok(Self { inner: Arc::new(Inner { folder, space, precision, state }) })
    }

    /// Returns the space of the vectors.
    pub fn space(&self) -> &Space {
        &self.inner.space
    }

    /// Returns the current snapshot.
    pub fn now(&self) -> Vectors {
        self.inner.state().now.clone()
    }

    /// Loads blocks that other processes wrote and drops blocks found to be damaged. Returns a
    /// message for each unusable block.
    pub fn refresh(&self) -> Result<Vec<String>, VectorsError> {
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)
    }

    /// Stores `vectors` durably; content that already has a vector keeps it. Only the process that
    /// holds the index's write lock may call this. Batches of some thousand vectors are best.
    pub fn append(&self, vectors: &[(ChunkHash, Vec<f32>)]) -> Result<(), VectorsError> {
        let Inner { folder, space, precision, .. } = &*self.inner;
        let precision = *precision;
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)?;
        let mut rows = Vec::new();
        let mut codes = Vec::new();
        let mut new = BTreeMap::new();
        for (hash, vector) in vectors {
            let wanted = state.now.slot_of(*hash).is_none() && !new.contains_key(&hash.0);
            if wanted {
                new.insert(hash.0, new.len());
                quantised::quantise(vector, space, precision, &mut rows, &mut codes)?;
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let row = quantised::Row::bytes(space.dimensions, precision);
        let code = quantised::code_bytes(space.dimensions);
        let blocks = state.now.blocks().to_vec();
        let (kept, merged) = blocks.split_at(mergeable(&blocks, new.len()));
        let mut parts: BTreeMap<u64, Part<'_>> = old_parts(merged).collect();
        parts.extend(new.into_iter().map(|(hash, at)| {
            let row = &rows[at * row..][..row];
            let code = &codes[at * code..][..code];
            (hash, Part::New { row, code })
        }));
        let first = merged.first().map_or(state.next, |it| it.name.first);
        let last = state.next;
        let parts = parts.into_iter().collect();
        let draft = Draft { first, last, space, precision, parts };
        let made = draft.write(folder.as_deref()).map_err(|err| self.inner.disk(err))?;
        let blocks = kept.iter().cloned().chain([Arc::new(made)]).collect();
        self.inner.replace(&mut state, blocks);
        Ok(())
    }

    /// Removes vectors that are not `wanted`, merges the rest into one block and returns the number
    /// removed. Only the process that holds the index's write lock may call this.
    pub fn retain(&self, wanted: &dyn Fn(ChunkHash) -> bool) -> Result<usize, VectorsError> {
        let Inner { folder, space, precision, .. } = &*self.inner;
        let precision = *precision;
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)?;
        let blocks = state.now.blocks().to_vec();
        let before: usize = blocks.iter().map(|block| block.len()).sum();
        let all: BTreeMap<u64, Part<'_>> = old_parts(&blocks).collect();
        let parts: Vec<_> = all.into_iter().filter(|(hash, _)| wanted(ChunkHash(*hash))).collect();
        let gone = before - parts.len();
        let (Some(first), true) = (blocks.first(), gone > 0 || blocks.len() > 1) else {
            return Ok(0);
        };
        let mut left = Vec::new();
        if !parts.is_empty() {
            let first = first.name.first;
            let last = state.next;
            let draft = Draft { first, last, space, precision, parts };
            left =
                vec![Arc::new(draft.write(folder.as_deref()).map_err(|err| self.inner.disk(err))?)];
        }
        self.inner.replace(&mut state, left);
        Ok(gone)
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so a panic leaves the previous one intact.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self, cause: io::Error) -> VectorsError {
        let folder = self.folder.clone().unwrap_or_default();
        VectorsError::Disk { folder, cause }
    }

    fn refresh(&self, state: &mut State) -> Result<Vec<String>, VectorsError> {
        let Some(folder) = &self.folder else { return Ok(Vec::new()) };
        let mut told = Vec::new();
        for block in state.now.blocks().iter().filter(|block| block.is_damaged()) {
            state.useless.insert(block.name);
            told.push(unusable(folder, block.name, "a row's checksum is wrong"));
        }
        for _ in 0..READINGS_MAX {
            let there = names(folder).map_err(|cause| self.disk(cause))?;
            let held: BTreeSet<Name> = state.now.blocks().iter().map(|it| it.name).collect();
            state.useless.retain(|name| there.contains(name));
            if there.iter().filter(|name| !state.useless.contains(name)).eq(&held) {
                return Ok(told);
            }
            if let Some(blocks) = self.read(folder, &there, state, &mut told)? {
                let last = blocks.iter().map(|block| block.name.last).max().unwrap_or_default();
                state.next = state.next.max(last + 1);
                state.now = Vectors::of(&self.space, blocks);
                return Ok(told);
            }
        }
        // The folder changes faster than it can be read. The previous snapshot stays valid.
        Ok(told)
    }

    /// Opens the usable blocks of `there`, in order. Returns `None` if one has vanished meanwhile.
    fn read(
        &self,
        folder: &Path,
        there: &BTreeSet<Name>,
        state: &mut State,
        told: &mut Vec<String>,
    ) -> Result<Option<Vec<Arc<Block>>>, VectorsError> {
        // The widest blocks come first, because blocks that they supersede need not be opened.
        let mut names: Vec<Name> = there.iter().copied().collect();
        names.sort_by_key(|name| (std::cmp::Reverse(name.last.saturating_sub(name.first)), *name));
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        for name in names.into_iter().filter(|name| name.last < u64::MAX) {
            if blocks.iter().any(|block| block.name.supersedes(name)) {
                state.useless.insert(name);
            }
            if state.useless.contains(&name) {
                continue;
            }
            let held = state.now.blocks().iter().find(|block| block.name == name);
            if let Some(held) = held {
                blocks.push(held.clone());
                continue;
            }
            match Block::open(folder, name, &self.space, self.precision) {
                Ok(block) => blocks.push(Arc::new(block)),
                Err(Unusable::Gone) => return Ok(None),
                Err(Unusable::Bad(why)) => {
                    state.useless.insert(name);
                    told.push(unusable(folder, name, &why));
                }
                Err(Unusable::Disk(cause)) => return Err(self.disk(cause)),
            }
        }
        blocks.sort_by_key(|block| block.name);
        Ok(Some(blocks))
    }

    /// Makes `blocks` the current ones, and deletes every other block file.
    fn replace(&self, state: &mut State, blocks: Vec<Arc<Block>>) {
        state.next += 1;
        state.now = Vectors::of(&self.space, blocks);
        let Some(folder) = &self.folder else { return };
        let held: BTreeSet<Name> = state.now.blocks().iter().map(|it| it.name).collect();
        // A file that cannot be deleted now is superseded anyway, and deleted later.
        for name in names(folder).unwrap_or_default().difference(&held) {
            let _ = std::fs::remove_file(folder.join(name.file()));
        }
        state.useless.clear();
    }
}

/// Returns the index from which `blocks` are merged with `new` vectors. Blocks that are not much
/// larger than everything after them are merged. This keeps the number of blocks low and rewrites
/// each vector only a few times.
fn mergeable(blocks: &[Arc<Block>], new: usize) -> usize {
    let crowded = blocks.len() >= BLOCKS_MAX;
    let mut from = blocks.len();
    let mut after = new;
    for (at, block) in blocks.iter().enumerate().rev() {
        let fits = block.len() + after <= MERGED_MAX && block.len() <= 2 * after;
        if !fits && !crowded {
            break;
        }
        (from, after) = (at, after + block.len());
    }
    from
}

/// Lists the vectors in `blocks`. For a hash in several blocks, the newest comes last.
fn old_parts(blocks: &[Arc<Block>]) -> impl Iterator<Item = (u64, Part<'_>)> {
    blocks.iter().flat_map(|block| {
        let hashes = block.hashes().iter().enumerate();
        hashes.map(|(index, hash)| (*hash, Part::Old { block, index }))
    })
}

fn names(folder: &Path) -> io::Result<BTreeSet<Name>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        names.extend(entry?.file_name().to_str().and_then(Name::of));
    }
    Ok(names)
}

fn unusable(folder: &Path, name: Name, why: &str) -> String {
    let path = folder.join(name.file());
    format!("the vectors in `{}` are of no use and are made again: {why}", path.display())
}
