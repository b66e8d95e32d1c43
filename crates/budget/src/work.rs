//! Threads and time for computations whose length an untrusted input decides.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

thread_local! {
    /// Deadline of the computation that runs on this thread.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Pool of blocking threads for a bounded number of computations, each with a deadline. Clones
/// share them.
///
/// A computation that overruns its deadline keeps its place until it ends, so that abandoned work
/// cannot take more threads than the pool has.
#[derive(Debug, Clone)]
pub struct BlockingWorkPool {
    places: Arc<Semaphore>,
    time_max: Duration,
}

/// Reason why a computation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkPoolError {
    /// All threads of the pool were busy until the waiting time was over.
    Busy,
    /// The computation took too long.
    TimedOut,
}

impl BlockingWorkPool {
    /// Creates a pool for `places` computations at once, which may each wait and run for
    /// `time_max`.
    pub fn new(places: usize, time_max: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), time_max }
    }

    /// Runs `work` on a blocking thread.
    ///
    /// # Errors
    /// All threads are busy for too long, or the work takes too long.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkPoolError> {
        let place = timeout(self.time_max, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(WorkPoolError::Busy) };
        let deadline = Instant::now() + self.time_max;
        let running = spawn_blocking(move || {
            let _place = place;
            run_until(deadline, work)
        });
        match timeout(self.time_max, running).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(err)) if err.is_panic() => resume_unwind(err.into_panic()),
            Ok(Err(_)) | Err(_) => Err(WorkPoolError::TimedOut),
        }
    }
}

/// Runs the computation `work`, whose expensive steps end early after `deadline`.
pub fn run_until<T>(deadline: Instant, work: impl FnOnce() -> T) -> T {
    /// Guard that restores the deadline of the enclosing computation.
    struct OuterDeadlineGuard(Option<Instant>);
    impl Drop for OuterDeadlineGuard {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _outer = OuterDeadlineGuard(DEADLINE.replace(Some(deadline)));
    work()
}

/// Returns true if the deadline of the computation that runs on this thread is over.
pub(crate) fn is_time_over() -> bool {
    DEADLINE.get().is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn abandoned_work_keeps_its_place_until_it_ends() {
        let pool = BlockingWorkPool::new(1, Duration::from_millis(50));
        let (finish, finished) = mpsc::channel::<()>();
        let hangs = pool.run(move || finished.recv().is_err());
        assert_eq!(hangs.await, Err(WorkPoolError::TimedOut));
        assert_eq!(pool.run(|| 1).await, Err(WorkPoolError::Busy));
        drop(finish);
        let mut result = pool.run(|| 2).await;
        while result == Err(WorkPoolError::Busy) {
            result = pool.run(|| 2).await;
        }
        assert_eq!(result, Ok(2));
    }

    #[test]
    fn the_deadline_of_the_outer_work_applies_again_after_the_inner_work() {
        let now = Instant::now();
        run_until(now, || {
            assert!(!run_until(now + Duration::from_secs(60), is_time_over));
            assert!(is_time_over());
        });
        assert!(!is_time_over());
    }
}
