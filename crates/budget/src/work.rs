//! Threads and time for computations whose length an untrusted input decides.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use toolgate_contract::lock_mutex;

/// Scheduling priority (niceness) of the pool's threads. On a busy machine, they get a third of the
/// processor time of a thread that serves calls. With less time, ordinary computations would miss
/// their deadlines.
const NICE: i32 = 5;
/// Time without a computation after which an idle thread of a pool ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

thread_local! {
    /// Deadline of the computation that runs on this thread.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Pool of threads with low priority for a bounded number of computations, each with a deadline.
/// Clones of the pool share its threads.
///
/// A computation that overruns its deadline keeps its thread until it ends, so that abandoned work
/// cannot take more threads than the pool has.
#[derive(Debug, Clone)]
pub struct BlockingWorkPool {
    places: Arc<Semaphore>,
    time_max: Duration,
    threads: Arc<WorkPoolThreads>,
}

/// Reason why a pool did not return the result of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkPoolError {
    /// All threads of the pool were busy until the waiting time was over.
    Busy,
    /// The computation took too long.
    TimedOut,
}

impl BlockingWorkPool {
    /// Creates a pool that runs up to `places` computations at once. A computation waits up to
    /// `time_max` for a thread, and then runs up to `time_max`.
    pub fn new(places: usize, time_max: Duration) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { places, time_max, threads: Arc::default() }
    }

    /// Creates a pool for computations that take much memory. The pool runs one computation fewer
    /// at once than the machine has processors, but at least one.
    pub fn for_large_work(time_max: Duration) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.saturating_sub(1).max(1), time_max)
    }

    /// Runs `work` on a thread of the pool and waits for the result.
    ///
    /// # Errors
    /// Fails if all threads are busy for too long, or if the work takes too long.
    ///
    /// # Panics
    /// Panics if `work` panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkPoolError> {
        let place = timeout(self.time_max, self.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(WorkPoolError::Busy) };
        let deadline = Instant::now() + self.time_max;
        let (sender, result) = oneshot::channel();
        let task = move || {
            let result = catch_unwind(AssertUnwindSafe(|| run_until(deadline, work)));
            drop(place);
            // Nobody may wait for the result any more.
            let _ = sender.send(result);
        };
        // The system has no thread left.
        self.threads.start(Box::new(task)).map_err(|_| WorkPoolError::Busy)?;
        match timeout(self.time_max, result).await {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(panic))) => resume_unwind(panic),
            Ok(Err(_)) | Err(_) => Err(WorkPoolError::TimedOut),
        }
    }
}

/// Computation to run on a thread of a pool.
type WorkPoolTask = Box<dyn FnOnce() + Send>;

/// Threads of a pool. They start on demand, and end after 10 seconds without a computation.
#[derive(Debug, Default)]
struct WorkPoolThreads {
    idle: Mutex<Vec<IdleWorkThread>>,
    next_number: AtomicU64,
}

/// Idle thread of a pool, which waits for its next computation.
#[derive(Debug)]
struct IdleWorkThread {
    number: u64,
    tasks: Sender<WorkPoolTask>,
}

impl WorkPoolThreads {
    /// Runs `task` on an idle thread, or on a new thread. Fails if no new thread can be started.
    fn start(self: &Arc<Self>, mut task: WorkPoolTask) -> io::Result<()> {
        let next_idle = || lock_mutex(&self.idle).pop();
        while let Some(thread) = next_idle() {
            match thread.tasks.send(task) {
                Ok(()) => return Ok(()),
                Err(SendError(unsent)) => task = unsent,
            }
        }
        let threads = self.clone();
        let builder = thread::Builder::new().name("large-work".to_owned());
        builder.spawn(move || threads.run_tasks(task)).map(drop)
    }

    /// Runs `first`, and then the tasks that this thread gets while it is idle.
    fn run_tasks(&self, first: WorkPoolTask) {
        // If this fails, the work runs at normal priority.
        let _ = rustix::process::nice(NICE);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (sender, tasks) = channel();
        let mut task = first;
        loop {
            task();
            lock_mutex(&self.idle).push(IdleWorkThread { number, tasks: sender.clone() });
            let next = tasks.recv_timeout(IDLE_MAX).ok();
            let Some(next) = next.or_else(|| match self.remove_idle(number) {
                true => None,
                // A task was just about to be sent.
                false => tasks.recv().ok(),
            }) else {
                return;
            };
            task = next;
        }
    }

    /// Removes the thread `number` from the idle threads. Returns false if the thread is not idle.
    fn remove_idle(&self, number: u64) -> bool {
        let mut idle = lock_mutex(&self.idle);
        let before = idle.len();
        idle.retain(|thread| thread.number != number);
        idle.len() < before
    }
}

/// Runs the computation `work`. After `deadline`, expensive steps such as pattern matches end
/// early.
pub fn run_until<T>(deadline: Instant, work: impl FnOnce() -> T) -> T {
    /// Guard that restores the deadline of the enclosing computation when dropped.
    struct RestoreDeadlineGuard(Option<Instant>);
    impl Drop for RestoreDeadlineGuard {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _outer = RestoreDeadlineGuard(DEADLINE.replace(Some(deadline)));
    work()
}

/// Returns true if the deadline of the computation on this thread has passed.
pub(crate) fn is_time_over() -> bool {
    DEADLINE.get().is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_idle_thread_of_low_priority_runs_the_next_work() {
        let pool = BlockingWorkPool::new(1, Duration::from_secs(60));
        let niceness = rustix::process::getpriority_process(None).expect("a priority");
        let identify = || {
            let niceness = rustix::process::getpriority_process(None).expect("a priority");
            (thread::current().id(), niceness)
        };
        let (first, nice) = pool.run(identify).await.expect("it runs");
        assert_eq!(nice, (niceness + NICE).min(19));
        while lock_mutex(&pool.threads.idle).is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(identify).await, Ok((first, nice)));
    }

    #[tokio::test]
    #[should_panic(expected = "a bug in the work")]
    async fn a_panic_in_the_work_reaches_its_caller() {
        let pool = BlockingWorkPool::new(1, Duration::from_secs(60));
        let _ = pool.run::<u8>(|| panic!("a bug in the work")).await;
    }

    #[tokio::test]
    async fn abandoned_work_keeps_its_place_until_it_ends() {
        let pool = BlockingWorkPool::new(1, Duration::from_millis(50));
        let (finish, finished) = channel::<()>();
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
