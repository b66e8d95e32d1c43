//! Stores jobs in one SQLite file, in a folder that several servers may share. It needs no other
//! service.
//!
//! One thread writes. Requests that arrive during a commit share the next one, so a thousand jobs
//! cost only a few disk waits. Other threads read the last commit and never wait for the writer.
#![allow(
    clippy::disallowed_methods,
    reason = "the jobs' folder is the host's own, outside every root"
)]

mod threads;
mod writes;
mod reads;
mod standing;
mod servers;
mod schema;

use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use toolgate_contract::{BoxFuture, Caller, Given, Job, JobEvent, JobId, JobPage};

use super::store::{Adopted, Begun, End, May, NewJob, Said, Store, StoreError};
use servers::Server;
use threads::{BATCH_BYTES, Durability, Readers, Session, Writer};

/// Name of the database file.
const FILE: &str = "jobs.db";
/// Number of jobs removed in one step, so that other requests come between.
const FORGET_STEP: usize = 50;

/// Jobs in a folder on a local disk.
///
/// Dropping it writes all accepted requests and leaves the folder. The drop waits for that for 10 s
/// at most.
pub struct SqliteStore {
    // Dropped in this order: the last connection checkpoints the file, and it must be able to
    // write.
    readers: Readers,
    writer: Writer,
}

impl SqliteStore {
    /// Opens the jobs in `folder`, and creates it if needed.
    ///
    /// `mark` identifies the programs of this server. A server that adopts its jobs after a crash
    /// receives it.
    pub fn open(folder: &Path, mark: u64) -> Result<Self, StoreError> {
        let server = Server::enter(folder, mark).map_err(|err| {
            StoreError(format!("its folder `{}` cannot be written: {err}", folder.display()))
        })?;
        Self::over(server, &folder.join(FILE).into())
    }

    /// Returns true if there are or were jobs in `folder`.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    fn over(server: Server, file: &Arc<Path>) -> Result<Self, StoreError> {
        let db = match schema::open(file) {
            Ok(db) => db,
            Err(err) => {
                server.leave();
                return Err(err.about(file));
            }
        };
        let no_thread = |err: io::Error| StoreError(format!("no thread can be started: {err}"));
        let readers = Readers::start(file).map_err(no_thread)?;
        let session = Session { db, file: file.clone(), server, durability: None };
        let writer = Writer::start(session).map_err(no_thread)?;
        Ok(Self { readers, writer })
    }
}

impl SqliteStore {
    /// Removes data of forgotten jobs and returns free space to the disk.
    async fn tidy(&self) -> Result<(), StoreError> {
        while self.writer.ask(Durability::Written, BATCH_BYTES, writes::sweep).await? {}
        while self.writer.ask(Durability::Written, BATCH_BYTES, writes::shrink).await? {}
        Ok(())
    }
}

impl Store for SqliteStore {
    fn accept(&self, job: NewJob) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let input = job.input.to_string();
            let bytes = input.len();
            let work = move |session: &Session| writes::accept(session, &job, &input);
            self.writer.ask(Durability::Durable, bytes, work).await
        })
    }

    fn begin(&self, id: JobId, at: Timestamp) -> BoxFuture<'_, Result<Option<Begun>, StoreError>> {
        let work = move |session: &Session| writes::begin(session, id, at);
        Box::pin(self.writer.ask(Durability::Durable, 0, work))
    }

    fn requeue(&self, id: JobId, at: Timestamp) -> BoxFuture<'_, Result<(), StoreError>> {
        let work = move |session: &Session| writes::requeue(session, id, at);
        Box::pin(self.writer.ask(Durability::Durable, 0, work))
    }

    fn append(&self, id: JobId, what: Vec<Said>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let lines = writes::Lines::of(&what).map_err(|err| self.readers.told(&err))?;
            let bytes = lines.bytes();
            let work = move |session: &Session| writes::append(session, id, &lines);
            self.writer.ask(Durability::Written, bytes, work).await
        })
    }

    fn tell(&self, id: JobId, given: Given) -> BoxFuture<'_, Result<(), StoreError>> {
        let work = move |session: &Session| writes::tell(session, id, &given);
        Box::pin(self.writer.ask(Durability::Durable, 0, work))
    }

    fn finish(&self, id: JobId, end: End) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            let ending = writes::Ending::of(end).map_err(|err| self.readers.told(&err))?;
            let bytes = ending.bytes();
            let work = move |session: &Session| writes::finish(session, id, &ending);
            self.writer.ask(Durability::Durable, bytes, work).await
        })
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        Box::pin(self.readers.ask(move |db| reads::job(db, id)))
    }

    fn events(
        &self,
        id: JobId,
        after: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobEvent>, StoreError>> {
        Box::pin(self.readers.ask(move |db| reads::events(db, id, after, bytes_max)))
    }

    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> BoxFuture<'_, Result<JobPage, StoreError>> {
        Box::pin(self.readers.ask(move |db| reads::list(db, caller.as_ref(), after, size)))
    }

    fn adopt(&self, may: May) -> BoxFuture<'_, Result<Adopted, StoreError>> {
        Box::pin(async move {
            let work = move |session: &Session| writes::adopt(session, &may);
            let writes::Taken { jobs, gone } =
                self.writer.ask(Durability::Durable, 0, work).await?;
            let marks = gone.iter().filter_map(|gone| gone.mark).collect();
            let bury = Box::new(move || gone.into_iter().for_each(servers::Gone::bury));
            Ok(Adopted { marks, jobs, bury })
        })
    }

    fn forget(
        &self,
        now: Timestamp,
        ended_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        Box::pin(async move {
            let ids = self.readers.ask(move |db| reads::due(db, now, ended_max)).await?;
            let mut forgotten = Vec::with_capacity(ids.len());
            for step in ids.chunks(FORGET_STEP).map(<[JobId]>::to_vec) {
                let work = move |session: &Session| writes::forget(session, &step);
                match self.writer.ask(Durability::Written, BATCH_BYTES, work).await {
                    Ok(step) => forgotten.extend(step),
                    Err(err) if forgotten.is_empty() => return Err(err),
                    // The caller must learn of the jobs removed so far.
                    Err(_) => return Ok(forgotten),
                }
            }
            if let Err(err) = self.tidy().await {
                tracing::warn!("{err}; what forgotten jobs left there is removed later");
            }
            Ok(forgotten)
        })
    }
}

#[cfg(test)]
mod tests;
