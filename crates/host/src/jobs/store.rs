//! What keeps jobs: one interface, whatever engine is behind it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{
    Artefact, Askable, BoxFuture, CallError, Caller, Given, Happened, Job, JobEvent, JobId,
    JobPage, JobState, Output, ToolId,
};

/// Keeps jobs, what happens to them and what comes of them.
///
/// What it returned from was done and survives the end of this process at any instant; what is
/// *durable* survives the machine's too. Each job has one owner, the server that runs it; several
/// servers may share a store.
pub trait Store: Send + Sync + 'static {
    /// Stores a new job as queued and owned by this server, with its first event. Durable.
    fn accept(&self, job: NewJob) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Moves a queued job of this server to running, with the event, and gives what is to be
    /// run; `None` if it is not there or not queued any more. Durable.
    fn begin(&self, id: JobId, at: Timestamp) -> BoxFuture<'_, Result<Option<Begun>, StoreError>>;

    /// Moves a running job of this server back to queued. Durable.
    fn requeue(&self, id: JobId, at: Timestamp) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Adds what happened to a job that has not ended, in order, and gives the number of the
    /// first event. The job's progress and message are those of the last [`Happened::Progress`].
    fn append(&self, id: JobId, what: Vec<Said>) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Keeps answers to what a job asked, for when it begins again; what was answered before stays.
    /// Nothing is done for a job that has ended. Durable.
    fn tell(&self, id: JobId, given: Given) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Ends a job that has not ended, with what still happened and last the event that it ended;
    /// gives the number of the first of these events, or `None` if the job had ended before or is
    /// not there. Durable.
    fn finish(&self, id: JobId, end: End) -> BoxFuture<'_, Result<Option<u64>, StoreError>>;

    /// The job as it is.
    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;

    /// The events after number `after`, in order, until they hold `bytes_max` bytes or a little
    /// more; at least one if there is one.
    fn events(
        &self,
        id: JobId,
        after: u64,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobEvent>, StoreError>>;

    /// Jobs newest first, `caller`'s or everybody's, without their outcomes.
    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> BoxFuture<'_, Result<JobPage, StoreError>>;

    /// Makes this server the owner of the jobs that have not ended and whose owner is gone, as far
    /// as it `may`; the others stay for one that may. Durable.
    fn adopt(&self, may: May) -> BoxFuture<'_, Result<Adopted, StoreError>>;

    /// Forgets jobs that ended longer ago than they were to be kept, and the oldest of those that
    /// ended beyond the newest `ended_max`; gives the ids of at most a thousand of them.
    fn forget(
        &self,
        now: Timestamp,
        ended_max: usize,
    ) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>>;
}

/// A job to be stored.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// The tool that is called.
    pub tool: ToolId,
    /// The arguments, as they came.
    pub input: Value,
    /// Who calls.
    pub caller: Caller,
    /// By which dialect.
    pub dialect: Cow<'static, str>,
    /// Which goes first: the higher.
    pub priority: i32,
    /// When it was accepted.
    pub created: Timestamp,
    /// How long it is kept once it has ended.
    pub keep: Duration,
    /// What can be asked of whoever called, and what they answered before.
    pub asking: Answered,
}

/// What can be asked of whoever called a job, and what they answered before it was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Answered {
    /// What can be asked.
    pub can: Askable,
    /// What was answered.
    pub given: Given,
}

/// A job whose turn it is.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The tool that is called.
    pub tool: ToolId,
    /// The arguments.
    pub input: Value,
    /// Who calls.
    pub caller: Caller,
    /// By which dialect.
    pub dialect: Cow<'static, str>,
    /// What can be asked of whoever called, and what they answered before.
    pub asking: Answered,
    /// For how manieth time it begins, from 1.
    pub attempt: u32,
    /// The number of the event that it began.
    pub event: u64,
}

/// Something that happened, and when.
pub type Said = (Timestamp, Happened);

/// How a job ended.
#[derive(Debug, Clone)]
pub struct End {
    /// When.
    pub at: Timestamp,
    /// A terminal state.
    pub state: JobState,
    /// What came of it.
    pub outcome: Result<Output, CallError>,
    /// What it left.
    pub artefacts: Vec<Artefact>,
    /// What still happened before it ended.
    pub before: Vec<Said>,
}

impl End {
    /// That of a job that was cancelled before it began.
    pub(crate) fn canceled() -> Self {
        Self {
            at: Timestamp::now(),
            state: JobState::Canceled,
            outcome: Err(CallError::Canceled),
            artefacts: Vec::new(),
            before: Vec::new(),
        }
    }
}

/// Whether a server may go on with a job.
pub type May = Arc<dyn Fn(&Orphan) -> bool + Send + Sync>;

/// What servers that are gone left undone.
pub struct Adopted {
    /// The marks of these servers, by which what their programs left is known.
    pub marks: Vec<u64>,
    /// Their jobs, in the order in which they were accepted.
    pub jobs: Vec<Orphan>,
    /// To be called once what they left running has been ended. Until then they are known to be
    /// gone, and whoever adopts next is told their marks again.
    pub bury: Box<dyn FnOnce() + Send>,
}

/// A job whose owner is gone.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// Its id.
    pub id: JobId,
    /// The tool that is called.
    pub tool: ToolId,
    /// Which goes first: the higher.
    pub priority: i32,
    /// Queued or running.
    pub state: JobState,
    /// Who called it.
    pub caller: Caller,
    /// When it was accepted.
    pub created: Timestamp,
    /// How often it began to run.
    pub attempts: u32,
    /// The number of its last event.
    pub last_event: u64,
}

/// The store cannot do it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the job store cannot be used: {0}")]
pub struct StoreError(pub String);

impl From<StoreError> for CallError {
    fn from(err: StoreError) -> Self {
        Self::Unavailable { message: err.to_string() }
    }
}
