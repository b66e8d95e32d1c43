//! Offers the operations on jobs: start, get, wait, list, cancel, read and watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use toolgate_contract::{
    Ahead, Answer, AsJob, Askable, Asker, Call, CallError, Caller, Effects, Given, Happened, Job,
    JobEvent, JobId, JobPage, JobState, JobTerms, OpenArtefact, Questions, Watch, Which,
};

use super::live::{JobWatch, Live, Stage};
use super::store::{Answered, End, NewJob};
use super::{Inner, Jobs};
use crate::pipeline;

/// Retry time that is reported if the queue is full.
const QUEUE_RETRY: Duration = Duration::from_secs(5);
/// Longest wait for a cancelled job to stop, beyond its grace period.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Interval at which a job of another server is checked for its end.
const LOOK: Duration = Duration::from_millis(250);
/// Shortest time that an ended job is kept, so that its caller can fetch the outcome.
const KEEP_MIN: Duration = Duration::from_secs(60);
/// Number of the caller's jobs that are compared with an unknown id.
const NEAREST_OF: usize = 200;
/// Largest edit distance of an id that is suggested.
const NEAREST_LETTERS: usize = 4;

/// A request to start a job.
pub(crate) struct Wanted {
    pub(crate) call: Call,
    pub(crate) terms: JobTerms,
    pub(crate) later: AskLater,
}

/// Availability of questions to the caller while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskLater {
    /// Questions may be asked as far as the client supports them.
    May,
    /// Questions would never reach the caller.
    Never,
}

impl Inner {
    /// Cancels a job for good. A queued job ends at once, a running one as soon as it can.
    ///
    /// The work runs in its own task, so that a departing caller does not interrupt it.
    fn give_up(self: &Arc<Self>, live: &Arc<Live>) {
        live.give_up();
        if !self.queue().remove(live.id) {
            return;
        }
        let jobs = self.clone();
        let live = live.clone();
        self.running.spawn(async move {
            let Ok(store) = jobs.store().await else { return };
            let job = store.job(live.id).await.ok().flatten();
            jobs.finish(store, &live, End::canceled()).await;
            if let Some(Job { id, tool, caller, .. }) = job {
                jobs.record(id, &tool, caller, CallError::Canceled).await;
            }
        });
    }

    /// Returns the refusal of a further job of `caller`, if the queue is full.
    fn waits_too_many(&self, caller: &Caller) -> Option<CallError> {
        let queue = self.queue();
        let all = self.settings.queued_max;
        let each = self.settings.queued_each;
        let message = if queue.len() >= all {
            format!("as many jobs as may ({all}) wait already")
        } else if queue.len_of(caller) >= each {
            format!("as many of your jobs as may ({each}) wait already")
        } else {
            return None;
        };
        Some(CallError::Limited { message, retry_after: QUEUE_RETRY })
    }
}

impl Jobs {
    /// Returns true if a call that may become a job should become one.
    pub(crate) fn suits(&self, call: &Call) -> bool {
        let found = self.0.gate.find(&call.caller, &call.tool);
        found.is_ok_and(|entry| match entry.spec().job {
            AsJob::Never => false,
            // Programs may run for long.
            AsJob::May => entry.spec().effects == Effects::Runs,
            AsJob::Rather | AsJob::Must => true,
        })
    }

    /// Passes answers to the questions of the job `id` of `caller`, and returns the job.
    pub(crate) async fn tell(
        &self,
        caller: &Caller,
        id: &str,
        given: Given,
    ) -> Result<Job, CallError> {
        let job = self.get(Some(caller), id).await?;
        match self.0.live(job.id) {
            Some(live) => {
                let given = live.fitting(given);
                if !given.is_empty() {
                    // Stored first: an answer that was acknowledged must not be asked for again.
                    self.0.store().await?.tell(job.id, given.clone()).await?;
                    live.tell(given);
                }
                self.get(Some(caller), id).await
            }
            None if job.state.is_terminal() => Ok(job),
            None => {
                // It may have ended since the first look.
                let job = self.fetch(job.id).await?;
                if job.state.is_terminal() {
                    return Ok(job);
                }
                let message = format!("job {} is run by another server; answer it there", job.id);
                Err(CallError::Conflict { message, details: json!({ "state": job.state }) })
            }
        }
    }

    /// Accepts a job and stores it. Once this returns, the job is never lost.
    pub(crate) async fn start(&self, wanted: Wanted) -> Result<Answer, CallError> {
        let Wanted { mut call, terms, later } = wanted;
        call.beside.as_job = true;
        call.ahead = Ahead::room();
        let jobs = &self.0;
        let (entry, mut call) = pipeline::accept(&jobs.gate, call).await?;
        if terms.answer_within.is_some() && entry.tool().is_done(&call.ahead) {
            return pipeline::run(&jobs.gate, &mut call, None).await.map(Answer::Output);
        }
        if let Some(why) = jobs.waits_too_many(&call.caller) {
            return Err(pipeline::refuse(&jobs.gate, &call, why).await);
        }
        let created = Timestamp::now();
        let keep =
            terms.keep.unwrap_or(jobs.settings.keep).max(KEEP_MIN).min(jobs.settings.keep_max);
        let cancel = call.cancel.clone();
        let ahead = call.ahead;
        let id = JobId::of(u128::from_le_bytes(random()?));
        let spec = entry.spec();
        let tool = spec.id.clone();
        let priority = spec.priority;
        let as_job = spec.job;
        let caller = call.caller.clone();
        // Snapshot at acceptance; the job may be further when the client reads this.
        let accepted = Job {
            id,
            tool: tool.clone(),
            caller: call.caller.clone(),
            state: JobState::Queued,
            created,
            updated: created,
            started: None,
            attempts: 0,
            progress: 0.0,
            message: None,
            keep,
            last_event: 1,
            artefacts: Vec::new(),
            asks: Questions::new(),
            outcome: None,
        };
        let can = match later {
            AskLater::May => call.asker.can(),
            AskLater::Never => Askable::default(),
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
            asking: Answered { can, given: call.asker.given() },
        };
        let accepting = {
            let jobs = jobs.clone();
            // A separate task, so that a departing caller leaves no job that nobody runs.
            tokio::spawn(async move {
                let store = jobs.store().await?;
                let live = jobs.enlist(id, 0, ahead);
                if let Err(err) = store.accept(new).await {
                    jobs.let_go(&live);
                    return Err(err);
                }
                live.publish(1, vec![(created, Happened::Queued)]);
                jobs.enqueue(id, tool, caller, priority, created);
                jobs.dispatch();
                jobs.came_or_went();
                Ok(live)
            })
        };
        let live = accepting.await.map_err(|err| CallError::Failed {
            message: "the job could not be accepted".to_owned(),
            cause: err.to_string(),
        })??;
        let at_once = matches!(as_job, AsJob::Rather | AsJob::Must);
        let Some(patience) = terms.answer_within.filter(|_| !at_once) else {
            return Ok(Answer::Job(Box::new(accepted)));
        };
        tokio::select! {
            _ = timeout(patience, live.gone()) => {}
            // A caller who leaves before learning the job id leaves no job.
            () = cancel.cancelled() => {
                jobs.give_up(&live);
                return Err(CallError::Canceled);
            }
        }
        let job = self.fetch(id).await?;
        match job.outcome {
            Some(outcome) => outcome.map(Answer::Output),
            None => Ok(Answer::Job(Box::new(job))),
        }
    }

    /// Returns the job `id` of `caller`. `None` stands for the owner of this machine, who sees all
    /// jobs.
    pub async fn get(&self, caller: Option<&Caller>, id: &str) -> Result<Job, CallError> {
        let found = match id.parse::<JobId>() {
            Ok(id) => self.0.store().await?.job(id).await?,
            Err(_) => None,
        };
        match found.filter(|job| caller.is_none_or(|caller| job.caller == *caller)) {
            Some(job) => Ok(self.with_asks(job)),
            None => Err(self.unknown(caller, id).await),
        }
    }

    /// Waits for the end of the job `id` of `caller` and returns the job.
    ///
    /// Questions of the job are passed to `asker`, if that can ask.
    pub(crate) async fn ended(
        &self,
        caller: &Caller,
        id: &str,
        asker: &Asker,
    ) -> Result<Job, CallError> {
        loop {
            let job = self.get(Some(caller), id).await?;
            if job.state.is_terminal() {
                return Ok(job);
            }
            match self.0.live(job.id) {
                Some(live) => tokio::select! {
                    () = live.gone() => {}
                    never = self.pass_on(caller, id, &live, asker) => match never {},
                },
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Passes questions of the job to `asker`, and its answers back. After a failure this asker is
    /// not asked again; others may still answer.
    async fn pass_on(
        &self,
        caller: &Caller,
        id: &str,
        live: &Live,
        asker: &Asker,
    ) -> std::convert::Infallible {
        loop {
            let asks = live.asks_something().await;
            let Ok(given) = asker.ask(asks).await else { break };
            if self.tell(caller, id, given).await.is_err() {
                break;
            }
        }
        std::future::pending().await
    }

    /// Lists the jobs of `caller`, newest first. `None` stands for the owner of this machine, who
    /// sees all jobs.
    pub async fn list(
        &self,
        caller: Option<&Caller>,
        after: Option<JobId>,
        size: usize,
    ) -> Result<JobPage, CallError> {
        if let Some(after) = after {
            self.get(caller, &after.to_string()).await?;
        }
        Ok(self.0.store().await?.list(caller.cloned(), after, size).await?)
    }

    /// Cancels the job `id` of `caller`, waits for its end for a bounded time, and returns the job.
    pub(crate) async fn cancel(&self, caller: &Caller, id: &str) -> Result<Job, CallError> {
        let job = self.get(Some(caller), id).await?;
        let jobs = &self.0;
        if job.state.is_terminal() {
            return Err(CallError::Conflict {
                message: format!("job {} has ended already: it {}", job.id, ended_how(job.state)),
                details: json!({ "state": job.state }),
            });
        }
        let Some(live) = jobs.live(job.id) else {
            // It may have ended since the first look.
            let job = self.fetch(job.id).await?;
            return if job.state.is_terminal() {
                Ok(job)
            } else {
                let message = format!("job {} is run by another server; stop it there", job.id);
                Err(CallError::Unavailable { message })
            };
        };
        jobs.give_up(&live);
        let _ = timeout(jobs.gate.settings.cancel_grace + STOP_WAIT, live.gone()).await;
        self.fetch(job.id).await
    }

    /// Returns the job `id` of `caller` and about `bytes_max` bytes of its events after number
    /// `after`.
    pub(crate) async fn page(
        &self,
        caller: &Caller,
        id: &str,
        after: u64,
        bytes_max: usize,
    ) -> Result<(Job, Vec<JobEvent>), CallError> {
        let job = self.get(Some(caller), id).await?;
        let events = self.0.store().await?.events(job.id, after, bytes_max).await?;
        Ok((job, events))
    }

    /// Opens a file that the job `id` of `caller` left.
    pub(crate) async fn open(
        &self,
        caller: &Caller,
        id: &str,
        which: Which,
    ) -> Result<OpenArtefact, CallError> {
        let job = self.get(Some(caller), id).await?;
        let files = self.0.files.clone();
        let opened = spawn_blocking(move || files.open(&job, &which)).await;
        opened.map_err(|err| CallError::Failed {
            message: "the file could not be opened".to_owned(),
            cause: err.to_string(),
        })?
    }

    /// Watches the events of the job `id` of `caller` after number `after`. `None` stands for the
    /// owner of this machine, who sees all jobs.
    pub async fn watch(
        &self,
        caller: Option<&Caller>,
        id: &str,
        after: u64,
    ) -> Result<(Job, Box<dyn Watch>), CallError> {
        let job = self.get(caller, id).await?;
        let watch = JobWatch {
            jobs: self.0.clone(),
            id: job.id,
            after,
            ready: VecDeque::new(),
            stage: Stage::Going,
            failures: 0,
        };
        Ok((job, Box::new(watch)))
    }

    /// Subscribes to the acceptance and end of any job.
    pub(super) fn changed(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Returns an existing job.
    async fn fetch(&self, id: JobId) -> Result<Job, CallError> {
        let job = self.0.store().await?.job(id).await?.map(|job| self.with_asks(job));
        job.ok_or_else(|| CallError::NotFound { message: format!("job {id} is not kept any more") })
    }

    /// Adds the open questions to the job; the store does not contain them.
    fn with_asks(&self, mut job: Job) -> Job {
        if !job.state.is_terminal()
            && let Some(live) = self.0.live(job.id)
        {
            job.asks = live.asks();
        }
        job
    }

    async fn unknown(&self, caller: Option<&Caller>, id: &str) -> CallError {
        let asked: String = id.chars().take(40).collect();
        let recent = match self.0.store().await {
            Ok(store) => store.list(caller.cloned(), None, NEAREST_OF).await,
            Err(err) => Err(err),
        };
        let recent = recent.map(|page| page.jobs).unwrap_or_default();
        let ids = recent.iter().map(|job| job.id.to_string());
        let near = ids.map(|id| (strsim::damerau_levenshtein(&asked, &id), id));
        let nearest = near.min().filter(|(letters, _)| *letters <= NEAREST_LETTERS);
        let hint = nearest.map(|(_, id)| format!("; did you mean `{id}`?")).unwrap_or_default();
        CallError::NotFound { message: format!("no job is called `{asked}`{hint}") }
    }
}

fn ended_how(state: JobState) -> &'static str {
    match state {
        JobState::Queued | JobState::Running => "has not",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Canceled => "was cancelled",
    }
}

fn random() -> Result<[u8; 16], CallError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|err| CallError::Failed {
        message: "the job could not be given an id".to_owned(),
        cause: err.to_string(),
    })?;
    Ok(bits)
}
