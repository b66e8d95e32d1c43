//! Stores jobs in a PostgreSQL database, which servers on several machines share.
//!
//! A job belongs to the server that accepted it. The server renews a lease; if it stops or does not
//! renew it in time, another server takes over its jobs. Each write of a run names the owner of the
//! job, so a server that was overtaken writes nothing any more.

mod schema;
mod lease;
mod changes;
mod reads;
mod writes;
mod takeover;
mod report;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use toolgate_contract::{
    BoxFuture, Caller, ClientAnswers, ClientQuestions, JobEvent, JobId, JobPage, JobSnapshot,
};
use toolgate_postgres::{
    ConnectionPool, PostgresAddress, PostgresError, PostgresFailure, SharedPool,
};

use super::store::{
    AdoptFilter, AdoptedJobs, JobEnd, JobStore, JobStoreError, NewJob, OwnerRequest, StartedJob,
    TimedEvent,
};
use super::stored_form::{EventRows, StoredEnd};
use changes::ChangeChannel;
use lease::{RenewalTask, ServerLease, ServerRow};
pub use report::{FleetDurability, FleetReport, FleetServer};

/// Largest number of connections of the pool. One more connection listens to notifications.
const CONNECTIONS_MAX: usize = 7;
/// Time limit of a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tries to accept a job, as long as the outcome is unknown.
const ACCEPT_TRIES_MAX: u32 = 3;
/// Number of jobs that are removed in one statement.
const REMOVE_STEP: usize = 50;

/// Settings of a job store in PostgreSQL.
#[derive(Debug, Clone)]
pub struct PostgresStoreSettings {
    /// Address of the database.
    pub address: PostgresAddress,
    /// Name of the workspace. Servers share the jobs of the workspaces with the same name.
    pub workspace: String,
    /// Length of a lease. If a server does not renew it in time, others take over its jobs that may
    /// run again.
    pub lease: Duration,
    /// Time after the end of a lease from which jobs that may not run twice count as interrupted.
    pub lost_after: Duration,
}

/// A job store in a PostgreSQL database.
///
/// A write whose connection breaks has an unknown outcome. The store then looks at the tables before
/// it repeats the write.
pub struct PostgresStore {
    pool: SharedPool,
    lease: Arc<ServerLease>,
    _renewals: RenewalTask,
    changes: ChangeChannel,
    runs: Mutex<KnownRuns>,
}

/// What this server knows about its jobs, apart from the tables.
#[derive(Default)]
struct KnownRuns {
    /// Jobs that were begun and have not ended here.
    begun: HashSet<JobId>,
    /// Jobs whose begin had an unknown outcome.
    uncertain: HashSet<JobId>,
    /// Jobs whose acceptance had an unknown outcome and was reported as failed.
    unacknowledged: HashSet<JobId>,
}

impl From<JobStoreError> for PostgresError {
    fn from(err: JobStoreError) -> Self {
        Self::Rejected(err.0)
    }
}

fn store_error(failure: PostgresFailure) -> JobStoreError {
    JobStoreError(failure.to_string())
}

/// A failed operation, and whether the database may have committed it.
struct FailedWrite {
    error: JobStoreError,
    has_unknown_outcome: bool,
}

impl From<FailedWrite> for JobStoreError {
    fn from(failed: FailedWrite) -> Self {
        failed.error
    }
}

/// Runs `$work` with the client `$client` of a connection of the pool. The error is a
/// [`FailedWrite`].
macro_rules! on_connection {
    ($self:ident, |$client:ident| $work:expr) => {
        match $self.pool.acquire().await {
            Ok(mut lent) => {
                let $client = &mut lent.connection.client;
                let result = $self.pool.with_timeout($self.pool.query_timeout, $work).await;
                let has_unknown_outcome =
                    result.as_ref().is_err_and(PostgresError::has_unknown_outcome);
                lent.give_back(result)
                    .map_err(|err| FailedWrite { error: store_error(err), has_unknown_outcome })
            }
            Err(err) => Err(FailedWrite { error: store_error(err), has_unknown_outcome: false }),
        }
    };
}

impl PostgresStore {
    /// Connects to the database, creates or migrates the tables, and registers this server.
    ///
    /// `mark` identifies the programs of this server. A server on the same machine that adopts its
    /// jobs after a crash receives it.
    ///
    /// # Errors
    /// The database is unavailable, refuses this user, or was set up by a newer toolgate.
    pub async fn open(settings: PostgresStoreSettings, mark: u64) -> Result<Self, JobStoreError> {
        let PostgresStoreSettings { address, workspace, lease, lost_after } = settings;
        let pool = Arc::new(ConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT));
        let mut lent = pool.acquire().await.map_err(store_error)?;
        let migration = schema::migrate(&mut lent.connection.client);
        let migrated = pool.with_timeout(MIGRATION_TIMEOUT, migration).await;
        lent.give_back(migrated).map_err(store_error)?;
        let random = getrandom::u64().map_err(|err| JobStoreError(err.to_string()))? >> 1;
        let server = ServerRow {
            id: random.cast_signed(),
            workspace: workspace.replace('\0', ""),
            machine: machine_boot(),
            mark,
        };
        let lease = ServerLease::new(server, lease, lost_after);
        lease.renew(&pool).await.map_err(store_error)?;
        let renewals = RenewalTask::start(lease.clone(), pool.clone());
        let changes = ChangeChannel::start(&pool, lease.server.id);
        Ok(Self { pool, lease, _renewals: renewals, changes, runs: Mutex::default() })
    }

    fn lock_runs(&self) -> MutexGuard<'_, KnownRuns> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn accept_job(&self, job: &NewJob) -> Result<(), JobStoreError> {
        let row = writes::NewJobRow::from_job(job)?;
        let server = &self.lease.server;
        let mut tries = 0;
        loop {
            tries += 1;
            let accepted: Result<bool, FailedWrite> =
                on_connection!(self, |client| writes::accept(client, server, &row));
            match accepted {
                Ok(true) => {
                    self.lock_runs().unacknowledged.remove(&job.id);
                    return Ok(());
                }
                Ok(false) if tries > 1 => {
                    // An earlier try may have stored it.
                    let is_own: Result<bool, FailedWrite> =
                        on_connection!(self, |client| writes::is_owner(client, server.id, job.id));
                    return if is_own? { Ok(()) } else { Err(duplicate_error(job.id)) };
                }
                Ok(false) => return Err(duplicate_error(job.id)),
                Err(failed) if failed.has_unknown_outcome && tries < ACCEPT_TRIES_MAX => {}
                Err(failed) => {
                    // The caller learns that the job was refused, so it must not run.
                    if tries > 1 || failed.has_unknown_outcome {
                        self.lock_runs().unacknowledged.insert(job.id);
                    }
                    return Err(failed.error);
                }
            }
        }
    }

    async fn begin_job(
        &self,
        id: JobId,
        at: Timestamp,
    ) -> Result<Option<StartedJob>, JobStoreError> {
        let owner = self.lease.server.id;
        let may_have_begun = self.lock_runs().uncertain.contains(&id);
        let begun: Result<Option<StartedJob>, FailedWrite> =
            on_connection!(self, |client| writes::begin(client, owner, id, at, may_have_begun));
        let mut runs = self.lock_runs();
        match &begun {
            Ok(started) => {
                runs.uncertain.remove(&id);
                if started.is_some() {
                    runs.begun.insert(id);
                }
            }
            Err(failed) if failed.has_unknown_outcome => {
                runs.uncertain.insert(id);
            }
            Err(_) => {}
        }
        drop(runs);
        if begun.is_ok() {
            self.changes.notify_job(id);
        }
        Ok(begun?)
    }

    async fn take_waiting_requests(&self) -> Result<Vec<OwnerRequest>, JobStoreError> {
        let owner = self.lease.server.id;
        let running: Vec<JobId> = self.lock_runs().begun.iter().copied().collect();
        let found: Result<(Vec<(i64, OwnerRequest)>, Vec<JobId>), FailedWrite> =
            on_connection!(self, |client| async {
                let found = reads::requests(client, owner).await?;
                let is_answer = |(_, request): &&(i64, OwnerRequest)| {
                    matches!(request, OwnerRequest::Answer(..))
                };
                let answers: Vec<i64> =
                    found.iter().filter(is_answer).map(|(number, _)| *number).collect();
                if !answers.is_empty() {
                    writes::remove_requests(client, &answers).await?;
                }
                let taken = match running.is_empty() {
                    true => Vec::new(),
                    false => reads::jobs_taken_over(client, owner, &running).await?,
                };
                Ok((found, taken))
            });
        let (found, taken) = found?;
        let mut runs = self.lock_runs();
        for id in &taken {
            runs.begun.remove(id);
        }
        drop(runs);
        let stops = taken.into_iter().map(OwnerRequest::Stop);
        Ok(found.into_iter().map(|(_, request)| request).chain(stops).collect())
    }

    async fn adopt_jobs(&self, filter: AdoptFilter) -> Result<AdoptedJobs, JobStoreError> {
        let unacknowledged: Vec<JobId> = self.lock_runs().unacknowledged.iter().copied().collect();
        let taken: Result<takeover::Takeover, FailedWrite> =
            on_connection!(self, |client| takeover::adopt(
                client,
                &self.lease,
                &filter,
                &unacknowledged
            ));
        let takeover::Takeover { jobs, servers } = taken?;
        let mut runs = self.lock_runs();
        for id in &unacknowledged {
            runs.unacknowledged.remove(id);
        }
        // A job that was taken over is begun or ended anew.
        for job in &jobs {
            runs.begun.remove(&job.id);
            runs.uncertain.remove(&job.id);
        }
        drop(runs);
        let marks = servers.iter().filter_map(|server| server.mark).collect();
        let dead = servers.into_iter().map(|server| server.id).collect();
        let lease = self.lease.clone();
        Ok(AdoptedJobs { marks, jobs, forget_servers: Box::new(move || lease.forget(dead)) })
    }

    async fn remove_old_jobs(
        &self,
        now: Timestamp,
        ended_max: usize,
    ) -> Result<Vec<JobId>, JobStoreError> {
        let workspace = self.lease.server.workspace.as_str();
        let due: Result<Vec<JobId>, FailedWrite> = on_connection!(self, |client| async {
            writes::remove_confirmations(client, workspace, now).await?;
            reads::jobs_to_remove(client, workspace, now, ended_max).await
        });
        let mut removed = Vec::new();
        for step in due?.chunks(REMOVE_STEP) {
            let step: Result<Vec<JobId>, FailedWrite> =
                on_connection!(self, |client| writes::remove_jobs(client, step));
            match step {
                Ok(step) => removed.extend(step),
                Err(failed) if removed.is_empty() => return Err(failed.error),
                // The caller must learn of the jobs removed so far.
                Err(_) => return Ok(removed),
            }
        }
        Ok(removed)
    }
}

impl JobStore for PostgresStore {
    fn accept(&self, job: NewJob) -> BoxFuture<'_, Result<(), JobStoreError>> {
        Box::pin(async move { self.accept_job(&job).await })
    }

    fn begin(
        &self,
        id: JobId,
        at: Timestamp,
    ) -> BoxFuture<'_, Result<Option<StartedJob>, JobStoreError>> {
        Box::pin(self.begin_job(id, at))
    }

    fn requeue(&self, id: JobId, at: Timestamp) -> BoxFuture<'_, Result<(), JobStoreError>> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            // The run has ended, whatever the outcome of the write is.
            self.lock_runs().begun.remove(&id);
            on_connection!(self, |client| writes::requeue(client, owner, id, at))?;
            self.changes.notify_job(id);
            Ok(())
        })
    }

    fn append_events(
        &self,
        id: JobId,
        events: Vec<TimedEvent>,
    ) -> BoxFuture<'_, Result<u64, JobStoreError>> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            let rows = EventRows::from_events(&events)?;
            let first = on_connection!(self, |client| writes::append(client, owner, id, &rows))?;
            self.changes.notify_job(id);
            first.ok_or_else(|| {
                JobStoreError(format!("job {id} has ended, or this server does not run it"))
            })
        })
    }

    fn set_questions(
        &self,
        id: JobId,
        open: ClientQuestions,
    ) -> BoxFuture<'_, Result<(), JobStoreError>> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            on_connection!(self, |client| writes::set_questions(client, owner, id, &open))?;
            self.changes.notify_job(id);
            Ok(())
        })
    }

    fn add_answers(
        &self,
        id: JobId,
        given: ClientAnswers,
    ) -> BoxFuture<'_, Result<(), JobStoreError>> {
        Box::pin(async move {
            let server = &self.lease.server;
            let owner =
                on_connection!(self, |client| writes::add_answers(client, server, id, &given))?;
            if let Some(owner) = owner {
                self.changes.notify_requests(owner);
            }
            Ok(())
        })
    }

    fn request_cancel(&self, id: JobId) -> BoxFuture<'_, Result<(), JobStoreError>> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            let owner =
                on_connection!(self, |client| writes::request_cancel(client, workspace, id))?;
            if let Some(owner) = owner {
                self.changes.notify_requests(owner);
            }
            Ok(())
        })
    }

    fn wait_for_requests(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.changes.wait_for_requests())
    }

    fn wait_for_change(&self, id: JobId, at_most: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.changes.wait_for_job(id, at_most))
    }

    fn is_owner_certain(&self) -> bool {
        self.lease.is_trusted()
    }

    fn take_requests(&self) -> BoxFuture<'_, Result<Vec<OwnerRequest>, JobStoreError>> {
        Box::pin(self.take_waiting_requests())
    }

    fn finish(&self, id: JobId, end: JobEnd) -> BoxFuture<'_, Result<Option<u64>, JobStoreError>> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            let end = StoredEnd::from_end(end)?;
            let first = on_connection!(self, |client| writes::finish(client, owner, id, &end))?;
            self.lock_runs().begun.remove(&id);
            self.changes.notify_job(id);
            Ok(first)
        })
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<JobSnapshot>, JobStoreError>> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            Ok(on_connection!(self, |client| reads::job(client, workspace, id))?)
        })
    }

    fn events(
        &self,
        id: JobId,
        after: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobEvent>, JobStoreError>> {
        Box::pin(async move {
            Ok(on_connection!(self, |client| reads::events(client, id, after, bytes_max))?)
        })
    }

    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> BoxFuture<'_, Result<JobPage, JobStoreError>> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            let caller = caller.as_ref();
            let page =
                on_connection!(self, |client| reads::list(client, workspace, caller, after, size));
            Ok(page?)
        })
    }

    fn adopt(&self, filter: AdoptFilter) -> BoxFuture<'_, Result<AdoptedJobs, JobStoreError>> {
        Box::pin(self.adopt_jobs(filter))
    }

    fn remove_expired(
        &self,
        now: Timestamp,
        ended_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobId>, JobStoreError>> {
        Box::pin(self.remove_old_jobs(now, ended_max))
    }

    fn use_confirmation(
        &self,
        code: [u8; 32],
        now: Timestamp,
        keep: Duration,
    ) -> BoxFuture<'_, Result<bool, JobStoreError>> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            let used = on_connection!(self, |client| writes::use_confirmation(
                client, workspace, &code, now, keep
            ));
            Ok(used?)
        })
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(err) = self.lease.leave(&self.pool).await {
                tracing::warn!("{err}; other servers take over this server's jobs later");
            }
        })
    }
}

fn duplicate_error(id: JobId) -> JobStoreError {
    JobStoreError(format!("job {id} already exists"))
}

/// Returns the id of this boot of the machine. It is empty, and no programs are found, on a system
/// that has none.
#[allow(clippy::disallowed_methods, reason = "a file of the kernel, outside every root")]
fn machine_boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests;
