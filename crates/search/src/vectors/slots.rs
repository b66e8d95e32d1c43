//! A set of slots: the vectors that a search considers.

/// A set of slots (numbers of vectors), as one bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VectorSlotSet {
    words: Vec<u64>,
}

impl VectorSlotSet {
    /// Creates an empty set for `len` slots (numbers of vectors).
    pub fn empty(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)] }
    }

    /// Creates a set of all `len` slots (numbers of vectors).
    pub fn full(len: usize) -> Self {
        let mut words = vec![u64::MAX; len.div_ceil(64)];
        if let (Some(last), 1..) = (words.last_mut(), len % 64) {
            *last >>= 64 - len % 64;
        }
        Self { words }
    }

    /// Adds `slot`, the number of a vector, to the set. The set grows if necessary.
    pub fn insert(&mut self, slot: u32) {
        let (word, bit) = bit_position(slot);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Returns true if `slot`, the number of a vector, is in the set.
    pub fn contains(&self, slot: u32) -> bool {
        let (word, bit) = bit_position(slot);
        self.words.get(word).is_some_and(|it| it & bit != 0)
    }

    /// Returns the number of vectors whose slots are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Iterates over the slots (numbers of vectors) in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = (0_u32..).step_by(64).zip(&self.words);
        words.flat_map(|(base, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(base + bit)
            })
        })
    }
}

impl FromIterator<u32> for VectorSlotSet {
    fn from_iter<I: IntoIterator<Item = u32>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

fn bit_position(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_set_contains_its_slots(wanted in prop::collection::btree_set(0_u32..300, 0..80)) {
            let slots: VectorSlotSet = wanted.iter().copied().collect();
            prop_assert_eq!(slots.count(), wanted.len());
            prop_assert!((0..400).all(|slot| slots.contains(slot) == wanted.contains(&slot)));
            prop_assert_eq!(slots.iter().collect::<BTreeSet<_>>(), wanted);
        }

        #[test]
        fn a_full_slot_set_contains_all_slots(len in 0_u32..300) {
            let slots = VectorSlotSet::full(len as usize);
            prop_assert_eq!(slots.iter().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
        }
    }
}
