//! Writes into an index of this process and its documents.

use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use toolgate_search::ChunkHash;
use toolgate_search::index::{self, IndexError, LeaderHeartbeat};

use super::document_store::{DocumentChanges, DocumentStore};
use super::{EngineError, EngineFuture, EngineWriter, StoredDocument, blocking};

/// The time between two signs of life for other processes.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// The right to write.
pub(super) struct EmbeddedWriter {
    /// `None` while a write runs, and after a write was canceled.
    state: Option<WriterState>,
    rejected: Vec<(StoredDocument, String)>,
    /// The folder of the index, for the log.
    folder: Option<PathBuf>,
    /// The task that shows other processes that this one lives, once something was published.
    heartbeat: Option<AbortOnDropHandle<()>>,
}

struct WriterState {
    writer: index::SearchIndexWriter,
    document_store: Option<Arc<DocumentStore>>,
    /// The documents to keep with the next commit.
    changes: DocumentChanges,
}

impl EmbeddedWriter {
    pub(super) fn new(
        writer: index::SearchIndexWriter,
        kept: Option<Arc<DocumentStore>>,
        folder: Option<PathBuf>,
    ) -> Self {
        let held = WriterState { writer, document_store: kept, changes: DocumentChanges::new() };
        Self { state: Some(held), rejected: Vec::new(), folder, heartbeat: None }
    }

    fn run<'w, T: Send + 'static>(
        &'w mut self,
        work: impl FnOnce(&mut WriterState) -> Result<T, EngineError> + Send + 'static,
    ) -> EngineFuture<'w, T> {
        Box::pin(async move {
            let broken = || EngineError::Failed("what was being written was broken off".to_owned());
            let mut held = self.state.take().ok_or_else(broken)?;
            let (held, done) = blocking(move |_| {
                let done = work(&mut held);
                Ok((held, done))
            })
            .await?;
            self.state = Some(held);
            if let (Err(err), Some(folder)) = (&done, &self.folder) {
                tracing::warn!("the index in `{}` was not written: {err}", folder.display());
            }
            done
        })
    }
}

impl EngineWriter for EmbeddedWriter {
    fn put(&mut self, documents: Vec<StoredDocument>) -> EngineFuture<'_, ()> {
        Box::pin(async move {
            let put = self.run(move |held| held.put(documents));
            let refused = put.await?;
            self.rejected.extend(refused);
            Ok(())
        })
    }

    fn take_rejected(&mut self) -> Vec<(StoredDocument, String)> {
        take(&mut self.rejected)
    }

    fn remove(&mut self, paths: Vec<String>) -> EngineFuture<'_, ()> {
        self.run(move |held| {
            for path in paths {
                held.writer.remove(&path)?;
                if held.document_store.is_some() {
                    held.changes.insert(path, None);
                }
            }
            Ok(())
        })
    }

    fn commit(&mut self) -> EngineFuture<'_, ()> {
        self.run(WriterState::commit)
    }

    fn put_vectors(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> EngineFuture<'_, ()> {
        self.run(move |held| Ok(held.writer.add_vectors(&vectors)?))
    }

    fn publish_complete(&mut self, complete: bool) -> EngineFuture<'_, ()> {
        Box::pin(async move {
            let told = self.run(move |held| {
                held.writer.publish_status(complete)?;
                Ok(held.writer.heartbeat())
            });
            let pulse = told.await?;
            if self.heartbeat.is_none() {
                self.heartbeat =
                    pulse.map(|it| AbortOnDropHandle::new(tokio::spawn(send_heartbeats(it))));
            }
            Ok(())
        })
    }

    fn release_resources(&mut self) -> EngineFuture<'_, ()> {
        self.run(|held| Ok(held.writer.finish()?))
    }
}

impl WriterState {
    /// Puts `documents` and returns the rejected ones with the reasons.
    fn put(
        &mut self,
        documents: Vec<StoredDocument>,
    ) -> Result<Vec<(StoredDocument, String)>, EngineError> {
        let mut refused = Vec::new();
        for put in documents {
            match self.writer.put(&put.as_document()) {
                Ok(()) if self.document_store.is_some() => {
                    self.changes.insert(put.path.clone(), Some(put));
                }
                Ok(()) => {}
                Err(IndexError::Refused(why)) => refused.push((put, why)),
                Err(err) => return Err(err.into()),
            }
        }
        Ok(refused)
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        let changes = take(&mut self.changes);
        match self.document_store.clone().filter(|_| !changes.is_empty()) {
            Some(kept) => kept.apply(changes, || Ok(self.writer.commit()?)),
            None => Ok(self.writer.commit()?),
        }
    }
}

async fn send_heartbeats(pulse: LeaderHeartbeat) {
    loop {
        tokio::time::sleep(HEARTBEAT_EVERY).await;
        let pulse = pulse.clone();
        drop(tokio::task::spawn_blocking(move || pulse.beat()).await);
    }
}
