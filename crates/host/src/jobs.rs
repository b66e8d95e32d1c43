//! Runs jobs: calls whose outcome is collected later. A job is stored before it is acknowledged.
//!
//! A job waits in the store, and passes the same checks as any call. It survives the end of the
//! server at any instant. The next server runs queued jobs. It runs interrupted jobs again if their
//! tool is idempotent. Other interrupted jobs end as interrupted.

mod store;
mod stored_form;
mod stored_caller;
mod sqlite;
mod postgres;
#[cfg(test)]
mod store_tests;
mod queue;
mod live;
mod pump;
mod artefacts;
mod shared_folder;
mod questions;
mod run;
mod operations;
mod other_servers;
mod sharing;
mod shared_files;
mod shared_sessions;
mod tools;
mod resources;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Mutex as AsyncMutex, Notify, OnceCell, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{JobId, JobState, PreparedCallValue, lock_mutex};
use toolgate_net::spawn_blocking;

pub(crate) use operations::{JobQuestionAvailability, StartJobRequest};
pub use postgres::{
    FleetCredentialLock, FleetCredentialState, FleetCredentials, FleetDurability, FleetReport,
    FleetServer, FleetServerProfile, FleetServerRole, FleetServerStatus, FleetStatus,
    NewSessionMessage, PostgresStore, PostgresStoreSettings, SESSION_ENDED, SessionDigest,
    SessionMessageNotifications, SessionTag, SettingsDigests, StoredSessionMessage, session_tag,
};
pub(crate) use resources::resources;
pub use shared_folder::{FleetLargeFileLocation, LargeFileStore};
pub use shared_sessions::SharedSessions;
pub use sqlite::SqliteStore;
pub use store::{
    AdoptableJob, ClaimableJobQueue, JobClaim, JobEnd, JobQuestionState, JobStore, JobStoreError,
    NewJob, RequestToJobOwner, StartedJob, TakenOverJobs, TakeoverFilter, TimedJobEvent,
};
pub use tools::JobsToolHandle;
pub(crate) use tools::tools;

use crate::Gate;
use crate::gauges::JobGauge;
use crate::limits::SharedRateBucketStore;
use crate::live_gate::ReloadableGate;
use artefacts::ArtefactFileStore;
use live::UnfinishedJob;
use postgres::{FleetContentStore, FleetSessionMessages};
use queue::JobQueue;
use sharing::JobStoreRateBuckets;

/// Interval between two searches for orphaned and expired jobs.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval between two searches for files of jobs that a server of another machine has removed.
const FILES_INTERVAL: Duration = Duration::from_secs(3600);
/// Longest wait until the job store has recorded that this server stops.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// Settings of a server's jobs.
#[derive(Clone)]
pub struct JobSettings {
    /// Folder of the job store, with the files that jobs produced.
    pub folder: PathBuf,
    /// Storage of the jobs themselves: a file or a database.
    pub place: JobStoreKind,
    /// Maximum number of running jobs, until [`crate::Host::limit_jobs`] changes it.
    pub running_max: usize,
    /// Maximum number of running jobs of one caller, until [`crate::Host::limit_jobs`] changes it.
    pub running_per_caller: usize,
    /// Maximum number of queued jobs. Further jobs are refused.
    pub queued_max: usize,
    /// Maximum number of queued jobs of one caller.
    pub queued_per_caller: usize,
    /// Time for which an ended job is kept, if its caller sets none.
    pub keep: Duration,
    /// Longest time for which an ended job is kept.
    pub keep_max: Duration,
    /// Maximum number of ended jobs that are kept. Beyond it, the oldest jobs are removed.
    pub ended_max: usize,
    /// Maximum number of bytes of a job's program output that are kept.
    pub output_bytes_max: usize,
    /// Maximum total size in bytes of the files that are kept for one job.
    pub files_bytes_max: u64,
    /// Time for which running jobs may continue when the server drains.
    pub drain: Duration,
    /// Number that marks the programs of this server, so that the next server can find them after a
    /// crash.
    pub mark: u64,
    /// Function that ends the programs that a crashed server with the given mark left running. The
    /// function may block.
    pub end_leftovers: Arc<dyn Fn(u64) + Send + Sync>,
    /// Function that reports to a watchdog that this server is not frozen, and the time until the
    /// next report. If that report is overdue, the watchdog ends the programs. After a report of
    /// zero, no further one is due.
    pub report_alive: Arc<dyn Fn(Duration) + Send + Sync>,
}

impl JobSettings {
    /// Returns the folder of the files that jobs produced. Each job store has its own folder,
    /// because files of jobs that the store does not have are removed.
    fn files_folder(&self) -> PathBuf {
        match &self.place {
            JobStoreKind::Folder => self.folder.clone(),
            JobStoreKind::Postgres(database) => {
                let name = blake3::hash(database.workspace.as_bytes()).to_hex();
                self.folder.join("fleet").join(&name[..16])
            }
        }
    }
}

/// Storage in which a server keeps its jobs.
#[derive(Debug, Clone)]
pub enum JobStoreKind {
    /// A SQLite file in the folder of the jobs. Servers of one machine may share it.
    Folder,
    /// A PostgreSQL database. Servers of several machines may share it.
    Postgres(Box<PostgresStoreSettings>),
}

/// The jobs of a host. The job store is opened when the first job needs it.
#[derive(Clone)]
pub struct JobService(Arc<JobServiceState>);

pub(crate) struct JobServiceState {
    live_gate: Arc<ReloadableGate>,
    settings: JobSettings,
    files: ArtefactFileStore,
    store: OnceCell<Arc<dyn JobStore>>,
    /// Files and long results that the servers of a fleet share. Set once the job store is open.
    contents: OnceLock<Arc<FleetContentStore>>,
    /// Messages of client sessions that the servers of a fleet share. Set once the job store is
    /// open.
    session_messages: OnceLock<Arc<FleetSessionMessages>>,
    live: Mutex<HashMap<JobId, Arc<UnfinishedJob>>>,
    /// Signal that a job was added to the unfinished jobs of this server.
    registered: Notify,
    queue: Mutex<JobQueue>,
    running: TaskTracker,
    /// Lock that is held while this server takes over jobs of other servers, so that it registers
    /// each job once.
    taking_over: AsyncMutex<()>,
    /// Channel that is notified when a job does not run at this server any more.
    place_freed: watch::Sender<()>,
    /// Channel that is notified when a job is accepted or has ended.
    changed: watch::Sender<()>,
    stopping: CancellationToken,
    ended_counts: EndedJobCounters,
}

/// Counters of jobs that this server has ended, by state.
#[derive(Default)]
struct EndedJobCounters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    canceled: AtomicU64,
}

impl EndedJobCounters {
    fn count(&self, state: JobState) {
        let count = match state {
            JobState::Succeeded => &self.succeeded,
            JobState::Failed => &self.failed,
            JobState::Canceled => &self.canceled,
            JobState::Queued | JobState::Running => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl JobService {
    pub(crate) fn new(live_gate: Arc<ReloadableGate>, settings: JobSettings) -> Self {
        let files = ArtefactFileStore::new(&settings.files_folder(), settings.files_bytes_max);
        let queue = Mutex::new(JobQueue::new(settings.running_max, settings.running_per_caller));
        Self(Arc::new(JobServiceState {
            live_gate,
            settings,
            files,
            store: OnceCell::new(),
            contents: OnceLock::new(),
            session_messages: OnceLock::new(),
            live: Mutex::default(),
            registered: Notify::new(),
            queue,
            running: TaskTracker::new(),
            taking_over: AsyncMutex::default(),
            place_freed: watch::Sender::new(()),
            changed: watch::Sender::new(()),
            stopping: CancellationToken::new(),
            ended_counts: EndedJobCounters::default(),
        }))
    }

    /// Takes over orphaned jobs, removes expired jobs and their files, fulfils requests of other
    /// servers about this server's jobs, stops jobs that another server may take over, and claims
    /// jobs that wait at other servers, until [`JobService::stop`].
    pub async fn maintain(&self) {
        let jobs = &self.0;
        tokio::join!(
            self.tidy_store(),
            jobs.fulfil_requests(),
            jobs.watch_lease(),
            jobs.claim_jobs(),
            jobs.report_alive(),
            jobs.remove_expired_contents(),
        );
    }

    /// Returns the store of the rate limits that the servers of a fleet share. Returns `None` if
    /// this server is not part of a fleet.
    pub(crate) fn rate_ledger(&self) -> Option<Arc<dyn SharedRateBucketStore>> {
        if !self.0.is_shared() {
            return None;
        }
        Some(Arc::new(JobStoreRateBuckets(Arc::downgrade(&self.0))))
    }

    /// Stops beginning queued jobs if other servers can run them, because this server is about to
    /// stop.
    pub(crate) fn leave_waiting(&self) {
        if self.0.is_shared() {
            self.0.leave_waiting();
        }
    }

    /// Stops beginning queued jobs and leaves them to other servers. Waits for the end of the
    /// running jobs, but at most for the time [`JobSettings::drain`].
    pub async fn drain(&self) {
        self.0.drain().await;
    }

    /// Takes over orphaned jobs and removes expired ones, now and periodically, until
    /// [`JobService::stop`].
    async fn tidy_store(&self) {
        let jobs = &self.0;
        let mut files_checked: Option<Instant> = None;
        while !jobs.stopping.is_cancelled() {
            // A folder that never had a job is not touched.
            if self.has_jobs() {
                jobs.adopt_orphans().await;
                jobs.remove_expired().await;
                if jobs.is_shared() && files_checked.is_none_or(|at| at.elapsed() >= FILES_INTERVAL)
                {
                    jobs.remove_unknown_files().await;
                    jobs.expire_unknown_contents().await;
                    files_checked = Some(Instant::now());
                }
            }
            jobs.wait_for_stop(jobs.maintenance_interval()).await;
        }
    }

    /// Changes the maximum numbers of running jobs, in total and of one caller, and starts the jobs
    /// that may run now.
    pub(crate) fn limit(&self, running_max: usize, running_per_caller: usize) {
        lock_mutex(&self.0.queue).limit(running_max, running_per_caller);
        self.0.dispatch();
    }

    /// Returns the numbers of queued, running and ended jobs.
    pub(crate) fn gauge(&self) -> JobGauge {
        let JobServiceState { settings, ended_counts: ended, .. } = self.0.as_ref();
        let queue = lock_mutex(&self.0.queue);
        let ended = [
            ("succeeded", &ended.succeeded),
            ("failed", &ended.failed),
            ("canceled", &ended.canceled),
        ];
        JobGauge {
            queued: queue.len(),
            queued_max: settings.queued_max,
            running: queue.running(),
            running_max: queue.running_max(),
            ended: ended.map(|(state, count)| (state, count.load(Ordering::Relaxed))),
        }
    }

    /// Returns true if there are or were jobs. Does not create the job store.
    pub fn has_jobs(&self) -> bool {
        self.0.store.initialized() || self.0.may_have_jobs()
    }

    /// Starts no new jobs and stops the running jobs. The next server runs them again, or ends them
    /// as interrupted. Returns when the job store is up to date.
    pub async fn stop(&self) {
        let jobs = &self.0;
        jobs.stopping.cancel();
        jobs.running.close();
        jobs.running.wait().await;
        if let Some(store) = jobs.store.get() {
            // If the store is unavailable, other servers take the jobs over later.
            let _ = tokio::time::timeout(LEAVE_WAIT, store.leave()).await;
        }
    }
}

impl JobServiceState {
    /// Returns the current gate: the catalog, policy and limits for calls.
    fn gate(&self) -> Arc<Gate> {
        self.live_gate.current()
    }

    /// Returns the job store, which is opened when it is first used.
    pub(crate) async fn store(&self) -> Result<&Arc<dyn JobStore>, JobStoreError> {
        self.store
            .get_or_try_init(|| async {
                let mark = self.settings.mark;
                let store: Arc<dyn JobStore> = match &self.settings.place {
                    JobStoreKind::Folder => {
                        let folder = self.settings.folder.clone();
                        let opened = spawn_blocking(move || SqliteStore::open(&folder, mark)).await;
                        Arc::new(opened.map_err(|err| JobStoreError(err.to_string()))??)
                    }
                    JobStoreKind::Postgres(database) => {
                        let opened = PostgresStore::open((**database).clone(), mark).await?;
                        // The store is opened once.
                        let _ = self.contents.set(opened.files());
                        let _ = self.session_messages.set(opened.session_messages());
                        Arc::new(opened)
                    }
                };
                Ok(store)
            })
            .await
    }

    /// Returns true if servers of other machines share the job store.
    fn is_shared(&self) -> bool {
        matches!(self.settings.place, JobStoreKind::Postgres(_))
    }

    /// Returns the interval between two searches for orphaned and expired jobs.
    fn maintenance_interval(&self) -> Duration {
        match &self.settings.place {
            JobStoreKind::Folder => MAINTENANCE_INTERVAL,
            // So jobs of a silent server are taken over within 1.25 leases.
            JobStoreKind::Postgres(database) => MAINTENANCE_INTERVAL.min(database.lease / 4),
        }
    }

    /// Returns true if the job store may contain jobs of other servers, or of an earlier one.
    fn may_have_jobs(&self) -> bool {
        match self.settings.place {
            JobStoreKind::Folder => SqliteStore::exists_in(&self.settings.folder),
            JobStoreKind::Postgres(_) => true,
        }
    }

    /// Returns the running or queued job `id` of this server.
    fn live_job(&self, id: JobId) -> Option<Arc<UnfinishedJob>> {
        lock_mutex(&self.live).get(&id).cloned()
    }

    /// Registers the job `id` as a job of this server. `ahead` is work that was begun before the
    /// job was accepted.
    fn register(&self, id: JobId, last_event: u64, ahead: PreparedCallValue) -> Arc<UnfinishedJob> {
        let live = UnfinishedJob::new(id, self.stopping.child_token(), last_event, ahead);
        lock_mutex(&self.live).insert(id, live.clone());
        self.registered.notify_one();
        live
    }

    /// Notifies listeners that the set of jobs changed.
    fn notify_changed(&self) {
        self.changed.send_replace(());
    }

    /// Removes the job `live` from the jobs of this server, and closes its event stream.
    fn unregister(&self, live: &UnfinishedJob) {
        lock_mutex(&self.live).remove(&live.id);
        live.close();
    }

    async fn remove_expired(&self) {
        let Ok(store) = self.store().await else { return };
        loop {
            match store.remove_expired(Timestamp::now(), self.settings.ended_max).await {
                Ok(removed) if removed.is_empty() => return,
                Ok(removed) => {
                    let files = self.files.clone();
                    // Remaining files are unreachable, so a failure is harmless.
                    let _ = spawn_blocking(move || files.remove(&removed)).await;
                }
                Err(err) => return tracing::warn!("{err}; expired jobs are not removed for now"),
            }
        }
    }

    /// Removes the files of jobs that a server of another machine has removed from the store.
    async fn remove_unknown_files(&self) {
        let Ok(store) = self.store().await else { return };
        let files = self.files.clone();
        let stored = spawn_blocking(move || files.jobs_with_files()).await.unwrap_or_default();
        for id in stored {
            if self.stopping.is_cancelled() {
                return;
            }
            match store.job(id).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let files = self.files.clone();
                    let _ = spawn_blocking(move || files.remove(&[id])).await;
                }
                // The next search finds them.
                Err(_) => return,
            }
        }
    }
}
