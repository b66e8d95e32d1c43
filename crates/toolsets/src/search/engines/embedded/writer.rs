//! Writes into the index of an embedded engine and into its document store.

use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use toolgate_search::ChunkHash;
use toolgate_search::index::{self, IndexError, IndexLeaderHeartbeat};

use super::document_store::{DocumentFileStore, StoredDocumentChanges};
use super::{SearchEngineError, SearchEngineFuture, SearchEngineWriter, StoredDocument, blocking};

/// The interval at which the writer of an index signals to other processes that it is alive.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// Writer of an embedded index. Only one process at a time has a writer.
pub(super) struct EmbeddedIndexWriter {
    /// The state of the writer. `None` while a write runs, and after a write was canceled.
    state: Option<EmbeddedIndexWriterState>,
    rejected: Vec<(StoredDocument, String)>,
    /// The folder of the search index, used in log messages.
    folder: Option<PathBuf>,
    /// The task that signals to other processes that this writer is alive. `None` until this writer
    /// has published a status.
    heartbeat: Option<AbortOnDropHandle<()>>,
}

struct EmbeddedIndexWriterState {
    writer: index::SearchIndexWriter,
    document_store: Option<Arc<DocumentFileStore>>,
    /// The changed documents to store with the next commit.
    changes: StoredDocumentChanges,
}

impl EmbeddedIndexWriter {
    pub(super) fn new(
        writer: index::SearchIndexWriter,
        document_store: Option<Arc<DocumentFileStore>>,
        folder: Option<PathBuf>,
    ) -> Self {
        let state = EmbeddedIndexWriterState {
            writer,
            document_store,
            changes: StoredDocumentChanges::new(),
        };
        Self { state: Some(state), rejected: Vec::new(), folder, heartbeat: None }
    }

    fn run<'w, T: Send + 'static>(
        &'w mut self,
        work: impl FnOnce(&mut EmbeddedIndexWriterState) -> Result<T, SearchEngineError>
        + Send
        + 'static,
    ) -> SearchEngineFuture<'w, T> {
        Box::pin(async move {
            let interrupted = || {
                let message = "an earlier write to the search index was interrupted; try again";
                SearchEngineError::Failed(message.to_owned())
            };
            let mut state = self.state.take().ok_or_else(interrupted)?;
            let (state, result) = blocking(move |_| {
                let result = work(&mut state);
                Ok((state, result))
            })
            .await?;
            self.state = Some(state);
            if let (Err(err), Some(folder)) = (&result, &self.folder) {
                tracing::warn!("the index in `{}` was not written: {err}", folder.display());
            }
            result
        })
    }
}

impl SearchEngineWriter for EmbeddedIndexWriter {
    fn put(&mut self, documents: Vec<StoredDocument>) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            let rejected = self.run(move |state| state.put(documents)).await?;
            self.rejected.extend(rejected);
            Ok(())
        })
    }

    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        take(&mut self.rejected)
    }

    fn remove(&mut self, paths: Vec<String>) -> SearchEngineFuture<'_, ()> {
        self.run(move |state| {
            for path in paths {
                state.writer.remove(&path)?;
                if state.document_store.is_some() {
                    state.changes.insert(path, None);
                }
            }
            Ok(())
        })
    }

    fn commit(&mut self) -> SearchEngineFuture<'_, ()> {
        self.run(EmbeddedIndexWriterState::commit)
    }

    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> SearchEngineFuture<'_, ()> {
        self.run(move |state| Ok(state.writer.add_vectors(&vectors)?))
    }

    fn publish_complete(&mut self, complete: bool) -> SearchEngineFuture<'_, ()> {
        Box::pin(async move {
            let published = self.run(move |state| {
                state.writer.publish_status(complete)?;
                Ok(state.writer.heartbeat())
            });
            let heartbeat = published.await?;
            if self.heartbeat.is_none() {
                self.heartbeat = heartbeat.map(|it| {
                    AbortOnDropHandle::new(toolgate_net::spawn_task(send_heartbeats(it)))
                });
            }
            Ok(())
        })
    }

    fn release_resources(&mut self) -> SearchEngineFuture<'_, ()> {
        self.run(|state| Ok(state.writer.finish()?))
    }
}

impl EmbeddedIndexWriterState {
    /// Puts `documents` into the index. Returns the rejected documents with the reasons. Fails if
    /// the index cannot be written.
    fn put(
        &mut self,
        documents: Vec<StoredDocument>,
    ) -> Result<Vec<(StoredDocument, String)>, SearchEngineError> {
        let mut rejected = Vec::new();
        for document in documents {
            match self.writer.put(&document.as_document()) {
                Ok(()) if self.document_store.is_some() => {
                    self.changes.insert(document.path.clone(), Some(document));
                }
                Ok(()) => {}
                Err(IndexError::Refused(why)) => rejected.push((document, why)),
                Err(err) => return Err(err.into()),
            }
        }
        Ok(rejected)
    }

    fn commit(&mut self) -> Result<(), SearchEngineError> {
        let changes = take(&mut self.changes);
        match self.document_store.clone().filter(|_| !changes.is_empty()) {
            Some(store) => store.apply(changes, || Ok(self.writer.commit()?)),
            None => Ok(self.writer.commit()?),
        }
    }
}

async fn send_heartbeats(heartbeat: IndexLeaderHeartbeat) {
    loop {
        tokio::time::sleep(HEARTBEAT_EVERY).await;
        let heartbeat = heartbeat.clone();
        drop(toolgate_net::spawn_blocking(move || heartbeat.beat()).await);
    }
}
