//! Writes into an index of this process and its documents.

use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use toolgate_search::ChunkHash;
use toolgate_search::index::{self, IndexError, Pulse};

use super::kept::{Changes, Kept};
use super::{Doing, EngineError, Put, Writer, blocking};

/// The time between two signs of life for other processes.
const BEAT_EVERY: Duration = Duration::from_secs(2);

/// The right to write.
pub(super) struct Pen {
    /// `None` while a write runs, and after a write was canceled.
    held: Option<Held>,
    refused: Vec<(Put, String)>,
    /// The folder of the index, for the log.
    folder: Option<PathBuf>,
    /// The task that shows other processes that this one lives, once something was published.
    beats: Option<AbortOnDropHandle<()>>,
}

struct Held {
    writer: index::Writer,
    kept: Option<Arc<Kept>>,
    /// The documents to keep with the next commit.
    changes: Changes,
}

impl Pen {
    pub(super) fn new(
        writer: index::Writer,
        kept: Option<Arc<Kept>>,
        folder: Option<PathBuf>,
    ) -> Self {
        let held = Held { writer, kept, changes: Changes::new() };
        Self { held: Some(held), refused: Vec::new(), folder, beats: None }
    }

    fn doing<'w, T: Send + 'static>(
        &'w mut self,
        work: impl FnOnce(&mut Held) -> Result<T, EngineError> + Send + 'static,
    ) -> Doing<'w, T> {
        Box::pin(async move {
            let broken = || EngineError::Failed("what was being written was broken off".to_owned());
            let mut held = self.held.take().ok_or_else(broken)?;
            let (held, done) = blocking(move |_| {
                let done = work(&mut held);
                Ok((held, done))
            })
            .await?;
            self.held = Some(held);
            if let (Err(err), Some(folder)) = (&done, &self.folder) {
                tracing::warn!("the index in `{}` was not written: {err}", folder.display());
            }
            done
        })
    }
}

impl Writer for Pen {
    fn put(&mut self, documents: Vec<Put>) -> Doing<'_, ()> {
        Box::pin(async move {
            let put = self.doing(move |held| held.put(documents));
            let refused = put.await?;
            self.refused.extend(refused);
            Ok(())
        })
    }

    fn refused(&mut self) -> Vec<(Put, String)> {
        take(&mut self.refused)
    }

    fn remove(&mut self, paths: Vec<String>) -> Doing<'_, ()> {
        self.doing(move |held| {
            for path in paths {
                held.writer.remove(&path)?;
                if held.kept.is_some() {
                    held.changes.insert(path, None);
                }
            }
            Ok(())
        })
    }

    fn commit(&mut self) -> Doing<'_, ()> {
        self.doing(Held::commit)
    }

    fn give(&mut self, vectors: Vec<(ChunkHash, Vec<f32>)>) -> Doing<'_, ()> {
        self.doing(move |held| Ok(held.writer.give(&vectors)?))
    }

    fn tell(&mut self, complete: bool) -> Doing<'_, ()> {
        Box::pin(async move {
            let told = self.doing(move |held| {
                held.writer.tell(complete)?;
                Ok(held.writer.pulse())
            });
            let pulse = told.await?;
            if self.beats.is_none() {
                self.beats = pulse.map(|it| AbortOnDropHandle::new(tokio::spawn(beat(it))));
            }
            Ok(())
        })
    }

    fn rest(&mut self) -> Doing<'_, ()> {
        self.doing(|held| Ok(held.writer.rest()?))
    }
}

impl Held {
    /// Puts `documents` and returns the rejected ones with the reasons.
    fn put(&mut self, documents: Vec<Put>) -> Result<Vec<(Put, String)>, EngineError> {
        let mut refused = Vec::new();
        for put in documents {
            match self.writer.put(&put.document()) {
                Ok(()) if self.kept.is_some() => {
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
        match self.kept.clone().filter(|_| !changes.is_empty()) {
            Some(kept) => kept.change(changes, || Ok(self.writer.commit()?)),
            None => Ok(self.writer.commit()?),
        }
    }
}

async fn beat(pulse: Pulse) {
    loop {
        tokio::time::sleep(BEAT_EVERY).await;
        let pulse = pulse.clone();
        drop(tokio::task::spawn_blocking(move || pulse.beat()).await);
    }
}
