//! Random numbers that a seed reproduces, by the generator SplitMix64.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Random number generator whose numbers depend only on its seed.
pub struct SeededRng(u64);

/// Returns a seed that differs from run to run.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) >> 32
}

impl SeededRng {
    /// Returns a generator that starts with `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next random number, which may be any `u64`.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number from `start` up to, but without, `end`.
    pub fn between(&mut self, start: u64, end: u64) -> u64 {
        start + self.next_number() % end.saturating_sub(start).max(1)
    }

    /// Returns a random duration from `start_ms` to `end_ms` milliseconds, in steps of a
    /// microsecond.
    pub fn duration_between(&mut self, start_ms: u64, end_ms: u64) -> Duration {
        Duration::from_micros(self.between(start_ms * 1000, end_ms * 1000))
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 100) < percent
    }
}
