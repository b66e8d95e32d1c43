//! Parses code in separate worker processes, because hostile text can crash a grammar.
//!
//! A grammar is C code. If a grammar aborts, its process ends, so a server that parsed code itself
//! would end, too. The server therefore sends each text to a worker process, which has no access to
//! files and has limits on memory and time. If the worker fails, definitions are guessed line by
//! line, and the text is not parsed again.

mod failed_texts;

use std::io;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use toolgate_chunks::{
    CodeParserProcess, PARSE_ANSWER_BYTES_MAX, has_grammars, set_grammars, set_parser_process,
};
use toolgate_contract::lock_mutex;
use toolgate_net::spawn_blocking;
use toolgate_parser::PARSER_NAME;
use toolgate_world::ProcessRunner;
use toolgate_world::processes::{
    PackedProgram, WorkerExecutable, WorkerFailure, WorkerProcess, WorkerProcessStarter,
};

use failed_texts::FailedParseRequests;

pub use toolgate_chunks::GrammarLookup;

/// The maximum idle time after which a parser worker is still reused. It is shorter than the time
/// after which an idle worker exits, so that no worker exits while it receives a text.
const IDLE_MAX: Duration = Duration::from_secs(45);
/// The maximum time for parsing one text. This limit stops a worker that hangs. A separate, shorter
/// limit applies to the processor time.
const TEXT_TIMEOUT: Duration = Duration::from_secs(20);
/// The minimum size of the pool of parser workers, so that one slow text does not block all others.
const WORKERS_MIN: usize = 2;
/// The maximum size of the pool of parser workers.
const WORKERS_MAX: usize = 4;
/// The maximum number of parser workers that are tried for one text: one more than can be idle,
/// because all idle workers may have been killed.
const ATTEMPTS_MAX: usize = WORKERS_MAX + 1;
/// The minimum time between a failed start of a parser worker and the next start.
const START_PAUSE: Duration = Duration::from_secs(30);

/// The executable of parser workers. Not set until [`run_worker_if_asked`] has searched for it.
static EXECUTABLE: OnceLock<WorkerExecutable> = OnceLock::new();
/// Wakes the task that ends idle parser workers. A started worker notifies it.
static WORKER_STARTED: Notify = Notify::const_new();
/// The pool of parser workers for this process. `None` if no worker parses code for this process.
static CURRENT_POOL: Mutex<Option<Arc<ParserWorkerPool>>> = Mutex::new(None);

/// Parses code as a worker, and never returns, if this process was started as a parser worker.
/// Otherwise, finds the executable of parser workers. Call this function in `main` before any
/// thread starts.
///
/// `grammars` are the grammars of this executable, if it has any. A packed parser executable, if
/// there is one, is used in preference to them.
pub fn run_worker_if_asked(grammars: Option<GrammarLookup>) {
    set_grammars(grammars);
    toolgate_parser::run_worker_if_asked();
    EXECUTABLE.get_or_init(|| match PackedProgram::find(PARSER_NAME) {
        Some(program) => WorkerExecutable::Packed(Arc::new(program)),
        None if has_grammars() => WorkerExecutable::Server,
        None => WorkerExecutable::Missing,
    });
}

/// Makes parser workers parse all code for this process. The first text starts the first worker.
///
/// Does nothing if `main` has not called [`run_worker_if_asked`], as in tests of libraries. Such a
/// process parses code itself if it has grammars, and otherwise guesses definitions line by line.
pub fn parse_in_workers(processes: &ProcessRunner) {
    if let Some(executable) = EXECUTABLE.get() {
        let starter = processes.workers(PARSER_NAME, executable.clone());
        let pool = Arc::new(ParserWorkerPool::new(starter));
        set_parser_process(pool.clone());
        *lock_mutex(&CURRENT_POOL) = Some(pool);
    }
}

/// Checks that this system can run a parser worker: starts a worker and ends it. Blocks. Does
/// nothing if `main` has not called [`run_worker_if_asked`].
///
/// # Errors
/// Fails if no worker can be started.
pub fn check_worker(processes: &ProcessRunner) -> io::Result<()> {
    let Some(executable) = EXECUTABLE.get() else { return Ok(()) };
    processes.workers(PARSER_NAME, executable.clone()).start().map(drop)
}

/// Ends each parser worker as soon as it is idle. A later text starts a new worker, which ends
/// after this text.
pub fn end_workers() {
    if let Some(pool) = lock_mutex(&CURRENT_POOL).take() {
        let mut state = lock_mutex(&pool.state);
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }
}

/// Ends each parser worker that has been idle for 45 s, to free its memory. Never returns.
pub async fn end_idle_workers() {
    loop {
        WORKER_STARTED.notified().await;
        let mut has_workers = true;
        while has_workers {
            sleep(IDLE_MAX).await;
            // It waits for the end of each process.
            has_workers = spawn_blocking(end_expired_workers).await.unwrap_or(false);
        }
    }
}

/// Ends the parser workers that have been idle for [`IDLE_MAX`]. Returns true if other workers are
/// left.
fn end_expired_workers() -> bool {
    let Some(pool) = lock_mutex(&CURRENT_POOL).clone() else { return false };
    let mut state = lock_mutex(&pool.state);
    let idle = std::mem::take(&mut state.idle);
    let (kept, expired): (Vec<_>, Vec<_>) =
        idle.into_iter().partition(|(since, _)| since.elapsed() < IDLE_MAX);
    state.idle = kept;
    let has_workers = state.busy > 0 || !state.idle.is_empty();
    drop(state);
    drop(expired);
    has_workers
}

/// A pool of worker processes that parse code.
struct ParserWorkerPool {
    starter: WorkerProcessStarter,
    workers_max: usize,
    state: Mutex<ParserPoolState>,
    /// Notifies waiting threads that a worker of the pool has become idle or has ended.
    released: Condvar,
}

#[derive(Default)]
struct ParserPoolState {
    /// The idle workers, each with the time at which it became idle.
    idle: Vec<(Instant, WorkerProcess)>,
    /// The number of workers that are parsing a text.
    busy: usize,
    failed: FailedParseRequests,
    /// The earliest time for the next start of a worker. `None` unless the last start failed.
    start_after: Option<Instant>,
    is_closed: bool,
}

/// A worker that is parsing a text. Dropping this value kills the worker, unless it was given back.
struct BusyParserWorker<'p> {
    pool: &'p ParserWorkerPool,
    worker: Option<WorkerProcess>,
}

impl CodeParserProcess for ParserWorkerPool {
    fn exchange(&self, path: &str, request: &[u8], accept: &mut dyn FnMut(&[u8]) -> bool) {
        if lock_mutex(&self.state).failed.contains(request) {
            return;
        }
        for _ in 0..ATTEMPTS_MAX {
            let Some(mut busy) = self.take_worker() else { return };
            let Some(worker) = &mut busy.worker else { return };
            let why = match worker.exchange(request, PARSE_ANSWER_BYTES_MAX, TEXT_TIMEOUT) {
                Ok(answer) if accept(&answer) => return busy.give_back(),
                Ok(_) => "gave an invalid answer",
                Err(WorkerFailure::EndedBefore) => continue,
                Err(WorkerFailure::Crashed) => "crashed or ran out of processor time",
                Err(WorkerFailure::TimedOut) => "took too long",
            };
            drop(busy);
            if lock_mutex(&self.state).failed.insert(request) {
                tracing::warn!(
                    "the parser of `{}` {why}; its definitions are guessed line by line, and the \
                     same text is not parsed again",
                    path.escape_debug()
                );
            }
            return;
        }
    }
}

impl ParserWorkerPool {
    fn new(starter: WorkerProcessStarter) -> Self {
        let processors = thread::available_parallelism().map_or(WORKERS_MIN, NonZero::get);
        Self {
            starter,
            workers_max: processors.clamp(WORKERS_MIN, WORKERS_MAX),
            state: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Returns an idle worker, or starts a new worker. If the maximum number of workers is busy,
    /// blocks until one is idle. Returns `None` if no worker can be started.
    fn take_worker(&self) -> Option<BusyParserWorker<'_>> {
        let mut state = lock_mutex(&self.state);
        while state.idle.is_empty() && state.busy >= self.workers_max {
            // Each text has a time limit, so this wait has an end.
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut worker = None;
        while worker.is_none()
            && let Some((since, idle)) = state.idle.pop()
        {
            worker = Some(idle).filter(|_| since.elapsed() < IDLE_MAX);
        }
        if worker.is_none() && state.start_after.is_some_and(|time| Instant::now() < time) {
            return None;
        }
        state.busy += 1;
        drop(state);
        let mut busy = BusyParserWorker { pool: self, worker };
        if busy.worker.is_none() {
            match self.starter.start() {
                Ok(started) => {
                    busy.worker = Some(started);
                    lock_mutex(&self.state).start_after = None;
                    WORKER_STARTED.notify_one();
                }
                Err(err) => {
                    drop(busy);
                    self.record_start_failure(&err);
                    return None;
                }
            }
        }
        Some(busy)
    }

    fn record_start_failure(&self, err: &io::Error) {
        // The server is closing.
        if err.kind() == io::ErrorKind::Interrupted {
            return;
        }
        let before = lock_mutex(&self.state).start_after.replace(Instant::now() + START_PAUSE);
        if before.is_none() {
            tracing::warn!(
                "the process that parses code cannot be started, so definitions are guessed line \
                 by line: {err}"
            );
        }
    }
}

impl BusyParserWorker<'_> {
    /// Returns the worker to the pool, so that it can parse another text. Ends the worker if the
    /// pool is closed.
    fn give_back(mut self) {
        let worker = self.worker.take();
        let mut state = lock_mutex(&self.pool.state);
        if !state.is_closed {
            state.idle.extend(worker.map(|worker| (Instant::now(), worker)));
        }
    }
}

impl Drop for BusyParserWorker<'_> {
    fn drop(&mut self) {
        // The worker ends before another takes its place.
        drop(self.worker.take());
        lock_mutex(&self.pool.state).busy -= 1;
        self.pool.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_workers_answers_nothing_and_frees_their_places() {
        let processes = ProcessRunner::new([]).unwrap();
        let starter = processes.workers(PARSER_NAME, WorkerExecutable::Server);
        let pool = ParserWorkerPool::new(starter);
        // The starter of a runner that has ended starts nothing.
        drop(processes);
        for _ in 0..2 * WORKERS_MAX {
            pool.exchange("a.rb", b"request", &mut |_| panic!("there is no answer"));
        }
        let state = lock_mutex(&pool.state);
        assert_eq!((state.busy, state.idle.len()), (0, 0));
        assert!(state.start_after.is_none());
    }
}
