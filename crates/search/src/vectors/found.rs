//! One moment of the vectors, and the search in it.

use std::cmp::Reverse;
use std::sync::Arc;

use super::block::Block;
use super::places::Places;
use super::{Query, Slots, VectorsError, kernels};
use crate::{ChunkHash, Space};

/// Up to so many vectors each is compared exactly, and held in memory for that.
const EXACT_MAX: usize = 8_192;
/// Fewer bits than these say too little about where a vector points.
const CODE_BITS_MIN: usize = 128;
/// Rows are held in memory where all of them take no more.
const HELD_BYTES_MAX: usize = 16 << 20;
/// How many codes are compared at once; between, the asker is asked whether it still wants to know.
const CODES_AT_ONCE: usize = 4_096;

/// How many are left of `live` ones to find `k`, the nearest first by the bits that differ, then by
/// what those bits weigh: from the measurements in `docs/design/vectors.md`.
fn sieves(k: usize, live: usize) -> (usize, usize) {
    ((8 * k).max(1_000).max(live / 100).min(live), (3 * k).max(120).min(live))
}

/// The vectors there are at one moment. Each has a slot, a number from 0, that holds for it.
#[derive(Debug, Clone)]
pub struct Vectors {
    moment: Arc<Moment>,
}

#[derive(Debug)]
pub(super) struct Moment {
    space: Space,
    blocks: Vec<Arc<Block>>,
    /// The slot with which each block begins.
    bases: Vec<u32>,
    len: usize,
    places: Places,
}

impl Vectors {
    pub(super) fn of(space: &Space, blocks: Vec<Arc<Block>>) -> Self {
        let (mut bases, mut len) = (Vec::new(), 0);
        for block in &blocks {
            bases.push(slot(len));
            len += block.len();
        }
        let places = Places::of(&blocks);
        let space = space.clone();
        Self { moment: Arc::new(Moment { space, blocks, bases, len, places }) }
    }

    pub(super) fn blocks(&self) -> &[Arc<Block>] {
        &self.moment.blocks
    }

    /// How many slots there are. A content may have had one before: only its latest counts.
    pub fn len(&self) -> usize {
        self.moment.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot of the vector of what has `hash`.
    pub fn slot_of(&self, hash: ChunkHash) -> Option<u32> {
        self.moment.places.slot_of(hash)
    }

    /// What the vector in `slot` is of.
    pub fn hash_of(&self, slot: u32) -> Option<ChunkHash> {
        let (block, index) = self.at(slot)?;
        Some(block.hash(index))
    }

    /// The vector in `slot`, as near as it was kept.
    pub fn vector(&self, slot: u32) -> Option<Vec<f32>> {
        let (block, index) = self.at(slot)?;
        block.with_row(index, &mut Vec::new(), |row| row.vector(self.moment.space.dimensions))
    }

    /// `vector` as it is looked for.
    pub fn query(&self, vector: &[f32]) -> Result<Query, VectorsError> {
        Query::of(vector, &self.moment.space)
    }

    /// The cosine of `query` and the vector in `slot`; `None` if that cannot be read any more.
    pub fn cosine(&self, query: &Query, slot: u32) -> Option<f32> {
        let (block, index) = self.at(slot)?;
        block.with_row(index, &mut Vec::new(), |row| query.cosine(row))
    }

    /// The `k` nearest of those that are `live`, with their cosines, the nearest first.
    ///
    /// Few are all compared exactly. Of many, the signs of their numbers say which look near; of
    /// those, the signs with the query's own numbers say it better, without a look at the disk; and
    /// what is left is compared exactly.
    pub fn nearest(
        &self,
        query: &Query,
        live: &Slots,
        k: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<(u32, f32)>, VectorsError> {
        let count = live.count().min(self.len());
        let (near, nearer) = sieves(k, count);
        let exactly = nearer == count
            || self.len() <= EXACT_MAX
            || self.moment.space.dimensions < CODE_BITS_MIN;
        // Rows that are all compared, and few, are not read one by one each time.
        let bytes: usize = self.blocks().iter().map(|block| block.rows_bytes()).sum();
        if exactly && bytes <= HELD_BYTES_MAX {
            self.blocks().iter().for_each(|block| block.hold_rows());
        }
        if exactly {
            return self.best(query, live.iter(), k, wanted);
        }
        // The first sieve would let all of few through, after a look at the codes of everything.
        let near = match near == count {
            true => live.iter().collect(),
            false => self.near(query, live, near, wanted)?,
        };
        let mut nearer = self.nearer(query, near, nearer);
        // In the order they lie on the disk.
        nearer.sort_unstable();
        self.best(query, nearer.into_iter(), k, wanted)
    }

    /// The `most` live ones whose codes differ least from that of `query`.
    fn near(
        &self,
        query: &Query,
        live: &Slots,
        most: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<u32>, VectorsError> {
        let (mut near, mut bound) = (Vec::with_capacity(4 * most), u16::MAX);
        let mut distances = Vec::with_capacity(CODES_AT_ONCE);
        for (base, block) in self.moment.bases.iter().zip(self.blocks()) {
            for begin in (0..block.len()).step_by(CODES_AT_ONCE) {
                if !wanted() {
                    return Err(VectorsError::Canceled);
                }
                let end = block.len().min(begin + CODES_AT_ONCE);
                kernels::distances(&query.code, block.codes(begin..end), &mut distances);
                for (slot, distance) in (base + slot(begin)..).zip(&distances) {
                    if *distance < bound && live.contains(slot) {
                        near.push((*distance, slot));
                        if near.len() == 4 * most {
                            bound = shorten(&mut near, most);
                        }
                    }
                }
            }
        }
        if near.len() > most {
            shorten(&mut near, most);
        }
        Ok(near.into_iter().map(|(_, slot)| slot).collect())
    }

    /// The `most` of `slots` whose signs fit best to the numbers of `query`.
    fn nearer(&self, query: &Query, slots: Vec<u32>, most: usize) -> Vec<u32> {
        let weighed = slots.into_iter().filter_map(|slot| {
            let (block, index) = self.at(slot)?;
            let code = block.codes(index..index + 1);
            Some((Reverse(kernels::agreement(&query.planes, query.zero, code)), slot))
        });
        let mut weighed: Vec<_> = weighed.collect();
        if weighed.len() > most {
            weighed.select_nth_unstable(most);
            weighed.truncate(most);
        }
        weighed.into_iter().map(|(_, slot)| slot).collect()
    }

    /// The `k` of `slots` with the largest cosines.
    fn best(
        &self,
        query: &Query,
        slots: impl Iterator<Item = u32>,
        k: usize,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<(u32, f32)>, VectorsError> {
        let (mut best, mut room) = (Vec::new(), Vec::new());
        for (turn, slot) in slots.enumerate() {
            if turn % CODES_AT_ONCE == 0 && !wanted() {
                return Err(VectorsError::Canceled);
            }
            let Some((block, index)) = self.at(slot) else { continue };
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

    fn at(&self, slot: u32) -> Option<(&Block, usize)> {
        let Moment { blocks, bases, .. } = &*self.moment;
        let block = bases.partition_point(|base| *base <= slot).checked_sub(1)?;
        let index = (slot - bases[block]) as usize;
        (index < blocks[block].len()).then(|| (&*blocks[block], index))
    }
}

/// Leaves the `most` nearest, and says how far the farthest of them is.
fn shorten(near: &mut Vec<(u16, u32)>, most: usize) -> u16 {
    let (_, last, _) = near.select_nth_unstable(most - 1);
    let bound = last.0;
    near.truncate(most);
    bound
}

#[allow(clippy::cast_possible_truncation, reason = "as many vectors fill no disk there is")]
fn slot(index: usize) -> u32 {
    index as u32
}
