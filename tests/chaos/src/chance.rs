//! Chance that can be had again: splitmix64 from a seed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A stream of numbers that a seed decides.
pub(super) struct Chance(u64);

/// A seed that nobody chose.
pub(super) fn seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) >> 32
}

impl Chance {
    pub(super) fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `least` up to and without `end`.
    pub(super) fn between(&mut self, least: u64, end: u64) -> u64 {
        least + self.number() % end.saturating_sub(least).max(1)
    }

    pub(super) fn millis(&mut self, least: u64, end: u64) -> Duration {
        Duration::from_micros(self.between(least * 1000, end * 1000))
    }

    /// Whether it happens, `percent` times of a hundred.
    pub(super) fn is(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }
}
