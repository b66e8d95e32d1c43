//! Memory budget that several modules of the server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory budget with a limit in bytes. Clones share the budget.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<MemoryBudgetState>);

#[derive(Debug)]
struct MemoryBudgetState {
    bytes_max: u64,
    bytes_taken: AtomicU64,
}

/// Reserved memory, which returns to its budget when this value is dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    account: Arc<MemoryBudgetState>,
    bytes: u64,
}

impl MemoryBudget {
    /// Creates a memory budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(MemoryBudgetState { bytes_max, bytes_taken: AtomicU64::new(0) }))
    }

    /// Reserves `bytes` of memory. Returns `None` if fewer bytes are left.
    #[inline]
    pub fn try_take(&self, bytes: u64) -> Option<MemoryReservation> {
        let Self(account) = self;
        let take = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= account.bytes_max);
        account.bytes_taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(MemoryReservation { account: account.clone(), bytes })
    }
}

impl Drop for MemoryReservation {
    #[inline]
    fn drop(&mut self) {
        self.account.bytes_taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_the_limit_is_refused_until_a_share_is_dropped() {
        let account = MemoryBudget::new(10);
        let first = account.try_take(7).expect("there is room");
        assert!(account.try_take(4).is_none());
        let second = account.try_take(3).expect("the rest is free");
        drop(first);
        assert!(account.try_take(8).is_none() && account.try_take(7).is_some());
        drop(second);
        assert!(account.try_take(u64::MAX).is_none());
    }
}
