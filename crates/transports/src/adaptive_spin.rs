//! Decides if a peer sends so quickly that busy polling is faster than sleeping.
//!
//! A quick peer sends again in less time than it takes to put a thread to sleep and wake it. For a
//! slow peer, this check costs only a read of the clock.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::Duration;

/// Longest pause between arrivals of data that counts as quick, and longest duration of one busy
/// poll.
pub(crate) const GAP_MAX: Duration = Duration::from_micros(100);
/// Number of quick arrivals of data in a row after which busy polling starts.
pub(crate) const QUICK_ARRIVALS_MIN: u32 = 4;

/// True if the machine has at least two processors. With only one, busy polling would block the
/// sender.
static HAS_SPARE_PROCESSOR: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|processors| processors.get() > 1));

/// Record of how quickly the peer's data arrives.
#[derive(Debug)]
pub(crate) struct BusyPollHistory {
    /// True if busy polling is possible on this machine.
    pub(crate) is_enabled: bool,
    /// Longest pause between arrivals of data that counts as quick.
    pub(crate) gap_max: Duration,
    /// Number of quick arrivals of data in a row, counted up to the number after which busy polling
    /// starts.
    pub(crate) quick_arrivals: u32,
}

impl BusyPollHistory {
    /// Creates the record of a peer that has sent nothing yet.
    pub(crate) fn new() -> Self {
        Self { is_enabled: *HAS_SPARE_PROCESSOR, gap_max: GAP_MAX, quick_arrivals: 0 }
    }

    /// Records that the peer's data arrived after this side had waited for the time `waited`.
    pub(crate) fn record_arrival(&mut self, waited: Duration) {
        self.quick_arrivals = if waited <= self.gap_max {
            (self.quick_arrivals + 1).min(QUICK_ARRIVALS_MIN)
        } else {
            0
        };
    }

    /// Records that busy polling found no data before its time limit.
    pub(crate) fn record_miss(&mut self) {
        self.quick_arrivals = 0;
    }

    /// Returns true if the peer's data arrives so quickly that busy polling is worthwhile.
    pub(crate) fn is_quick(&self) -> bool {
        self.is_enabled && self.quick_arrivals == QUICK_ARRIVALS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_arrival_stops_spinning_until_enough_quick_arrivals() {
        let mut history = BusyPollHistory { is_enabled: true, gap_max: GAP_MAX, quick_arrivals: 0 };
        for _ in 0..QUICK_ARRIVALS_MIN {
            assert!(!history.is_quick());
            history.record_arrival(GAP_MAX);
        }
        assert!(history.is_quick());
        history.record_arrival(GAP_MAX + Duration::from_nanos(1));
        assert!(!history.is_quick());
    }

    #[test]
    fn a_single_processor_never_spins() {
        assert!(
            !BusyPollHistory {
                is_enabled: false,
                gap_max: GAP_MAX,
                quick_arrivals: QUICK_ARRIVALS_MIN
            }
            .is_quick()
        );
    }
}
