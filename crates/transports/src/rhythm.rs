//! Decides if a peer sends so quickly that busy polling beats sleeping.
//!
//! Putting a thread to sleep and waking it takes longer than a quick peer takes to send again. A
//! slow peer costs only a look at the clock.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::Duration;

/// Longest gap that counts as quick, and longest time of busy polling.
pub(crate) const SOON: Duration = Duration::from_micros(100);
/// Number of quick arrivals in a row after which busy polling starts.
pub(crate) const OFTEN: u32 = 4;

/// True if there are at least two processors. With only one, busy polling would block the sender.
static CAN: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// Record of how quickly the peer's data arrives.
#[derive(Debug)]
pub(crate) struct Rhythm {
    /// True if busy polling is possible.
    pub(crate) can: bool,
    /// Longest gap that counts as quick.
    pub(crate) within: Duration,
    /// Number of quick arrivals in a row, up to [`OFTEN`].
    pub(crate) soon: u32,
}

impl Rhythm {
    /// Creates the record of a new peer.
    pub(crate) fn new() -> Self {
        Self { can: *CAN, within: SOON, soon: 0 }
    }

    /// Records that data arrived after `waited`.
    pub(crate) fn came_after(&mut self, waited: Duration) {
        self.soon = if waited <= self.within { (self.soon + 1).min(OFTEN) } else { 0 };
    }

    /// Records that busy polling was in vain.
    pub(crate) fn missed(&mut self) {
        self.soon = 0;
    }

    /// Returns true if busy polling is worthwhile.
    pub(crate) fn is_quick(&self) -> bool {
        self.can && self.soon == OFTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_late_once_is_not_looked_for_until_it_has_come_soon_often() {
        let mut rhythm = Rhythm { can: true, within: SOON, soon: 0 };
        for _ in 0..OFTEN {
            assert!(!rhythm.is_quick());
            rhythm.came_after(SOON);
        }
        assert!(rhythm.is_quick());
        rhythm.came_after(SOON + Duration::from_nanos(1));
        assert!(!rhythm.is_quick());
    }

    #[test]
    fn a_single_processor_looks_for_nothing() {
        assert!(!Rhythm { can: false, within: SOON, soon: OFTEN }.is_quick());
    }
}
