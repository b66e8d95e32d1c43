//! Tracks a job that has not ended: its newest events and its watchers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{Ahead, BoxFuture, Happened, Job, JobEvent, JobId, Watch, Watched};

use super::Inner;
use super::asking::Asking;
use super::store::{Said, StoreError};

/// Newest events of a job kept in memory. Slower watchers read the store.
const RECENT: usize = 512;
/// Largest total size of these events in bytes.
const RECENT_BYTES: usize = 256 << 10;
/// Bytes that are read from the store at once.
const PAGE_BYTES: usize = 128 << 10;
/// Consecutive failures of the store after which a watch ends.
const FAILURES_MAX: u32 = 20;
/// Interval at which the store is read for a job of another server.
const LOOK: Duration = Duration::from_millis(250);

/// A job of this server that has not ended.
pub(super) struct Live {
    pub(super) id: JobId,
    /// Cancelled when the job is no longer wanted or the server stops.
    pub(super) cancel: CancellationToken,
    /// Work that was begun for the job before it was accepted.
    pub(super) ahead: Ahead,
    unwanted: AtomicBool,
    recent: Mutex<Recent>,
    seen: watch::Sender<Seen>,
    pub(super) asking: watch::Sender<Asking>,
}

/// Progress of a job, for its watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Number of its last event.
    pub(super) last: u64,
    /// True if the job has left this server: it ended or was left to the next server.
    pub(super) gone: bool,
}

#[derive(Default)]
struct Recent {
    events: VecDeque<Arc<JobEvent>>,
    bytes: usize,
}

impl Live {
    pub(super) fn new(id: JobId, cancel: CancellationToken, last: u64, ahead: Ahead) -> Arc<Self> {
        Arc::new(Self {
            id,
            cancel,
            ahead,
            unwanted: AtomicBool::new(false),
            recent: Mutex::default(),
            seen: watch::Sender::new(Seen { last, gone: false }),
            asking: watch::Sender::new(Asking::default()),
        })
    }

    /// Cancels the job for good.
    pub(super) fn give_up(&self) {
        self.unwanted.store(true, Ordering::Release);
        self.cancel.cancel();
    }

    /// Returns true if the job was cancelled for good.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted.load(Ordering::Acquire)
    }

    /// Shows stored events, numbered from `first`, to all watchers.
    pub(super) fn publish(&self, first: u64, what: Vec<Said>) {
        let mut recent = self.recent();
        let mut last = first;
        for ((at, what), seq) in what.into_iter().zip(first..) {
            last = seq;
            recent.push(Arc::new(JobEvent { seq, at, what }));
        }
        drop(recent);
        self.seen.send_modify(|seen| seen.last = seen.last.max(last));
    }

    /// Ends the event stream of this server. Unused work from before acceptance is discarded.
    pub(super) fn leave(&self) {
        self.ahead.give_up();
        self.seen.send_modify(|seen| seen.gone = true);
    }

    pub(super) fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Waits until the job has left this server.
    pub(super) async fn gone(&self) {
        // Cannot fail: the sender lives in `self`.
        let _ = self.seen().wait_for(|seen| seen.gone).await;
    }

    /// Returns the events after `after`, if memory still holds all of them.
    fn since(&self, after: u64) -> Option<VecDeque<Arc<JobEvent>>> {
        let recent = self.recent();
        let first = recent.events.front()?.seq;
        let skip = usize::try_from(after.checked_sub(first - 1)?).ok()?;
        Some(recent.events.iter().skip(skip).cloned().collect())
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    fn push(&mut self, event: Arc<JobEvent>) {
        self.bytes += weight(&event);
        self.events.push_back(event);
        while self.events.len() > RECENT || self.bytes > RECENT_BYTES && self.events.len() > 1 {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= weight(&oldest);
            }
        }
    }
}

fn weight(event: &JobEvent) -> usize {
    let text = match &event.what {
        Happened::Output { text, .. } => text.len(),
        Happened::Log { message, .. } => message.len(),
        Happened::Progress { message, .. } => message.as_ref().map_or(0, String::len),
        Happened::Queued
        | Happened::Started { .. }
        | Happened::Artefact(_)
        | Happened::Asks { .. }
        | Happened::Finished { .. } => 0,
    };
    text + 64
}

/// Watch of a job's events, first from the store and then live.
pub(super) struct JobWatch {
    pub(super) jobs: Arc<Inner>,
    pub(super) id: JobId,
    /// Number of the last event returned.
    pub(super) after: u64,
    pub(super) ready: VecDeque<Arc<JobEvent>>,
    pub(super) stage: Stage,
    /// Consecutive failures to read the store.
    pub(super) failures: u32,
}

/// Progress of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// More events may come.
    Going,
    /// All events were returned; the final job is next.
    Finished,
    /// Everything was returned.
    Over,
}

impl Watch for JobWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<Watched>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    self.after = event.seq;
                    if matches!(event.what, Happened::Finished { .. }) {
                        self.stage = Stage::Finished;
                    }
                    return Some(Watched::Event(event));
                }
                match self.stage {
                    Stage::Going => match self.wait().await {
                        Ok(Some(())) => self.failures = 0,
                        Ok(None) => self.stage = Stage::Over,
                        Err(err) => self.failed(&err).await,
                    },
                    Stage::Finished => match self.job().await {
                        Ok(job) => {
                            self.stage = Stage::Over;
                            return job.map(|job| Watched::Ended(Box::new(job)));
                        }
                        Err(err) => self.failed(&err).await,
                    },
                    Stage::Over => return None,
                }
            }
        })
    }
}

impl JobWatch {
    /// Waits for events. Returns `None` if the job is no longer kept.
    async fn wait(&mut self) -> Result<Option<()>, StoreError> {
        let live = self.jobs.live(self.id);
        if let Some(live) = &live {
            let mut seen = live.seen();
            let now = seen.wait_for(|seen| seen.last > self.after || seen.gone).await;
            let gone = now.is_ok_and(|seen| seen.gone && seen.last <= self.after);
            if !gone && let Some(events) = live.since(self.after) {
                self.ready = events;
                return Ok(Some(()));
            }
        }
        let events = self.jobs.store().await?.events(self.id, self.after, PAGE_BYTES).await?;
        if !events.is_empty() {
            self.ready = events.into_iter().map(Arc::new).collect();
            return Ok(Some(()));
        }
        let Some(job) = self.job().await? else { return Ok(None) };
        if job.state.is_terminal() && job.last_event <= self.after {
            self.stage = Stage::Finished;
        } else if live.is_none() {
            tokio::time::sleep(LOOK).await;
        } else {
            // The job has just left this server; the next look finds it in the store.
            tokio::task::yield_now().await;
        }
        Ok(Some(()))
    }

    async fn job(&self) -> Result<Option<Job>, StoreError> {
        self.jobs.store().await?.job(self.id).await
    }

    /// Waits before the next try, or ends the watch after too many failures.
    async fn failed(&mut self, err: &StoreError) {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            tracing::warn!(job = %self.id, "{err}; a watch ends");
            self.stage = Stage::Over;
        } else {
            tokio::time::sleep(LOOK).await;
        }
    }
}
