//! Limit on answers that wait to be sent, over all connections.
//!
//! The answers to a client that sends requests but does not read wait in memory. The first bytes of
//! each connection do not count, so short answers are free. Above the limit, connections are
//! closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolgate_contract::lock_mutex;

/// Number of unsent bytes of each connection that do not count towards the limit of unsent bytes.
const UNCOUNTED_UNSENT_BYTES: usize = 64 << 10;
/// Time without progress after which a client that receives bytes counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Unsent bytes of all connections of a listener.
pub(super) struct UnsentByteCounter {
    bytes_max: usize,
    state: Mutex<UnsentBytesState>,
}

#[derive(Default)]
struct UnsentBytesState {
    next_number: u64,
    bytes_total: usize,
    accounts: HashMap<u64, UnsentConnectionBytes>,
}

/// Unsent bytes of one connection.
struct UnsentConnectionBytes {
    bytes: usize,
    /// Time at which the client last received bytes, or the first counted byte was added.
    progress_at: Instant,
    disconnect: CancellationToken,
}

/// Account of the unsent bytes of one connection. Dropping this value closes the account.
pub(crate) struct UnsentBytesAccount {
    unsent: Arc<UnsentByteCounter>,
    number: u64,
    bytes: AtomicUsize,
    disconnect: CancellationToken,
}

impl UnsentByteCounter {
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, state: Mutex::default() })
    }

    /// Opens the account of unsent bytes of a new connection.
    pub(super) fn open_account(self: &Arc<Self>) -> Arc<UnsentBytesAccount> {
        let mut held = lock_mutex(&self.state);
        held.next_number += 1;
        let number = held.next_number;
        let unsent = self.clone();
        Arc::new(UnsentBytesAccount {
            unsent,
            number,
            bytes: AtomicUsize::new(0),
            disconnect: CancellationToken::new(),
        })
    }
}

impl UnsentBytesAccount {
    /// Adds the number `bytes` to the connection's account. These bytes wait to be sent.
    pub(super) fn add(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > UNCOUNTED_UNSENT_BYTES {
            self.count(before + bytes, false);
        }
    }

    /// Subtracts the number `bytes` from the connection's account. These bytes were written.
    /// Response heads are not counted.
    pub(super) fn subtract(&self, bytes: usize) {
        let less = |owed: usize| Some(owed.saturating_sub(bytes));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let before = before.unwrap_or_default();
        if before > UNCOUNTED_UNSENT_BYTES {
            self.count(before.saturating_sub(bytes), true);
        }
    }

    /// Waits until the connection must be closed, because it has the most unsent bytes.
    pub(super) async fn wait_disconnected(&self) {
        self.disconnect.cancelled().await;
    }

    fn count(&self, owed: usize, took: bool) {
        let now = Instant::now();
        let mut held = lock_mutex(&self.unsent.state);
        let UnsentBytesState { bytes_total: all, accounts: of, .. } = &mut *held;
        let entry = of.entry(self.number).or_insert_with(|| UnsentConnectionBytes {
            bytes: 0,
            progress_at: now,
            disconnect: self.disconnect.clone(),
        });
        *all -= entry.bytes;
        entry.bytes = owed.saturating_sub(UNCOUNTED_UNSENT_BYTES);
        *all += entry.bytes;
        if took {
            entry.progress_at = now;
        }
        if entry.bytes == 0 {
            of.remove(&self.number);
        }
        while held.bytes_total > self.unsent.bytes_max && held.disconnect_largest(now) {}
    }
}

impl UnsentBytesState {
    /// Closes the connection with the most unsent bytes. Connections of stuck clients come first.
    /// Returns false if there is no connection to close.
    ///
    /// A client that reads is kept if it is the only one with unsent bytes.
    fn disconnect_largest(&mut self, now: Instant) -> bool {
        let is_stuck = |entry: &UnsentConnectionBytes| {
            now.saturating_duration_since(entry.progress_at) >= STUCK_AFTER
        };
        let most = self.accounts.iter().max_by_key(|(_, entry)| (is_stuck(entry), entry.bytes));
        let most = most.filter(|(_, entry)| is_stuck(entry) || self.accounts.len() > 1);
        let Some(number) = most.map(|(number, _)| *number) else { return false };
        let Some(entry) = self.accounts.remove(&number) else { return false };
        self.bytes_total -= entry.bytes;
        entry.disconnect.cancel();
        true
    }
}

impl Drop for UnsentBytesAccount {
    fn drop(&mut self) {
        let mut held = lock_mutex(&self.unsent.state);
        if let Some(entry) = held.accounts.remove(&self.number) {
            held.bytes_total -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::*;

    fn is_disconnected(owed: &UnsentBytesAccount) -> bool {
        owed.wait_disconnected().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_stuck_connection_with_the_most_unsent_bytes_is_disconnected() {
        let unsent = UnsentByteCounter::new(1000);
        let [stuck, more, reads, small] = [(); 4].map(|()| unsent.open_account());
        small.add(UNCOUNTED_UNSENT_BYTES);
        stuck.add(UNCOUNTED_UNSENT_BYTES + 300);
        more.add(UNCOUNTED_UNSENT_BYTES + 400);
        advance(STUCK_AFTER).await;
        reads.add(UNCOUNTED_UNSENT_BYTES + 500);
        let cut = || [&stuck, &more, &reads, &small].map(|owed| is_disconnected(owed));
        assert_eq!(cut(), [false, true, false, false]);
        reads.subtract(100);
        reads.add(350);
        assert_eq!(cut(), [true, true, false, false]);
        // A client that reads may exceed the limit if it is the only one.
        reads.add(1000);
        assert!(!is_disconnected(&reads));
        advance(STUCK_AFTER).await;
        reads.subtract(1);
        assert!(!is_disconnected(&reads));
        advance(STUCK_AFTER).await;
        reads.add(1);
        assert!(is_disconnected(&reads));
        drop((stuck, more, reads, small));
        let held = lock_mutex(&unsent.state);
        assert_eq!((held.bytes_total, held.accounts.len()), (0, 0));
    }
}
