//! Keeps the index of the documents that callers put into a namespace.

use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::embedding::{Embedding, Made};
use super::progress::{Progress, State};
use crate::search::engines::{Begun, Engine, EngineError, Put, Status, Writer};

/// The longest wait for another process that writes the same documents.
const TURN_MAX: Duration = Duration::from_secs(5);
/// The pause between two attempts to get the right to write.
const TURN_EVERY: Duration = Duration::from_millis(25);
/// The shortest pause after a failure.
const AGAIN: Duration = Duration::from_secs(1);

/// A message to a keeper of documents.
pub(super) enum Ask {
    /// Answer when the index is up to date or cannot be.
    CatchUp(oneshot::Sender<()>),
    /// Check the index, which seems damaged for this reason.
    Damaged(String),
    /// Put and remove documents.
    Change(Change),
}

/// A change of a namespace's documents, done completely or not at all.
pub(super) struct Change {
    pub(super) put: Vec<Put>,
    pub(super) remove: Vec<String>,
    /// The largest number of documents after the change.
    pub(super) documents_max: u64,
    pub(super) done: oneshot::Sender<Result<Changed, EngineError>>,
}

/// The number of documents that a change affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) added: u64,
    pub(crate) replaced: u64,
    pub(crate) removed: u64,
    pub(crate) documents: u64,
}

/// The task that keeps one index of documents.
pub(super) struct Librarian {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) embedding: Embedding,
    pub(super) told: watch::Sender<Progress>,
    pub(super) asks: mpsc::Receiver<Ask>,
    pub(super) cancel: CancellationToken,
    /// Searches that wait for the index to be up to date.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// The change during which the index turned out to be damaged.
    pub(super) interrupted: Option<Change>,
    /// The time of the last rebuild.
    pub(super) rebuilt: Option<Instant>,
}

impl Librarian {
    /// Keeps the index until nobody can ask for it.
    pub(super) async fn keep(mut self) {
        let _ends = self.cancel.clone().drop_guard();
        loop {
            let begun = Instant::now();
            let why = match self.run().await {
                Ok(never) => match never {},
                Err(None) => return,
                Err(Some(EngineError::Damaged(why))) => {
                    tracing::warn!("an index of documents is built anew: {why}");
                    let rebuilding = Progress { state: State::Rebuilding, ..Progress::default() };
                    self.told.send_replace(rebuilding);
                    match self.engine.reset().await {
                        Ok(()) if self.is_new() => why,
                        Ok(()) => {
                            self.rebuilt = Some(Instant::now());
                            continue;
                        }
                        Err(err) => err.to_string(),
                    }
                }
                Err(Some(EngineError::Away(why) | EngineError::Failed(why))) => why,
            };
            tracing::warn!("an index of documents is not kept now: {why}");
            self.told.send_modify(|it| {
                it.state = State::Away;
                it.note = Some(why.clone());
            });
            self.answer();
            if let Some(change) = self.interrupted.take() {
                drop(change.done.send(Err(EngineError::Away(why.clone()))));
            }
            // The first request after a failure gets its reason. The cause may be gone by then.
            let again = begun + AGAIN;
            loop {
                match self.asks.recv().await {
                    None => return,
                    Some(Ask::CatchUp(one)) => drop(one.send(())),
                    Some(Ask::Damaged(_)) => {}
                    Some(Ask::Change(change)) => {
                        drop(change.done.send(Err(EngineError::Away(why.clone()))));
                    }
                }
                if Instant::now() >= again {
                    break;
                }
            }
        }
    }

    /// Returns true if the index was rebuilt just now: a report of damage then refers to the old
    /// one.
    fn is_new(&self) -> bool {
        self.rebuilt.is_some_and(|it| it.elapsed() < AGAIN)
    }

    async fn run(&mut self) -> Result<Infallible, Option<EngineError>> {
        let rebuilt = match self.engine.open().await? {
            Begun::Rebuilt(why) => Some(format!("built anew: {why}")),
            Begun::New | Begun::Kept => None,
        };
        self.settle(rebuilt).await?;
        if let Some(change) = self.interrupted.take() {
            self.make(change).await?;
        }
        loop {
            enum Next {
                Ask(Option<Ask>),
                Made(Made),
            }
            let next = tokio::select! {
                biased;
                ask = self.asks.recv() => Next::Ask(ask),
                made = self.embedding.next(&self.engine) => Next::Made(made),
            };
            match next {
                Next::Ask(None) => return Err(None),
                Next::Ask(Some(Ask::CatchUp(one))) => {
                    // Another process may have put documents.
                    self.waiting.push(one);
                    self.settle(None).await?;
                }
                Next::Ask(Some(Ask::Damaged(why))) => {
                    if !self.is_new() {
                        return Err(Some(EngineError::Damaged(why)));
                    }
                }
                Next::Ask(Some(Ask::Change(change))) => self.make(change).await?,
                Next::Made(Made { vectors }) => {
                    if let Some(vectors) = vectors {
                        let mut writer = self.turn().await?;
                        writer.give(vectors).await?;
                        writer.commit().await?;
                    }
                    self.settle(None).await?;
                }
            }
        }
    }

    async fn make(&mut self, change: Change) -> Result<(), EngineError> {
        let writer = self.turn().await;
        if let Err(err @ EngineError::Damaged(_)) = writer {
            self.interrupted = Some(change);
            return Err(err);
        }
        let Change { put, remove, documents_max, done } = change;
        let changed = match writer {
            Ok(mut writer) => self.change(&mut *writer, put, remove, documents_max).await,
            Err(err) => Err(err),
        };
        self.embedding.wake();
        let failed = changed.as_ref().err().cloned();
        let _ = done.send(changed);
        match failed {
            Some(EngineError::Failed(_)) | None => self.settle(None).await,
            Some(err @ (EngineError::Away(_) | EngineError::Damaged(_))) => Err(err),
        }
    }

    async fn change(
        &mut self,
        writer: &mut dyn Writer,
        put: Vec<Put>,
        remove: Vec<String>,
        documents_max: u64,
    ) -> Result<Changed, EngineError> {
        let known = self.engine.documents().await?;
        let replaced = put.iter().filter(|it| known.contains_key(&it.path)).count() as u64;
        let removed = remove.iter().filter(|path| known.contains_key(*path)).count() as u64;
        let added = put.len() as u64 - replaced;
        let documents = known.len() as u64 - removed + added;
        if added > 0 && documents > documents_max {
            return Err(EngineError::Failed(format!(
                "there would be {documents} documents in the namespace; `search.documents_max` is \
                 {documents_max}: remove some first"
            )));
        }
        writer.remove(remove).await?;
        writer.put(put).await?;
        if let Some((put, why)) = writer.refused().pop() {
            return Err(EngineError::Failed(format!("`{}` cannot be put: {why}", put.path)));
        }
        writer.commit().await?;
        // The change is committed, even if releasing resources fails.
        if let Err(err) = writer.rest().await {
            tracing::warn!("an index of documents does not come to rest: {err}");
        }
        Ok(Changed { added, replaced, removed, documents })
    }

    /// Waits for the right to write. Other processes hold it only briefly.
    async fn turn(&mut self) -> Result<Box<dyn Writer>, EngineError> {
        let until = Instant::now() + TURN_MAX;
        loop {
            if let Some(writer) = self.engine.writer().await? {
                return Ok(writer);
            }
            if Instant::now() >= until {
                let why = "another server is writing into the namespace; try again";
                return Err(EngineError::Failed(why.to_owned()));
            }
            sleep(TURN_EVERY).await;
        }
    }

    fn answer(&mut self) {
        for one in take(&mut self.waiting) {
            // The receiver may be gone.
            let _ = one.send(());
        }
    }

    async fn settle(&mut self, note: Option<String>) -> Result<(), EngineError> {
        let Status { documents, chunks, with_vectors, .. } = self.engine.status().await?;
        let trouble = self.embedding.trouble();
        let vectors = self.embedding.is_wanted().then_some(with_vectors);
        self.told.send_modify(|it| {
            let rebuilt = note.or_else(|| it.note.take().filter(|it| it.starts_with("built anew")));
            *it = Progress {
                state: State::Ready,
                files: documents,
                total: None,
                chunks,
                vectors,
                complete: true,
                note: trouble.or(rebuilt),
                unwritten: false,
            };
        });
        self.answer();
        Ok(())
    }
}
