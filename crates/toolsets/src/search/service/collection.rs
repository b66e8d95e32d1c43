//! A search index of files or documents, with the task that updates it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use toolgate_chunks::{FileClassification, chunks};
use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};
use toolgate_search::Embedder;

use super::checkout::GitCheckoutReader;
use super::documents::{self, DocumentChange, DocumentChangeSummary, DocumentIndexUpdater};
use super::embedding::ChunkVectorBuilder;
use super::files::excluded_folders;
use super::keeper::{self, IndexUpdater, IndexUpdaterState};
use super::progress::{IndexProgress, IndexState, IndexStateReport};
use super::{SearchService, not_current_message};
use crate::counted::counted;
use crate::search::engines::{SearchEngine, SearchEngineError, StoredDocument};
use toolgate_world::Root;
use toolgate_world::root::Etag;

/// The capacity of the queue of requests to the task that updates an index. While the queue is
/// full, searches do not wait for the task and use the current index.
const REQUESTS_MAX: usize = 256;

/// A search index and the task that keeps it up to date.
pub(super) struct SearchableIndex {
    pub(super) engine: Arc<dyn SearchEngine>,
    root: Option<Root>,
    checkout: Option<Arc<GitCheckoutReader>>,
    progress: watch::Receiver<IndexProgress>,
    requests: IndexUpdaterChannel,
    _keeper: AbortOnDropHandle<()>,
}

/// Channel to the task that updates an index of files or of documents.
enum IndexUpdaterChannel {
    Files(mpsc::Sender<keeper::IndexUpdaterRequest>),
    Documents(mpsc::Sender<documents::DocumentIndexUpdaterRequest>),
}

/// A document from a caller, to put into an index.
#[derive(Debug, Clone)]
pub(crate) struct NewDocument {
    pub(crate) id: String,
    pub(crate) text: String,
    /// Format of the document as a file name, whose extension selects how the text is cut into
    /// chunks.
    pub(crate) sort: String,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
}

/// The numbers of documents that a call of `search.upsert` added, replaced and removed.
pub(crate) type UpsertSummary = DocumentChangeSummary;

impl SearchableIndex {
    /// Creates the search index of the files of `root`, and starts the task that updates it.
    /// `kept_in` are folders of indexes, which are not searched.
    pub(super) fn for_files(
        root: Root,
        engine: Arc<dyn SearchEngine>,
        kept_in: &[&Path],
        service: &SearchService,
    ) -> Self {
        let (publisher, progress) = watch::channel(IndexProgress::default());
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let cancel = CancellationToken::new();
        let embedding = ChunkVectorBuilder::new(service.embedder.clone(), Some(&root), &cancel);
        let keeper = IndexUpdater {
            root: root.clone(),
            engine: engine.clone(),
            bounds: service.settings.limits,
            excluded: excluded_folders(&root, kept_in),
            embedding,
            progress: publisher,
            requests,
            waiting: Vec::new(),
            reported: BTreeSet::new(),
            commits: 0,
            cancel,
            memory: IndexUpdaterState::default(),
        };
        let keeper = AbortOnDropHandle::new(toolgate_net::spawn_task(keeper.run_until_closed()));
        let checkout = Some(Arc::new(GitCheckoutReader::new(&root)));
        let root = Some(root);
        let requests = IndexUpdaterChannel::Files(sender);
        Self { engine, root, checkout, progress, requests, _keeper: keeper }
    }

    /// Creates a search index of documents, and starts the task that updates it.
    pub(super) fn for_documents(
        engine: Arc<dyn SearchEngine>,
        embedder: Option<Arc<dyn Embedder>>,
    ) -> Self {
        let (publisher, progress) = watch::channel(IndexProgress::default());
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        let cancel = CancellationToken::new();
        let embedding = ChunkVectorBuilder::new(embedder, None, &cancel);
        let keeper = DocumentIndexUpdater {
            engine: engine.clone(),
            embedding,
            progress: publisher,
            requests,
            cancel,
            waiting: Vec::new(),
            interrupted: None,
            rebuilt: None,
        };
        let keeper = AbortOnDropHandle::new(toolgate_net::spawn_task(keeper.run_until_closed()));
        let requests = IndexUpdaterChannel::Documents(sender);
        Self { engine, root: None, checkout: None, progress, requests, _keeper: keeper }
    }

    /// Returns the root of the indexed files, or `None` for documents.
    pub(super) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// Returns the git checkout of the indexed files, or `None` for documents.
    pub(super) fn checkout(&self) -> Option<&Arc<GitCheckoutReader>> {
        self.checkout.as_ref()
    }

    /// Returns the progress of the index, for callers.
    pub(super) fn report(&self) -> IndexStateReport {
        self.progress.borrow().report()
    }

    /// Returns the reason why the index cannot be written. Returns `None` if writing has not
    /// failed.
    pub(super) fn write_error(&self) -> Option<String> {
        let progress = self.progress.borrow();
        progress.note.clone().filter(|_| progress.write_failed)
    }

    /// Returns the state of the search index.
    pub(super) fn state(&self) -> IndexState {
        self.progress.borrow().state
    }

    /// Waits until the index contains all changes up to now, or until the time `until`. Returns the
    /// progress of the index.
    ///
    /// # Errors
    /// Fails if the index is unavailable or the call is canceled.
    pub(super) async fn catch_up(
        &self,
        ctx: &ToolContext,
        name: &str,
        until: Instant,
    ) -> Result<IndexStateReport, ToolError> {
        let (done, mut caught_up) = oneshot::channel();
        // If too many wait already, this search uses the index as it is.
        let was_sent = match &self.requests {
            IndexUpdaterChannel::Files(sender) => {
                sender.try_send(keeper::IndexUpdaterRequest::CatchUp(done)).is_ok()
            }
            IndexUpdaterChannel::Documents(sender) => {
                sender.try_send(documents::DocumentIndexUpdaterRequest::CatchUp(done)).is_ok()
            }
        };
        let mut progress = self.progress.clone();
        let mut reported_total = None;
        loop {
            if !was_sent {
                break;
            }
            tokio::select! {
                caught = &mut caught_up => {
                    // The total also counted files that turned out to have no text.
                    if let (Some(total), Ok(())) = (reported_total, caught) {
                        let files = self.progress.borrow().files;
                        let message = format!("{} indexed", counted(files, "file", "files"));
                        ctx.report_progress(total, Some(total), Some(message));
                    }
                    break;
                }
                changed = progress.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let IndexProgress { state, files, total, .. } = progress.borrow_and_update().clone();
                    if state.is_building() {
                        let message = format!("{} indexed", counted(files, "file", "files"));
                        #[allow(clippy::cast_precision_loss, reason = "progress is approximate")]
                        let done = files as f64;
                        let total = total.map(|total| total as f64);
                        reported_total = total.or(reported_total);
                        ctx.report_progress(done, total, Some(message));
                    }
                }
                () = tokio::time::sleep_until(until.into()) => break,
                () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
            }
        }
        if ctx.cancel.is_cancelled() {
            return Err(ToolError::canceled());
        }
        let progress = self.progress.borrow();
        match progress.state {
            IndexState::Away => {
                let why = progress.note.as_deref().unwrap_or("the search index is unavailable");
                let message = format!("{}: {why}", not_current_message(name));
                Err(ToolError::new(ToolErrorKind::Unavailable, message))
            }
            IndexState::Absent
            | IndexState::Building
            | IndexState::Rebuilding
            | IndexState::Ready
            | IndexState::Following => Ok(progress.report()),
        }
    }

    /// Asks the task that updates the index to read the file at `path`, whose change caused no
    /// event.
    pub(super) fn report_changed(&self, path: String) {
        if let IndexUpdaterChannel::Files(sender) = &self.requests {
            // If the queue is full, the next search reports the file again.
            let _ = sender.try_send(keeper::IndexUpdaterRequest::Changed(path));
        }
    }

    /// Requests a rebuild of the index if `err` reports damage, so that the caller can try again.
    ///
    /// # Errors
    /// Returns `err` if another attempt would also fail.
    pub(super) async fn rebuild_if_damaged(
        &self,
        err: SearchEngineError,
    ) -> Result<(), SearchEngineError> {
        match err {
            SearchEngineError::Damaged(why) => {
                match &self.requests {
                    IndexUpdaterChannel::Files(sender) => {
                        drop(sender.send(keeper::IndexUpdaterRequest::Damaged(why)).await);
                    }
                    IndexUpdaterChannel::Documents(sender) => {
                        drop(
                            sender.send(documents::DocumentIndexUpdaterRequest::Damaged(why)).await,
                        );
                    }
                }
                Ok(())
            }
            // The index is being rebuilt.
            SearchEngineError::Unavailable(_) if self.state().is_building() => Ok(()),
            SearchEngineError::Unavailable(_) | SearchEngineError::Failed(_) => Err(err),
        }
    }

    /// Puts the documents `put` into the index, and removes the documents with the paths `remove`.
    /// The index may then contain at most `documents_max` documents.
    ///
    /// # Errors
    /// Fails if this is an index of files, or if the task that updates the index has ended.
    pub(super) async fn change_documents(
        &self,
        put: Vec<NewDocument>,
        remove: Vec<String>,
        documents_max: u64,
    ) -> Result<Result<DocumentChangeSummary, SearchEngineError>, ToolError> {
        let stopped = || ToolError::failed("the search index has stopped; restart the server");
        let IndexUpdaterChannel::Documents(sender) = &self.requests else {
            let message = "the namespace has files, not documents; use another name";
            return Err(ToolError::invalid("/namespace", message));
        };
        let split = move || put.into_iter().map(NewDocument::into_stored).collect::<Vec<_>>();
        let put = toolgate_net::spawn_blocking(split).await.map_err(|err| {
            ToolError::with_cause("splitting documents into passages failed", err)
        })?;
        let (done, changed) = oneshot::channel();
        let change = DocumentChange { put, remove, documents_max, done };
        let request = documents::DocumentIndexUpdaterRequest::Change(change);
        sender.send(request).await.map_err(|_| stopped())?;
        changed.await.map_err(|_| stopped())
    }
}

impl NewDocument {
    fn into_stored(self) -> StoredDocument {
        let Self { id, text, sort, tags, metadata } = self;
        let etag = Etag::from_content(text.as_bytes()).to_string();
        // The etag covers the tags and metadata, too.
        let other_fields = serde_json::to_string(&(&sort, &tags, &metadata)).unwrap_or_default();
        let etag = match tags.is_empty() && metadata.is_empty() {
            true => etag,
            false => Etag::from_content(format!("{etag} {other_fields}").as_bytes()).to_string(),
        };
        StoredDocument {
            chunks: chunks(&sort, &text),
            path: id,
            etag,
            commit: None,
            lang: FileClassification::for_path(&sort).lang.map(str::to_owned),
            stamp: sort.into_bytes(),
            tags,
            text,
            metadata,
        }
    }
}
