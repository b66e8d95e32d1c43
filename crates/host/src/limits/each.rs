//! Limits the concurrent calls of each caller, so that one cannot block the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallError, Caller};

use super::{Patience, Pool};

/// Pools of the callers with calls in progress.
pub(super) struct Each {
    make: Box<dyn Fn() -> Pool + Send + Sync>,
    held: Arc<Mutex<Held>>,
}

type Held = HashMap<Caller, Weak<Pool>>;

/// Permit from a caller's pool. The pool is removed with its last share.
pub(super) struct Share {
    #[allow(dead_code, reason = "held, and given back on drop")]
    permit: Option<OwnedSemaphorePermit>,
    pool: Option<Arc<Pool>>,
    caller: Caller,
    held: Arc<Mutex<Held>>,
}

impl Each {
    /// Creates limits whose pools are made by `make`.
    pub(super) fn new(make: impl Fn() -> Pool + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), held: Arc::default() }
    }

    /// Waits for a permit of `caller` in the caller's own queue.
    pub(super) async fn admit(
        &self,
        caller: &Caller,
        cancel: &CancellationToken,
        patience: Patience,
    ) -> Result<Share, CallError> {
        let pool = self.pool(caller);
        let held = self.held.clone();
        let caller = caller.clone();
        // Built first, so that its drop cleans up even if the wait fails.
        let mut share = Share { permit: None, pool: Some(pool.clone()), caller, held };
        share.permit = Some(pool.admit(cancel, patience).await?);
        Ok(share)
    }

    fn pool(&self, caller: &Caller) -> Arc<Pool> {
        let mut held = locked(&self.held);
        if let Some(pool) = held.get(caller).and_then(Weak::upgrade) {
            return pool;
        }
        let pool = Arc::new((self.make)());
        held.insert(caller.clone(), Arc::downgrade(&pool));
        pool
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.permit = None;
        let mut held = locked(&self.held);
        self.pool = None;
        if held.get(&self.caller).is_some_and(|pool| pool.strong_count() == 0) {
            held.remove(&self.caller);
        }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn each(size: usize) -> Each {
        Each::new(move || Pool::new("calls of one caller", size, 1, Duration::from_secs(1)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_at_its_bound_waits_in_its_own_queue_and_no_other_does() {
        let each = each(1);
        let wanted = CancellationToken::new();
        let ada = Caller::named("ada");
        let bob = Caller::named("bob");
        let admit = |caller| each.admit(caller, &wanted, Patience::Bounded);
        let first = admit(&ada).await.expect("her first");
        let (second, third) = tokio::join!(admit(&ada), admit(&ada));
        for refused in [second, third] {
            assert!(matches!(refused, Err(CallError::Limited { .. })));
        }
        let his = admit(&bob).await.expect("his first");
        drop(first);
        drop(admit(&ada).await.expect("there is room again"));
        drop(his);
        assert!(locked(&each.held).is_empty(), "nothing is kept of who has nothing going on");
    }
}
