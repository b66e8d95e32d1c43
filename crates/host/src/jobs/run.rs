//! Runs one job from its turn to its end, and takes over jobs of dead servers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    Ahead, Asker, Beside, Call, CallError, Caller, Ending, EventSink, Happened, JobId, JobState,
    Level, Output, ToolId,
};

use super::Inner;
use super::asking::JobAsks;
use super::live::Live;
use super::pump::Pump;
use super::queue::Waiting;
use super::store::{Answered, Begun, End, May, Orphan, Said, Store};
use crate::limits::Slot;
use crate::pipeline;

/// Pause before a failed store operation is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Tries to store the end of a job while the server stops. After that the next server ends the job.
const LAST_TRIES: u32 = 3;
/// Largest number of starts of a job. One that ended with its server that often is not tried again.
const ATTEMPTS_MAX: u32 = 5;

impl Inner {
    /// Starts each job whose turn it is.
    pub(super) fn dispatch(self: &Arc<Self>) {
        // Keeps the tracker open, because this function may still start jobs.
        let _here = self.running.token();
        if self.stopping.is_cancelled() {
            return;
        }
        while let Some(job) = self.queue().next() {
            let jobs = self.clone();
            self.running.spawn(async move {
                let ran = AssertUnwindSafe(jobs.run(&job)).catch_unwind().await;
                if ran.is_err() {
                    tracing::error!(job = %job.id, "it broke off; this is a fault in toolgate");
                    jobs.live(job.id).inspect(|live| jobs.let_go(live));
                }
                jobs.queue().ended(&job);
                jobs.dispatch();
            });
        }
    }

    async fn run(self: &Arc<Self>, job: &Waiting) {
        let Some(live) = self.live(job.id) else { return };
        let Ok(store) = self.store().await else { return self.let_go(&live) };
        // The slot comes first, as a waiting job must not count as started. A tool that is gone
        // needs no slot to be refused.
        let slot = match self.gate.catalog.now().entry(&job.tool) {
            Some(entry) => {
                match self.gate.limits.admit_job(&job.caller, entry.spec(), &live.cancel).await {
                    Ok(slot) => Some(slot),
                    Err(why) if live.is_unwanted() => {
                        let kept = store.job(job.id).await.ok().flatten();
                        self.finish(store, &live, End::canceled()).await;
                        if let Some(kept) = kept {
                            self.record(job.id, &job.tool, kept.caller, why).await;
                        }
                        return;
                    }
                    // The server stops; the next one continues.
                    Err(_) => return self.let_go(&live),
                }
            }
            None => None,
        };
        let (begun, at) = loop {
            let at = Timestamp::now();
            match store.begin(job.id, at).await {
                Ok(Some(begun)) => break (begun, at),
                // The job was cancelled in the queue and has ended already.
                Ok(None) => return self.let_go(&live),
                Err(err) => {
                    tracing::warn!(job = %job.id, "{err}; trying again");
                    if self.stops_within(RETRY).await {
                        return self.let_go(&live);
                    }
                }
            }
        };
        live.publish(begun.event, vec![(at, Happened::Started { attempt: begun.attempt })]);
        let tool = begun.tool.clone();
        let (outcome, pump) = self.call(store, &live, begun, slot).await;
        let stopping = self.stopping.is_cancelled();
        let outcome = match outcome {
            // A stopped tool may report another error.
            Err(_) if stopping || live.is_unwanted() => Err(CallError::Canceled),
            done => done,
        };
        let cut_short =
            stopping && matches!(outcome, Err(CallError::Canceled)) && !live.is_unwanted();
        if cut_short && self.may_run_again(&tool) {
            let again = store.requeue(live.id, Timestamp::now()).await;
            if let Err(err) = again {
                tracing::warn!(job = %live.id, "{err}; it is run again when this server starts again");
            }
            return self.let_go(&live);
        }
        let outcome = if cut_short { Err(CallError::Interrupted) } else { outcome };
        let end = self.end(&live, outcome, &pump).await;
        self.finish(store, &live, end).await;
    }

    /// Runs the job through the gate and stores its events.
    async fn call(
        &self,
        store: &Arc<dyn Store>,
        live: &Arc<Live>,
        begun: Begun,
        slot: Option<Slot>,
    ) -> (Result<Output, CallError>, Arc<Pump>) {
        let pump = Pump::new(self.settings.output_bytes_max);
        let Answered { can, given } = begun.asking;
        live.remember(&given);
        let asks = Arc::new(JobAsks { live: live.clone(), pump: pump.clone() });
        let mut call = Call {
            tool: begun.tool.to_string(),
            input: begun.input,
            caller: begun.caller,
            dialect: begun.dialect,
            cancel: live.cancel.clone(),
            events: pump.sink(),
            job: Some(live.id),
            asker: Asker::again(can, given).asking_by(asks),
            beside: Beside::default(),
            within: None,
            ahead: live.ahead.clone(),
        };
        let work = async {
            let outcome = pipeline::run(&self.gate, &mut call, slot).await;
            pump.close();
            outcome
        };
        let (outcome, ()) = tokio::join!(work, pump.run(store.as_ref(), live));
        (outcome, pump)
    }

    /// Returns the end of the job, with its files copied to the jobs' folder.
    async fn end(&self, live: &Live, outcome: Result<Output, CallError>, pump: &Pump) -> End {
        let (mut before, left) = pump.rest();
        let mut artefacts = Vec::new();
        if !left.is_empty() {
            let files = self.files.clone();
            let id = live.id;
            let (kept, lost) =
                spawn_blocking(move || files.keep(id, left)).await.unwrap_or_default();
            let now = Timestamp::now();
            let lost = lost
                .into_iter()
                .map(|message| (now, Happened::Log { level: Level::Warning, message }));
            before.extend(lost);
            before.extend(kept.iter().map(|kept| (now, Happened::Artefact(kept.clone()))));
            artefacts = kept;
        }
        let state = match &outcome {
            Ok(Output { ending: Ending::Done, .. }) => JobState::Succeeded,
            Ok(Output { ending: Ending::ProgramFailed | Ending::ToolFailed, .. }) => {
                JobState::Failed
            }
            Err(CallError::Canceled) => JobState::Canceled,
            Err(_) => JobState::Failed,
        };
        End { at: Timestamp::now(), state, outcome, artefacts, before }
    }

    /// Stores the end of the job with retries, and notifies its watchers.
    pub(super) async fn finish(&self, store: &Arc<dyn Store>, live: &Arc<Live>, end: End) {
        let mut last_tries = LAST_TRIES;
        loop {
            match store.finish(live.id, end.clone()).await {
                Ok(Some(first)) => {
                    self.ended.one_more(end.state);
                    let mut said: Vec<Said> = end.before;
                    said.push((end.at, Happened::Finished { state: end.state }));
                    live.publish(first, said);
                    break;
                }
                // Another task ended it first.
                Ok(None) => break,
                Err(err) if last_tries == 0 => {
                    tracing::error!(job = %live.id, "{err}; the next server ends it");
                    break;
                }
                Err(err) => {
                    tracing::warn!(job = %live.id, "{err}; trying again");
                    last_tries -= u32::from(self.stopping.is_cancelled());
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.let_go(live);
        self.came_or_went();
    }

    /// Takes over the jobs of dead servers. Their programs are ended, queued jobs are queued here,
    /// and running ones are run again if their tool allows it.
    pub(super) async fn adopt(self: &Arc<Self>) {
        let store = match self.store().await {
            Ok(store) => store,
            Err(err) => return tracing::warn!("{err}; jobs that were left there stay for now"),
        };
        let jobs = self.clone();
        let may: May = Arc::new(move |orphan| jobs.may_go_on_with(orphan));
        let adopted = match store.adopt(may).await {
            Ok(adopted) => adopted,
            Err(err) => return tracing::warn!("{err}; jobs left by another server stay for now"),
        };
        let end_left = self.settings.end_left.clone();
        let marks = adopted.marks;
        let bury = adopted.bury;
        let ended = spawn_blocking(move || {
            marks.into_iter().for_each(|mark| end_left(mark));
            bury();
        });
        // It fails only if the callback panics; the jobs must be run all the same.
        let _ = ended.await;
        if !adopted.jobs.is_empty() {
            tracing::info!("{} jobs that a server left are taken over", adopted.jobs.len());
        }
        for orphan in adopted.jobs {
            self.take_over(store, &orphan).await;
        }
        self.dispatch();
    }

    async fn take_over(self: &Arc<Self>, store: &Arc<dyn Store>, orphan: &Orphan) {
        let live = self.enlist(orphan.id, orphan.last_event, Ahead::room());
        let worn_out = orphan.attempts >= ATTEMPTS_MAX;
        if orphan.state == JobState::Running && (worn_out || !self.may_run_again(&orphan.tool)) {
            let end = End {
                at: Timestamp::now(),
                state: JobState::Failed,
                outcome: Err(CallError::Interrupted),
                artefacts: Vec::new(),
                before: Vec::new(),
            };
            self.finish(store, &live, end).await;
            let caller = orphan.caller.clone();
            return self.record(orphan.id, &orphan.tool, caller, CallError::Interrupted).await;
        }
        if orphan.state == JobState::Running {
            while let Err(err) = store.requeue(orphan.id, Timestamp::now()).await {
                tracing::warn!(job = %orphan.id, "{err}; trying again");
                if self.stops_within(RETRY).await {
                    return self.let_go(&live);
                }
            }
        }
        let Orphan { id, tool, caller, priority, created, .. } = orphan;
        self.enqueue(*id, tool.clone(), caller.clone(), *priority, *created);
    }

    /// Records a job that ends with the error `why` without being run here.
    pub(super) async fn record(&self, id: JobId, tool: &ToolId, caller: Caller, why: CallError) {
        let call = Call {
            tool: tool.to_string(),
            input: Value::Null,
            caller,
            dialect: "jobs".into(),
            cancel: CancellationToken::new(),
            events: EventSink::none(),
            job: Some(id),
            asker: Asker::nobody(),
            beside: Beside::default(),
            within: None,
            ahead: Ahead::default(),
        };
        pipeline::refuse(&self.gate, &call, why).await;
    }

    /// Returns true if this server may take over the job. A job of a tool hidden from its caller is
    /// left to another server.
    fn may_go_on_with(&self, orphan: &Orphan) -> bool {
        let interrupted = orphan.state == JobState::Running && !self.may_run_again(&orphan.tool);
        let is_hidden = self.gate.catalog.now().entry(&orphan.tool).is_some()
            && self.gate.find(&orphan.caller, orphan.tool.as_str()).is_err();
        interrupted || !is_hidden
    }

    /// Returns true if the tool is idempotent.
    fn may_run_again(&self, tool: &ToolId) -> bool {
        self.gate.catalog.now().entry(tool).is_some_and(|entry| entry.spec().idempotent)
    }

    pub(super) fn enqueue(
        &self,
        id: JobId,
        tool: ToolId,
        caller: Caller,
        priority: i32,
        created: Timestamp,
    ) {
        let at_once = self.gate.catalog.now().entry(&tool).and_then(|entry| entry.spec().at_once);
        self.queue().push(priority, created, Waiting { id, caller, tool, at_once });
    }

    /// Waits for `time`, and returns true at once if the server stops.
    async fn stops_within(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.stopping.cancelled()).await.is_ok()
    }
}
