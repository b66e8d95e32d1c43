//! Keeps the index of the documents that callers store in a namespace up to date.

use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::embedding::{ChunkVectorBuilder, EmbeddingBatchResult};
use super::progress::{IndexProgress, IndexState};
use crate::counted::counted;
use crate::search::engines::{
    IndexOpenOutcome, SearchEngine, SearchEngineError, SearchEngineStatus, SearchEngineWriter,
    StoredDocument,
};

/// The maximum time to wait for another process that writes to the namespace.
const WRITER_WAIT_MAX: Duration = Duration::from_secs(5);
/// The pause between two attempts to acquire the write lock of the documents.
const WRITER_RETRY_EVERY: Duration = Duration::from_millis(25);
/// The minimum pause between a failure to update the index and the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A message to the task that updates an index of documents.
pub(super) enum DocumentIndexUpdaterRequest {
    /// Asks for an answer once the index is up to date, or once it is clear that the index cannot
    /// be updated.
    CatchUp(oneshot::Sender<()>),
    /// Asks to check the index, which seems damaged. The text is the reason.
    Damaged(String),
    /// Asks to put documents into the index and to remove others.
    Change(DocumentChange),
}

/// A change of a namespace's documents, made completely or not at all.
pub(super) struct DocumentChange {
    pub(super) put: Vec<StoredDocument>,
    pub(super) remove: Vec<String>,
    /// The maximum number of documents that the namespace may have after the change.
    pub(super) documents_max: u64,
    pub(super) done: oneshot::Sender<Result<DocumentChangeSummary, SearchEngineError>>,
}

/// The numbers of documents that a change of a namespace added, replaced and removed, and the
/// number of documents after the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DocumentChangeSummary {
    pub(crate) added: u64,
    pub(crate) replaced: u64,
    pub(crate) removed: u64,
    pub(crate) documents: u64,
}

/// The task that keeps one index of documents up to date.
pub(super) struct DocumentIndexUpdater {
    pub(super) engine: Arc<dyn SearchEngine>,
    pub(super) embedding: ChunkVectorBuilder,
    pub(super) progress: watch::Sender<IndexProgress>,
    pub(super) requests: mpsc::Receiver<DocumentIndexUpdaterRequest>,
    pub(super) cancel: CancellationToken,
    /// Channels to the searches that wait until the index is up to date.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// The change of documents that was interrupted because the index turned out to be damaged.
    pub(super) interrupted: Option<DocumentChange>,
    /// The time at which the index was last rebuilt.
    pub(super) rebuilt: Option<Instant>,
}

impl DocumentIndexUpdater {
    /// Maintains the index of documents until the channel for requests is closed.
    pub(super) async fn run_until_closed(mut self) {
        let _ends = self.cancel.clone().drop_guard();
        loop {
            let start = Instant::now();
            let why = match self.run_once().await {
                Ok(never) => match never {},
                Err(None) => return,
                Err(Some(SearchEngineError::Damaged(why))) => {
                    tracing::warn!("an index of documents is being rebuilt: {why}");
                    let rebuilding =
                        IndexProgress { state: IndexState::Rebuilding, ..IndexProgress::default() };
                    self.progress.send_replace(rebuilding);
                    match self.engine.reset().await {
                        Ok(()) if self.is_just_rebuilt() => why,
                        Ok(()) => {
                            self.rebuilt = Some(Instant::now());
                            continue;
                        }
                        Err(err) => err.to_string(),
                    }
                }
                Err(Some(SearchEngineError::Unavailable(why) | SearchEngineError::Failed(why))) => {
                    why
                }
            };
            tracing::warn!("an index of documents is unavailable now: {why}");
            self.progress.send_modify(|it| {
                it.state = IndexState::Away;
                it.note = Some(why.clone());
            });
            self.release_waiting();
            if let Some(change) = self.interrupted.take() {
                drop(change.done.send(Err(SearchEngineError::Unavailable(why.clone()))));
            }
            // The first request after a failure gets its reason. The cause may be gone by then.
            let retry_at = start + RETRY_PAUSE;
            loop {
                match self.requests.recv().await {
                    None => return,
                    Some(DocumentIndexUpdaterRequest::CatchUp(one)) => drop(one.send(())),
                    Some(DocumentIndexUpdaterRequest::Damaged(_)) => {}
                    Some(DocumentIndexUpdaterRequest::Change(change)) => {
                        drop(change.done.send(Err(SearchEngineError::Unavailable(why.clone()))));
                    }
                }
                if Instant::now() >= retry_at {
                    break;
                }
            }
        }
    }

    /// Returns true if the index was rebuilt a moment ago. A report of damage then refers to the
    /// index before the rebuild.
    fn is_just_rebuilt(&self) -> bool {
        self.rebuilt.is_some_and(|it| it.elapsed() < RETRY_PAUSE)
    }

    async fn run_once(&mut self) -> Result<Infallible, Option<SearchEngineError>> {
        let rebuilt = match self.engine.open_index().await? {
            IndexOpenOutcome::Rebuilt(why) => Some(format!("rebuilt: {why}")),
            IndexOpenOutcome::Created | IndexOpenOutcome::Existing => None,
        };
        self.publish_ready(rebuilt).await?;
        if let Some(change) = self.interrupted.take() {
            self.apply_and_answer(change).await?;
        }
        loop {
            /// Event that wakes the task that updates an index of documents.
            enum DocumentIndexUpdaterEvent {
                Request(Option<DocumentIndexUpdaterRequest>),
                Embedded(EmbeddingBatchResult),
            }
            let next = tokio::select! {
                biased;
                request = self.requests.recv() => DocumentIndexUpdaterEvent::Request(request),
                batch = self.embedding.next_batch(&self.engine) => DocumentIndexUpdaterEvent::Embedded(batch),
            };
            match next {
                DocumentIndexUpdaterEvent::Request(None) => return Err(None),
                DocumentIndexUpdaterEvent::Request(Some(DocumentIndexUpdaterRequest::CatchUp(
                    one,
                ))) => {
                    // Another process may have put documents.
                    self.waiting.push(one);
                    self.publish_ready(None).await?;
                }
                DocumentIndexUpdaterEvent::Request(Some(DocumentIndexUpdaterRequest::Damaged(
                    why,
                ))) => {
                    if !self.is_just_rebuilt() {
                        return Err(Some(SearchEngineError::Damaged(why)));
                    }
                }
                DocumentIndexUpdaterEvent::Request(Some(DocumentIndexUpdaterRequest::Change(
                    change,
                ))) => {
                    self.apply_and_answer(change).await?;
                }
                DocumentIndexUpdaterEvent::Embedded(EmbeddingBatchResult { vectors }) => {
                    if let Some(vectors) = vectors {
                        let mut writer = self.wait_for_writer().await?;
                        writer.put_vectors(vectors).await?;
                        writer.commit().await?;
                    }
                    self.publish_ready(None).await?;
                }
            }
        }
    }

    async fn apply_and_answer(&mut self, change: DocumentChange) -> Result<(), SearchEngineError> {
        let writer = self.wait_for_writer().await;
        if let Err(err @ SearchEngineError::Damaged(_)) = writer {
            self.interrupted = Some(change);
            return Err(err);
        }
        let DocumentChange { put, remove, documents_max, done } = change;
        let changed = match writer {
            Ok(mut writer) => self.apply(&mut *writer, put, remove, documents_max).await,
            Err(err) => Err(err),
        };
        self.embedding.resume();
        let failed = changed.as_ref().err().cloned();
        let _ = done.send(changed);
        match failed {
            Some(SearchEngineError::Failed(_)) | None => self.publish_ready(None).await,
            Some(err @ (SearchEngineError::Unavailable(_) | SearchEngineError::Damaged(_))) => {
                Err(err)
            }
        }
    }

    async fn apply(
        &mut self,
        writer: &mut dyn SearchEngineWriter,
        put: Vec<StoredDocument>,
        remove: Vec<String>,
        documents_max: u64,
    ) -> Result<DocumentChangeSummary, SearchEngineError> {
        let known = self.engine.documents().await?;
        let replaced = put.iter().filter(|it| known.contains_key(&it.path)).count() as u64;
        let removed = remove.iter().filter(|path| known.contains_key(*path)).count() as u64;
        let added = put.len() as u64 - replaced;
        let documents = known.len() as u64 - removed + added;
        if added > 0 && documents > documents_max {
            let documents = counted(documents, "document", "documents");
            return Err(SearchEngineError::Failed(format!(
                "the namespace would have {documents}; at most {documents_max} are kept: remove \
                 some documents first"
            )));
        }
        writer.remove(remove).await?;
        writer.put(put).await?;
        if let Some((put, why)) = writer.take_rejected().pop() {
            return Err(SearchEngineError::Failed(format!(
                "`{}` cannot be stored: {why}",
                put.path
            )));
        }
        writer.commit().await?;
        // The change is committed, even if releasing resources fails.
        if let Err(err) = writer.release_resources().await {
            tracing::warn!("releasing resources of an index of documents failed: {err}");
        }
        Ok(DocumentChangeSummary { added, replaced, removed, documents })
    }

    /// Waits up to 5 seconds for the write lock of the documents, which other processes hold only
    /// briefly. Fails if another process still holds the lock, or the engine fails.
    async fn wait_for_writer(&mut self) -> Result<Box<dyn SearchEngineWriter>, SearchEngineError> {
        let until = Instant::now() + WRITER_WAIT_MAX;
        loop {
            if let Some(writer) = self.engine.acquire_writer().await? {
                return Ok(writer);
            }
            if Instant::now() >= until {
                let why = "another server is writing into the namespace; try again";
                return Err(SearchEngineError::Failed(why.to_owned()));
            }
            sleep(WRITER_RETRY_EVERY).await;
        }
    }

    fn release_waiting(&mut self) {
        for one in take(&mut self.waiting) {
            // The receiver may be gone.
            let _ = one.send(());
        }
    }

    async fn publish_ready(&mut self, note: Option<String>) -> Result<(), SearchEngineError> {
        let SearchEngineStatus { documents, chunks, with_vectors, .. } =
            self.engine.status().await?;
        let failure = self.embedding.failure_note();
        let vectors = self.embedding.is_configured().then_some(with_vectors);
        self.progress.send_modify(|it| {
            let rebuilt = note.or_else(|| it.note.take().filter(|it| it.starts_with("rebuilt: ")));
            *it = IndexProgress {
                state: IndexState::Ready,
                files: documents,
                total: None,
                chunks,
                vectors,
                complete: true,
                note: failure.or(rebuilt),
                write_failed: false,
            };
        });
        self.release_waiting();
        Ok(())
    }
}
