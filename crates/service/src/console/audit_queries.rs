//! Queries of the audit log's index, which a separate thread with a low priority runs.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use toolgate_contract::lock_mutex;
use toolgate_host::AuditIndex;

/// Maximum time for which a console page waits for the result of a query.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum number of queries that wait for the thread which reads the audit index.
const WAITING_MAX: usize = 256;
/// Time for which the result of an audit query is reused, so that many open console pages cost
/// little more than one. Shorter than the time between two updates of a page.
const LIFETIME: Duration = Duration::from_millis(900);
/// Scheduling priority (niceness) of the thread that reads the audit index. Under full load, calls
/// come first.
const NICE: i32 = 10;
/// Length of a step in which records are added to the audit index. Queries wait at most for one
/// step, and see the records that were added so far.
const STEP_TIME: Duration = Duration::from_millis(50);
/// Pause between two steps on a busy machine, so that adding records costs calls little.
const BUSY_PAUSE: Duration = Duration::from_millis(950);
/// Time without a query after which no further records are added.
const UPDATED_FOR: Duration = Duration::from_secs(10);

/// Runs queries of the audit log's index on a separate thread. The index is opened when the first
/// query runs.
pub(crate) struct AuditIndexQueries {
    log: Option<PathBuf>,
    /// Queue of queries for the thread that owns the audit index. The thread ends when this sender
    /// is dropped.
    thread: Mutex<Option<SyncSender<AuditIndexQueryFn>>>,
    /// True if the index lacks records of the log, because they are still being added.
    is_incomplete: Arc<AtomicBool>,
}

/// Function that runs a query of the audit index on the index thread.
type AuditIndexQueryFn = Box<dyn FnOnce(&mut AuditIndexThread) + Send>;
/// Result of a query of the audit index. The error is a sentence for people.
type AuditQueryResult<T> = Result<Arc<T>, String>;

/// State of the thread that reads the audit index.
struct AuditIndexThread {
    log: PathBuf,
    index: Option<AuditIndex>,
    is_incomplete: Arc<AtomicBool>,
    /// Earliest time of the next step in which records are added to the index.
    next_step: Instant,
    /// Latest result of each audit query and its time, by the name of the query.
    results: HashMap<String, (Instant, Arc<dyn Any + Send + Sync>)>,
}

impl AuditIndexQueries {
    pub(crate) fn new(log: Option<PathBuf>) -> Self {
        Self { log, thread: Mutex::default(), is_incomplete: Arc::default() }
    }

    /// Returns true if the index lacks records of the log, because they are still being added.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Returns the result of `query`. The audit index may lack the latest records, see
    /// [`is_incomplete`](Self::is_incomplete). Queries with the same `name` must have the same
    /// meaning, because a result is reused for 0.9 seconds.
    ///
    /// # Errors
    /// The log is not a file, or the index cannot be read in time. The message is for people.
    pub(crate) async fn run<T: Send + Sync + 'static, E: Display>(
        &self,
        name: String,
        query: impl FnOnce(&AuditIndex) -> Result<T, E> + Send + 'static,
    ) -> AuditQueryResult<T> {
        let Some(log) = &self.log else {
            return Err(
                "The audit log is not a file (setting audit.to), so there is no record of calls."
                    .to_owned(),
            );
        };
        let (sender, receiver) = oneshot::channel();
        let work: AuditIndexQueryFn = Box::new(move |thread: &mut AuditIndexThread| {
            // The page no longer waits.
            if !sender.is_closed() {
                let _ = sender.send(thread.answer(name, query));
            }
        });
        let thread = self.thread(log)?;
        if thread.try_send(work).is_err() {
            return Err("Too many pages wait for the index of the audit log.".to_owned());
        }
        match timeout(WAIT_MAX, receiver).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("The index cannot be read.".to_owned()),
            Err(_) => Err(
                "The index of the audit log did not answer in time. Reload the page in a moment."
                    .to_owned(),
            ),
        }
    }

    /// Returns the sender of queries to the thread for the audit `log`. Starts the thread if it is
    /// not running. Fails if the thread cannot be started.
    fn thread(&self, log: &Path) -> Result<SyncSender<AuditIndexQueryFn>, String> {
        let mut running = lock_mutex(&self.thread);
        if let Some(sender) = &*running {
            return Ok(sender.clone());
        }
        let (sender, receiver) = sync_channel::<AuditIndexQueryFn>(WAITING_MAX);
        let mut state = AuditIndexThread {
            log: log.to_owned(),
            index: None,
            is_incomplete: self.is_incomplete.clone(),
            next_step: Instant::now(),
            results: HashMap::new(),
        };
        let started = thread::Builder::new().name("audit-index".to_owned()).spawn(move || {
            // If this fails, the thread continues at normal priority.
            let _ = rustix::process::nice(NICE);
            while let Ok(query) = receiver.recv() {
                query(&mut state);
                let mut queried_at = Instant::now();
                while state.can_continue() && queried_at.elapsed() < UPDATED_FOR {
                    match receiver.recv_timeout(state.pause()) {
                        Ok(query) => {
                            query(&mut state);
                            queried_at = Instant::now();
                        }
                        Err(RecvTimeoutError::Timeout) => state.update_if_due(),
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
        });
        started.map_err(|why| format!("The index cannot be read: {why}"))?;
        *running = Some(sender.clone());
        Ok(sender)
    }
}

impl AuditIndexThread {
    /// Returns the stored result of the audit query `name` if it is recent. Otherwise adds
    /// records to the index for a short time, runs `query` and stores the result. The error is a sentence for people.
    fn answer<T: Send + Sync + 'static, E: Display>(
        &mut self,
        name: String,
        query: impl FnOnce(&AuditIndex) -> Result<T, E>,
    ) -> AuditQueryResult<T> {
        self.results.retain(|_, (at, _)| at.elapsed() < LIFETIME);
        let known =
            self.results.get(&name).and_then(|(_, known)| known.clone().downcast::<T>().ok());
        if let Some(known) = known {
            return Ok(known);
        }
        let open = match self.index.take() {
            Some(open) => Ok(open),
            None => AuditIndex::open(&self.log),
        };
        let open = open.map_err(|why| format!("The index cannot be opened: {why}"))?;
        // After an error, the next query opens the index again.
        let open = self.update(open)?;
        let result = Arc::new(query(&open).map_err(|why| why.to_string())?);
        self.index = Some(open);
        let shared: Arc<dyn Any + Send + Sync> = result.clone();
        self.results.insert(name, (Instant::now(), shared));
        Ok(result)
    }

    /// Returns true if the index is open and lacks records.
    fn can_continue(&self) -> bool {
        self.index.is_some() && self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Returns the time until the next step.
    fn pause(&self) -> Duration {
        self.next_step.saturating_duration_since(Instant::now())
    }

    /// Adds records to the open index, unless the next step is not due yet.
    fn update_if_due(&mut self) {
        if let Some(open) = self.index.take() {
            match self.update(open) {
                Ok(open) => self.index = Some(open),
                Err(why) => {
                    tracing::warn!("{why}");
                    self.is_incomplete.store(false, Ordering::Relaxed);
                }
            }
        }
    }

    /// Adds records to `open` for one step, unless the step is not due yet. If other threads used
    /// the processors meanwhile, the next step is due after a pause.
    fn update(&mut self, mut open: AuditIndex) -> Result<AuditIndex, String> {
        let begun = Instant::now();
        if begun < self.next_step {
            return Ok(open);
        }
        let used_before = processor_time();
        let is_complete = open
            .update_for(STEP_TIME)
            .map_err(|why| format!("The index cannot be updated: {why}"))?;
        let used = processor_time().saturating_sub(used_before);
        self.is_incomplete.store(!is_complete, Ordering::Relaxed);
        let is_busy = !is_complete && used < begun.elapsed() * 4 / 5;
        self.next_step = Instant::now() + if is_busy { BUSY_PAUSE } else { Duration::ZERO };
        Ok(open)
    }
}

/// Returns the processor time that the current thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
