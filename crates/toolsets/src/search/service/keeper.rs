//! Keeps the index of a folder up to date: scans it once, then follows changes.
//!
//! One task serves all searches. If another process keeps the index already, this one waits for its
//! turn, and searches read the index of the other.

mod look;
mod turn;
mod taking;
mod telling;

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
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::ToolError;

use super::embedding::{Embedding, Made};
use super::files::{Bounds, Files};
use super::progress::{Progress, State};
use crate::search::engines::{Begun, Engine, EngineError, Writer};
use crate::world::Root;
use crate::world::root::Watch;

/// The time to gather changes before files are read, if no search waits.
const GATHERED: Duration = Duration::from_millis(50);
/// The pause after reading changes, as a multiple of the time that it took. It bounds the cost of a
/// file that is written continuously.
const RESTS: u32 = 3;
/// The longest pause after reading changes.
const RESTS_MAX: Duration = Duration::from_secs(2);
/// The idle time before the writer releases resources that only make writing quick.
const QUIET: Duration = Duration::from_secs(2);
/// The pause after a failure, if no search asks.
const AGAIN: Duration = Duration::from_secs(10);
/// The shortest pause after a failure, if a search asks.
const AGAIN_ASKED: Duration = Duration::from_secs(1);
/// The number of immediate retries after failed writes.
const RETRIES_MAX: u32 = 5;
/// The time without failures after which the retries start over.
const WENT_WELL: Duration = Duration::from_secs(30);

/// The largest number of files that searches reported as changed. Later searches report the others
/// again.
const CHANGED_MAX: usize = 1024;

/// A message to a keeper.
pub(super) enum Ask {
    /// Index everything that has changed up to now, then answer.
    CatchUp(oneshot::Sender<()>),
    /// Read the file at this path, which differs from the index.
    Changed(String),
    /// Check the index, which seems damaged for this reason.
    Damaged(String),
}

/// The task that keeps one index.
pub(super) struct Keeper {
    pub(super) root: Root,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) bounds: Bounds,
    pub(super) left_out: Vec<PathBuf>,
    pub(super) embedding: Embedding,
    pub(super) told: watch::Sender<Progress>,
    pub(super) asks: mpsc::Receiver<Ask>,
    /// Searches that wait for the index to catch up.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Files that changed without an event.
    pub(super) changed: BTreeSet<PathBuf>,
    /// The number of commits.
    pub(super) writes: u64,
    pub(super) cancel: CancellationToken,
    /// State that is kept between attempts.
    pub(super) so_far: SoFar,
}

/// State of a keeper that is kept between attempts.
#[derive(Debug, Default)]
pub(super) struct SoFar {
    /// The time of the last rebuild after damage.
    rebuilt: Option<Instant>,
    /// Files that the engine rejected.
    refused: BTreeSet<String>,
    /// The last completeness that was published to other servers.
    told: Option<bool>,
}

/// The reason why a keeper stopped.
enum Stopped {
    Engine(EngineError),
    /// Writing failed. The earlier content can still be searched.
    Unwritten(String),
    Root(ToolError),
    /// Nobody can send messages any more.
    Unwanted,
}

impl From<EngineError> for Stopped {
    fn from(err: EngineError) -> Self {
        Self::Engine(err)
    }
}

impl From<ToolError> for Stopped {
    fn from(err: ToolError) -> Self {
        Self::Root(err)
    }
}

impl Keeper {
    /// Keeps the index until nobody can ask for it.
    pub(super) async fn keep(mut self) {
        let _ends = self.cancel.clone().drop_guard();
        let mut failures = 0;
        let mut failed = Instant::now();
        loop {
            let begun = Instant::now();
            let Err(stopped) = self.run().await;
            let unwritten = matches!(stopped, Stopped::Unwritten(_));
            let why = match stopped {
                Stopped::Unwanted => return,
                Stopped::Unwritten(why) | Stopped::Engine(EngineError::Failed(why)) => {
                    failures = if failed.elapsed() > WENT_WELL { 1 } else { failures + 1 };
                    failed = Instant::now();
                    if failures <= RETRIES_MAX {
                        // A scan finds again all that was not committed.
                        tracing::warn!("an index for searching is looked through again: {why}");
                        continue;
                    }
                    why
                }
                Stopped::Engine(EngineError::Damaged(why)) => {
                    self.say_rebuilt(&why);
                    let is_again = self.is_new();
                    match self.engine.reset().await {
                        Ok(()) if is_again => why,
                        Ok(()) => {
                            self.so_far.rebuilt = Some(Instant::now());
                            continue;
                        }
                        Err(err) => err.to_string(),
                    }
                }
                Stopped::Engine(EngineError::Away(why)) => why,
                Stopped::Root(err) => err.message,
            };
            tracing::warn!("an index for searching is not kept now: {why}");
            self.told.send_modify(|it| {
                // The keeper tries again by itself. Until then searches use the earlier content.
                it.state = if unwritten { State::Building } else { State::Away };
                it.complete = false;
                it.unwritten = unwritten;
                it.note = Some(why);
            });
            if self.rest(begun).await.is_none() {
                return;
            }
        }
    }

    fn say_rebuilt(&self, why: &str) {
        tracing::warn!("an index for searching is built anew: {why}");
        let note = Some(format!("built anew: {why}"));
        self.told.send_replace(Progress { state: State::Rebuilding, note, ..Progress::default() });
    }

    /// Returns true if the index was rebuilt just now: a report of damage then refers to the old
    /// one.
    fn is_new(&self) -> bool {
        self.so_far.rebuilt.is_some_and(|it| it.elapsed() < AGAIN_ASKED)
    }

    /// Pauses after a failure. Returns `None` if nobody can ask any more.
    async fn rest(&mut self, begun: Instant) -> Option<()> {
        let asked = begun + AGAIN_ASKED;
        let unasked = Instant::now() + AGAIN;
        self.answer();
        loop {
            let ask = tokio::select! {
                ask = self.asks.recv() => ask?,
                () = sleep_until(unasked) => return Some(()),
            };
            self.wait(ask);
            if Instant::now() >= asked {
                return Some(());
            }
            self.answer();
        }
    }

    /// Releases all searches that wait.
    fn answer(&mut self) {
        answer(take(&mut self.waiting));
    }

    fn wait(&mut self, ask: Ask) -> Option<String> {
        match ask {
            Ask::CatchUp(one) => {
                self.waiting.push(one);
                None
            }
            Ask::Changed(path) => {
                if self.changed.len() < CHANGED_MAX {
                    self.changed.insert(path.into());
                }
                None
            }
            Ask::Damaged(why) => Some(why).filter(|_| !self.is_new()),
        }
    }

    async fn run(&mut self) -> Result<Infallible, Stopped> {
        // The scan runs while the index opens, because the first search waits for both.
        let mut first = self.look_through();
        if let Begun::Rebuilt(why) = self.engine.open().await? {
            self.say_rebuilt(&why);
        }
        let mut writer = match written(self.engine.writer().await)? {
            Some(writer) => writer,
            None => {
                drop(first);
                let writer = self.turn().await?;
                first = self.look_through();
                writer
            }
        };
        (self.so_far.told, self.so_far.refused) = (None, BTreeSet::new());
        self.tell(&mut *writer, false).await;
        let is_rebuilt = self.told.borrow().is_rebuilt();
        self.told.send_modify(|it| {
            it.state = if is_rebuilt { State::Rebuilding } else { State::Building };
            it.note = it.note.take().filter(|_| is_rebuilt || it.unwritten);
        });
        self.count(None).await?;
        let documents = self.engine.documents().await?;
        let first = joined(first.taken.await)?;
        let root = self.root.clone();
        let bounds = self.bounds;
        let (files, todo) =
            self.blocking(move |watch| Files::new(&root, first, documents, bounds, watch)).await?;
        let mut files = self.take(files, todo, &mut *writer).await?;
        self.settle(&files, &mut *writer).await?;
        let queue = files.tracker.queue().map_err(|err| {
            Stopped::Root(ToolError::because("changes of files cannot be heard of", err))
        })?;
        let mut due: Option<Instant> = None;
        let mut quiet_at = Some(Instant::now() + QUIET);
        loop {
            enum Next {
                Ask(Option<Ask>),
                News,
                Heard,
                Quiet,
                Made(Made),
            }
            let next = tokio::select! {
                biased;
                ask = self.asks.recv() => Next::Ask(ask),
                () = at(due) => Next::News,
                () = heard(queue.as_ref()), if due.is_none() => Next::Heard,
                () = at(quiet_at) => Next::Quiet,
                made = self.embedding.next(&self.engine) => Next::Made(made),
            };
            let wrote = self.writes;
            match next {
                Next::Ask(None) => return Err(Stopped::Unwanted),
                Next::Ask(Some(ask)) => {
                    if let Some(why) = self.wait(ask) {
                        return Err(Stopped::Engine(EngineError::Damaged(why)));
                    }
                    due = None;
                    files = self.catch_up(files, &mut *writer).await?;
                }
                Next::News => {
                    let begun = Instant::now();
                    files = self.catch_up(files, &mut *writer).await?;
                    // This pause bounds the cost, however often files are written.
                    due = Some(begun.elapsed() * RESTS)
                        .filter(|rest| *rest > GATHERED)
                        .map(|rest| Instant::now() + rest.min(RESTS_MAX));
                }
                Next::Heard => due = Some(Instant::now() + GATHERED),
                Next::Quiet => {
                    written(writer.rest().await)?;
                    quiet_at = None;
                }
                Next::Made(made) => {
                    if let Some(vectors) = made.vectors {
                        written(writer.give(vectors).await)?;
                        written(writer.commit().await)?;
                        self.writes += 1;
                    }
                    self.settle(&files, &mut *writer).await?;
                }
            }
            if self.writes != wrote {
                quiet_at = Some(Instant::now() + QUIET);
            }
        }
    }

    /// Indexes all changes up to now.
    async fn catch_up(
        &mut self,
        mut files: Files,
        writer: &mut dyn Writer,
    ) -> Result<Files, Stopped> {
        while let Ok(ask) = self.asks.try_recv() {
            if let Some(why) = self.wait(ask) {
                return Err(Stopped::Engine(EngineError::Damaged(why)));
            }
        }
        // Later requests wait for the next scan, because this one may have passed their files
        // already.
        let asked = take(&mut self.waiting);
        let changed = take(&mut self.changed);
        let looked = self.blocking(move |watch| {
            let todo = files.news(changed, watch)?;
            Ok((files, todo))
        });
        let outcome = match looked.await {
            Ok((files, todo)) if todo.read.is_empty() && todo.gone.is_empty() => Ok(files),
            Ok((files, todo)) => match self.take(files, todo, writer).await {
                Ok(files) => self.settle(&files, writer).await.map(|()| files),
                Err(err) => Err(err),
            },
            Err(err) => Err(err),
        };
        match &outcome {
            Ok(_) => answer(asked),
            // They are released after the reason has been published.
            Err(_) => self.waiting.extend(asked),
        }
        outcome
    }

    fn watch(&self) -> Watch {
        Watch::quiet(self.cancel.clone())
    }

    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Watch) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, Stopped> {
        let watch = self.watch();
        joined(spawn_blocking(move || work(&watch)).await)
    }
}

fn answer(waiting: Vec<oneshot::Sender<()>>) {
    for one in waiting {
        // The receiver may be gone.
        let _ = one.send(());
    }
}

fn joined<T>(done: Result<Result<T, ToolError>, tokio::task::JoinError>) -> Result<T, Stopped> {
    let broken = |err| ToolError::because("reading the workspace failed", err);
    Ok(done.map_err(broken)??)
}

/// Converts the error of a write. After [`EngineError::Failed`], the index can still be read.
fn written<T>(done: Result<T, EngineError>) -> Result<T, Stopped> {
    done.map_err(|err| match err {
        EngineError::Failed(why) => Stopped::Unwritten(why),
        EngineError::Away(_) | EngineError::Damaged(_) => Stopped::Engine(err),
    })
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Waits until the kernel reports a change.
async fn heard(queue: Option<&AsyncFd<Arc<OwnedFd>>>) {
    let Some(queue) = queue else { return pending().await };
    match queue.readable().await {
        // All events are read later, so clearing the flag here loses none.
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => pending().await,
    }
}
