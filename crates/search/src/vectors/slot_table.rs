//! Finds the slot of a vector by its content hash.

use std::sync::Arc;

use super::block::VectorBlock;
use crate::ChunkHash;

/// Hash table of the vectors' slots (numbers) by content hash, with one bucket for each hash
/// prefix. Hashes are evenly spread, so that a bucket holds one or two vectors.
#[derive(Debug)]
pub(super) struct VectorSlotTable {
    shift: u32,
    /// Start of each bucket of the hash table, and the end of the last bucket.
    bucket_starts: Vec<u32>,
    entries: Vec<(u64, u32)>,
}

impl VectorSlotTable {
    /// Builds the hash table of the vectors in `blocks`, whose slots (numbers) are consecutive.
    pub(super) fn new(blocks: &[Arc<VectorBlock>]) -> Self {
        let count: usize = blocks.iter().map(|block| block.len()).sum();
        let bits = (count / 2).max(1).ilog2();
        // A shift by 64 bits would overflow, so even one bucket uses one bit.
        let shift = 64 - bits.max(1);
        let bucket = |hash: u64| usize::try_from(hash >> shift).unwrap_or_default();
        let all = || (0_u32..).zip(blocks.iter().flat_map(|block| block.hashes()).copied());
        let mut bucket_starts = vec![0; (1 << bits.max(1)) + 1];
        all().for_each(|(_, hash)| bucket_starts[bucket(hash) + 1] += 1);
        for at in 1..bucket_starts.len() {
            bucket_starts[at] += bucket_starts[at - 1];
        }
        let mut free = bucket_starts.clone();
        let mut entries = vec![(0, 0); count];
        for (slot, hash) in all() {
            let to = &mut free[bucket(hash)];
            entries[*to as usize] = (hash, slot);
            *to += 1;
        }
        Self { shift, bucket_starts, entries }
    }

    /// Returns the slot (number) of the vector for `hash`, or of the newest if there are several.
    /// `None` if there is no vector.
    pub(super) fn slot_of(&self, hash: ChunkHash) -> Option<u32> {
        let bucket = usize::try_from(hash.0 >> self.shift).unwrap_or_default();
        let entries = self.bucket_starts[bucket] as usize..self.bucket_starts[bucket + 1] as usize;
        let found = self.entries[entries].iter().rfind(|(it, _)| *it == hash.0);
        found.map(|(_, slot)| *slot)
    }
}
