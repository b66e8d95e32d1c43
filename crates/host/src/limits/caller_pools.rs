//! Limits the concurrent calls of each caller, so that one caller cannot block the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallError, Caller, lock_mutex};

use super::{CallSlotPool, SlotWaitLimit};

/// Pools of call slots, one for each caller with calls in progress.
pub(super) struct CallerPools {
    new_pool: Box<dyn Fn() -> CallSlotPool + Send + Sync>,
    pools: Arc<Mutex<CallerPoolMap>>,
}

/// Pools of call slots by caller.
type CallerPoolMap = HashMap<Caller, Weak<CallSlotPool>>;

/// Permit from a caller's pool of call slots. The pool is removed with its last permit.
pub(super) struct CallerPoolPermit {
    #[allow(dead_code, reason = "held, and given back on drop")]
    permit: Option<OwnedSemaphorePermit>,
    pool: Option<Arc<CallSlotPool>>,
    caller: Caller,
    pools: Arc<Mutex<CallerPoolMap>>,
}

impl CallerPools {
    /// Creates pools for callers. `make` creates the pool of one caller.
    pub(super) fn new(make: impl Fn() -> CallSlotPool + Send + Sync + 'static) -> Self {
        Self { new_pool: Box::new(make), pools: Arc::default() }
    }

    /// Waits for a permit from the pool of `caller`, in the caller's own queue.
    pub(super) async fn admit(
        &self,
        caller: &Caller,
        cancel: &CancellationToken,
        wait: SlotWaitLimit,
    ) -> Result<CallerPoolPermit, CallError> {
        let pool = self.pool(caller);
        let pools = self.pools.clone();
        let caller = caller.clone();
        // Built first, so that its drop cleans up even if the wait fails.
        let mut share = CallerPoolPermit { permit: None, pool: Some(pool.clone()), caller, pools };
        share.permit = Some(pool.admit(cancel, wait).await?);
        Ok(share)
    }

    fn pool(&self, caller: &Caller) -> Arc<CallSlotPool> {
        let mut pools = lock_mutex(&self.pools);
        if let Some(pool) = pools.get(caller).and_then(Weak::upgrade) {
            return pool;
        }
        let pool = Arc::new((self.new_pool)());
        pools.insert(caller.clone(), Arc::downgrade(&pool));
        pool
    }
}

impl Drop for CallerPoolPermit {
    fn drop(&mut self) {
        self.permit = None;
        let mut pools = lock_mutex(&self.pools);
        self.pool = None;
        if pools.get(&self.caller).is_some_and(|pool| pool.strong_count() == 0) {
            pools.remove(&self.caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn each(size: usize) -> CallerPools {
        CallerPools::new(move || {
            CallSlotPool::new("calls of one caller", size, 1, Duration::from_secs(1))
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_at_its_limit_waits_alone() {
        let each = each(1);
        let not_cancelled = CancellationToken::new();
        let ada = Caller::with_key("ada");
        let bob = Caller::with_key("bob");
        let admit = |caller| each.admit(caller, &not_cancelled, SlotWaitLimit::Bounded);
        let first = admit(&ada).await.expect("her first");
        let (second, third) = tokio::join!(admit(&ada), admit(&ada));
        for refused in [second, third] {
            assert!(matches!(refused, Err(CallError::Limited { .. })));
        }
        let bob_share = admit(&bob).await.expect("his first");
        drop(first);
        drop(admit(&ada).await.expect("there is room again"));
        drop(bob_share);
        assert!(lock_mutex(&each.pools).is_empty(), "idle callers are removed");
    }
}
