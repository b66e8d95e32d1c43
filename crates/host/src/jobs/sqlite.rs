//! Stores jobs in one SQLite file, in a folder that several servers may share.
//!
//! One thread writes. Requests that arrive during a commit share the next commit, so that a
//! thousand jobs need only a few waits for the disk. Other threads read the last commit and never
//! wait for the writer.
#![allow(
    clippy::disallowed_methods,
    reason = "the jobs' folder is the host's own, outside every root"
)]

mod threads;
mod writes;
mod reads;
mod servers;
mod schema;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use toolgate_contract::{
    BoxFuture, Caller, ClientAnswers, ClientQuestions, JobEvent, JobId, JobPage, JobSnapshot,
};

use super::store::{
    AdoptableJob, JobClaim, JobEnd, JobStore, JobStoreError, JobStoreFuture, NewJob,
    RequestToJobOwner, StartedJob, TakenOverJobs, TakeoverFilter, TimedJobEvent,
};
use super::stored_form::{JobEventRows, StoredJobEnd};
use crate::limits::{RateBucket, RateBucketGrant};
use servers::{ServerRegistration, SqliteServerId};
use threads::{
    BATCH_BYTES, SqliteReaderThreads, SqliteWriterThread, WriteDurability, WriterThreadState,
};

/// Name of the job store's database file.
const FILE_NAME: &str = "jobs.db";
/// Interval at which this server looks for requests of other servers.
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);
/// Number of jobs that are removed in one step. Other requests run between two steps.
const FORGET_STEP: usize = 50;

/// A job store in a folder on a local disk.
///
/// Dropping the store writes all accepted requests and unregisters this server. The drop waits at
/// most 10 s for that.
pub struct SqliteStore {
    // Dropped in this order: the last connection checkpoints the file, and it must be able to
    // write.
    readers: SqliteReaderThreads,
    writer: SqliteWriterThread,
    /// Id of this server in the job store, which the rows of its jobs contain.
    owner: SqliteServerId,
}

impl SqliteStore {
    /// Opens the job store in `folder`, and creates the store if needed.
    ///
    /// `mark` identifies the programs of this server. After a crash, the server that takes over
    /// this server's jobs receives `mark`.
    pub fn open(folder: &Path, mark: u64) -> Result<Self, JobStoreError> {
        let server = ServerRegistration::register(folder, mark).map_err(|err| {
            JobStoreError(format!("its folder `{}` cannot be written: {err}", folder.display()))
        })?;
        Self::with_server(server, &folder.join(FILE_NAME).into())
    }

    /// Returns true if there are or were jobs in `folder`.
    pub fn exists_in(folder: &Path) -> bool {
        folder.join(FILE_NAME).exists()
    }

    fn with_server(server: ServerRegistration, file: &Arc<Path>) -> Result<Self, JobStoreError> {
        let db = match schema::open(file) {
            Ok(db) => db,
            Err(err) => {
                server.unregister();
                return Err(err.to_store_error(file));
            }
        };
        let no_thread =
            |err: io::Error| JobStoreError(format!("no thread could be started: {err}"));
        let readers = SqliteReaderThreads::start(file).map_err(no_thread)?;
        let owner = server.owner;
        let session = WriterThreadState { db, file: file.clone(), server, durability: None };
        let writer = SqliteWriterThread::start(session).map_err(no_thread)?;
        Ok(Self { readers, writer, owner })
    }
}

impl SqliteStore {
    /// Removes the data of removed jobs, and returns free space to the disk.
    async fn reclaim_space(&self) -> Result<(), JobStoreError> {
        while self.writer.submit(WriteDurability::Written, BATCH_BYTES, writes::sweep).await? {}
        while self.writer.submit(WriteDurability::Written, BATCH_BYTES, writes::shrink).await? {}
        Ok(())
    }
}

impl JobStore for SqliteStore {
    fn accept(&self, job: NewJob) -> JobStoreFuture<'_, ()> {
        Box::pin(async move {
            let input = job.input.to_string();
            let bytes = input.len();
            let work = move |session: &WriterThreadState| writes::accept(session, &job, &input);
            self.writer.submit(WriteDurability::Durable, bytes, work).await
        })
    }

    fn begin(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, Option<StartedJob>> {
        let work = move |session: &WriterThreadState| writes::begin(session, id, at);
        Box::pin(self.writer.submit(WriteDurability::Durable, 0, work))
    }

    fn requeue(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, ()> {
        let work = move |session: &WriterThreadState| writes::requeue(session, id, at);
        Box::pin(self.writer.submit(WriteDurability::Durable, 0, work))
    }

    fn append_events(&self, id: JobId, events: Vec<TimedJobEvent>) -> JobStoreFuture<'_, u64> {
        Box::pin(async move {
            let rows = JobEventRows::from_events(&events)?;
            let bytes = rows.bytes();
            let work = move |session: &WriterThreadState| writes::append(session, id, &rows);
            self.writer.submit(WriteDurability::Written, bytes, work).await
        })
    }

    fn set_questions(&self, id: JobId, open: ClientQuestions) -> JobStoreFuture<'_, ()> {
        let work = move |session: &WriterThreadState| writes::set_questions(session, id, &open);
        Box::pin(self.writer.submit(WriteDurability::Written, 0, work))
    }

    fn add_answers(&self, id: JobId, given: ClientAnswers) -> JobStoreFuture<'_, ()> {
        let work = move |session: &WriterThreadState| writes::add_answers(session, id, &given);
        Box::pin(self.writer.submit(WriteDurability::Durable, 0, work))
    }

    fn request_cancel(&self, id: JobId) -> JobStoreFuture<'_, ()> {
        let work = move |session: &WriterThreadState| writes::request_cancel(session, id);
        Box::pin(self.writer.submit(WriteDurability::Durable, 0, work))
    }

    fn wait_for_requests(&self) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(REQUEST_INTERVAL))
    }

    fn wait_for_change(&self, _id: JobId, at_most: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(at_most))
    }

    fn is_owner_certain(&self) -> bool {
        // A lock of the kernel shows whether this server lives.
        true
    }

    fn take_requests(&self) -> JobStoreFuture<'_, Vec<RequestToJobOwner>> {
        Box::pin(async move {
            let owner = self.owner;
            let found = self.readers.submit(move |db| reads::requests(db, owner)).await?;
            let is_answer =
                |request: &RequestToJobOwner| matches!(request, RequestToJobOwner::Answer(..));
            let answers: Vec<i64> = found
                .iter()
                .filter(|(_, request)| is_answer(request))
                .map(|(number, _)| *number)
                .collect();
            if !answers.is_empty() {
                let work =
                    move |session: &WriterThreadState| writes::remove_requests(session, &answers);
                self.writer.submit(WriteDurability::Written, 0, work).await?;
            }
            Ok(found.into_iter().map(|(_, request)| request).collect())
        })
    }

    fn finish(&self, id: JobId, end: JobEnd) -> JobStoreFuture<'_, Option<u64>> {
        Box::pin(async move {
            let ending = StoredJobEnd::from_end(end)?;
            let bytes = ending.bytes();
            let work = move |session: &WriterThreadState| writes::finish(session, id, &ending);
            self.writer.submit(WriteDurability::Durable, bytes, work).await
        })
    }

    fn job(&self, id: JobId) -> JobStoreFuture<'_, Option<JobSnapshot>> {
        Box::pin(self.readers.submit(move |db| reads::job(db, id)))
    }

    fn events(&self, id: JobId, after: u64, bytes_max: usize) -> JobStoreFuture<'_, Vec<JobEvent>> {
        Box::pin(self.readers.submit(move |db| reads::events(db, id, after, bytes_max)))
    }

    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> JobStoreFuture<'_, JobPage> {
        Box::pin(self.readers.submit(move |db| reads::list(db, caller.as_ref(), after, size)))
    }

    fn adopt(&self, filter: TakeoverFilter) -> JobStoreFuture<'_, TakenOverJobs> {
        Box::pin(async move {
            let work = move |session: &WriterThreadState| writes::adopt(session, &filter);
            let writes::SqliteJobTakeover { jobs, servers: dead_servers } =
                self.writer.submit(WriteDurability::Durable, 0, work).await?;
            let marks = dead_servers.iter().filter_map(|server| server.mark).collect();
            let forget_servers = Box::new(move || {
                dead_servers.into_iter().for_each(servers::DeadServerLock::remove_file);
            });
            Ok(TakenOverJobs { marks, jobs, forget_servers })
        })
    }

    fn claim(&self, _claim: JobClaim) -> JobStoreFuture<'_, Vec<AdoptableJob>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn offer_jobs(&self) {}

    fn wait_for_offers(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn is_draining(&self) -> bool {
        false
    }

    fn remove_expired(&self, now: Timestamp, ended_max: usize) -> JobStoreFuture<'_, Vec<JobId>> {
        Box::pin(async move {
            let ids =
                self.readers.submit(move |db| reads::jobs_to_remove(db, now, ended_max)).await?;
            let mut forgotten = Vec::with_capacity(ids.len());
            for step in ids.chunks(FORGET_STEP).map(<[JobId]>::to_vec) {
                let work = move |session: &WriterThreadState| writes::remove_jobs(session, &step);
                match self.writer.submit(WriteDurability::Written, BATCH_BYTES, work).await {
                    Ok(step) => forgotten.extend(step),
                    Err(err) if forgotten.is_empty() => return Err(err),
                    // The caller must learn of the jobs removed so far.
                    Err(_) => return Ok(forgotten),
                }
            }
            if let Err(err) = self.reclaim_space().await {
                tracing::warn!("{err}; data of removed jobs is deleted later");
            }
            Ok(forgotten)
        })
    }

    fn use_confirmation(
        &self,
        code: [u8; 32],
        now: Timestamp,
        keep: Duration,
    ) -> JobStoreFuture<'_, bool> {
        let work =
            move |session: &WriterThreadState| writes::use_confirmation(session, &code, now, keep);
        Box::pin(self.writer.submit(WriteDurability::Durable, 0, work))
    }

    fn take_calls(&self, _bucket: RateBucket) -> JobStoreFuture<'_, RateBucketGrant> {
        let grant = RateBucketGrant { calls: 1, retry_after: Duration::ZERO, servers: 1 };
        Box::pin(std::future::ready(Ok(grant)))
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        // Dropping the store unregisters this server.
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests;
