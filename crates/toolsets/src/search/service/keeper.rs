//! Keeps the index of a folder up to date: scans the folder once, then follows changes.
//!
//! One task serves all searches. If another process already maintains the index, this process waits
//! until it can take over. Meanwhile its searches read the index of the other process.

mod scan;
mod turn;
mod indexing;
mod publishing;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::ToolError;
use toolgate_net::spawn_blocking;

use super::embedding::{ChunkVectorBuilder, EmbeddingBatchResult};
use super::files::TrackedFiles;
use super::progress::{IndexProgress, IndexState};
use crate::search::IndexLimits;
use crate::search::engines::{
    IndexOpenOutcome, SearchEngine, SearchEngineError, SearchEngineWriter,
};
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;
use toolgate_world::watch::sleep_until_due;

/// The time for which changes of files are collected before the files are read, if no search waits
/// for these files.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// The pause after reading changed files, as a multiple of the time for reading. The pause limits
/// the load by a file that is written continuously.
const PAUSE_FACTOR: u32 = 3;
/// The longest pause after reading changed files.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The idle time after which the writer of an index releases resources that only speed up writes.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// The pause after a failed attempt to maintain the index, if no search uses the index meanwhile.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The minimum time from the start of a failed attempt to maintain the index to the next attempt, if
/// a request for the index arrives meanwhile.
const RETRY_PAUSE_ASKED: Duration = Duration::from_secs(1);
/// The maximum number of immediate retries after failed writes to the index.
const RETRIES_MAX: u32 = 5;
/// The time without failures after which the number of retries is reset to zero.
const RETRIES_RESET_AFTER: Duration = Duration::from_secs(30);

/// The maximum number of changed files that are stored after searches have reported them. Later
/// searches report further files again.
const CHANGED_MAX: usize = 1024;

/// A message to the task that updates an index of files.
pub(super) enum IndexUpdaterRequest {
    /// Asks to index all changes up to now, and to answer afterwards.
    CatchUp(oneshot::Sender<()>),
    /// Asks to read the file at this path, whose content differs from the index.
    Changed(String),
    /// Asks to check the index, which seems damaged. The text is the reason.
    Damaged(String),
}

/// The task that keeps one index of files up to date.
pub(super) struct IndexUpdater {
    pub(super) root: Root,
    pub(super) engine: Arc<dyn SearchEngine>,
    pub(super) bounds: IndexLimits,
    pub(super) excluded: Vec<PathBuf>,
    pub(super) embedding: ChunkVectorBuilder,
    pub(super) progress: watch::Sender<IndexProgress>,
    pub(super) requests: mpsc::Receiver<IndexUpdaterRequest>,
    /// Channels to the searches that wait until the index is up to date.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Files that changed without an event, as reported by searches.
    pub(super) reported: BTreeSet<PathBuf>,
    /// The number of commits that this task has made to the index.
    pub(super) commits: u64,
    pub(super) cancel: CancellationToken,
    /// State that persists between attempts to maintain the index.
    pub(super) memory: IndexUpdaterState,
}

/// State of the task that updates an index, which persists after a failed attempt.
#[derive(Debug, Default)]
pub(super) struct IndexUpdaterState {
    /// The time of the last rebuild of the index after damage.
    rebuilt: Option<Instant>,
    /// Files that the search engine rejected.
    rejected: BTreeSet<String>,
    /// The completeness of the index as last published to other servers. `None` before the first
    /// publication.
    published: Option<bool>,
}

/// The reason why an attempt to maintain an index of files ended.
enum IndexUpdaterStopReason {
    Engine(SearchEngineError),
    /// Writing to the index failed. Searches can still read the earlier content.
    WriteFailed(String),
    Root(ToolError),
    /// No more requests can arrive, because the channel is closed.
    Closed,
}

impl From<SearchEngineError> for IndexUpdaterStopReason {
    fn from(err: SearchEngineError) -> Self {
        Self::Engine(err)
    }
}

impl From<ToolError> for IndexUpdaterStopReason {
    fn from(err: ToolError) -> Self {
        Self::Root(err)
    }
}

impl IndexUpdater {
    /// Maintains the index of files until the channel for requests is closed.
    pub(super) async fn run_until_closed(mut self) {
        let _ends = self.cancel.clone().drop_guard();
        let mut failures = 0;
        let mut failed = Instant::now();
        loop {
            let start = Instant::now();
            let Err(stopped) = self.run_once().await;
            let write_failed = matches!(stopped, IndexUpdaterStopReason::WriteFailed(_));
            let why = match stopped {
                IndexUpdaterStopReason::Closed => return,
                IndexUpdaterStopReason::WriteFailed(why)
                | IndexUpdaterStopReason::Engine(SearchEngineError::Failed(why)) => {
                    failures =
                        if failed.elapsed() > RETRIES_RESET_AFTER { 1 } else { failures + 1 };
                    failed = Instant::now();
                    if failures <= RETRIES_MAX {
                        // A scan finds again all that was not committed.
                        tracing::warn!("a search index was not written, retrying: {why}");
                        continue;
                    }
                    why
                }
                IndexUpdaterStopReason::Engine(SearchEngineError::Damaged(why)) => {
                    self.report_rebuild(&why);
                    let is_again = self.is_just_rebuilt();
                    match self.engine.reset().await {
                        Ok(()) if is_again => why,
                        Ok(()) => {
                            self.memory.rebuilt = Some(Instant::now());
                            continue;
                        }
                        Err(err) => err.to_string(),
                    }
                }
                IndexUpdaterStopReason::Engine(SearchEngineError::Unavailable(why)) => why,
                IndexUpdaterStopReason::Root(err) => err.message,
            };
            tracing::warn!("a search index is not updated now: {why}");
            self.progress.send_modify(|it| {
                // The keeper tries again by itself. Until then searches use the earlier content.
                it.state = if write_failed { IndexState::Building } else { IndexState::Away };
                it.complete = false;
                it.write_failed = write_failed;
                it.note = Some(why);
            });
            if self.pause(start).await.is_none() {
                return;
            }
        }
    }

    fn report_rebuild(&self, why: &str) {
        tracing::warn!("a search index is being rebuilt: {why}");
        let note = Some(format!("rebuilt: {why}"));
        self.progress.send_replace(IndexProgress {
            state: IndexState::Rebuilding,
            note,
            ..IndexProgress::default()
        });
    }

    /// Returns true if the index was rebuilt a moment ago. A report of damage then refers to the
    /// index before the rebuild.
    fn is_just_rebuilt(&self) -> bool {
        self.memory.rebuilt.is_some_and(|it| it.elapsed() < RETRY_PAUSE_ASKED)
    }

    /// Pauses after a failed attempt to maintain the index, which began at `start`. Returns `None`
    /// if the channel for requests was closed.
    async fn pause(&mut self, start: Instant) -> Option<()> {
        let retry_if_asked = start + RETRY_PAUSE_ASKED;
        let retry_at = Instant::now() + RETRY_PAUSE;
        self.release_waiting();
        loop {
            let request = tokio::select! {
                request = self.requests.recv() => request?,
                () = sleep_until(retry_at) => return Some(()),
            };
            self.accept(request);
            if Instant::now() >= retry_if_asked {
                return Some(());
            }
            self.release_waiting();
        }
    }

    /// Notifies all searches that wait for the index.
    fn release_waiting(&mut self) {
        release(take(&mut self.waiting));
    }

    /// Processes `request`, a message to this task. Returns the reason if the index must be
    /// rebuilt.
    fn accept(&mut self, request: IndexUpdaterRequest) -> Option<String> {
        match request {
            IndexUpdaterRequest::CatchUp(one) => {
                self.waiting.push(one);
                None
            }
            IndexUpdaterRequest::Changed(path) => {
                if self.reported.len() < CHANGED_MAX {
                    self.reported.insert(path.into());
                }
                None
            }
            IndexUpdaterRequest::Damaged(why) => Some(why).filter(|_| !self.is_just_rebuilt()),
        }
    }

    async fn run_once(&mut self) -> Result<Infallible, IndexUpdaterStopReason> {
        // The scan runs while the index opens, because the first search waits for both.
        let mut first = self.start_scan();
        if let IndexOpenOutcome::Rebuilt(why) = self.engine.open_index().await? {
            self.report_rebuild(&why);
        }
        let mut writer = match map_write_error(self.engine.acquire_writer().await)? {
            Some(writer) => writer,
            None => {
                drop(first);
                let writer = self.wait_for_writer().await?;
                first = self.start_scan();
                writer
            }
        };
        (self.memory.published, self.memory.rejected) = (None, BTreeSet::new());
        self.publish_complete(&mut *writer, false).await;
        let is_rebuilt = self.progress.borrow().is_rebuilt();
        self.progress.send_modify(|it| {
            it.state = if is_rebuilt { IndexState::Rebuilding } else { IndexState::Building };
            it.note = it.note.take().filter(|_| is_rebuilt || it.write_failed);
        });
        self.publish_counts(None).await?;
        let documents = self.engine.documents().await?;
        let first = flatten_join(first.task.await)?;
        let root = self.root.clone();
        let limits = self.bounds;
        let (files, work) = self
            .run_blocking(move |watch| TrackedFiles::new(&root, first, documents, limits, watch))
            .await?;
        let mut files = self.index_changes(files, work, &mut *writer).await?;
        self.publish_ready(&files, &mut *writer).await?;
        let queue = files.tracker.queue().map_err(|err| {
            IndexUpdaterStopReason::Root(ToolError::with_cause(
                "watching files for changes failed",
                err,
            ))
        })?;
        let mut due: Option<Instant> = None;
        let mut quiet_at = Some(Instant::now() + IDLE_AFTER);
        loop {
            /// Event that wakes the task that updates an index of files.
            enum IndexUpdaterEvent {
                Request(Option<IndexUpdaterRequest>),
                ReadDue,
                FilesChanged,
                Idle,
                Embedded(EmbeddingBatchResult),
            }
            let next = tokio::select! {
                biased;
                request = self.requests.recv() => IndexUpdaterEvent::Request(request),
                () = sleep_until_due(due) => IndexUpdaterEvent::ReadDue,
                () = wait_for_event(queue.as_ref()), if due.is_none() => IndexUpdaterEvent::FilesChanged,
                () = sleep_until_due(quiet_at) => IndexUpdaterEvent::Idle,
                batch = self.embedding.next_batch(&self.engine) => IndexUpdaterEvent::Embedded(batch),
            };
            let commits_before = self.commits;
            match next {
                IndexUpdaterEvent::Request(None) => return Err(IndexUpdaterStopReason::Closed),
                IndexUpdaterEvent::Request(Some(request)) => {
                    if let Some(why) = self.accept(request) {
                        return Err(IndexUpdaterStopReason::Engine(SearchEngineError::Damaged(
                            why,
                        )));
                    }
                    due = None;
                    files = self.catch_up(files, &mut *writer).await?;
                }
                IndexUpdaterEvent::ReadDue => {
                    let start = Instant::now();
                    files = self.catch_up(files, &mut *writer).await?;
                    // This pause bounds the cost, however often files are written.
                    due = Some(start.elapsed() * PAUSE_FACTOR)
                        .filter(|rest| *rest > GATHER_TIME)
                        .map(|rest| Instant::now() + rest.min(PAUSE_MAX));
                }
                IndexUpdaterEvent::FilesChanged => due = Some(Instant::now() + GATHER_TIME),
                IndexUpdaterEvent::Idle => {
                    map_write_error(writer.release_resources().await)?;
                    quiet_at = None;
                }
                IndexUpdaterEvent::Embedded(batch) => {
                    if let Some(vectors) = batch.vectors {
                        map_write_error(writer.put_vectors(vectors).await)?;
                        map_write_error(writer.commit().await)?;
                        self.commits += 1;
                    }
                    self.publish_ready(&files, &mut *writer).await?;
                }
            }
            if self.commits != commits_before {
                quiet_at = Some(Instant::now() + IDLE_AFTER);
            }
        }
    }

    /// Indexes all changes of files up to now. Fails if the files are unreadable or the index
    /// cannot be written.
    async fn catch_up(
        &mut self,
        mut files: TrackedFiles,
        writer: &mut dyn SearchEngineWriter,
    ) -> Result<TrackedFiles, IndexUpdaterStopReason> {
        while let Ok(request) = self.requests.try_recv() {
            if let Some(why) = self.accept(request) {
                return Err(IndexUpdaterStopReason::Engine(SearchEngineError::Damaged(why)));
            }
        }
        // Later requests wait for the next scan, because this one may have passed their files
        // already.
        let waiting = take(&mut self.waiting);
        let changed = take(&mut self.reported);
        let scan = self.run_blocking(move |watch| {
            let work = files.find_changes(changed, watch)?;
            Ok((files, work))
        });
        let outcome = match scan.await {
            Ok((files, work)) if work.read.is_empty() && work.gone.is_empty() => Ok(files),
            Ok((files, work)) => match self.index_changes(files, work, writer).await {
                Ok(files) => self.publish_ready(&files, writer).await.map(|()| files),
                Err(err) => Err(err),
            },
            Err(err) => Err(err),
        };
        match &outcome {
            Ok(_) => release(waiting),
            // They are released after the reason has been published.
            Err(_) => self.waiting.extend(waiting),
        }
        outcome
    }

    fn watch(&self) -> DiskWorkMonitor {
        DiskWorkMonitor::silent(self.cancel.clone())
    }

    async fn run_blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&DiskWorkMonitor) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, IndexUpdaterStopReason> {
        let watch = self.watch();
        flatten_join(spawn_blocking(move || work(&watch)).await)
    }
}

fn release(waiting: Vec<oneshot::Sender<()>>) {
    for one in waiting {
        // The receiver may be gone.
        let _ = one.send(());
    }
}

fn flatten_join<T>(
    done: Result<Result<T, ToolError>, tokio::task::JoinError>,
) -> Result<T, IndexUpdaterStopReason> {
    let broken = |err| ToolError::with_cause("reading the workspace failed", err);
    Ok(done.map_err(broken)??)
}

/// Converts the error of a write to the index to a reason to stop. After
/// [`SearchEngineError::Failed`], searches can still read the index.
fn map_write_error<T>(done: Result<T, SearchEngineError>) -> Result<T, IndexUpdaterStopReason> {
    done.map_err(|err| match err {
        SearchEngineError::Failed(why) => IndexUpdaterStopReason::WriteFailed(why),
        SearchEngineError::Unavailable(_) | SearchEngineError::Damaged(_) => {
            IndexUpdaterStopReason::Engine(err)
        }
    })
}

/// Waits until the kernel reports a change of a watched file. Waits forever if `queue` is `None`.
async fn wait_for_event(queue: Option<&AsyncFd<Arc<OwnedFd>>>) {
    let Some(queue) = queue else { return pending().await };
    match queue.readable().await {
        // All events are read later, so clearing the flag here loses none.
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => pending().await,
    }
}
