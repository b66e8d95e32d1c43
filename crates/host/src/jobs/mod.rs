//! Jobs: calls whose outcome is collected later, stored before they are acknowledged.
//!
//! A job is parked in the store and run by the same gate as any call. It survives the end of the
//! server at any instant: what waited is run, what ran is run again if its tool says that this
//! does no harm, else it ends as interrupted.

mod store;
mod sqlite;
mod queue;
mod live;
mod pump;
mod artefacts;
mod asking;
mod run;
mod face;
mod tools;
mod resources;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{Ahead, JobId, JobState};

pub(crate) use face::{AskLater, Wanted};
pub(crate) use resources::resources;
pub use sqlite::SqliteStore;
pub use store::{Adopted, Answered, Begun, End, May, NewJob, Orphan, Said, Store, StoreError};
pub use tools::Handle;
pub(crate) use tools::tools;

use crate::Gate;
use crate::gauges::JobGauge;
use artefacts::Files;
use live::Live;
use queue::Queue;

/// How often it is looked for jobs that another server left, and for such as were kept long enough.
const TEND: Duration = Duration::from_secs(15);

/// How jobs are kept and run.
#[derive(Clone)]
pub struct JobSettings {
    /// Where they are kept.
    pub folder: PathBuf,
    /// How many run at once.
    pub running_max: usize,
    /// How many of one caller do.
    pub running_each: usize,
    /// How many wait; more are refused.
    pub queued_max: usize,
    /// How many of one caller do.
    pub queued_each: usize,
    /// How long one is kept once it has ended, where whoever starts it does not say.
    pub keep: Duration,
    /// How long one is kept at most.
    pub keep_max: Duration,
    /// How many are kept that have ended; beyond, the oldest are forgotten.
    pub ended_max: usize,
    /// How much of what a job's program prints is kept.
    pub output_bytes_max: usize,
    /// How much of the files it leaves is kept.
    pub files_bytes_max: u64,
    /// How this server's programs are known to the next.
    pub mark: u64,
    /// Ends what the programs of the server with that mark left running. It may block.
    pub end_left: Arc<dyn Fn(u64) + Send + Sync>,
}

/// The jobs of a host. Nothing is opened before there is one.
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

pub(crate) struct Inner {
    gate: Arc<Gate>,
    settings: JobSettings,
    files: Files,
    store: OnceCell<Arc<dyn Store>>,
    live: Mutex<HashMap<JobId, Arc<Live>>>,
    queue: Mutex<Queue>,
    running: TaskTracker,
    /// Changes when a job was accepted or has ended.
    changed: watch::Sender<()>,
    stopping: CancellationToken,
    ended: Ended,
}

/// How many jobs this server has ended, by how.
#[derive(Default)]
struct Ended {
    succeeded: AtomicU64,
    failed: AtomicU64,
    canceled: AtomicU64,
}

impl Ended {
    fn one_more(&self, state: JobState) {
        let count = match state {
            JobState::Succeeded => &self.succeeded,
            JobState::Failed => &self.failed,
            JobState::Canceled => &self.canceled,
            JobState::Queued | JobState::Running => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Jobs {
    pub(crate) fn new(gate: Arc<Gate>, settings: JobSettings) -> Self {
        let files = Files::new(&settings.folder, settings.files_bytes_max);
        let queue = Mutex::new(Queue::new(settings.running_max, settings.running_each));
        Self(Arc::new(Inner {
            gate,
            settings,
            files,
            store: OnceCell::new(),
            live: Mutex::default(),
            queue,
            running: TaskTracker::new(),
            changed: watch::Sender::new(()),
            stopping: CancellationToken::new(),
            ended: Ended::default(),
        }))
    }

    /// Takes over what another server left, now and from time to time, and forgets what was kept
    /// long enough; until [`Jobs::stop`].
    pub async fn tend(&self) {
        let jobs = &self.0;
        while !jobs.stopping.is_cancelled() {
            // A folder in which no job ever was stays as it is.
            if self.any() {
                jobs.adopt().await;
                jobs.forget().await;
            }
            let _ = tokio::time::timeout(TEND, jobs.stopping.cancelled()).await;
        }
    }

    /// How many wait, run, and have ended.
    pub(crate) fn gauge(&self) -> JobGauge {
        let Inner { settings, ended, .. } = self.0.as_ref();
        let queue = self.0.queue();
        let ended = [
            ("succeeded", &ended.succeeded),
            ("failed", &ended.failed),
            ("canceled", &ended.canceled),
        ];
        JobGauge {
            queued: queue.len(),
            queued_max: settings.queued_max,
            running: queue.running(),
            running_max: settings.running_max,
            ended: ended.map(|(state, count)| (state, count.load(Ordering::Relaxed))),
        }
    }

    /// Whether there are, or were, jobs. Nothing is made to find out.
    pub fn any(&self) -> bool {
        self.0.store.initialized() || self.0.was_used()
    }

    /// Starts no more jobs and stops those that run; they are run again by the next server, or end
    /// as interrupted. Waits until that is stored.
    pub async fn stop(&self) {
        let jobs = &self.0;
        jobs.stopping.cancel();
        jobs.running.close();
        jobs.running.wait().await;
    }
}

impl Inner {
    /// The store, opened when it is first needed.
    pub(crate) async fn store(&self) -> Result<&Arc<dyn Store>, StoreError> {
        self.store
            .get_or_try_init(|| async {
                let (folder, mark) = (self.settings.folder.clone(), self.settings.mark);
                let opened = spawn_blocking(move || SqliteStore::open(&folder, mark)).await;
                let store = opened.map_err(|err| StoreError(err.to_string()))??;
                Ok(Arc::new(store) as Arc<dyn Store>)
            })
            .await
    }

    /// Whether there ever was a job in the folder.
    fn was_used(&self) -> bool {
        SqliteStore::is_in(&self.settings.folder)
    }

    /// The job `id`, if it is this server's and has not ended.
    fn live(&self, id: JobId) -> Option<Arc<Live>> {
        self.alive().get(&id).cloned()
    }

    /// Makes the job `id` this server's.
    fn enlist(&self, id: JobId, last_event: u64, ahead: Ahead) -> Arc<Live> {
        let live = Live::new(id, self.stopping.child_token(), last_event, ahead);
        self.alive().insert(id, live.clone());
        live
    }

    /// Says that there is one job more, or one less that has not ended.
    fn came_or_went(&self) {
        self.changed.send_replace(());
    }

    /// Says that the job is this server's no more.
    fn let_go(&self, live: &Live) {
        self.alive().remove(&live.id);
        live.leave();
    }

    async fn forget(&self) {
        let Ok(store) = self.store().await else { return };
        loop {
            match store.forget(Timestamp::now(), self.settings.ended_max).await {
                Ok(gone) if gone.is_empty() => return,
                Ok(gone) => {
                    let files = self.files.clone();
                    // What is left of the files is found by nobody.
                    let _ = spawn_blocking(move || files.forget(&gone)).await;
                }
                Err(err) => return tracing::warn!("{err}; no job is forgotten for now"),
            }
        }
    }

    fn alive(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
