//! Keeps the index of a folder as the folder is: looks through it once, then hears of what changes.
//!
//! One task does, for all who search. Where another process keeps the index already, it waits for
//! its turn and lets searches read what that one writes.

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

/// How long what happens is gathered before files are looked at, where nobody asks.
const GATHERED: Duration = Duration::from_millis(50);
/// And it rests this many times as long as the last look took: a file that is written on and on
/// costs a part of one core.
const RESTS: u32 = 3;
/// But no longer than this.
const RESTS_MAX: Duration = Duration::from_secs(2);
/// How long nothing happens before what is held only to write quickly is let go.
const QUIET: Duration = Duration::from_secs(2);
/// How long it rests after something failed, before it tries again unasked.
const AGAIN: Duration = Duration::from_secs(10);
/// And how long if it is asked.
const AGAIN_ASKED: Duration = Duration::from_secs(1);
/// What could not be written is tried again at once, so often.
const RETRIES_MAX: u32 = 5;
/// And as often again when it went well for so long.
const WENT_WELL: Duration = Duration::from_secs(30);

/// So many files are looked at because they were seen to have changed; others are seen again.
const CHANGED_MAX: usize = 1024;

/// What is asked of a keeper.
pub(super) enum Ask {
    /// That what happened up to now is in the index; answered when it is.
    CatchUp(oneshot::Sender<()>),
    /// That the file at this path is looked at, which is not as it was indexed.
    Changed(String),
    /// That what it keeps is looked at, since it seems damaged.
    Damaged(String),
}

/// Keeps one index.
pub(super) struct Keeper {
    pub(super) root: Root,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) bounds: Bounds,
    pub(super) left_out: Vec<PathBuf>,
    pub(super) embedding: Embedding,
    pub(super) told: watch::Sender<Progress>,
    pub(super) asks: mpsc::Receiver<Ask>,
    /// Who waits to be told that it has caught up.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Files that changed though nothing was heard of it.
    pub(super) changed: BTreeSet<PathBuf>,
    /// How often something was committed.
    pub(super) writes: u64,
    pub(super) cancel: CancellationToken,
    /// What has become of it so far.
    pub(super) so_far: SoFar,
}

/// What a keeper remembers from one attempt to the next.
#[derive(Debug, Default)]
pub(super) struct SoFar {
    /// When it was last made anew, since it was damaged.
    rebuilt: Option<Instant>,
    /// Files that the engine does not take.
    refused: BTreeSet<String>,
    /// What other servers were last told: whether all is in it.
    told: Option<bool>,
}

/// Why an index is not kept any more, for now.
enum Stopped {
    Engine(EngineError),
    /// What was read could not be written; what is there already is found.
    Unwritten(String),
    Root(ToolError),
    /// Nobody is left to ask.
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
    /// Keeps it for as long as somebody may ask.
    pub(super) async fn keep(mut self) {
        let _ends = self.cancel.clone().drop_guard();
        let (mut failures, mut failed) = (0, Instant::now());
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
                        // What was not committed is found again by looking.
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
                // It is tried again by itself; until then what is there is found.
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

    /// Whether it was made anew just now: who says that it is damaged means the one before.
    fn is_new(&self) -> bool {
        self.so_far.rebuilt.is_some_and(|it| it.elapsed() < AGAIN_ASKED)
    }

    /// Rests after a failure; `None` if nobody is left to ask.
    async fn rest(&mut self, begun: Instant) -> Option<()> {
        let (asked, unasked) = (begun + AGAIN_ASKED, Instant::now() + AGAIN);
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

    /// Tells all who wait that what can be done is done.
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
        // The files are looked at while the index is opened: the first search waits for both.
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
        let (root, bounds) = (self.root.clone(), self.bounds);
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
                    // What it costs is bounded, however often files are written.
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

    /// Takes in all that happened.
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
        // Who asks from here on is answered after the next look: this one may have passed by.
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
            // They are told once it is said what is wrong.
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
        // They may have left.
        let _ = one.send(());
    }
}

fn joined<T>(done: Result<Result<T, ToolError>, tokio::task::JoinError>) -> Result<T, Stopped> {
    let broken = |err| ToolError::because("reading the workspace failed", err);
    Ok(done.map_err(broken)??)
}

/// What came of writing: where it failed the index can still be read.
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

/// Until the kernel says that something happened.
async fn heard(queue: Option<&AsyncFd<Arc<OwnedFd>>>) {
    let Some(queue) = queue else { return pending().await };
    match queue.readable().await {
        // The queue is read to its end later, so what comes from now on is heard of.
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => pending().await,
    }
}
