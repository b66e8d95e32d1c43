//! Limits the number of threads that searches use together.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const THREADS_MAX: usize = 8;

/// The number of helper threads that all searches of this process use together. Each search also
/// uses the thread that started it.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Helper threads that are reserved for one search. Dropping this value releases them.
pub(crate) struct ReservedSearchThreads(usize);

impl ReservedSearchThreads {
    /// Reserves helper threads for `pieces` tasks that can run in parallel. Reserves none if other
    /// searches use all helper threads.
    pub(crate) fn reserve(pieces: usize) -> Self {
        let most = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let wanted = most.min(pieces).saturating_sub(1);
        let mut reserved = 0;
        let reserve = |busy: usize| {
            reserved = wanted.min(most.saturating_sub(busy));
            Some(busy + reserved)
        };
        let _ = HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
        Self(reserved)
    }

    /// Runs `work` on each helper thread and on the calling thread, and returns all results.
    ///
    /// # Panics
    /// Panics if `work` panics on any thread.
    pub(crate) fn run_on_each<T: Send>(&self, work: impl Fn() -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.0).map(|_| scope.spawn(&work)).collect();
            let mut done = vec![work()];
            for thread in threads {
                done.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            done
        })
    }
}

impl Drop for ReservedSearchThreads {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}
