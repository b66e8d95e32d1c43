//! Vectors of one model, by the content they stand for: kept small on disk, and searched.
//!
//! They lie in a folder as immutable blocks. One process writes (the index's lock says which),
//! any number read; whoever reads holds one moment and is not disturbed by what comes after.
//! `docs/design/vectors.md` says why there is no graph.
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

/// Larger blocks are merged only when there are too many of them.
const MERGED_MAX: usize = 32_768;
/// So many blocks are too many: each is a file that is open.
const BLOCKS_MAX: usize = 48;
/// How often a folder is read again that changes while it is read.
const READINGS_MAX: usize = 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum VectorsError {
    /// The vector is not one that can be kept or looked for.
    #[error("{0}")]
    Refused(String),
    /// Whoever asked no longer wants to know.
    #[error("the search was given up")]
    Canceled,
    /// The folder could not be read or written.
    #[error("the vectors in `{}` cannot be kept: {cause}", folder.display())]
    Disk {
        /// Where they lie.
        folder: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// How precisely the numbers of a vector are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Precision {
    /// In one byte each.
    Fine,
    /// In two bits each, a quarter of that: for vectors that are a hint among others.
    Coarse,
}

/// The vectors of one space.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where they lie; nowhere, in memory only.
    folder: Option<PathBuf>,
    space: Space,
    precision: Precision,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: Vectors,
    /// Files that were looked at and are of no use: no block, or one that others have taken over.
    useless: BTreeSet<Name>,
    /// The number of the next append.
    next: u64,
}

impl Store {
    /// The vectors of `space` in `folder`, which is made if there is none, and what was found
    /// there that is of no use: those vectors are to be made again.
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

    /// No vectors yet, kept in memory only.
    pub fn in_memory(space: &Space, precision: Precision) -> Result<Self, VectorsError> {
        Self::new(None, space, precision)
    }

    fn new(
        folder: Option<PathBuf>,
        space: &Space,
        precision: Precision,
    ) -> Result<Self, VectorsError> {
        let (most, has) = (quantised::DIMENSIONS_MAX, space.dimensions);
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

    /// Whose vectors these are.
    pub fn space(&self) -> &Space {
        &self.inner.space
    }

    /// What there is at this moment.
    pub fn now(&self) -> Vectors {
        self.inner.state().now.clone()
    }

    /// Takes in what other processes have written, leaves out what was found damaged since, and
    /// says so.
    pub fn refresh(&self) -> Result<Vec<String>, VectorsError> {
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)
    }

    /// Keeps `vectors`, durably when it returns; of content that has one already, nothing changes.
    /// Only for the process that holds the index's lock. Some thousands at once are best.
    pub fn append(&self, vectors: &[(ChunkHash, Vec<f32>)]) -> Result<(), VectorsError> {
        let Inner { folder, space, precision, .. } = &*self.inner;
        let precision = *precision;
        let mut state = self.inner.state();
        self.inner.refresh(&mut state)?;
        let (mut rows, mut codes, mut new) = (Vec::new(), Vec::new(), BTreeMap::new());
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
            let (row, code) = (&rows[at * row..][..row], &codes[at * code..][..code]);
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

    /// Forgets what is not `wanted`, makes all that is left one block, and says how many went.
    /// Only for the process that holds the index's lock.
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
            let (first, last) = (first.name.first, state.next);
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
        // What is behind it is replaced whole: a panic leaves the moment before.
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
        // It changes faster than it can be read: what was there before is still good.
        Ok(told)
    }

    /// The blocks of `there` that are to be used, in order; `None` if one has gone meanwhile.
    fn read(
        &self,
        folder: &Path,
        there: &BTreeSet<Name>,
        state: &mut State,
        told: &mut Vec<String>,
    ) -> Result<Option<Vec<Arc<Block>>>, VectorsError> {
        // The widest first: what has been taken over need not be opened.
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

    /// From now on there are `blocks`; what they took over, and what is of no use, is removed.
    fn replace(&self, state: &mut State, blocks: Vec<Arc<Block>>) {
        state.next += 1;
        state.now = Vectors::of(&self.space, blocks);
        let Some(folder) = &self.folder else { return };
        let held: BTreeSet<Name> = state.now.blocks().iter().map(|it| it.name).collect();
        // What cannot be removed now is superseded all the same, and removed another time.
        for name in names(folder).unwrap_or_default().difference(&held) {
            let _ = std::fs::remove_file(folder.join(name.file()));
        }
        state.useless.clear();
    }
}

/// From which of `blocks` on all are merged with the next `new` vectors: those that are not much
/// larger than all that comes after them, so that there are few blocks and each vector is
/// rewritten a few times only.
fn mergeable(blocks: &[Arc<Block>], new: usize) -> usize {
    let crowded = blocks.len() >= BLOCKS_MAX;
    let (mut from, mut after) = (blocks.len(), new);
    for (at, block) in blocks.iter().enumerate().rev() {
        let fits = block.len() + after <= MERGED_MAX && block.len() <= 2 * after;
        if !fits && !crowded {
            break;
        }
        (from, after) = (at, after + block.len());
    }
    from
}

/// What `blocks` hold; of what two hold, the later comes later.
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
