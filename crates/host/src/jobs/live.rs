//! Tracks a job that has not ended: its newest events and its watchers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    BoxFuture, JobEvent, JobEventKind, JobEventStream, JobId, JobSnapshot, JobStreamItem,
    PreparedCallValue, lock_mutex,
};

use super::JobServiceState;
use super::questions::JobQuestions;
use super::store::{JobStoreError, TimedJobEvent};

/// Number of a job's newest events that are kept in memory. Slower watchers read them from the
/// store.
const RECENT_EVENTS_MAX: usize = 512;
/// Largest total size of a job's events in memory, in bytes.
const RECENT_BYTES_MAX: usize = 256 << 10;
/// Number of bytes of a job's events that are read from the store at once.
const PAGE_BYTES: usize = 128 << 10;
/// Number of consecutive store failures after which a watch of a job's events ends.
const FAILURES_MAX: u32 = 20;
/// Interval at which the store is read for the events of a job that another server runs.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A job of this server that has not ended.
pub(super) struct UnfinishedJob {
    pub(super) id: JobId,
    /// A token that is cancelled when the job is cancelled or the server stops.
    pub(super) cancel: CancellationToken,
    /// Work that was begun for the job before the server accepted the job.
    pub(super) ahead: PreparedCallValue,
    cancelled: AtomicBool,
    /// True if the job stops at this server, and may continue at another server.
    stopped: AtomicBool,
    /// True if the job has begun and may run again.
    repeatable: AtomicBool,
    recent: Mutex<RecentJobEvents>,
    progress: watch::Sender<JobProgress>,
    pub(super) questions: watch::Sender<JobQuestions>,
}

/// Progress of a job, for the watchers of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobProgress {
    /// Number of the job's last event.
    pub(super) last_event: u64,
    /// True if the job no longer runs or waits at this server, because it ended or the next server
    /// takes it over.
    pub(super) closed: bool,
}

/// Latest events of a job that are held in memory.
#[derive(Default)]
struct RecentJobEvents {
    events: VecDeque<Arc<JobEvent>>,
    bytes: usize,
}

impl UnfinishedJob {
    pub(super) fn new(
        id: JobId,
        cancel: CancellationToken,
        last: u64,
        ahead: PreparedCallValue,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            cancel,
            ahead,
            cancelled: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            repeatable: AtomicBool::new(false),
            recent: Mutex::default(),
            progress: watch::Sender::new(JobProgress { last_event: last, closed: false }),
            questions: watch::Sender::new(JobQuestions::default()),
        })
    }

    /// Cancels the job permanently, so that no other server runs it either.
    pub(super) fn cancel_for_good(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.cancel.cancel();
    }

    /// Stops the job at this server only, because another server may run it.
    pub(super) fn stop_here(&self) {
        self.stopped.store(true, Ordering::Release);
        self.cancel.cancel();
    }

    /// Returns true if the job was stopped at this server only.
    pub(super) fn is_stopped_here(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Records that the job has begun and whether it may run again.
    pub(super) fn set_repeatable(&self, repeatable: bool) {
        self.repeatable.store(repeatable, Ordering::Release);
    }

    /// Returns true if the job has begun and may run again.
    pub(super) fn is_repeatable(&self) -> bool {
        self.repeatable.load(Ordering::Acquire)
    }

    /// Returns true if the job was cancelled permanently.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Sends stored events, numbered from `first`, to all watchers.
    pub(super) fn publish(&self, first: u64, events: Vec<TimedJobEvent>) {
        let mut recent = lock_mutex(&self.recent);
        let mut last = first;
        for ((at, kind), seq) in events.into_iter().zip(first..) {
            last = seq;
            recent.push(Arc::new(JobEvent { seq, at, kind }));
        }
        drop(recent);
        self.progress.send_modify(|progress| progress.last_event = progress.last_event.max(last));
    }

    /// Ends the event stream of the job at this server. Discards work that was started before the
    /// job and not used.
    pub(super) fn close(&self) {
        self.ahead.discard();
        self.progress.send_modify(|progress| progress.closed = true);
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<JobProgress> {
        self.progress.subscribe()
    }

    /// Waits until the job no longer runs or waits at this server.
    pub(super) async fn wait_until_closed(&self) {
        // Cannot fail: the sender lives in `self`.
        let _ = self.subscribe().wait_for(|progress| progress.closed).await;
    }

    /// Returns the job's events after number `after`, if all of them are still in memory.
    fn recent_since(&self, after: u64) -> Option<VecDeque<Arc<JobEvent>>> {
        let recent = lock_mutex(&self.recent);
        let first = recent.events.front()?.seq;
        let skip = usize::try_from(after.checked_sub(first - 1)?).ok()?;
        Some(recent.events.iter().skip(skip).cloned().collect())
    }
}

impl RecentJobEvents {
    fn push(&mut self, event: Arc<JobEvent>) {
        self.bytes += event_bytes(&event);
        self.events.push_back(event);
        while self.events.len() > RECENT_EVENTS_MAX
            || self.bytes > RECENT_BYTES_MAX && self.events.len() > 1
        {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= event_bytes(&oldest);
            }
        }
    }
}

fn event_bytes(event: &JobEvent) -> usize {
    let text = match &event.kind {
        JobEventKind::Output { text, .. } => text.len(),
        JobEventKind::Log { message, .. } => message.len(),
        JobEventKind::Progress { message, .. } => message.as_ref().map_or(0, String::len),
        JobEventKind::Queued
        | JobEventKind::Started { .. }
        | JobEventKind::Artefact(_)
        | JobEventKind::Asks { .. }
        | JobEventKind::Finished { .. } => 0,
    };
    text + 64
}

/// Stream of a job's events: first those in the store, then new ones.
pub(super) struct JobEventWatch {
    pub(super) jobs: Arc<JobServiceState>,
    pub(super) id: JobId,
    /// Number of the last event that the watch returned.
    pub(super) after: u64,
    pub(super) ready: VecDeque<Arc<JobEvent>>,
    pub(super) stage: JobWatchStage,
    /// Number of consecutive failures to read the job's events from the store.
    pub(super) failures: u32,
}

/// Stage of a stream of a job's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobWatchStage {
    /// More events of the job may follow.
    Open,
    /// All events were returned. The final state of the job is returned next.
    Finished,
    /// All events and the final state of the job were returned.
    Done,
}

impl JobEventStream for JobEventWatch {
    fn next(&mut self) -> BoxFuture<'_, Option<JobStreamItem>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    self.after = event.seq;
                    if matches!(event.kind, JobEventKind::Finished { .. }) {
                        self.stage = JobWatchStage::Finished;
                    }
                    return Some(JobStreamItem::Event(event));
                }
                match self.stage {
                    JobWatchStage::Open => match self.wait_for_events().await {
                        Ok(Some(())) => self.failures = 0,
                        Ok(None) => self.stage = JobWatchStage::Done,
                        Err(err) => self.handle_failure(&err).await,
                    },
                    JobWatchStage::Finished => match self.load_ended_job().await {
                        Ok(job) => {
                            self.stage = JobWatchStage::Done;
                            return job.map(|job| JobStreamItem::Ended(Box::new(job)));
                        }
                        Err(err) => self.handle_failure(&err).await,
                    },
                    JobWatchStage::Done => return None,
                }
            }
        })
    }
}

impl JobEventWatch {
    /// Waits for new events of the job. Returns `None` if the job is no longer in the store.
    async fn wait_for_events(&mut self) -> Result<Option<()>, JobStoreError> {
        let live = self.jobs.live_job(self.id);
        if let Some(live) = &live {
            let mut progress = live.subscribe();
            let now = progress
                .wait_for(|progress| progress.last_event > self.after || progress.closed)
                .await;
            let has_left =
                now.is_ok_and(|progress| progress.closed && progress.last_event <= self.after);
            if !has_left && let Some(events) = live.recent_since(self.after) {
                self.ready = events;
                return Ok(Some(()));
            }
        }
        let store = self.jobs.store().await?;
        // Begins before the store is read, so that an event right after that is noticed at once.
        let changed = store.wait_for_change(self.id, POLL_INTERVAL);
        let events = store.events(self.id, self.after, PAGE_BYTES).await?;
        if !events.is_empty() {
            self.ready = events.into_iter().map(Arc::new).collect();
            return Ok(Some(()));
        }
        let Some(job) = self.load_job().await? else { return Ok(None) };
        if job.state.is_terminal() && job.last_event <= self.after {
            self.stage = JobWatchStage::Finished;
        } else if live.is_none() {
            changed.await;
        } else {
            // The job has just left this server; the next look finds it in the store.
            tokio::task::yield_now().await;
        }
        Ok(Some(()))
    }

    async fn load_job(&self) -> Result<Option<JobSnapshot>, JobStoreError> {
        self.jobs.store().await?.job(self.id).await
    }

    /// Loads the job after its end, with the output of its programs.
    async fn load_ended_job(&self) -> Result<Option<JobSnapshot>, JobStoreError> {
        match self.load_job().await? {
            Some(job) => Ok(Some(self.jobs.with_printed(job).await?)),
            None => Ok(None),
        }
    }

    /// Waits before the store is read again, or ends the watch after too many failures.
    async fn handle_failure(&mut self, err: &JobStoreError) {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            tracing::warn!(job = %self.id, "{err}; a subscription to the job's events ends");
            self.stage = JobWatchStage::Done;
        } else {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
