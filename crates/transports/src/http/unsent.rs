//! Limit on answers that wait to be sent, over all connections.
//!
//! A client that requests without reading leaves its answers waiting here. The first bytes of each
//! connection are free, so short answers do not count. Beyond the limit, connections are closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Free bytes of each connection.
const FREE_BYTES: usize = 64 << 10;
/// Time without progress after which a client counts as stuck.
const STUCK: Duration = Duration::from_secs(1);

/// Unsent bytes of all connections of a listener.
pub(super) struct Unsent {
    bytes_max: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    next: u64,
    all: usize,
    of: HashMap<u64, Owing>,
}

struct Owing {
    bytes: usize,
    /// Time of the last progress, or of the first counted byte.
    took: Instant,
    cut_off: CancellationToken,
}

/// Account of one connection, closed on drop.
pub(crate) struct Owed {
    unsent: Arc<Unsent>,
    number: u64,
    bytes: AtomicUsize,
    cut_off: CancellationToken,
}

impl Unsent {
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: Mutex::default() })
    }

    /// Opens the account of a new connection.
    pub(super) fn owed(self: &Arc<Self>) -> Arc<Owed> {
        let mut held = self.held();
        held.next += 1;
        let number = held.next;
        let unsent = self.clone();
        Arc::new(Owed {
            unsent,
            number,
            bytes: AtomicUsize::new(0),
            cut_off: CancellationToken::new(),
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owed {
    /// Adds `bytes` that wait to be sent.
    pub(super) fn more(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > FREE_BYTES {
            self.count(before + bytes, false);
        }
    }

    /// Subtracts `bytes` that were written. Response heads are not counted.
    pub(super) fn took(&self, bytes: usize) {
        let less = |owed: usize| Some(owed.saturating_sub(bytes));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let before = before.unwrap_or_default();
        if before > FREE_BYTES {
            self.count(before.saturating_sub(bytes), true);
        }
    }

    /// Waits until the connection must be closed.
    pub(super) async fn cut_off(&self) {
        self.cut_off.cancelled().await;
    }

    fn count(&self, owed: usize, took: bool) {
        let now = Instant::now();
        let mut held = self.unsent.held();
        let Held { all, of, .. } = &mut *held;
        let owing = of.entry(self.number).or_insert_with(|| Owing {
            bytes: 0,
            took: now,
            cut_off: self.cut_off.clone(),
        });
        *all -= owing.bytes;
        owing.bytes = owed.saturating_sub(FREE_BYTES);
        *all += owing.bytes;
        if took {
            owing.took = now;
        }
        if owing.bytes == 0 {
            of.remove(&self.number);
        }
        while held.all > self.unsent.bytes_max && held.cut_one_off(now) {}
    }
}

impl Held {
    /// Closes the connection with the most unsent bytes, stuck ones first. Returns false if there
    /// is none to close.
    ///
    /// A client that reads is kept if it is the only one with unsent bytes.
    fn cut_one_off(&mut self, now: Instant) -> bool {
        let is_stuck = |owing: &Owing| now.saturating_duration_since(owing.took) >= STUCK;
        let most = self.of.iter().max_by_key(|(_, owing)| (is_stuck(owing), owing.bytes));
        let most = most.filter(|(_, owing)| is_stuck(owing) || self.of.len() > 1);
        let Some(number) = most.map(|(number, _)| *number) else { return false };
        let Some(owing) = self.of.remove(&number) else { return false };
        self.all -= owing.bytes;
        owing.cut_off.cancel();
        true
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let mut held = self.unsent.held();
        if let Some(owing) = held.of.remove(&self.number) {
            held.all -= owing.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::*;

    fn is_cut_off(owed: &Owed) -> bool {
        owed.cut_off().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_do_not_read_the_one_that_is_owed_most_is_cut_off() {
        let unsent = Unsent::new(1000);
        let [stuck, more, reads, small] = [(); 4].map(|()| unsent.owed());
        small.more(FREE_BYTES);
        stuck.more(FREE_BYTES + 300);
        more.more(FREE_BYTES + 400);
        advance(STUCK).await;
        reads.more(FREE_BYTES + 500);
        let cut = || [&stuck, &more, &reads, &small].map(|owed| is_cut_off(owed));
        assert_eq!(cut(), [false, true, false, false]);
        reads.took(100);
        reads.more(350);
        assert_eq!(cut(), [true, true, false, false]);
        // Alone it is owed as much as it is, while it reads.
        reads.more(1000);
        assert!(!is_cut_off(&reads));
        advance(STUCK).await;
        reads.took(1);
        assert!(!is_cut_off(&reads));
        advance(STUCK).await;
        reads.more(1);
        assert!(is_cut_off(&reads));
        drop((stuck, more, reads, small));
        let held = unsent.held();
        assert_eq!((held.all, held.of.len()), (0, 0));
    }
}
