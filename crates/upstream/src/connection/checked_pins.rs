//! The tools of one connection that match their pins.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolgate_contract::lock_mutex;

use super::LISTING_LIFETIME;
use crate::pins::PinPolicy;

/// Tools that were compared with their pins over one connection.
#[derive(Default)]
pub(crate) struct ConnectionPinChecks {
    checked: Mutex<PinCheckedTools>,
    /// All tools that the upstream lists, and the time at which they were listed. The lock admits
    /// one listing at a time.
    pub(crate) tools: tokio::sync::Mutex<Option<(PinCheckTime, Arc<[Value]>)>>,
}

/// Interval at which the lock file is checked for changes of pins.
const PINS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Tools whose definitions matched their pins, and the time of that check.
#[derive(Default)]
pub(crate) struct PinCheckedTools {
    pub(crate) since: Option<PinCheckTime>,
    pub(crate) names: HashSet<String>,
    /// Pins to which the tools were compared, and the time at which the pins were last read.
    pub(crate) pins: Option<(PinPolicy, Instant)>,
}

/// Time of a check of pins: the number of changes that the upstream had announced, and the clock
/// time for changes that it does not announce.
#[derive(Clone, Copy)]
pub(crate) struct PinCheckTime {
    pub(crate) turn: u64,
    pub(crate) at: Instant,
}

impl PinCheckTime {
    /// Returns true if a check at this time is still valid after the upstream has announced `turn`
    /// changes of its tools.
    pub(crate) fn is_valid_in(self, turn: u64) -> bool {
        self.turn == turn && self.at.elapsed() < LISTING_LIFETIME
    }
}

impl ConnectionPinChecks {
    /// Locks the checked tools. Clears them first if they are no longer valid after the upstream
    /// has announced `turn` changes.
    pub(crate) fn lock_current(&self, turn: u64) -> MutexGuard<'_, PinCheckedTools> {
        let mut checked = lock_mutex(&self.checked);
        if checked.since.is_some_and(|since| !since.is_valid_in(turn)) {
            *checked = PinCheckedTools::default();
        }
        checked
    }

    /// Returns true if the tool `name` matched its pin and the pins `pinned` have not changed since
    /// that check.
    pub(crate) fn is_checked(
        &self,
        turn: u64,
        name: &str,
        pinned: impl FnOnce() -> Option<PinPolicy>,
    ) -> bool {
        let mut checked = self.lock_current(turn);
        if !checked.names.contains(name) {
            return false;
        }
        if checked.pins.as_ref().is_some_and(|(_, looked)| looked.elapsed() >= PINS_CHECK_INTERVAL)
        {
            let is_same =
                |now: PinPolicy| checked.pins.as_ref().is_some_and(|(by, _)| by.is_same_lock(&now));
            if !pinned().is_some_and(is_same) {
                *checked = PinCheckedTools::default();
                return false;
            }
            if let Some((_, looked)) = &mut checked.pins {
                *looked = Instant::now();
            }
        }
        true
    }
}
