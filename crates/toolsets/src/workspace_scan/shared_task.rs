//! Runs a background task while somebody needs it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::WatchGuard;

/// A shared background task that runs while at least one [`WatchGuard`] lives.
#[derive(Default)]
pub(super) struct SharedTask(Mutex<Weak<AbortOnDropHandle<()>>>);

impl SharedTask {
    /// Starts `look`, unless it already runs, and returns a hold that keeps it running.
    pub(super) fn join_or_start<F>(&self, look: impl FnOnce() -> F) -> WatchGuard
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return WatchGuard::new(running);
        }
        // Without a runtime there is no server, and nobody to notify.
        let Ok(runtime) = Handle::try_current() else { return WatchGuard::none() };
        let running = Arc::new(AbortOnDropHandle::new(runtime.spawn(look())));
        *shared = Arc::downgrade(&running);
        WatchGuard::new(running)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn all_who_want_to_know_share_one_task_and_without_any_there_is_none() {
        let patrol = SharedTask::default();
        let begun = AtomicUsize::new(0);
        let alive = Arc::new(());
        let keep = || {
            let alive = alive.clone();
            patrol.join_or_start(|| {
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    pending::<()>().await;
                    drop(alive);
                }
            })
        };
        let one = keep();
        let other = keep();
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        drop(one);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(other);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
        let _again = keep();
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }
}
