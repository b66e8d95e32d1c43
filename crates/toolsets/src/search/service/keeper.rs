//! Keeps the index of a folder as the folder is: looks through it once, then hears of what changes.
//!
//! One task does, for all who search. Where another process keeps the index already, it waits for
//! its turn and lets searches read what that one writes.

use std::convert::Infallible;
use std::future::pending;
use std::mem::take;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::ToolError;

use super::embedding::{Embedding, Made};
use super::files::{Batch, Bounds, Files, Todo, batches};
use super::progress::{Progress, State};
use super::reading::{Stale, Taken, read_all};
use crate::search::engines::{Begun, Engine, EngineError, Writer};
use crate::world::Root;
use crate::world::root::Watch;
use crate::world::watch::Tracker;

/// How long what happens is gathered before files are looked at, where nobody asks.
const GATHERED: Duration = Duration::from_millis(50);
/// And it rests this many times as long as the last look took: a file that is written on and on
/// costs a part of one core.
const RESTS: u32 = 3;
/// But no longer than this.
const RESTS_MAX: Duration = Duration::from_secs(2);
/// How long nothing happens before what is held only to write quickly is let go.
const QUIET: Duration = Duration::from_secs(2);
/// While an index is being built, what was read is shown to searches at least this often.
const SHOWN_EVERY: Duration = Duration::from_secs(5);
/// How often it is tried to become the one that writes.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// How long it rests after something failed, before it tries again unasked.
const AGAIN: Duration = Duration::from_secs(10);
/// And how long if it is asked.
const AGAIN_ASKED: Duration = Duration::from_secs(1);
/// What could not be written is tried again at once, so often.
const RETRIES_MAX: u32 = 5;
/// And as often again when it went well for so long.
const WENT_WELL: Duration = Duration::from_secs(30);

/// What is asked of a keeper.
pub(super) enum Ask {
    /// That what happened up to now is in the index; answered when it is.
    CatchUp(oneshot::Sender<()>),
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
    /// How often something was committed.
    pub(super) writes: u64,
    pub(super) cancel: CancellationToken,
}

/// Why an index is not kept any more, for now.
enum Stopped {
    Engine(EngineError),
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
            let why = match stopped {
                Stopped::Unwanted => return,
                Stopped::Engine(EngineError::Failed(why)) => {
                    failures = if failed.elapsed() > WENT_WELL { 1 } else { failures + 1 };
                    failed = Instant::now();
                    if failures <= RETRIES_MAX {
                        // What was not committed is found again by looking.
                        tracing::warn!("an index for searching is looked through again: {why}");
                        continue;
                    }
                    why
                }
                Stopped::Engine(EngineError::Damaged(why)) => match self.engine.reset().await {
                    Ok(()) if begun.elapsed() > AGAIN_ASKED => {
                        self.say_rebuilt(&why);
                        continue;
                    }
                    Ok(()) => {
                        self.say_rebuilt(&why);
                        why
                    }
                    Err(err) => err.to_string(),
                },
                Stopped::Engine(EngineError::Away(why)) => why,
                Stopped::Root(err) => err.message,
            };
            tracing::warn!("an index for searching is not kept now: {why}");
            self.told.send_modify(|it| {
                it.state = State::Away;
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
            Ask::Damaged(why) => Some(why),
        }
    }

    async fn run(&mut self) -> Result<Infallible, Stopped> {
        if let Begun::Rebuilt(why) = self.engine.open().await? {
            self.say_rebuilt(&why);
        }
        let mut writer = self.turn().await?;
        let note = self.told.borrow().note.clone().filter(|note| note.starts_with("built anew"));
        let state = if note.is_some() { State::Rebuilding } else { State::Building };
        self.told.send_modify(|it| {
            it.state = state;
            it.note = note;
        });
        self.count(None).await?;
        let documents = self.engine.documents().await?;
        let (root, left_out, bounds) = (self.root.clone(), self.left_out.clone(), self.bounds);
        let (files, todo) = self
            .blocking(move |watch| {
                // A file system that others change says nothing of it.
                let tracker = Tracker::new(&root, left_out, root.is_local());
                let mut files = Files::new(&root, tracker, documents, bounds);
                let todo = files.look_through(watch)?;
                Ok((files, todo))
            })
            .await?;
        let mut files = self.take(files, todo, &mut *writer).await?;
        self.settle(&files).await?;
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
                    writer.rest().await?;
                    quiet_at = None;
                }
                Next::Made(made) => {
                    if let Some(vectors) = made.vectors {
                        writer.give(vectors).await?;
                        writer.commit().await?;
                        self.writes += 1;
                    }
                    self.settle(&files).await?;
                }
            }
            if self.writes != wrote {
                quiet_at = Some(Instant::now() + QUIET);
            }
        }
    }

    /// Waits until this process is the one that writes.
    async fn turn(&mut self) -> Result<Box<dyn Writer>, Stopped> {
        loop {
            if let Some(writer) = self.engine.writer().await? {
                return Ok(writer);
            }
            let status = self.engine.status().await?;
            let vectors = self.embedding.is_wanted().then_some(status.with_vectors);
            self.told.send_modify(|it| {
                it.state = State::Following;
                it.files = status.documents;
                it.chunks = status.chunks;
                it.vectors = vectors;
                it.total = None;
                it.complete = status.documents > 0;
                it.note = Some("another server of this workspace keeps the index".to_owned());
            });
            self.answer();
            let next = Instant::now() + TURN_EVERY;
            tokio::select! {
                ask = self.asks.recv() => match ask {
                    None => return Err(Stopped::Unwanted),
                    Some(ask) => if let Some(why) = self.wait(ask) {
                        return Err(Stopped::Engine(EngineError::Away(why)));
                    }
                },
                () = sleep_until(next) => {}
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
        let looked = self.blocking(move |watch| {
            let todo = files.news(watch)?;
            Ok((files, todo))
        });
        let outcome = match looked.await {
            Ok((files, todo)) if todo.read.is_empty() && todo.gone.is_empty() => Ok(files),
            Ok((files, todo)) => match self.take(files, todo, writer).await {
                Ok(files) => self.settle(&files).await.map(|()| files),
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

    /// Reads what is to be read and puts it into the index, two batches at a time: one is put while
    /// the next is read.
    async fn take(
        &mut self,
        mut files: Files,
        todo: Todo,
        writer: &mut dyn Writer,
    ) -> Result<Files, Stopped> {
        let Todo { read, gone } = todo;
        let total = (files.texts() + read.iter().filter(|it| it.etag.is_none()).count()) as u64;
        let is_built = self.told.borrow().state.is_on_the_way();
        let mut batches = batches(read).into_iter();
        let mut reading = batches.next().map(|batch| self.read(batch));
        let removed = files.removed(gone);
        let mut open = !removed.remove.is_empty();
        put(writer, removed).await?;
        let mut shown = Instant::now();
        let mut first = true;
        while let Some(now) = reading {
            let taken = joined(now.await)?;
            reading = batches.next().map(|batch| self.read(batch));
            let batch = files.took(taken);
            open |= !(batch.put.is_empty() && batch.remove.is_empty());
            put(writer, batch).await?;
            if is_built && (first || shown.elapsed() > SHOWN_EVERY) {
                (first, open) = (false, false);
                writer.commit().await?;
                self.count(Some((files.texts() as u64, total))).await?;
                shown = Instant::now();
            } else if is_built {
                let texts = files.texts() as u64;
                self.told.send_modify(|it| {
                    it.files = texts;
                    it.total = Some(total);
                });
            }
        }
        if open {
            writer.commit().await?;
            self.writes += 1;
            self.embedding.wake();
        }
        Ok(files)
    }

    fn read(&self, batch: Vec<Stale>) -> JoinHandle<Result<Vec<Taken>, ToolError>> {
        let (root, watch) = (self.root.clone(), self.watch());
        spawn_blocking(move || read_all(&root, batch, &watch))
    }

    /// Says that the index is as the folder is.
    async fn settle(&mut self, files: &Files) -> Result<(), Stopped> {
        self.count(None).await?;
        let (texts, complete) = (files.texts() as u64, files.is_complete());
        let trouble = self.embedding.trouble();
        self.told.send_modify(|it| {
            let rebuilt = it.note.take().filter(|note| note.starts_with("built anew"));
            it.state = State::Ready;
            it.files = texts;
            it.total = None;
            it.complete = complete;
            it.note = trouble.or(rebuilt);
        });
        self.answer();
        Ok(())
    }

    /// Tells how much is in the index, and how much of how much was read.
    async fn count(&mut self, read: Option<(u64, u64)>) -> Result<(), Stopped> {
        let status = self.engine.status().await?;
        let vectors = self.embedding.is_wanted().then_some(status.with_vectors);
        self.told.send_modify(|it| {
            it.files = read.map_or(status.documents, |(files, _)| files);
            it.total = read.map(|(_, total)| total);
            it.chunks = status.chunks;
            it.vectors = vectors;
        });
        Ok(())
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

async fn put(writer: &mut dyn Writer, batch: Batch) -> Result<(), EngineError> {
    let Batch { put, remove } = batch;
    if !remove.is_empty() {
        writer.remove(remove).await?;
    }
    if !put.is_empty() {
        writer.put(put).await?;
    }
    Ok(())
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
