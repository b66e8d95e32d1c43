//! Stores jobs in a PostgreSQL database, which servers on several machines share.
//!
//! A job belongs to the server that accepted it, until another server that can run it claims it.
//! Each server renews a lease; if it stops or does not renew it in time, another server takes over
//! its jobs. Each write of a run names the owner of the job, so a server that was overtaken writes
//! nothing any more.

mod failures;
mod schema;
mod profile;
mod lease;
mod known_runs;
mod changes;
mod reads;
mod takeover;
mod claims;
mod writes;
mod rates;
mod report;
mod status;
mod credentials;
mod files;
mod results;
mod session_messages;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    BoxFuture, Caller, ClientAnswers, ClientQuestions, JobEvent, JobId, JobPage, JobSnapshot,
    lock_mutex,
};
use toolgate_postgres::{PostgresConnectionPool, PostgresError, SharedPostgresPool};

use super::store::{
    AdoptableJob, JobClaim, JobEnd, JobStore, JobStoreError, JobStoreFuture, NewJob,
    RequestToJobOwner, StartedJob, TakenOverJobs, TakeoverFilter, TimedJobEvent,
};
use super::stored_form::{JobEventRows, StoredJobEnd};
use crate::limits::{RateBucket, RateBucketGrant};
use changes::FleetNotificationChannel;
pub use changes::SessionTag;
pub use credentials::{FleetCredentialLock, FleetCredentialState, FleetCredentials};
use failures::FailedDatabaseWrite;
pub(super) use files::{ContentSharingError, FleetContentStore};
use known_runs::SharedJobRuns;
use lease::{FleetServerRow, ServerLease};
pub use profile::{FleetServerProfile, FleetServerRole, PostgresStoreSettings, SettingsDigests};
pub use report::{FleetDurability, FleetReport, FleetServer};
pub(crate) use session_messages::{FleetSessionMessages, SessionMessageOutcome};
pub use session_messages::{
    NewSessionMessage, SESSION_ENDED, SessionDigest, SessionMessageNotifications,
    StoredSessionMessage, session_tag,
};
pub use status::{FleetServerStatus, FleetStatus};

/// Maximum number of pooled database connections. One more listens to notifications.
const CONNECTIONS_MAX: usize = 7;
/// Time limit of an SQL statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit of a migration of the tables.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tries to store a new job, as long as the outcome is unknown.
const ACCEPT_TRIES_MAX: u32 = 3;
/// Interval at which waiting jobs are checked for claims whose notifications were lost.
const WAITING_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Pause before this server tries again to begin a job that may not run twice, while the database
/// may have forgotten running jobs after its restart.
const UNSETTLED_PAUSE: Duration = Duration::from_secs(2);
/// Number of jobs that are removed in one statement.
const REMOVE_STEP: usize = 50;

/// A job store in a PostgreSQL database.
///
/// A write whose connection breaks has an unknown outcome. The store then looks at the tables
/// before it repeats the write.
pub struct PostgresStore {
    pool: SharedPostgresPool,
    lease: Arc<ServerLease>,
    _renewals: AbortOnDropHandle<()>,
    changes: Arc<FleetNotificationChannel>,
    runs: SharedJobRuns,
    /// Time of the last check of all waiting jobs.
    waiting_checked: Mutex<Instant>,
    files: Arc<FleetContentStore>,
    session_messages: Arc<FleetSessionMessages>,
}

/// Runs `$work` with the client `$client` of a connection of the pool. The error is a
/// [`FailedDatabaseWrite`].
macro_rules! on_connection {
    ($self:ident, |$client:ident| $work:expr) => {
        match $self.pool.acquire().await {
            Ok(mut lent) => {
                let $client = &mut lent.connection.client;
                let result = $self.pool.with_timeout($self.pool.query_timeout, $work).await;
                let has_unknown_outcome =
                    result.as_ref().is_err_and(PostgresError::has_unknown_outcome);
                lent.give_back(result)
                    .map_err(|err| FailedDatabaseWrite { error: err.into(), has_unknown_outcome })
            }
            Err(err) => Err(FailedDatabaseWrite { error: err.into(), has_unknown_outcome: false }),
        }
    };
}

impl PostgresStore {
    /// Connects to the database, creates or migrates the tables, and registers this server.
    ///
    /// `mark` identifies the programs of this server. After a crash, a server on the same machine
    /// that takes over this server's jobs receives `mark`.
    ///
    /// # Errors
    /// The database is unavailable, refuses this user, or was set up by a newer toolgate.
    pub async fn open(settings: PostgresStoreSettings, mark: u64) -> Result<Self, JobStoreError> {
        let PostgresStoreSettings { address, workspace, lease, lost_after, files, profile } =
            settings;
        let pool =
            Arc::new(PostgresConnectionPool::new(address, CONNECTIONS_MAX, STATEMENT_TIMEOUT));
        let mut lent = pool.acquire().await?;
        let migration = schema::migrate(&mut lent.connection.client);
        let migrated = pool.with_timeout(MIGRATION_TIMEOUT, migration).await;
        lent.give_back(migrated)?;
        let random = getrandom::u64().map_err(|err| JobStoreError(err.to_string()))? >> 1;
        let server = FleetServerRow {
            id: random.cast_signed(),
            workspace: workspace.replace('\0', ""),
            machine: lease::machine_boot(),
            mark,
            profile,
        };
        let lease = ServerLease::new(server, lease, lost_after);
        lease.renew(&pool).await?;
        let renewals = lease::start_renewals(lease.clone(), pool.clone());
        let runs = SharedJobRuns::default();
        let changes = FleetNotificationChannel::start(&pool, &lease.server, runs.clone());
        let changes = Arc::new(changes);
        let waiting_checked = Mutex::new(Instant::now());
        let name = &lease.server.workspace;
        let files = Arc::new(FleetContentStore::new(pool.clone(), name, files.as_ref()));
        let session_messages = Arc::new(FleetSessionMessages::new(
            pool.clone(),
            changes.clone(),
            name,
            lease.server.id,
        ));
        Ok(Self {
            pool,
            lease,
            _renewals: renewals,
            changes,
            runs,
            waiting_checked,
            files,
            session_messages,
        })
    }

    /// Returns the store of files and results that the servers share.
    pub(super) fn files(&self) -> Arc<FleetContentStore> {
        self.files.clone()
    }

    /// Returns the messages of client sessions that the servers share.
    pub(super) fn session_messages(&self) -> Arc<FleetSessionMessages> {
        self.session_messages.clone()
    }

    async fn accept_job(&self, job: &NewJob) -> Result<(), JobStoreError> {
        let row = writes::NewJobRow::from_job(job)?;
        let server = &self.lease.server;
        let mut tries = 0;
        loop {
            tries += 1;
            let accepted: Result<bool, FailedDatabaseWrite> =
                on_connection!(self, |client| writes::accept(client, server, &row));
            match accepted {
                Ok(true) => {
                    let mut runs = lock_mutex(&self.runs);
                    runs.unacknowledged.remove(&job.id);
                    runs.wait(job.id);
                    return Ok(());
                }
                Ok(false) if tries > 1 => {
                    // An earlier try may have stored it.
                    let is_own: Result<bool, FailedDatabaseWrite> =
                        on_connection!(self, |client| writes::is_owner(client, server.id, job.id));
                    if !is_own? {
                        return Err(duplicate_error(job.id));
                    }
                    lock_mutex(&self.runs).wait(job.id);
                    return Ok(());
                }
                Ok(false) => return Err(duplicate_error(job.id)),
                Err(failed) if failed.has_unknown_outcome && tries < ACCEPT_TRIES_MAX => {}
                Err(failed) => {
                    // The caller learns that the job was refused, so it must not run.
                    if tries > 1 || failed.has_unknown_outcome {
                        lock_mutex(&self.runs).unacknowledged.insert(job.id);
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
        runs_once: bool,
    ) -> Result<Option<StartedJob>, JobStoreError> {
        if runs_once && self.lease.is_unsettled() {
            tokio::time::sleep(UNSETTLED_PAUSE).await;
        }
        let (lease, lapses) = (&self.lease, self.lease.lapses());
        let may_have_begun = lock_mutex(&self.runs).uncertain_begins.contains(&id);
        let begun: Result<Option<StartedJob>, FailedDatabaseWrite> = on_connection!(
            self,
            |client| writes::begin(client, lease, id, at, may_have_begun, runs_once)
        );
        let begun = begun.and_then(|started| lease.check_lease_unbroken(lapses).map(|()| started));
        let mut runs = lock_mutex(&self.runs);
        match &begun {
            Ok(Some(started)) => runs.begin(id, started.start_event, started.attempt),
            Ok(None) => {
                runs.uncertain_begins.remove(&id);
            }
            Err(failed) if failed.has_unknown_outcome => {
                runs.uncertain_begins.insert(id);
            }
            Err(_) => {}
        }
        drop(runs);
        if begun.is_ok() {
            self.changes.notify_job(id);
        }
        Ok(begun?)
    }

    async fn append_new(
        &self,
        id: JobId,
        mut events: Vec<TimedJobEvent>,
    ) -> Result<u64, JobStoreError> {
        let owner = self.lease.server.id;
        let attempt = lock_mutex(&self.runs).attempt(id);
        let stored_first = self.skip_stored(id, &mut events).await?;
        let rows = JobEventRows::from_events(&events)?;
        let count = events.len() as u64;
        let appended: Result<Option<u64>, FailedDatabaseWrite> =
            on_connection!(self, |client| writes::append(client, owner, id, attempt, &rows));
        match &appended {
            Ok(Some(first)) => lock_mutex(&self.runs).note_stored(id, first + count - 1),
            Err(failed) if failed.has_unknown_outcome => {
                lock_mutex(&self.runs).note_uncertain(id, count);
            }
            Ok(None) | Err(_) => {}
        }
        let first = appended?.ok_or_else(|| {
            JobStoreError(format!("job {id} has ended, or this server does not run it"))
        })?;
        self.changes.notify_job(id);
        Ok(stored_first.unwrap_or(first))
    }

    /// Removes the first job events from `events` that an earlier append with an unknown outcome
    /// has stored, because a repeated append begins with the same events. Returns the number of the
    /// first removed event.
    async fn skip_stored(
        &self,
        id: JobId,
        events: &mut Vec<TimedJobEvent>,
    ) -> Result<Option<u64>, JobStoreError> {
        let batch = lock_mutex(&self.runs).uncertain_batch(id);
        let Some(batch) = batch else { return Ok(None) };
        let owner = self.lease.server.id;
        let last = on_connection!(self, |client| reads::last_event(client, owner, id))?;
        let end = batch.last_before + batch.count;
        if last.is_none_or(|last| last < end) {
            lock_mutex(&self.runs).forget_batch(id);
            return Ok(None);
        }
        lock_mutex(&self.runs).note_stored(id, end);
        let stored = usize::try_from(batch.count).unwrap_or(usize::MAX).min(events.len());
        events.drain(..stored);
        Ok(Some(batch.last_before + 1))
    }

    async fn take_waiting_requests(&self) -> Result<Vec<RequestToJobOwner>, JobStoreError> {
        let owner = self.lease.server.id;
        let (running, waiting) = self.jobs_to_check();
        let taken: Result<Vec<RequestToJobOwner>, FailedDatabaseWrite> =
            on_connection!(self, |client| writes::take_requests(client, owner, &running, &waiting));
        let mut runs = lock_mutex(&self.runs);
        if taken.is_err() {
            // The next look checks them again.
            for id in &waiting {
                runs.suspect(*id);
            }
        }
        let requests = taken?;
        for request in &requests {
            if let RequestToJobOwner::Stop(id) = request {
                runs.end(*id);
            }
        }
        drop(runs);
        Ok(requests)
    }

    /// Returns the jobs that run at this server, with the numbers of their starts, and the waiting
    /// jobs that another server may have claimed.
    fn jobs_to_check(&self) -> (Vec<(JobId, u32)>, Vec<JobId>) {
        let mut checked = lock_mutex(&self.waiting_checked);
        let mut runs = lock_mutex(&self.runs);
        if checked.elapsed() >= WAITING_CHECK_INTERVAL {
            *checked = Instant::now();
            runs.mark_all_possibly_claimed();
        }
        (runs.running(), runs.take_possibly_claimed())
    }

    async fn claim_jobs(&self, claim: JobClaim) -> Result<Vec<AdoptableJob>, JobStoreError> {
        let claimed: Result<Vec<AdoptableJob>, FailedDatabaseWrite> =
            on_connection!(self, |client| claims::claim(client, &self.lease, &claim));
        let jobs = claimed?;
        let mut runs = lock_mutex(&self.runs);
        jobs.iter().for_each(|job| runs.wait(job.id));
        drop(runs);
        // The former owners notice that the jobs are not theirs any more.
        jobs.iter().for_each(|job| self.changes.notify_job(job.id));
        Ok(jobs)
    }

    async fn adopt_jobs(&self, filter: TakeoverFilter) -> Result<TakenOverJobs, JobStoreError> {
        if self.lease.is_unsettled() {
            let owner = self.lease.server.id;
            let begun = lock_mutex(&self.runs).recent_runs();
            on_connection!(self, |client| writes::report_running(client, owner, &begun))?;
        }
        let unacknowledged: Vec<JobId> =
            lock_mutex(&self.runs).unacknowledged.iter().copied().collect();
        let taken: Result<takeover::PostgresJobTakeover, FailedDatabaseWrite> = on_connection!(
            self,
            |client| takeover::adopt(client, &self.lease, &filter, &unacknowledged)
        );
        let takeover::PostgresJobTakeover { jobs, servers } = taken?;
        let mut runs = lock_mutex(&self.runs);
        for id in &unacknowledged {
            runs.unacknowledged.remove(id);
        }
        // A job that was taken over is begun or ended anew.
        for job in &jobs {
            runs.end(job.id);
            runs.wait(job.id);
        }
        drop(runs);
        let marks = servers.iter().filter_map(|server| server.mark).collect();
        let dead = servers.into_iter().map(|server| server.id).collect();
        let lease = self.lease.clone();
        Ok(TakenOverJobs { marks, jobs, forget_servers: Box::new(move || lease.forget(dead)) })
    }

    async fn remove_old_jobs(
        &self,
        now: Timestamp,
        ended_max: usize,
    ) -> Result<Vec<JobId>, JobStoreError> {
        let workspace = self.lease.server.workspace.as_str();
        let due: Result<Vec<JobId>, FailedDatabaseWrite> = on_connection!(self, |client| async {
            writes::remove_confirmations(client, workspace, now).await?;
            rates::remove_full_buckets(client, workspace).await?;
            session_messages::remove_expired_messages(client, workspace).await?;
            reads::jobs_to_remove(client, workspace, now, ended_max).await
        });
        let mut removed = Vec::new();
        for step in due?.chunks(REMOVE_STEP) {
            let step: Result<Vec<JobId>, FailedDatabaseWrite> =
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
    fn accept(&self, job: NewJob) -> JobStoreFuture<'_, ()> {
        Box::pin(async move { self.accept_job(&job).await })
    }

    fn begin(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, Option<StartedJob>> {
        Box::pin(self.begin_job(id, at, false))
    }

    fn begin_once(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, Option<StartedJob>> {
        Box::pin(self.begin_job(id, at, true))
    }

    fn requeue(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, ()> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            // The run has ended, whatever the outcome of the write is.
            let attempt = {
                let mut runs = lock_mutex(&self.runs);
                let attempt = runs.attempt(id);
                runs.end(id);
                runs.wait(id);
                attempt
            };
            on_connection!(self, |client| writes::requeue(client, owner, id, attempt, at))?;
            self.changes.notify_job(id);
            Ok(())
        })
    }

    fn append_events(&self, id: JobId, events: Vec<TimedJobEvent>) -> JobStoreFuture<'_, u64> {
        Box::pin(self.append_new(id, events))
    }

    fn set_questions(&self, id: JobId, open: ClientQuestions) -> JobStoreFuture<'_, ()> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            let attempt = lock_mutex(&self.runs).attempt(id);
            on_connection!(self, |client| writes::set_questions(
                client, owner, id, attempt, &open
            ))?;
            self.changes.notify_job(id);
            Ok(())
        })
    }

    fn add_answers(&self, id: JobId, given: ClientAnswers) -> JobStoreFuture<'_, ()> {
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

    fn request_cancel(&self, id: JobId) -> JobStoreFuture<'_, ()> {
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

    fn owner_certain_for(&self) -> Option<Duration> {
        Some(self.lease.trusted_for())
    }

    fn take_requests(&self) -> JobStoreFuture<'_, Vec<RequestToJobOwner>> {
        Box::pin(self.take_waiting_requests())
    }

    fn finish(&self, id: JobId, end: JobEnd) -> JobStoreFuture<'_, Option<u64>> {
        Box::pin(async move {
            let owner = self.lease.server.id;
            let attempt = lock_mutex(&self.runs).attempt(id);
            let mut end = end;
            let stored_first = self.skip_stored(id, &mut end.last_events).await?;
            let end = StoredJobEnd::from_end(end)?;
            let first =
                on_connection!(self, |client| writes::finish(client, owner, id, attempt, &end))?;
            lock_mutex(&self.runs).finish(id, Instant::now(), self.lease.memory_time());
            self.changes.notify_job(id);
            Ok(first.map(|first| stored_first.unwrap_or(first)))
        })
    }

    fn job(&self, id: JobId) -> JobStoreFuture<'_, Option<JobSnapshot>> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            Ok(on_connection!(self, |client| reads::job(client, workspace, id))?)
        })
    }

    fn events(&self, id: JobId, after: u64, bytes_max: usize) -> JobStoreFuture<'_, Vec<JobEvent>> {
        Box::pin(async move {
            Ok(on_connection!(self, |client| reads::events(client, id, after, bytes_max))?)
        })
    }

    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> JobStoreFuture<'_, JobPage> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            let caller = caller.as_ref();
            let page =
                on_connection!(self, |client| reads::list(client, workspace, caller, after, size));
            Ok(page?)
        })
    }

    fn adopt(&self, filter: TakeoverFilter) -> JobStoreFuture<'_, TakenOverJobs> {
        Box::pin(self.adopt_jobs(filter))
    }

    fn claim(&self, claim: JobClaim) -> JobStoreFuture<'_, Vec<AdoptableJob>> {
        Box::pin(self.claim_jobs(claim))
    }

    fn offer_jobs(&self) {
        self.changes.offer_jobs();
    }

    fn wait_for_offers(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.changes.wait_for_offers())
    }

    fn is_draining(&self) -> bool {
        self.lease.is_draining()
    }

    fn remove_expired(&self, now: Timestamp, ended_max: usize) -> JobStoreFuture<'_, Vec<JobId>> {
        Box::pin(self.remove_old_jobs(now, ended_max))
    }

    fn use_confirmation(
        &self,
        code: [u8; 32],
        now: Timestamp,
        keep: Duration,
    ) -> JobStoreFuture<'_, bool> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            let used = on_connection!(self, |client| writes::use_confirmation(
                client, workspace, &code, now, keep
            ));
            Ok(used?)
        })
    }

    fn take_calls(&self, bucket: RateBucket) -> JobStoreFuture<'_, RateBucketGrant> {
        Box::pin(async move {
            let workspace = self.lease.server.workspace.as_str();
            Ok(on_connection!(self, |client| rates::take_calls(client, workspace, bucket))?)
        })
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match self.lease.leave(&self.pool).await {
                Ok(()) => self.changes.offer_jobs_now(&self.pool).await,
                Err(err) => {
                    tracing::warn!("{err}; other servers take over this server's jobs later");
                }
            }
        })
    }
}

fn duplicate_error(id: JobId) -> JobStoreError {
    JobStoreError(format!("job {id} already exists"))
}

#[cfg(test)]
mod tests;
