//! Defines the storage interface of jobs, for any engine.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{
    BoxFuture, CallError, Caller, ClientAnswers, ClientQuestions, JobArtefact, JobEvent,
    JobEventKind, JobId, JobPage, JobSnapshot, JobState, QuestionSupport, ToolId, ToolOutput,
};

use crate::limits::{RateBucket, RateBucketGrant};

/// Storage of jobs, their events and outcomes.
///
/// The effect of an operation that has returned survives the end of this process at any instant.
/// The effect of a *durable* operation also survives the end of the machine.
///
/// Several servers may share a store. Each job has one owner: the server that runs it. The writes
/// of a run are fenced: [`begin`](Self::begin), [`requeue`](Self::requeue),
/// [`append_events`](Self::append_events), [`set_questions`](Self::set_questions) and
/// [`finish`](Self::finish) change nothing if this server is not the owner. Every server may cancel
/// and answer a job.
///
/// A store that cannot see whether a server has died keeps a lease for each server. A server whose
/// lease has ended may lose its jobs: see [`is_owner_certain`](Self::is_owner_certain).
///
/// The module `store_tests` has one test for each of these promises. Every store runs them.
pub trait JobStore: Send + Sync + 'static {
    /// Stores a new job as queued and owned by this server, with its first event. The effect is
    /// durable.
    fn accept(&self, job: NewJob) -> JobStoreFuture<'_, ()>;

    /// Marks a queued job of this server as running, adds the start event, and returns the job's
    /// input. Returns `None` if the job is not queued. The effect is durable.
    fn begin(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, Option<StartedJob>>;

    /// Begins a job like [`begin`](Self::begin) if a second run of it may do harm.
    ///
    /// An engine that can lose its latest writes in a failover returns an error for as long as it
    /// may have forgotten that another server runs the job.
    fn begin_once(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, Option<StartedJob>> {
        self.begin(id, at)
    }

    /// Marks a running job of this server as queued again. The effect is durable.
    fn requeue(&self, id: JobId, at: Timestamp) -> JobStoreFuture<'_, ()>;

    /// Appends events to a job of this server that has not ended, and returns the number of the
    /// first event. The last [`JobEventKind::Progress`] sets the job's progress and message.
    fn append_events(&self, id: JobId, events: Vec<TimedJobEvent>) -> JobStoreFuture<'_, u64>;

    /// Replaces the open questions of a job, which [`JobStore::job`] returns while the job runs.
    /// Does nothing if the job has ended.
    fn set_questions(&self, id: JobId, open: ClientQuestions) -> JobStoreFuture<'_, ()>;

    /// Stores answers to a job's questions for its next start, and passes them to its owner if that
    /// is another server. Earlier answers stay. Does nothing if the job has ended. The effect is
    /// durable.
    fn add_answers(&self, id: JobId, given: ClientAnswers) -> JobStoreFuture<'_, ()>;

    /// Asks the owner of a job to cancel it. The request stays until the job ends, so that a server
    /// that takes the job over honours it. Does nothing if the job has ended. The effect is
    /// durable.
    fn request_cancel(&self, id: JobId) -> JobStoreFuture<'_, ()>;

    /// Waits for a bounded time until other servers may have made requests about jobs of this
    /// server.
    fn wait_for_requests(&self) -> BoxFuture<'_, ()>;

    /// Waits until the job may have changed since the call, but no longer than `at_most`.
    fn wait_for_change(&self, id: JobId, at_most: Duration) -> BoxFuture<'_, ()>;

    /// Returns false if another server may have taken over jobs of this server, because its lease
    /// cannot be trusted any more. Repeatable jobs must then stop at this server, because they may
    /// run at another server.
    fn is_owner_certain(&self) -> bool;

    /// Returns the rest of the time for which [`is_owner_certain`](Self::is_owner_certain) returns
    /// true even if the engine becomes unavailable now. `None` stands for an unlimited time.
    fn owner_certain_for(&self) -> Option<Duration> {
        None
    }

    /// Returns the requests of other servers about jobs of this server. Answers to a job's
    /// questions are returned once, a cancellation until its job ends.
    fn take_requests(&self) -> JobStoreFuture<'_, Vec<RequestToJobOwner>>;

    /// Ends a job: appends the remaining events and the final event. Returns the number of the
    /// first of these events, or `None` if the job has ended, is missing or belongs to another
    /// server. The effect is durable.
    fn finish(&self, id: JobId, end: JobEnd) -> JobStoreFuture<'_, Option<u64>>;

    /// Returns the job `id` in its current state.
    fn job(&self, id: JobId) -> JobStoreFuture<'_, Option<JobSnapshot>>;

    /// Returns the events of the job after number `after`, in order, up to about `bytes_max` bytes.
    /// Returns at least one event if there is one.
    fn events(&self, id: JobId, after: u64, bytes_max: usize) -> JobStoreFuture<'_, Vec<JobEvent>>;

    /// Lists the jobs of `caller`, or of all callers, newest first and without their outcomes.
    fn list(
        &self,
        caller: Option<Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> JobStoreFuture<'_, JobPage>;

    /// Makes this server the owner of unfinished jobs of dead servers, as far as `filter` allows.
    /// Other jobs are left to another server. The effect is durable.
    ///
    /// A store whose writes may fail with an unknown outcome also passes the jobs of this server to
    /// `filter`, which must refuse those that this server knows.
    fn adopt(&self, filter: TakeoverFilter) -> JobStoreFuture<'_, TakenOverJobs>;

    /// Makes this server the owner of queued jobs of other servers, as far as `claim` allows, and
    /// returns them. A job with a higher priority comes first; jobs of one priority come in turn
    /// among their callers. The effect is durable.
    ///
    /// A store whose servers run on one machine claims nothing: each server runs what it accepted.
    fn claim(&self, claim: JobClaim) -> JobStoreFuture<'_, Vec<AdoptableJob>>;

    /// Notifies other servers that jobs of this server wait and may be claimed.
    fn offer_jobs(&self);

    /// Waits until there may be jobs to claim, for a bounded time.
    fn wait_for_offers(&self) -> BoxFuture<'_, ()>;

    /// Returns true if an operator has asked this server to begin no further jobs.
    fn is_draining(&self) -> bool;

    /// Removes expired jobs, and the oldest ended jobs beyond `ended_max`. Returns the removed ids,
    /// at most 2000 at once.
    fn remove_expired(&self, now: Timestamp, ended_max: usize) -> JobStoreFuture<'_, Vec<JobId>>;

    /// Records at `now` that a confirmation was used, and keeps the record for `keep`. `code`
    /// identifies the confirmation.
    ///
    /// Returns false if it was used before, or if 65,536 others are recorded. The effect is
    /// durable.
    fn use_confirmation(
        &self,
        code: [u8; 32],
        now: Timestamp,
        keep: Duration,
    ) -> JobStoreFuture<'_, bool>;

    /// Takes calls from a rate limit's bucket that the servers of a fleet share: at once as many as
    /// the rate allows in 50 ms, divided by the number of servers, and at least one. The effect is
    /// not durable.
    ///
    /// A store whose servers run on one machine always grants a call, because each of them counts
    /// by itself.
    fn take_calls(&self, bucket: RateBucket) -> JobStoreFuture<'_, RateBucketGrant>;

    /// Leaves the unfinished jobs of this server to other servers at once. Must be called when no
    /// job runs any more. The store begins no further job.
    fn leave(&self) -> BoxFuture<'_, ()>;
}

/// A request about a job that another server received and the owner of the job must fulfil.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestToJobOwner {
    /// Request to cancel the job.
    Cancel(JobId),
    /// Request to accept these answers to the job's open questions.
    Answer(JobId, ClientAnswers),
    /// Request to stop the job, because another server has taken it over or ended it.
    Stop(JobId),
}

/// A job to be stored.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Id of the job.
    pub id: JobId,
    /// Id of the tool that the job calls.
    pub tool: ToolId,
    /// Arguments of the tool, as received.
    pub input: Value,
    /// Caller of the job.
    pub caller: Caller,
    /// Name of the dialect in which the job was requested, such as `mcp`.
    pub dialect: Cow<'static, str>,
    /// Priority. Jobs with a higher priority run first.
    pub priority: i32,
    /// Time at which the job was accepted.
    pub created: Timestamp,
    /// Time for which the job is kept after its end.
    pub keep: Duration,
    /// Types of questions that the client supports, and earlier answers.
    pub answers: JobQuestionState,
    /// Name of the queue for the tool's jobs, from which other servers may claim the job. With
    /// `None`, only this server runs the job.
    pub lane: Option<String>,
}

/// Types of questions that a job's client supports, the answers so far, and whether work for the
/// job began before the job was accepted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobQuestionState {
    /// Types of questions that the client supports.
    pub can: QuestionSupport,
    /// Answers of the caller so far.
    pub given: ClientAnswers,
    /// True if the server began work for the job before it accepted the job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_begun_work: bool,
}

/// A job that begins to run, with its input.
#[derive(Debug, Clone)]
pub struct StartedJob {
    /// Id of the tool that the job calls.
    pub tool: ToolId,
    /// Arguments of the tool.
    pub input: Value,
    /// Caller of the job.
    pub caller: Caller,
    /// Name of the dialect in which the job was requested, such as `mcp`.
    pub dialect: Cow<'static, str>,
    /// Types of questions that the client supports, and earlier answers.
    pub answers: JobQuestionState,
    /// Number of this start of the job, counted from 1.
    pub attempt: u32,
    /// Number of the event that reports this start of the job.
    pub start_event: u64,
}

/// An event of a job and the time at which it occurred.
pub type TimedJobEvent = (Timestamp, JobEventKind);

/// End of a job, as it is stored.
#[derive(Debug, Clone)]
pub struct JobEnd {
    /// Time at which the job ended.
    pub at: Timestamp,
    /// The final state of the job.
    pub state: JobState,
    /// Outcome of the job's call.
    pub outcome: Result<ToolOutput, CallError>,
    /// Files that the job produced.
    pub artefacts: Vec<JobArtefact>,
    /// Events before the end of the job that are not stored yet.
    pub last_events: Vec<TimedJobEvent>,
}

impl JobEnd {
    /// Creates the end of a job that was cancelled before it began.
    pub(crate) fn canceled() -> Self {
        Self {
            at: Timestamp::now(),
            state: JobState::Canceled,
            outcome: Err(CallError::Canceled),
            artefacts: Vec::new(),
            last_events: Vec::new(),
        }
    }
}

/// Function that returns true if this server may take over or claim the job.
pub type TakeoverFilter = Arc<dyn Fn(&AdoptableJob) -> bool + Send + Sync>;

/// Request of a server that can run further jobs to take over queued jobs of other servers.
pub struct JobClaim {
    /// Maximum number of jobs to claim.
    pub room: usize,
    /// Queues (one for each tool) from which this server can take jobs.
    pub lanes: Vec<ClaimableJobQueue>,
    /// Callers who already have the maximum number of jobs of one caller at this server, so that no
    /// further job of these callers is claimed.
    pub busy_callers: Vec<Caller>,
    /// Function that returns false for jobs that this server must leave to others.
    pub may_claim: TakeoverFilter,
}

/// Queue in which jobs of one tool wait until a server claims them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimableJobQueue {
    /// Name of the queue, which contains the id of the tool.
    pub name: String,
    /// True if a second run of the tool is harmless.
    pub idempotent: bool,
    /// False if this server already runs as many calls of the tool as the tool's limit allows.
    pub has_room: bool,
}

/// Unfinished jobs that this server has taken over from dead servers.
pub struct TakenOverJobs {
    /// Numbers by which the programs of the dead servers are found, if some of these programs are
    /// left.
    pub marks: Vec<u64>,
    /// Jobs in order of acceptance.
    pub jobs: Vec<AdoptableJob>,
    /// Function to call after the leftover programs were ended. Until then, the dead servers stay
    /// registered, and the next adoption returns their marks again.
    pub forget_servers: Box<dyn FnOnce() + Send>,
}

/// Unfinished job that this server takes over from a dead server, or claims from a live one.
#[derive(Debug, Clone)]
pub struct AdoptableJob {
    /// Id of the job.
    pub id: JobId,
    /// Id of the tool that the job calls.
    pub tool: ToolId,
    /// Priority. Jobs with a higher priority run first.
    pub priority: i32,
    /// State of the job: queued or running.
    pub state: JobState,
    /// Caller of the job.
    pub caller: Caller,
    /// Time at which the job was accepted.
    pub created: Timestamp,
    /// Number of times that the job was started.
    pub attempts: u32,
    /// Number of the job's last event.
    pub last_event: u64,
    /// True if a server asked for the job to be cancelled.
    pub cancel_requested: bool,
    /// True if the job cannot be running any more, or its owner has been silent for so long that
    /// the job counts as interrupted. If false, the owner may still run the job.
    pub is_lost: bool,
}

/// Failure of the job store, with the reason.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the job store is unavailable: {0}")]
pub struct JobStoreError(pub String);

/// Future of an operation of a job store.
pub(super) type JobStoreFuture<'a, T> = BoxFuture<'a, Result<T, JobStoreError>>;

impl From<JobStoreError> for CallError {
    fn from(err: JobStoreError) -> Self {
        Self::Unavailable { message: err.to_string() }
    }
}
