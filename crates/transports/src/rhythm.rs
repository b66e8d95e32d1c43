//! Whether somebody asks so quickly that what comes next is worth looking for instead of sleeping.
//!
//! To put a thread to sleep and wake it takes longer than a quick client takes to ask again. A
//! client that is not quick costs nothing here but a look at the clock.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::Duration;

/// Within how long something has come soon; for longer than this it is not looked for.
pub(crate) const SOON: Duration = Duration::from_micros(100);
/// How often in a row it has to, before what comes next is looked for.
pub(crate) const OFTEN: u32 = 4;

/// Whether there is a processor beside the one that looks: else what comes next would be looked for
/// in the place of whoever sends it.
static CAN: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// Whether what comes next is likely to come soon.
#[derive(Debug)]
pub(crate) struct Rhythm {
    /// Whether it matters at all.
    pub(crate) can: bool,
    /// Within how long it comes soon.
    pub(crate) within: Duration,
    /// How often in a row it came soon.
    pub(crate) soon: u32,
}

impl Rhythm {
    /// Of somebody who has not asked yet.
    pub(crate) fn new() -> Self {
        Self { can: *CAN, within: SOON, soon: 0 }
    }

    /// Something came after so long.
    pub(crate) fn came_after(&mut self, waited: Duration) {
        self.soon = if waited <= self.within { (self.soon + 1).min(OFTEN) } else { 0 };
    }

    /// It was looked for, and has not come soon.
    pub(crate) fn missed(&mut self) {
        self.soon = 0;
    }

    /// Whether it came soon often enough.
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
