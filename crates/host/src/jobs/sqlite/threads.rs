//! Runs the threads that use the database file: one writer and a few readers, each with a queue.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::schema::{self, Trouble};
use super::servers::Server;
use crate::jobs::store::StoreError;

/// Capacity of each queue. Further requests wait.
const QUEUE: usize = 256;
/// Approximate size of one transaction in bytes. It fits in the connection's cache, so each page is
/// written once.
pub(super) const BATCH_BYTES: usize = 512 << 10;
/// Number of reader threads.
const READERS: usize = 2;
/// Longest wait for unwritten requests when the store is dropped.
const END_MAX: Duration = Duration::from_secs(10);

/// Durability of a write when it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Durability {
    /// The write survives the end of this process.
    Written,
    /// The write survives the end of the machine.
    Durable,
}

/// Handle of the writer thread.
pub(super) struct Writer {
    // Declared before `_end`, because the thread ends when its queue is dropped.
    queue: mpsc::Sender<Write>,
    _end: End,
}

/// A write request, which shares a transaction with others.
struct Write {
    durability: Durability,
    /// Approximate size in bytes.
    bytes: usize,
    work: Box<Work>,
}

/// Function that does the write, or receives the error of a failed transaction start.
type Work = dyn FnOnce(Result<&Session, StoreError>) -> Tried + Send;

/// Result of one write before the commit.
struct Tried {
    failed: Option<StoreError>,
    /// Function that sends the answer, given the outcome of the commit.
    answer: Box<dyn FnOnce(Result<(), StoreError>)>,
}

impl Writer {
    pub(super) fn start(mut session: Session) -> io::Result<Self> {
        let (queue, mut asked) = mpsc::channel(QUEUE);
        let (end, alive) = End::new();
        thread("jobs-write", move || {
            let mut waiting = Vec::new();
            while asked.blocking_recv_many(&mut waiting, QUEUE) > 0 {
                session.write(&mut waiting);
            }
            session.server.leave();
            drop(session);
            drop(alive);
        })?;
        Ok(Self { queue, _end: end })
    }

    /// Runs `work`, which writes about `bytes`, atomically and commits it.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        durability: Durability,
        bytes: usize,
        work: impl FnOnce(&Session) -> Result<T, Trouble> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        self.ask_then(durability, bytes, work, |done| done)
    }

    /// Runs and commits `work` like [`Writer::ask`], then runs `then` on the writer thread.
    pub(super) fn ask_then<T: Send + 'static, U: Send + 'static>(
        &self,
        durability: Durability,
        bytes: usize,
        work: impl FnOnce(&Session) -> Result<T, Trouble> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> impl Future<Output = Result<U, StoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let work = Box::new(move |session: Result<&Session, StoreError>| {
            let done = session.and_then(|session| session.whole(work));
            let failed = done.as_ref().err().cloned();
            let answer = Box::new(move |committed: Result<(), StoreError>| {
                // The receiver may have been dropped.
                let _ = reply.send(committed.and(done).map(then));
            });
            Tried { failed, answer }
        });
        async move {
            self.queue.send(Write { durability, bytes, work }).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        }
    }
}

/// State of the writer thread.
pub(super) struct Session {
    pub(super) db: Connection,
    pub(super) file: Arc<Path>,
    pub(super) server: Server,
    /// Current setting of the connection.
    pub(super) durability: Option<Durability>,
}

impl Session {
    /// Runs the waiting writes in as few transactions as their size allows.
    fn write(&mut self, waiting: &mut Vec<Write>) {
        while !waiting.is_empty() {
            let mut bytes = 0;
            let fits = |write: &&Write| {
                let fits = bytes < BATCH_BYTES;
                bytes += write.bytes;
                fits
            };
            let count = waiting.iter().take_while(fits).count();
            self.transact(waiting.drain(..count).collect());
        }
    }

    /// Runs `batch` in one transaction.
    fn transact(&mut self, batch: Vec<Write>) {
        let durability = batch.iter().map(|write| write.durability).max();
        let mut outcome = self.start(durability.unwrap_or(Durability::Written));
        let mut answers = Vec::with_capacity(batch.len());
        for write in batch {
            let tried = (write.work)(outcome.clone().map(|()| &*self));
            answers.push(tried.answer);
            // After a disk error SQLite rolls back the whole transaction.
            if outcome.is_ok() && self.db.is_autocommit() {
                outcome = Err(tried.failed.unwrap_or_else(ended));
            }
        }
        let outcome = outcome.and_then(|()| self.run("COMMIT"));
        if !self.db.is_autocommit() {
            let _ = self.run("ROLLBACK");
        }
        for answer in answers {
            answer(outcome.clone());
        }
    }

    fn start(&mut self, durability: Durability) -> Result<(), StoreError> {
        if self.durability != Some(durability) {
            let level = match durability {
                Durability::Written => "NORMAL",
                Durability::Durable => "FULL",
            };
            // Not cached: a pragma may act when it is prepared, not when it is run.
            let set = self.db.execute_batch(&format!("PRAGMA synchronous = {level}"));
            set.map_err(|err| Trouble::from(err).about(&self.file))?;
            self.durability = Some(durability);
        }
        self.run("BEGIN IMMEDIATE")
    }

    /// Runs `work` in a savepoint, and rolls back if it fails.
    fn whole<T>(&self, work: impl FnOnce(&Self) -> Result<T, Trouble>) -> Result<T, StoreError> {
        self.run("SAVEPOINT one")?;
        let done = work(self).map_err(|err| err.about(&self.file));
        let undone = if done.is_ok() { Ok(()) } else { self.run("ROLLBACK TO one") };
        if let Err(err) = undone.and_then(|()| self.run("RELEASE one")) {
            // A half-done write must not be committed with the others.
            let _ = self.run("ROLLBACK");
            return Err(done.err().unwrap_or(err));
        }
        done
    }

    fn run(&self, sql: &str) -> Result<(), StoreError> {
        let ran = self.db.prepare_cached(sql).and_then(|mut statement| statement.execute(()));
        ran.map(drop).map_err(|err| Trouble::from(err).about(&self.file))
    }
}

/// Handle of the reader threads.
pub(super) struct Readers {
    // Declared before `_end`, because the threads end when their queue is dropped.
    queue: mpsc::Sender<Read>,
    file: Arc<Path>,
    _end: End,
}

/// A read request.
type Read = Box<dyn FnOnce(Result<&Connection, StoreError>) + Send>;

impl Readers {
    pub(super) fn start(file: &Arc<Path>) -> io::Result<Self> {
        let (queue, asked) = mpsc::channel::<Read>(QUEUE);
        let asked = Arc::new(Mutex::new(asked));
        let (end, alive) = End::new();
        for _ in 0..READERS {
            let file = file.clone();
            let asked = asked.clone();
            let alive = alive.clone();
            thread("jobs-read", move || {
                // Connected when needed, because servers with one caller hardly ever read.
                let mut open = None;
                while let Some(read) = next(&asked) {
                    let db = match open.take() {
                        Some(db) => Ok(db),
                        None => schema::connect(&file).map_err(|err| err.about(&file)),
                    };
                    read(db.as_ref().map_err(StoreError::clone));
                    open = db.ok();
                }
                drop(open);
                drop(alive);
            })?;
        }
        Ok(Self { queue, file: file.clone(), _end: end })
    }

    /// Returns `trouble` with the file name, in words for a person.
    pub(super) fn told(&self, trouble: &Trouble) -> StoreError {
        trouble.about(&self.file)
    }

    /// Runs `work` on the last commit.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let file = self.file.clone();
        let read: Read = Box::new(move |db| {
            let done = db.and_then(|db| work(db).map_err(|err| err.about(&file)));
            // The receiver may have been dropped.
            let _ = reply.send(done);
        });
        async move {
            self.queue.send(read).await.map_err(|_| ended())?;
            answer.await.unwrap_or_else(|_| Err(ended()))
        }
    }
}

/// Returns the next request for any idle reader, or `None` if the queue is closed.
fn next(asked: &Mutex<mpsc::Receiver<Read>>) -> Option<Read> {
    asked.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv()
}

/// Waits in its drop until all threads have ended, for 10 s at most.
struct End(Mutex<std::sync::mpsc::Receiver<Infallible>>);

impl End {
    /// Creates the guard, and the sender that each thread must drop last.
    fn new() -> (Self, std::sync::mpsc::Sender<Infallible>) {
        let (alive, end) = std::sync::mpsc::channel();
        (Self(Mutex::new(end)), alive)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let end = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        match end.recv_timeout(END_MAX) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("the job store did not end within {} s", END_MAX.as_secs());
            }
            Err(RecvTimeoutError::Disconnected) => {}
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.into()).stack_size(1 << 20);
    builder.spawn(work).map(drop)
}

fn ended() -> StoreError {
    StoreError("it has ended".to_owned())
}
