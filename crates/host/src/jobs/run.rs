//! Runs a job from the start to its end, and takes over jobs of dead servers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolgate_budget::{InputMemoryOwner, InputMemoryReservation, UNCOUNTED_BYTES};
use toolgate_contract::{
    CallError, CallEventSink, CallMetadata, Caller, JobEventKind, JobId, JobState, LogLevel,
    PreparedCallValue, QuestionAsker, ToolCall, ToolId, ToolOutput, ToolRunStatus, lock_mutex,
};
use toolgate_net::spawn_blocking;

use super::JobServiceState;
use super::live::UnfinishedJob;
use super::pump::JobEventForwarder;
use super::questions::JobQuestionSender;
use super::queue::QueuedJob;
use super::store::{
    AdoptableJob, JobEnd, JobQuestionState, JobStore, StartedJob, TakeoverFilter, TimedJobEvent,
};
use crate::limits::CallSlot;
use crate::pipeline;

/// Pause before a failed operation of the job store is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of tries to store the end of a job while the server stops. After that, the next
/// server ends the job.
const LAST_TRIES_MAX: u32 = 3;
/// Maximum number of starts of a job. A job whose server ended that often during the job is not
/// started again.
const ATTEMPTS_MAX: u32 = 5;
/// Number of copies of a running job's input in memory: as stored text, as JSON values, and in the
/// data that the tool makes of it.
const INPUT_COPIES: usize = 3;
/// Longest wait for memory for the input of a job.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(20);

impl JobServiceState {
    /// Starts queued jobs in order until the limits on running jobs are reached.
    pub(super) fn dispatch(self: &Arc<Self>) {
        // Keeps the tracker open, because this function may still start jobs.
        let _here = self.running.token();
        if self.stopping.is_cancelled() {
            return;
        }
        while let Some(job) = lock_mutex(&self.queue).take_next() {
            let jobs = self.clone();
            self.running.spawn(async move {
                let ran = AssertUnwindSafe(jobs.run_job(&job)).catch_unwind().await;
                if ran.is_err() {
                    tracing::error!(job = %job.id, "running the job panicked; this is a bug in toolgate");
                    jobs.live_job(job.id).inspect(|live| jobs.unregister(live));
                }
                lock_mutex(&jobs.queue).finish(&job);
                jobs.place_freed.send_replace(());
                jobs.dispatch();
            });
        }
    }

    async fn run_job(self: &Arc<Self>, job: &QueuedJob) {
        let Some(live) = self.live_job(job.id) else { return };
        let Ok(store) = self.store().await else { return self.unregister(&live) };
        let _memory = tokio::select! {
            biased;
            memory = self.reserve_input_memory(job) => memory,
            () = live.cancel.cancelled() => {
                if live.is_cancelled() {
                    return self.end_canceled(store, &live, CallError::Canceled).await;
                }
                return self.unregister(&live);
            }
        };
        // The slot comes first, as a waiting job must not count as started. A tool that is gone
        // needs no slot to be refused.
        let gate = self.gate();
        let slot = match gate.catalog.snapshot().entry(&job.tool) {
            Some(entry) => {
                match gate.limits.admit_job(&job.caller, entry.spec(), &live.cancel).await {
                    Ok(slot) => Some(slot),
                    Err(why) if live.is_cancelled() => {
                        return self.end_canceled(store, &live, why).await;
                    }
                    // The server stops; the next one continues.
                    Err(_) => return self.unregister(&live),
                }
            }
            None => None,
        };
        let (started, at) = loop {
            let at = Timestamp::now();
            let begun = if self.may_run_again(&job.tool) {
                store.begin(job.id, at).await
            } else {
                store.begin_once(job.id, at).await
            };
            match begun {
                Ok(Some(mut started)) => {
                    // The token of the caller is in memory only.
                    started.caller.bearer.clone_from(&job.caller.bearer);
                    break (started, at);
                }
                // The job was cancelled in the queue and has ended already, or another server has
                // claimed it.
                Ok(None) => {
                    if live.is_cancelled() {
                        self.pass_cancellation_on(store, live.id).await;
                    }
                    return self.unregister(&live);
                }
                Err(err) => {
                    tracing::warn!(job = %job.id, "{err}; trying again");
                    if self.wait_for_stop(RETRY_PAUSE).await {
                        return self.unregister(&live);
                    }
                    // The store may refuse to begin jobs for the time of a lease.
                    if live.is_cancelled() {
                        return self.end_canceled(store, &live, CallError::Canceled).await;
                    }
                }
            }
        };
        if !store.is_owner_certain() {
            // Nothing was done yet, so the job may begin again, here or at another server.
            if let Err(err) = store.requeue(live.id, Timestamp::now()).await {
                tracing::warn!(job = %live.id, "{err}; another server takes the job over");
            }
            return self.unregister(&live);
        }
        live.publish(
            started.start_event,
            vec![(at, JobEventKind::Started { attempt: started.attempt })],
        );
        let tool = started.tool.clone();
        let has_lost_work = started.answers.has_begun_work && !live.ahead.has_work();
        if has_lost_work && !self.may_run_again(&tool) {
            // Another server began the work before it accepted the job, and may have done it.
            return self.end_interrupted(store, &live, &tool, started.caller).await;
        }
        live.set_repeatable(self.may_run_again(&tool));
        let attempt = started.attempt;
        let (outcome, pump) = self.run_call(store, &live, started, slot).await;
        let stopping = self.stopping.is_cancelled() || live.is_stopped_here();
        let outcome = match outcome {
            // A stopped tool may report another error.
            Err(_) if stopping || live.is_cancelled() => Err(CallError::Canceled),
            done => done,
        };
        let cut_short =
            stopping && matches!(outcome, Err(CallError::Canceled)) && !live.is_cancelled();
        if cut_short && self.may_run_again(&tool) {
            let again = store.requeue(live.id, Timestamp::now()).await;
            if let Err(err) = again {
                tracing::warn!(job = %live.id, "{err}; the job runs again after the next start");
            }
            return self.unregister(&live);
        }
        let outcome = if cut_short { Err(CallError::Interrupted) } else { outcome };
        let end = self.collect_end(&live, attempt, outcome, &pump).await;
        self.store_end(store, &live, end).await;
    }

    /// Reserves memory for the input of `job` until the job ends, and waits up to 20 s for free
    /// memory. Returns `None` if the input is small or no memory becomes free.
    async fn reserve_input_memory(&self, job: &QueuedJob) -> Option<InputMemoryReservation> {
        let bytes = usize::try_from(job.input_bytes).unwrap_or(usize::MAX);
        let bytes = bytes.saturating_mul(INPUT_COPIES).saturating_sub(UNCOUNTED_BYTES);
        if bytes == 0 {
            return None;
        }
        let owner = InputMemoryOwner::Caller(job.caller.clone());
        let memory = self.gate().input_memory.clone();
        // Requests that wait for this job may be what uses the memory.
        tokio::time::timeout(MEMORY_WAIT_MAX, memory.reserve_when_free(owner, bytes)).await.ok()
    }

    /// Runs the call of a job with the same checks as any other call, and stores the events of the
    /// job.
    async fn run_call(
        &self,
        store: &Arc<dyn JobStore>,
        live: &Arc<UnfinishedJob>,
        started: StartedJob,
        slot: Option<CallSlot>,
    ) -> (Result<ToolOutput, CallError>, Arc<JobEventForwarder>) {
        let pump = JobEventForwarder::new(self.settings.output_bytes_max);
        let JobQuestionState { can, given, .. } = started.answers;
        live.add_answers(&given);
        let job_asker = Arc::new(JobQuestionSender { live: live.clone(), pump: pump.clone() });
        let mut call = ToolCall {
            tool: started.tool.to_string(),
            input: started.input,
            caller: started.caller,
            dialect: started.dialect,
            cancel: live.cancel.clone(),
            events: pump.sink(),
            job: Some(live.id),
            asker: QuestionAsker::on_repeat(can, given).with_sender(job_asker),
            metadata: CallMetadata::default(),
            time_limit: None,
            started_work: live.ahead.clone(),
        };
        let work = async {
            // The job may have waited for long, so the gate in force now decides.
            let outcome = pipeline::run_call(&self.gate(), &mut call, slot).await;
            pump.close();
            outcome
        };
        let (outcome, ()) = tokio::join!(work, pump.run(store.as_ref(), live));
        (outcome, pump)
    }

    /// Copies the job's files to the folder of the job store, and to the store of a fleet. Returns
    /// the data to store as the end of the job: its final state, outcome, files and remaining
    /// events.
    async fn collect_end(
        &self,
        live: &UnfinishedJob,
        attempt: u32,
        outcome: Result<ToolOutput, CallError>,
        pump: &JobEventForwarder,
    ) -> JobEnd {
        let (mut before, produced) = pump.take_rest();
        let mut artefacts = Vec::new();
        if !produced.is_empty() {
            let files = self.files.clone();
            let id = live.id;
            let (kept, mut lost) =
                spawn_blocking(move || files.store(id, produced)).await.unwrap_or_default();
            // Boxed: few jobs leave files, and every job would reserve space for it.
            lost.extend(Box::pin(self.share_files(id, attempt, &kept)).await);
            let now = Timestamp::now();
            let lost = lost
                .into_iter()
                .map(|message| (now, JobEventKind::Log { level: LogLevel::Warning, message }));
            before.extend(lost);
            before.extend(kept.iter().map(|kept| (now, JobEventKind::Artefact(kept.clone()))));
            artefacts = kept;
        }
        let state = match &outcome {
            Ok(ToolOutput { ending: ToolRunStatus::Done, .. }) => JobState::Succeeded,
            Ok(ToolOutput {
                ending: ToolRunStatus::ProgramFailed | ToolRunStatus::ToolFailed,
                ..
            }) => JobState::Failed,
            Err(CallError::Canceled) => JobState::Canceled,
            Err(_) => JobState::Failed,
        };
        JobEnd { at: Timestamp::now(), state, outcome, artefacts, last_events: before }
    }

    /// Ends the job `live`, which was cancelled before it began, with the error `why`. If another
    /// server has claimed the job, asks that server to cancel it.
    pub(super) async fn end_canceled(
        &self,
        store: &Arc<dyn JobStore>,
        live: &Arc<UnfinishedJob>,
        why: CallError,
    ) {
        let stored = store.job(live.id).await.ok().flatten();
        if !self.store_end(store, live, JobEnd::canceled()).await {
            self.pass_cancellation_on(store, live.id).await;
        } else if let Some(job) = stored {
            self.record_refusal(job.id, &job.tool, job.caller, why).await;
        }
    }

    /// Asks the server that owns the job to cancel it, unless the job has ended. Logs a failure.
    async fn pass_cancellation_on(&self, store: &Arc<dyn JobStore>, id: JobId) {
        if let Err(err) = store.request_cancel(id).await {
            tracing::warn!(job = %id, "{err}; the server that runs the job does not cancel it");
        }
    }

    /// Stores the end of the job with retries, and notifies the job's watchers. Returns false if
    /// the end was not stored, for example because another server owns the job.
    pub(super) async fn store_end(
        &self,
        store: &Arc<dyn JobStore>,
        live: &Arc<UnfinishedJob>,
        end: JobEnd,
    ) -> bool {
        let mut last_tries = LAST_TRIES_MAX;
        let is_stored = loop {
            match store.finish(live.id, end.clone()).await {
                Ok(Some(first)) => {
                    self.ended_counts.count(end.state);
                    let mut events: Vec<TimedJobEvent> = end.last_events;
                    events.push((end.at, JobEventKind::Finished { state: end.state }));
                    live.publish(first, events);
                    break true;
                }
                // Another task ended it first, or another server has it.
                Ok(None) => break false,
                Err(err) if last_tries == 0 => {
                    tracing::error!(job = %live.id, "{err}; the next server ends the job");
                    break false;
                }
                Err(err) => {
                    tracing::warn!(job = %live.id, "{err}; trying again");
                    last_tries -= u32::from(self.stopping.is_cancelled());
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        };
        self.unregister(live);
        self.notify_changed();
        is_stored
    }

    /// Takes over the jobs of dead servers. Ends their programs and queues their queued jobs. Runs
    /// their running jobs again if the tool allows it. Ends jobs whose cancellation was requested.
    pub(super) async fn adopt_orphans(self: &Arc<Self>) {
        let store = match self.store().await {
            Ok(store) => store,
            Err(err) => {
                return tracing::warn!(
                    "{err}; this server does not take over jobs of stopped servers for \
                     now"
                );
            }
        };
        let _one = self.taking_over.lock().await;
        let jobs = self.clone();
        let filter: TakeoverFilter = Arc::new(move |orphan| jobs.may_adopt(orphan));
        let adopted = match store.adopt(filter).await {
            Ok(adopted) => adopted,
            Err(err) => {
                return tracing::warn!(
                    "{err}; this server does not take over jobs of stopped servers for \
                     now"
                );
            }
        };
        let end_left = self.settings.end_leftovers.clone();
        let marks = adopted.marks;
        let forget_servers = adopted.forget_servers;
        let ended = spawn_blocking(move || {
            marks.into_iter().for_each(|mark| end_left(mark));
            forget_servers();
        });
        // It fails only if the callback panics; the jobs must be run all the same.
        let _ = ended.await;
        if !adopted.jobs.is_empty() {
            let count = adopted.jobs.len();
            let jobs = if count == 1 { "job" } else { "jobs" };
            tracing::info!("took over {count} {jobs} from a stopped server");
        }
        for orphan in adopted.jobs {
            self.take_over(store, &orphan).await;
        }
        self.dispatch();
    }

    pub(super) async fn take_over(
        self: &Arc<Self>,
        store: &Arc<dyn JobStore>,
        orphan: &AdoptableJob,
    ) {
        let live = self.register(orphan.id, orphan.last_event, PreparedCallValue::with_slot());
        if orphan.cancel_requested {
            self.store_end(store, &live, JobEnd::canceled()).await;
            let caller = orphan.caller.clone();
            return self.record_refusal(orphan.id, &orphan.tool, caller, CallError::Canceled).await;
        }
        let worn_out = orphan.attempts >= ATTEMPTS_MAX;
        if orphan.state == JobState::Running && (worn_out || !self.may_run_again(&orphan.tool)) {
            let caller = orphan.caller.clone();
            return self.end_interrupted(store, &live, &orphan.tool, caller).await;
        }
        if orphan.state == JobState::Running {
            while let Err(err) = store.requeue(orphan.id, Timestamp::now()).await {
                tracing::warn!(job = %orphan.id, "{err}; trying again");
                if self.wait_for_stop(RETRY_PAUSE).await {
                    return self.unregister(&live);
                }
            }
        }
        let AdoptableJob { id, tool, caller, priority, created, .. } = orphan;
        self.enqueue(*id, tool.clone(), caller.clone(), *priority, *created, 0);
    }

    /// Ends the interrupted job `live`, whose work may have been done already and must not be
    /// repeated.
    async fn end_interrupted(
        &self,
        store: &Arc<dyn JobStore>,
        live: &Arc<UnfinishedJob>,
        tool: &ToolId,
        caller: Caller,
    ) {
        let end = JobEnd {
            at: Timestamp::now(),
            state: JobState::Failed,
            outcome: Err(CallError::Interrupted),
            artefacts: Vec::new(),
            last_events: Vec::new(),
        };
        self.store_end(store, live, end).await;
        self.record_refusal(live.id, tool, caller, CallError::Interrupted).await;
    }

    /// Writes an audit record of the job `id`, which ends with the error `why` and did not run at
    /// this server.
    pub(super) async fn record_refusal(
        &self,
        id: JobId,
        tool: &ToolId,
        caller: Caller,
        why: CallError,
    ) {
        let call = ToolCall {
            tool: tool.to_string(),
            input: Value::Null,
            caller,
            dialect: "jobs".into(),
            cancel: CancellationToken::new(),
            events: CallEventSink::none(),
            job: Some(id),
            asker: QuestionAsker::none(),
            metadata: CallMetadata::default(),
            time_limit: None,
            started_work: PreparedCallValue::default(),
        };
        pipeline::refuse_call(&self.gate(), &call, why).await;
    }

    /// Returns true if this server may take over the job. A job that is to run is left to another
    /// server if this server runs no jobs, or if the job's tool is hidden from the job's caller. A
    /// job that may not run twice is left to its owner as long as the owner may still run it.
    pub(super) fn may_adopt(&self, orphan: &AdoptableJob) -> bool {
        let interrupted = orphan.state == JobState::Running && !self.may_run_again(&orphan.tool);
        if self.live_job(orphan.id).is_some() || interrupted && !orphan.is_lost {
            return false;
        }
        let gate = self.gate();
        let is_hidden = gate.catalog.snapshot().entry(&orphan.tool).is_some()
            && gate.find(&orphan.caller, orphan.tool.as_str()).is_err();
        interrupted || orphan.cancel_requested || !is_hidden && lock_mutex(&self.queue).runs_jobs()
    }

    /// Returns true if the tool `tool` is idempotent, so that its jobs may run again.
    fn may_run_again(&self, tool: &ToolId) -> bool {
        self.gate().catalog.snapshot().entry(tool).is_some_and(|entry| entry.spec().idempotent)
    }

    /// Adds a job whose input has `input_bytes` bytes to the queue.
    pub(super) fn enqueue(
        &self,
        id: JobId,
        tool: ToolId,
        caller: Caller,
        priority: i32,
        created: Timestamp,
        input_bytes: u64,
    ) {
        let at_once = self
            .gate()
            .catalog
            .snapshot()
            .entry(&tool)
            .and_then(|entry| entry.spec().concurrency_max);
        let job = QueuedJob { id, caller, tool, at_once, input_bytes };
        lock_mutex(&self.queue).push(priority, created, job);
    }

    /// Waits for `time` and returns false, or returns true as soon as the server stops.
    pub(super) async fn wait_for_stop(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.stopping.cancelled()).await.is_ok()
    }
}
