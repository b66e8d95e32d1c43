//! How many threads search at a time.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const THREADS_MAX: usize = 8;

/// How many threads help the searches of this process, which all have one of their own.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Threads that help a search, given back when it is done with them.
pub(crate) struct Crew(usize);

impl Crew {
    /// Who helps with `pieces` of work that can be done at a time: none, if others have them all.
    pub(crate) fn hire(pieces: usize) -> Self {
        let most = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let wanted = most.min(pieces).saturating_sub(1);
        let mut hired = 0;
        let hire = |busy: usize| {
            hired = wanted.min(most.saturating_sub(busy));
            Some(busy + hired)
        };
        let _ = HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, hire);
        Self(hired)
    }

    /// Has each of them do `work`, and whoever calls too; what each has to show.
    pub(crate) fn each<T: Send>(&self, work: impl Fn() -> T + Sync) -> Vec<T> {
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

impl Drop for Crew {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.0, Ordering::Relaxed);
    }
}
