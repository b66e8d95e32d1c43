//! Runs the threads that use the database file: one writer and a few readers. Writes and reads have
//! separate queues.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};
use toolgate_contract::lock_mutex;

use super::schema::{self, SqliteFailure};
use super::servers::ServerRegistration;
use crate::jobs::store::JobStoreError;

/// Capacity of the queues of read and write requests. Further requests wait.
const QUEUE_MAX: usize = 256;
/// Approximate size of one transaction in bytes. The pages of the transaction fit into the
/// connection's cache, so that each page is written once.
pub(super) const BATCH_BYTES: usize = 512 << 10;
/// Number of threads that read from the job store.
const READER_COUNT: usize = 2;
/// Longest wait for unwritten requests when the job store is dropped.
const END_WAIT: Duration = Duration::from_secs(10);

/// Durability of a write when the writer thread returns its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WriteDurability {
    /// The write survives the end of this process, but perhaps not of the machine.
    Written,
    /// The write survives the end of the machine, such as a power failure.
    Durable,
}

/// Handle of the thread that writes to the job store.
pub(super) struct SqliteWriterThread {
    // Declared before `_end`, because the thread ends when its queue is dropped.
    queue: mpsc::Sender<SqliteWriteRequest>,
    _end: ThreadJoinGuard,
}

/// A request to write to the job store, in one transaction with other requests.
struct SqliteWriteRequest {
    durability: WriteDurability,
    /// Approximate size of the write in bytes.
    bytes: usize,
    work: Box<SqliteWriteFn>,
}

/// Function that writes to the job store, or receives the error of a failed transaction start.
type SqliteWriteFn =
    dyn FnOnce(Result<&WriterThreadState, JobStoreError>) -> SqliteWriteAttempt + Send;

/// Result of one write to the job store before the commit.
struct SqliteWriteAttempt {
    failure: Option<JobStoreError>,
    /// Function that returns the result of the write, given the outcome of the commit.
    answer: Box<dyn FnOnce(Result<(), JobStoreError>)>,
}

impl SqliteWriterThread {
    pub(super) fn start(mut session: WriterThreadState) -> io::Result<Self> {
        let (queue, mut requests) = mpsc::channel(QUEUE_MAX);
        let (end, alive) = ThreadJoinGuard::new();
        spawn_thread("jobs-write", move || {
            let mut waiting = Vec::new();
            while requests.blocking_recv_many(&mut waiting, QUEUE_MAX) > 0 {
                session.write_waiting(&mut waiting);
            }
            session.server.unregister();
            drop(session);
            drop(alive);
        })?;
        Ok(Self { queue, _end: end })
    }

    /// Runs and commits `work` atomically on the writer thread. `work` writes about `bytes` bytes.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        durability: WriteDurability,
        bytes: usize,
        work: impl FnOnce(&WriterThreadState) -> Result<T, SqliteFailure> + Send + 'static,
    ) -> impl Future<Output = Result<T, JobStoreError>> + Send {
        self.submit_then(durability, bytes, work, |done| done)
    }

    /// Runs and commits `work` like [`SqliteWriterThread::submit`], then runs `then` on the writer
    /// thread.
    pub(super) fn submit_then<T: Send + 'static, U: Send + 'static>(
        &self,
        durability: WriteDurability,
        bytes: usize,
        work: impl FnOnce(&WriterThreadState) -> Result<T, SqliteFailure> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> impl Future<Output = Result<U, JobStoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let work = Box::new(move |session: Result<&WriterThreadState, JobStoreError>| {
            let done = session.and_then(|session| session.run_atomically(work));
            let failed = done.as_ref().err().cloned();
            let answer = Box::new(move |committed: Result<(), JobStoreError>| {
                // The receiver may have been dropped.
                let _ = reply.send(committed.and(done).map(then));
            });
            SqliteWriteAttempt { failure: failed, answer }
        });
        async move {
            self.queue
                .send(SqliteWriteRequest { durability, bytes, work })
                .await
                .map_err(|_| ended_error())?;
            answer.await.unwrap_or_else(|_| Err(ended_error()))
        }
    }
}

/// State of the thread that writes to the job store.
pub(super) struct WriterThreadState {
    pub(super) db: Connection,
    pub(super) file: Arc<Path>,
    pub(super) server: ServerRegistration,
    /// Durability that is set on the database connection.
    pub(super) durability: Option<WriteDurability>,
}

impl WriterThreadState {
    /// Runs the waiting writes in as few transactions as their size allows.
    fn write_waiting(&mut self, waiting: &mut Vec<SqliteWriteRequest>) {
        while !waiting.is_empty() {
            let mut bytes = 0;
            let fits = |write: &&SqliteWriteRequest| {
                let fits = bytes < BATCH_BYTES;
                bytes += write.bytes;
                fits
            };
            let count = waiting.iter().take_while(fits).count();
            self.transact(waiting.drain(..count).collect());
        }
    }

    /// Runs the writes of `batch` in one transaction.
    fn transact(&mut self, batch: Vec<SqliteWriteRequest>) {
        let durability = batch.iter().map(|write| write.durability).max();
        let mut outcome = self.begin_transaction(durability.unwrap_or(WriteDurability::Written));
        let mut answers = Vec::with_capacity(batch.len());
        for write in batch {
            let tried = (write.work)(outcome.clone().map(|()| &*self));
            answers.push(tried.answer);
            // After a disk error SQLite rolls back the whole transaction.
            if outcome.is_ok() && self.db.is_autocommit() {
                outcome = Err(tried.failure.unwrap_or_else(ended_error));
            }
        }
        let outcome = outcome.and_then(|()| self.execute("COMMIT"));
        if !self.db.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        for answer in answers {
            answer(outcome.clone());
        }
    }

    fn begin_transaction(&mut self, durability: WriteDurability) -> Result<(), JobStoreError> {
        if self.durability != Some(durability) {
            let level = match durability {
                WriteDurability::Written => "NORMAL",
                WriteDurability::Durable => "FULL",
            };
            // Not cached: a pragma may act when it is prepared, not when it is run.
            let set = self.db.execute_batch(&format!("PRAGMA synchronous = {level}"));
            set.map_err(|err| SqliteFailure::from(err).to_store_error(&self.file))?;
            self.durability = Some(durability);
        }
        self.execute("BEGIN IMMEDIATE")
    }

    /// Runs `work` in a savepoint of the transaction, and rolls back if `work` fails.
    fn run_atomically<T>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, SqliteFailure>,
    ) -> Result<T, JobStoreError> {
        self.execute("SAVEPOINT one")?;
        let done = work(self).map_err(|err| err.to_store_error(&self.file));
        let undone = if done.is_ok() { Ok(()) } else { self.execute("ROLLBACK TO one") };
        if let Err(err) = undone.and_then(|()| self.execute("RELEASE one")) {
            // A half-done write must not be committed with the others.
            let _ = self.execute("ROLLBACK");
            return Err(done.err().unwrap_or(err));
        }
        done
    }

    fn execute(&self, sql: &str) -> Result<(), JobStoreError> {
        let ran = self.db.prepare_cached(sql).and_then(|mut statement| statement.execute(()));
        ran.map(drop).map_err(|err| SqliteFailure::from(err).to_store_error(&self.file))
    }
}

/// Handle of the threads that read from the job store.
pub(super) struct SqliteReaderThreads {
    // Declared before `_end`, because the threads end when their queue is dropped.
    queue: mpsc::Sender<SqliteReadRequest>,
    file: Arc<Path>,
    _end: ThreadJoinGuard,
}

/// Function that reads from the job store on a reader thread.
type SqliteReadRequest = Box<dyn FnOnce(Result<&Connection, JobStoreError>) + Send>;

impl SqliteReaderThreads {
    pub(super) fn start(file: &Arc<Path>) -> io::Result<Self> {
        let (queue, requests) = mpsc::channel::<SqliteReadRequest>(QUEUE_MAX);
        let requests = Arc::new(Mutex::new(requests));
        let (end, alive) = ThreadJoinGuard::new();
        for _ in 0..READER_COUNT {
            let file = file.clone();
            let requests = requests.clone();
            let alive = alive.clone();
            spawn_thread("jobs-read", move || {
                // Connected when needed, because a server without jobs does not read.
                let mut open = None;
                while let Some(read) = next_request(&requests) {
                    let db = match open.take() {
                        Some(db) => Ok(db),
                        None => schema::connect(&file).map_err(|err| err.to_store_error(&file)),
                    };
                    read(db.as_ref().map_err(JobStoreError::clone));
                    open = db.ok();
                }
                drop(open);
                drop(alive);
            })?;
        }
        Ok(Self { queue, file: file.clone(), _end: end })
    }

    /// Runs `work` on a reader thread, with the data of the last commit.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, SqliteFailure> + Send + 'static,
    ) -> impl Future<Output = Result<T, JobStoreError>> + Send {
        let (reply, answer) = oneshot::channel();
        let file = self.file.clone();
        let read: SqliteReadRequest = Box::new(move |db| {
            let done = db.and_then(|db| work(db).map_err(|err| err.to_store_error(&file)));
            // The receiver may have been dropped.
            let _ = reply.send(done);
        });
        async move {
            self.queue.send(read).await.map_err(|_| ended_error())?;
            answer.await.unwrap_or_else(|_| Err(ended_error()))
        }
    }
}

/// Returns the next read request for any idle thread, or `None` if the queue is closed.
fn next_request(requests: &Mutex<mpsc::Receiver<SqliteReadRequest>>) -> Option<SqliteReadRequest> {
    lock_mutex(requests).blocking_recv()
}

/// Guard whose drop waits until all threads of the job store have ended, but at most 10 s.
struct ThreadJoinGuard(Mutex<std::sync::mpsc::Receiver<Infallible>>);

impl ThreadJoinGuard {
    /// Creates the guard that waits for threads, and the sender that each thread must drop last.
    fn new() -> (Self, std::sync::mpsc::Sender<Infallible>) {
        let (alive, end) = std::sync::mpsc::channel();
        (Self(Mutex::new(end)), alive)
    }
}

impl Drop for ThreadJoinGuard {
    fn drop(&mut self) {
        let end = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        match end.recv_timeout(END_WAIT) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("the job store did not close within {} s", END_WAIT.as_secs());
            }
            Err(RecvTimeoutError::Disconnected) => {}
        }
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.into()).stack_size(1 << 20);
    builder.spawn(work).map(drop)
}

fn ended_error() -> JobStoreError {
    JobStoreError("it is closed".to_owned())
}
