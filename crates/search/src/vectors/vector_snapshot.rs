//! Snapshot of a vector store, and its search.

use std::cmp::Reverse;
use std::sync::Arc;

use super::block::VectorBlock;
use super::slot_table::VectorSlotTable;
use super::{QuantizedQueryVector, VectorSlotSet, VectorsError, kernels};
use crate::{ChunkHash, VectorSpace};

/// Number of vectors up to which a search compares all of them exactly, with all vectors in memory.
const EXACT_VECTORS_MAX: usize = 8_192;
/// Minimum number of sign bits that represent the direction of a vector well enough.
const CODE_BITS_MIN: usize = 128;
/// Maximum number of bytes of stored vectors that are kept in memory.
const IN_MEMORY_BYTES_MAX: usize = 16 << 20;
/// Number of vectors whose sign bits are compared between two checks for cancellation.
const CODES_PER_CHECK: usize = 4_096;

/// Returns how many vectors the first and the second filter of a search keep of `live` vectors to
/// find the nearest `k`. The first filter compares sign bits. The second filter weighs them by the
/// query. The constants come from measurements in `docs/design/vectors.md`.
fn filter_sizes(k: usize, live: usize) -> (usize, usize) {
    ((8 * k).max(1_000).max(live / 100).min(live), (3 * k).max(120).min(live))
}

/// Snapshot of the vectors in a store. Each vector has a slot: a number from 0, valid in this
/// snapshot only.
#[derive(Debug, Clone)]
pub struct VectorSnapshot {
    data: Arc<VectorSnapshotData>,
}

/// Data that all clones of a snapshot share.
#[derive(Debug)]
pub(super) struct VectorSnapshotData {
    space: VectorSpace,
    blocks: Vec<Arc<VectorBlock>>,
    /// Slot (number of a vector in the snapshot) of each block's first vector.
    bases: Vec<u32>,
    len: usize,
    slot_table: VectorSlotTable,
}

impl VectorSnapshot {
    pub(super) fn new(space: &VectorSpace, blocks: Vec<Arc<VectorBlock>>) -> Self {
        let mut bases = Vec::new();
        let mut len = 0;
        for block in &blocks {
            bases.push(to_slot(len));
            len += block.len();
        }
        let places = VectorSlotTable::new(&blocks);
        let space = space.clone();
        Self {
            data: Arc::new(VectorSnapshotData { space, blocks, bases, len, slot_table: places }),
        }
    }

    pub(super) fn blocks(&self) -> &[Arc<VectorBlock>] {
        &self.data.blocks
    }

    /// Returns the number of slots, one for each vector. A content hash may have several slots, of
    /// which only the newest is used.
    pub fn len(&self) -> usize {
        self.data.len
    }

    /// Returns true if the snapshot contains no vectors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the slot (number) of the vector for the content hash `hash`, or `None` if there is
    /// no vector.
    pub fn slot_of(&self, hash: ChunkHash) -> Option<u32> {
        self.data.slot_table.slot_of(hash)
    }

    /// Returns the content hash of the vector in `slot`, or `None` if `slot` does not exist.
    pub fn hash_at(&self, slot: u32) -> Option<ChunkHash> {
        let (block, index) = self.locate(slot)?;
        Some(block.hash(index))
    }

    /// Returns the vector in `slot`, with the precision that was stored. `None` if it is
    /// unreadable.
    pub fn vector(&self, slot: u32) -> Option<Vec<f32>> {
        let (block, index) = self.locate(slot)?;
        block.with_row(index, &mut Vec::new(), |row| row.to_vector(self.data.space.dimensions))
    }

    /// Prepares `vector` for a search.
    ///
    /// # Errors
    ///
    /// Fails if the vector has the wrong length, a number that is not finite, or only zeros.
    pub fn prepare_query(&self, vector: &[f32]) -> Result<QuantizedQueryVector, VectorsError> {
        QuantizedQueryVector::new(vector, &self.data.space)
    }

    /// Returns the cosine of `query` and the vector in `slot`, or `None` if the vector is
    /// unreadable.
    pub fn cosine(&self, query: &QuantizedQueryVector, slot: u32) -> Option<f32> {
        let (block, index) = self.locate(slot)?;
        block.with_row(index, &mut Vec::new(), |row| query.cosine(row))
    }

    /// Returns those `k` vectors among `live` that are nearest to `query`, with their cosines, the
    /// nearest first.
    ///
    /// In a small store, every vector is compared exactly. In a large store, sign bits select
    /// candidates. The sign bits weighed by the query then reduce the candidates, without access to
    /// the disk. Only the remaining vectors are compared exactly. Fails once `wanted` returns
    /// false.
    pub fn nearest(
        &self,
        query: &QuantizedQueryVector,
        live: &VectorSlotSet,
        k: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<(u32, f32)>, VectorsError> {
        let count = live.count().min(self.len());
        let (near, nearer) = filter_sizes(k, count);
        let exactly = nearer == count
            || self.len() <= EXACT_VECTORS_MAX
            || self.data.space.dimensions < CODE_BITS_MIN;
        // Few rows are loaded at once instead of one by one.
        let bytes: usize = self.blocks().iter().map(|block| block.rows_bytes()).sum();
        if exactly && bytes <= IN_MEMORY_BYTES_MAX {
            self.blocks().iter().for_each(|block| block.load_rows());
        }
        if exactly {
            return self.rank_exactly(query, live.iter(), k, wanted);
        }
        // If the first filter keeps everything, comparing codes is wasted work.
        let near = match near == count {
            true => live.iter().collect(),
            false => self.filter_by_code(query, live, near, wanted)?,
        };
        let mut nearer = self.filter_by_weight(query, near, nearer);
        // The order on disk.
        nearer.sort_unstable();
        self.rank_exactly(query, nearer.into_iter(), k, wanted)
    }

    /// Returns the `most` slots (numbers of vectors) among `live` whose vectors differ least from
    /// `query` in their sign bits. Fails once `wanted` returns false.
    fn filter_by_code(
        &self,
        query: &QuantizedQueryVector,
        live: &VectorSlotSet,
        most: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, VectorsError> {
        let mut near = Vec::with_capacity(4 * most);
        let mut bound = u16::MAX;
        let mut distances = Vec::with_capacity(CODES_PER_CHECK);
        for (base, block) in self.data.bases.iter().zip(self.blocks()) {
            for begin in (0..block.len()).step_by(CODES_PER_CHECK) {
                if !wanted() {
                    return Err(VectorsError::Canceled);
                }
                let end = block.len().min(begin + CODES_PER_CHECK);
                kernels::distances(&query.code, block.codes(begin..end), &mut distances);
                for (slot, distance) in (base + to_slot(begin)..).zip(&distances) {
                    if *distance < bound && live.contains(slot) {
                        near.push((*distance, slot));
                        if near.len() == 4 * most {
                            bound = keep_nearest(&mut near, most);
                        }
                    }
                }
            }
        }
        if near.len() > most {
            keep_nearest(&mut near, most);
        }
        Ok(near.into_iter().map(|(_, slot)| slot).collect())
    }

    /// Returns the `most` of `slots` (numbers of vectors) whose sign bits match the numbers of
    /// `query` best.
    fn filter_by_weight(
        &self,
        query: &QuantizedQueryVector,
        slots: Vec<u32>,
        most: usize,
    ) -> Vec<u32> {
        let weighed = slots.into_iter().filter_map(|slot| {
            let (block, index) = self.locate(slot)?;
            let code = block.codes(index..index + 1);
            Some((Reverse(kernels::agreement(&query.planes, query.zero_level, code)), slot))
        });
        let mut weighed: Vec<_> = weighed.collect();
        if weighed.len() > most {
            weighed.select_nth_unstable(most);
            weighed.truncate(most);
        }
        weighed.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Returns the `k` slots (numbers of vectors) among `slots` whose vectors have the largest
    /// cosines with `query`, with these cosines. Fails once `wanted` returns false.
    fn rank_exactly(
        &self,
        query: &QuantizedQueryVector,
        slots: impl Iterator<Item = u32>,
        k: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<(u32, f32)>, VectorsError> {
        let mut best = Vec::new();
        let mut room = Vec::new();
        for (turn, slot) in slots.enumerate() {
            if turn % CODES_PER_CHECK == 0 && !wanted() {
                return Err(VectorsError::Canceled);
            }
            let Some((block, index)) = self.locate(slot) else { continue };
            let cosine = block.with_row(index, &mut room, |row| query.cosine(row));
            best.extend(cosine.map(|cosine| (slot, cosine)));
        }
        let order = |(a, near): &(u32, f32), (b, nearer): &(u32, f32)| {
            nearer.total_cmp(near).then(a.cmp(b))
        };
        if best.len() > k {
            best.select_nth_unstable_by(k, order);
            best.truncate(k);
        }
        best.sort_unstable_by(order);
        Ok(best)
    }

    fn locate(&self, slot: u32) -> Option<(&VectorBlock, usize)> {
        let VectorSnapshotData { blocks, bases, .. } = &*self.data;
        let block = bases.partition_point(|base| *base <= slot).checked_sub(1)?;
        let index = (slot - bases[block]) as usize;
        (index < blocks[block].len()).then(|| (&*blocks[block], index))
    }
}

/// Keeps the `most` nearest entries (distance and number of a vector) of `near`, and returns the
/// largest distance.
fn keep_nearest(near: &mut Vec<(u16, u32)>, most: usize) -> u16 {
    let (_, last, _) = near.select_nth_unstable(most - 1);
    let bound = last.0;
    near.truncate(most);
    bound
}

#[allow(clippy::cast_possible_truncation, reason = "no disk holds that many vectors")]
fn to_slot(index: usize) -> u32 {
    index as u32
}
