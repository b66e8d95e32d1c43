//! Runs a background task while at least one user needs its results.

use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{KeepActiveGuard, lock_mutex};

/// A shared background task that runs while at least one [`KeepActiveGuard`] exists.
#[derive(Default)]
pub(super) struct SharedBackgroundTask(Mutex<Weak<AbortOnDropHandle<()>>>);

impl SharedBackgroundTask {
    /// Starts `task`, unless it is already running. Returns a guard that keeps the task running
    /// until the guard is dropped.
    pub(super) fn join_or_start<F>(&self, task: impl FnOnce() -> F) -> KeepActiveGuard
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut shared = lock_mutex(&self.0);
        if let Some(running) = shared.upgrade() {
            return KeepActiveGuard::new(running);
        }
        // Without a runtime there is no server, and nobody to notify.
        let Ok(runtime) = Handle::try_current() else { return KeepActiveGuard::none() };
        let running =
            Arc::new(AbortOnDropHandle::new(toolgate_net::spawn_task_on(&runtime, task())));
        *shared = Arc::downgrade(&running);
        KeepActiveGuard::new(running)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn subscribers_share_one_task_that_stops_after_the_last_one() {
        let task = SharedBackgroundTask::default();
        let begun = AtomicUsize::new(0);
        let alive = Arc::new(());
        let subscribe = || {
            let alive = alive.clone();
            task.join_or_start(|| {
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    pending::<()>().await;
                    drop(alive);
                }
            })
        };
        let one = subscribe();
        let other = subscribe();
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        drop(one);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(other);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
        let _again = subscribe();
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }
}
