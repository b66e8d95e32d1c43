//! Offers the operations on jobs: start, get, wait, list, cancel, read and watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;
use toolgate_contract::{
    ArtefactSelection, CallError, Caller, ClientAnswers, ClientQuestions, Effects, HostAnswer,
    JobEvent, JobEventKind, JobEventStream, JobId, JobOptions, JobOutputText, JobPage, JobSnapshot,
    JobState, JobSupport, OpenArtefact, PreparedCallValue, QuestionAsker, QuestionSupport,
    ToolCall, ToolId, canonical_json_len, lock_mutex,
};
use toolgate_net::spawn_blocking;

use super::live::{JobEventWatch, JobWatchStage, UnfinishedJob};
use super::store::{JobQuestionState, JobStoreError, NewJob};
use super::{JobService, JobServiceState};
use crate::pipeline;

/// Retry time in the error that refuses a job because the queue is full.
const QUEUE_RETRY: Duration = Duration::from_secs(5);
/// Maximum total size of the inputs of queued jobs in bytes.
const QUEUED_INPUT_BYTES_MAX: u64 = 256 << 20;
/// Maximum total size of the inputs of one caller's queued jobs in bytes.
const CALLER_INPUT_BYTES_MAX: u64 = 64 << 20;
/// Longest wait for a cancelled job to stop, beyond its grace period.
pub(super) const STOP_WAIT: Duration = Duration::from_secs(5);
/// Shortest time that an ended job is kept, so that its caller can fetch the outcome.
const KEEP_MIN: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a job's first events from which the output of its programs is
/// collected.
const PRINTED_BYTES_MAX: usize = 1 << 20;
/// Number of the caller's jobs whose ids are compared with an unknown job id.
const NEAREST_CANDIDATES: usize = 200;
/// Maximum edit distance between an unknown job id and an id that is suggested instead.
const NEAREST_DISTANCE_MAX: usize = 4;

/// Request to start a job, with the tool and its input.
pub(crate) struct StartJobRequest {
    pub(crate) call: ToolCall,
    pub(crate) terms: JobOptions,
    pub(crate) late_questions: JobQuestionAvailability,
}

/// Permission of a job to ask its caller questions while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobQuestionAvailability {
    /// The job may ask questions if the client supports them.
    Possible,
    /// The job cannot ask its caller questions while it runs.
    Never,
}

impl JobServiceState {
    /// Cancels a job permanently. A queued job ends at once, a running job as soon as it can.
    ///
    /// The cancellation runs in a separate task, so that it continues if the caller disconnects.
    pub(super) fn cancel_job(self: &Arc<Self>, live: &Arc<UnfinishedJob>) {
        live.cancel_for_good();
        if !lock_mutex(&self.queue).remove(live.id) {
            return;
        }
        let jobs = self.clone();
        let live = live.clone();
        self.running.spawn(async move {
            let Ok(store) = jobs.store().await else { return };
            jobs.end_canceled(store, &live, CallError::Canceled).await;
        });
    }

    /// Adds the output that the job's programs printed to `job` if its outcome is an error, because
    /// the error itself does not contain it.
    pub(super) async fn with_printed(
        &self,
        mut job: JobSnapshot,
    ) -> Result<JobSnapshot, JobStoreError> {
        if matches!(job.outcome, Some(Err(_))) {
            let events = self.store().await?.events(job.id, 0, PRINTED_BYTES_MAX).await?;
            job.printed = JobOutputText::from_events(&events);
        }
        Ok(job)
    }

    /// Returns the refusal of a further job of `caller`, if the queue is full. A job with an input
    /// of `input_bytes` bytes is always accepted if no other waiting job has an input.
    fn queue_refusal(&self, caller: &Caller, input_bytes: u64) -> Option<CallError> {
        let queue = lock_mutex(&self.queue);
        let total = self.settings.queued_max;
        let per_caller = self.settings.queued_per_caller;
        let is_full = |queued: u64, max: u64| queued > 0 && queued + input_bytes > max;
        let message = if queue.len() >= total {
            format!("too many jobs are waiting (limit {total})")
        } else if queue.len_for(caller) >= per_caller {
            format!("too many of your jobs are waiting (limit {per_caller})")
        } else if is_full(queue.input_bytes_for(caller), CALLER_INPUT_BYTES_MAX) {
            format!(
                "the inputs of your waiting jobs are too large together (limit \
                 {CALLER_INPUT_BYTES_MAX} bytes)"
            )
        } else if is_full(queue.input_bytes(), QUEUED_INPUT_BYTES_MAX) {
            format!(
                "the inputs of all waiting jobs are too large together (limit \
                 {QUEUED_INPUT_BYTES_MAX} bytes)"
            )
        } else {
            return None;
        };
        Some(CallError::Limited { message, retry_after: QUEUE_RETRY })
    }
}

impl JobService {
    /// Returns true if `call`, which may run directly or as a job, should run as a job.
    pub(crate) fn should_run_as_job(&self, call: &ToolCall) -> bool {
        let found = self.0.gate().find(&call.caller, &call.tool);
        found.is_ok_and(|entry| match entry.spec().job {
            JobSupport::Never => false,
            // Programs may run for long.
            JobSupport::Optional => entry.spec().effects == Effects::Runs,
            JobSupport::Preferred | JobSupport::Required => true,
        })
    }

    /// Passes answers to the questions of the job `id` of `caller`, whichever server runs it, and
    /// returns the job.
    pub(crate) async fn answer_questions(
        &self,
        caller: &Caller,
        id: &str,
        given: ClientAnswers,
    ) -> Result<JobSnapshot, CallError> {
        let job = self.get(Some(caller), id).await?;
        match self.0.live_job(job.id) {
            Some(live) => {
                let given = live.matching_answers(given);
                if !given.is_empty() {
                    // Stored first: an answer that was acknowledged must not be asked for again.
                    self.0.store().await?.add_answers(job.id, given.clone()).await?;
                    live.answer_questions(given);
                }
                self.get(Some(caller), id).await
            }
            None if job.state.is_terminal() => Ok(job),
            None => self.answer_elsewhere(job, given).await,
        }
    }

    /// Accepts the job `wanted` and stores it. After the return, a crash of the server does not
    /// lose the job.
    pub(crate) async fn start(&self, wanted: StartJobRequest) -> Result<HostAnswer, CallError> {
        let StartJobRequest { mut call, terms, late_questions } = wanted;
        let jobs = &self.0;
        // A server that runs no jobs begins no work for a job that another server runs.
        call.metadata.as_job = lock_mutex(&jobs.queue).runs_jobs();
        call.started_work = PreparedCallValue::with_slot();
        let gate = jobs.gate();
        let (entry, mut call) = pipeline::accept_job(&gate, call).await?;
        if terms.answer_within.is_some() && entry.tool().is_done(&call.started_work) {
            return pipeline::run_call(&gate, &mut call, None).await.map(HostAnswer::Output);
        }
        let needs_token = entry.tool().needs_caller_token();
        if needs_token && !lock_mutex(&jobs.queue).runs_jobs() {
            if terms.answer_within.is_some() && entry.spec().job != JobSupport::Required {
                return pipeline::run_call(&gate, &mut call, None).await.map(HostAnswer::Output);
            }
            return Err(pipeline::refuse_call(&gate, &call, token_refusal(&call.tool)).await);
        }
        let input_bytes = canonical_json_len(&call.input);
        if let Some(why) = jobs.queue_refusal(&call.caller, input_bytes) {
            return Err(pipeline::refuse_call(&gate, &call, why).await);
        }
        let created = Timestamp::now();
        let keep =
            terms.keep_for.unwrap_or(jobs.settings.keep).max(KEEP_MIN).min(jobs.settings.keep_max);
        let cancel = call.cancel.clone();
        let ahead = call.started_work;
        let id = JobId::from_bits(u128::from_le_bytes(random_id_bits()?));
        let spec = entry.spec();
        let tool = spec.id.clone();
        let (priority, as_job) = (spec.priority, spec.job);
        // Work that was begun here must not be begun elsewhere, and no other server has the token.
        let may_move = jobs.is_shared() && !ahead.has_work() && !needs_token;
        let lane = may_move.then(|| entry.job_lane().to_owned());
        let caller = call.caller.clone();
        // The job may be further when the client reads this.
        let accepted = queued_snapshot(id, tool.clone(), call.caller.clone(), created, keep);
        let can = match late_questions {
            JobQuestionAvailability::Possible => call.asker.supported(),
            JobQuestionAvailability::Never => QuestionSupport::default(),
        };
        let new = NewJob {
            id,
            tool: tool.clone(),
            input: call.input,
            caller: call.caller,
            dialect: call.dialect,
            priority,
            created,
            keep,
            answers: JobQuestionState {
                can,
                given: call.asker.answers(),
                has_begun_work: ahead.has_work(),
            },
            lane,
        };
        let accepting = {
            let jobs = jobs.clone();
            // A separate task, so that a departing caller leaves no job that nobody runs.
            toolgate_net::spawn_task(async move {
                let store = jobs.store().await?;
                let live = jobs.register(id, 0, ahead);
                if let Err(err) = store.accept(new).await {
                    jobs.unregister(&live);
                    return Err(err);
                }
                live.publish(1, vec![(created, JobEventKind::Queued)]);
                jobs.enqueue(id, tool, caller, priority, created, input_bytes);
                jobs.leave_claimed(&live);
                jobs.dispatch();
                let waits = lock_mutex(&jobs.queue).is_waiting(id);
                if waits {
                    store.offer_jobs();
                }
                jobs.notify_changed();
                Ok(live)
            })
        };
        let live = accepting.await.map_err(|err| CallError::Failed {
            message: "the job could not be accepted".to_owned(),
            cause: err.to_string(),
        })??;
        let at_once = matches!(as_job, JobSupport::Preferred | JobSupport::Required);
        let Some(wait) = terms.answer_within.filter(|_| !at_once) else {
            return Ok(HostAnswer::Job(Box::new(accepted)));
        };
        tokio::select! {
            _ = timeout(wait, self.wait_until_over(&live)) => {}
            // A caller who leaves before learning the job id leaves no job.
            () = cancel.cancelled() => {
                jobs.cancel_job(&live);
                return Err(CallError::Canceled);
            }
        }
        let job = self.get_existing(id).await?;
        match job.outcome {
            Some(outcome) => outcome.map(HostAnswer::Output),
            None => Ok(HostAnswer::Job(Box::new(job))),
        }
    }

    /// Returns the job `id` of `caller`. With `None`, the caller is the owner of this machine, who
    /// sees all jobs.
    ///
    /// # Errors
    /// There is no such job, or the store cannot be read.
    pub async fn get(&self, caller: Option<&Caller>, id: &str) -> Result<JobSnapshot, CallError> {
        let found = match id.parse::<JobId>() {
            Ok(id) => self.0.store().await?.job(id).await?,
            Err(_) => None,
        };
        match found.filter(|job| caller.is_none_or(|caller| job.caller == *caller)) {
            Some(job) => Ok(self.with_questions(job)),
            None => Err(self.unknown_job(caller, id).await),
        }
    }

    /// Returns the job `id` of `caller`, with what its programs printed if its outcome is an error.
    pub(crate) async fn get_with_printed(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<JobSnapshot, CallError> {
        let job = self.get(Some(caller), id).await?;
        Ok(self.0.with_printed(job).await?)
    }

    /// Waits for the end of the job `id` of `caller` and returns the job.
    ///
    /// Passes questions of the job to `asker`, if `asker` can ask the caller.
    pub(crate) async fn wait_until_ended(
        &self,
        caller: &Caller,
        id: &str,
        asker: &QuestionAsker,
    ) -> Result<JobSnapshot, CallError> {
        loop {
            let job = self.get(Some(caller), id).await?;
            if job.state.is_terminal() {
                return Ok(job);
            }
            let live = self.0.live_job(job.id);
            let has_left = async {
                match &live {
                    Some(live) => live.wait_until_closed().await,
                    None => self.wait_while_elsewhere(job.id).await,
                }
            };
            tokio::select! {
                () = has_left => {}
                never = self.forward_questions(caller, job.id, live.as_deref(), asker) => {
                    match never {}
                }
            }
        }
    }

    /// Passes questions of the job to `asker`, and the answers back to the job. `live` is the job,
    /// unless another server runs it. After a failure, `asker` is not used again, but the questions
    /// stay open for other clients. Never returns.
    async fn forward_questions(
        &self,
        caller: &Caller,
        id: JobId,
        live: Option<&UnfinishedJob>,
        asker: &QuestionAsker,
    ) -> std::convert::Infallible {
        while live.is_some() || asker.supported() != QuestionSupport::default() {
            let questions = match live {
                Some(live) => live.wait_for_questions().await,
                None => self.wait_for_questions_elsewhere(id).await,
            };
            let Ok(given) = asker.ask(questions).await else { break };
            if self.answer_questions(caller, &id.to_string(), given).await.is_err() {
                break;
            }
        }
        std::future::pending().await
    }

    /// Lists up to `size` jobs of `caller` that follow the job `after`, newest first. With `None`,
    /// the caller is the owner of this machine, who sees all jobs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn list(
        &self,
        caller: Option<&Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> Result<JobPage, CallError> {
        if let Some(after) = after {
            self.get(caller, &after.to_string()).await?;
        }
        let page = self.0.store().await?.list(caller.cloned(), after, size).await?;
        let jobs = page.jobs.into_iter().map(|job| self.with_questions(job)).collect();
        Ok(JobPage { jobs, ..page })
    }

    /// Cancels the job `id` of `caller`, whichever server runs it, waits for its end for a bounded
    /// time, and returns the job.
    pub(crate) async fn cancel(&self, caller: &Caller, id: &str) -> Result<JobSnapshot, CallError> {
        let job = self.get(Some(caller), id).await?;
        let jobs = &self.0;
        if job.state.is_terminal() {
            return Err(CallError::Conflict {
                message: format!("job {} has ended already: it {}", job.id, end_phrase(job.state)),
                details: json!({ "state": job.state }),
            });
        }
        let Some(live) = jobs.live_job(job.id) else {
            return self.cancel_elsewhere(job.id).await;
        };
        jobs.cancel_job(&live);
        let _ =
            timeout(jobs.gate().settings.cancel_grace + STOP_WAIT, live.wait_until_closed()).await;
        let job = self.get_existing(job.id).await?;
        if jobs.is_shared() && !job.state.is_terminal() && jobs.live_job(job.id).is_none() {
            // Another server claimed it meanwhile.
            return self.cancel_elsewhere(job.id).await;
        }
        Ok(job)
    }

    /// Returns the job `id` of `caller` and about `bytes_max` bytes of its events after number
    /// `after`.
    pub(crate) async fn read_events(
        &self,
        caller: &Caller,
        id: &str,
        after: u64,
        bytes_max: usize,
    ) -> Result<(JobSnapshot, Vec<JobEvent>), CallError> {
        let job = self.get(Some(caller), id).await?;
        let events = self.0.store().await?.events(job.id, after, bytes_max).await?;
        Ok((job, events))
    }

    /// Returns about `bytes_max` bytes of the first events of the job `id` of any caller, for the
    /// owner of this machine.
    ///
    /// # Errors
    /// There is no such job, or the store cannot be read.
    pub async fn events(&self, id: &str, bytes_max: usize) -> Result<Vec<JobEvent>, CallError> {
        let job = self.get(None, id).await?;
        Ok(self.0.store().await?.events(job.id, 0, bytes_max).await?)
    }

    /// Opens a file that the job `id` of `caller` produced.
    pub(crate) async fn open_artefact(
        &self,
        caller: &Caller,
        id: &str,
        which: ArtefactSelection,
    ) -> Result<OpenArtefact, CallError> {
        let job = self.get(Some(caller), id).await?;
        let files = self.0.files.clone();
        let zip_permit = files.reserve_zip(&job, &which)?;
        // Boxed: every request would reserve space for it.
        let fetched = Box::pin(self.0.fetch_files(&job, &which)).await?;
        let opened = spawn_blocking(move || files.open(&job, &which, &fetched, zip_permit)).await;
        opened.map_err(|err| CallError::Failed {
            message: "the file could not be opened".to_owned(),
            cause: err.to_string(),
        })?
    }

    /// Watches the events of the job `id` of `caller` after number `after`. With `None`, the caller
    /// is the owner of this machine, who sees all jobs.
    ///
    /// # Errors
    /// There is no such job, or the store cannot be read.
    pub async fn watch(
        &self,
        caller: Option<&Caller>,
        id: &str,
        after: u64,
    ) -> Result<(JobSnapshot, Box<dyn JobEventStream>), CallError> {
        let job = self.get(caller, id).await?;
        let watch = JobEventWatch {
            jobs: self.0.clone(),
            id: job.id,
            after,
            ready: VecDeque::new(),
            stage: JobWatchStage::Open,
            failures: 0,
        };
        Ok((job, Box::new(watch)))
    }

    /// Returns a receiver that is notified when any job is accepted or has ended.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Returns the job `id` in its current state.
    ///
    /// # Errors
    /// The job is no longer stored, or the store cannot be read.
    pub(super) async fn get_existing(&self, id: JobId) -> Result<JobSnapshot, CallError> {
        let job = self.0.store().await?.job(id).await?.map(|job| self.with_questions(job));
        job.ok_or_else(|| CallError::NotFound { message: format!("job {id} is no longer stored") })
    }

    /// Replaces the stored open questions of the job by the current ones, if this server runs it.
    fn with_questions(&self, mut job: JobSnapshot) -> JobSnapshot {
        if !job.state.is_terminal()
            && let Some(live) = self.0.live_job(job.id)
        {
            job.questions = live.open_questions();
        }
        job
    }

    async fn unknown_job(&self, caller: Option<&Caller>, id: &str) -> CallError {
        let typed: String = id.chars().take(40).collect();
        let recent = match self.0.store().await {
            Ok(store) => store.list(caller.cloned(), None, NEAREST_CANDIDATES).await,
            Err(err) => Err(err),
        };
        let recent = recent.map(|page| page.jobs).unwrap_or_default();
        let ids = recent.iter().map(|job| job.id.to_string());
        let distances = ids.map(|id| (strsim::damerau_levenshtein(&typed, &id), id));
        let nearest = distances.min().filter(|(letters, _)| *letters <= NEAREST_DISTANCE_MAX);
        let is_beginning =
            (1..32).contains(&typed.len()) && typed.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hint = match nearest {
            Some((_, id)) => format!("; did you mean `{id}`?"),
            None if is_beginning => "; give all 32 digits of the id".to_owned(),
            None => String::new(),
        };
        CallError::NotFound { message: format!("no job has the id `{typed}`{hint}") }
    }
}

/// Returns the error for a job of `tool` at a server that runs no jobs. Other servers cannot run
/// the job, because they do not receive its caller's token.
fn token_refusal(tool: &str) -> CallError {
    let message = format!(
        "`{tool}` needs your access token, which is not passed on to other servers, and this \
         server runs no jobs; call the tool without a job"
    );
    CallError::Unavailable { message }
}

fn end_phrase(state: JobState) -> &'static str {
    match state {
        JobState::Queued | JobState::Running => "has not",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Canceled => "was cancelled",
    }
}

fn random_id_bits() -> Result<[u8; 16], CallError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|err| CallError::Failed {
        message: "no id could be created for the job".to_owned(),
        cause: err.to_string(),
    })?;
    Ok(bits)
}

/// Returns the snapshot of a job that was just accepted, as clients see it.
fn queued_snapshot(
    id: JobId,
    tool: ToolId,
    caller: Caller,
    created: Timestamp,
    keep_for: Duration,
) -> JobSnapshot {
    JobSnapshot {
        id,
        tool,
        caller,
        state: JobState::Queued,
        created,
        updated: created,
        started: None,
        attempts: 0,
        progress: 0.0,
        message: None,
        keep_for,
        last_event: 1,
        artefacts: Vec::new(),
        questions: ClientQuestions::new(),
        outcome: None,
        printed: JobOutputText::default(),
    }
}
