//! What can be asked of jobs: to start one, to see it, to wait for it, to stop it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use toolgate_contract::{
    Answer, Call, CallError, Caller, Effects, Happened, Job, JobEvent, JobId, JobPage, JobState,
    JobTerms, OpenArtefact, Watch, Which,
};

use super::live::{JobWatch, Live, Stage};
use super::store::{End, NewJob};
use super::{Inner, Jobs};
use crate::pipeline;

/// How long whoever comes too early is told to wait.
const QUEUE_RETRY: Duration = Duration::from_secs(5);
/// How long a job that was told to stop is waited for, beyond its grace.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether a job that another server runs has ended.
const LOOK: Duration = Duration::from_millis(250);
/// How long a job is kept at least once it has ended: whoever started it must be able to ask.
const KEEP_MIN: Duration = Duration::from_secs(60);
/// How many of a caller's jobs are looked at for the one that was meant.
const NEAREST_OF: usize = 200;
/// How many letters may differ in an id that was meant.
const NEAREST_LETTERS: usize = 4;

/// A job to be started.
pub(crate) struct Wanted {
    pub(crate) call: Call,
    pub(crate) terms: JobTerms,
}

impl Inner {
    /// Stops a job for good: what waits ends at once, what runs as soon as it can.
    ///
    /// In a task of its own, so that whoever asks and leaves does not cut it half way.
    fn give_up(self: &Arc<Self>, live: &Arc<Live>) {
        live.give_up();
        if !self.queue().remove(live.id) {
            return;
        }
        let (jobs, live) = (self.clone(), live.clone());
        self.running.spawn(async move {
            let Ok(store) = jobs.store().await else { return };
            let job = store.job(live.id).await.ok().flatten();
            jobs.finish(store, &live, End::canceled()).await;
            if let Some(Job { id, tool, caller, .. }) = job {
                jobs.record(id, &tool, caller, CallError::Canceled).await;
            }
        });
    }
}

impl Jobs {
    /// Whether a tool that only may become a job should: one that runs programs, and so may take
    /// long.
    pub(crate) fn suits(&self, call: &Call) -> bool {
        let found = self.0.gate.find(&call.caller, &call.tool);
        found.is_ok_and(|entry| entry.spec().effects == Effects::Runs)
    }

    /// Accepts a job: once this returns, it is never lost.
    pub(crate) async fn start(&self, wanted: Wanted) -> Result<Answer, CallError> {
        let Wanted { call, terms } = wanted;
        let jobs = &self.0;
        let (spec, call) = pipeline::accept(&jobs.gate, call).await?;
        if jobs.queue().len() >= jobs.settings.queued_max {
            let why = CallError::Limited {
                message: format!("as many jobs as may ({}) wait already", jobs.settings.queued_max),
                retry_after: QUEUE_RETRY,
            };
            return Err(pipeline::refuse(&jobs.gate, &call, why).await);
        }
        let created = Timestamp::now();
        let keep =
            terms.keep.unwrap_or(jobs.settings.keep).max(KEEP_MIN).min(jobs.settings.keep_max);
        let cancel = call.cancel.clone();
        let id = JobId::of(u128::from_le_bytes(random()?));
        let (tool, priority) = (spec.id.clone(), spec.priority);
        // As it is accepted, however far it is once that is told.
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
            outcome: None,
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
        };
        let accepting = {
            let jobs = jobs.clone();
            // In a task of its own: whoever leaves half way leaves no job that nobody runs.
            tokio::spawn(async move {
                let store = jobs.store().await?;
                let live = jobs.enlist(id, 0);
                if let Err(err) = store.accept(new).await {
                    jobs.let_go(&live);
                    return Err(err);
                }
                live.publish(1, vec![(created, Happened::Queued)]);
                jobs.enqueue(id, tool, priority, created);
                jobs.dispatch();
                Ok(live)
            })
        };
        let live = accepting.await.map_err(|err| CallError::Failed {
            message: "the job could not be accepted".to_owned(),
            cause: err.to_string(),
        })??;
        let Some(patience) = terms.answer_within else {
            return Ok(Answer::Job(Box::new(accepted)));
        };
        tokio::select! {
            _ = timeout(patience, live.gone()) => {}
            // Whoever leaves before it knows of a job leaves none.
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

    /// The job `id` of `caller`; of anybody for `None`, who is whoever owns this machine.
    pub async fn get(&self, caller: Option<&Caller>, id: &str) -> Result<Job, CallError> {
        let found = match id.parse::<JobId>() {
            Ok(id) => self.0.store().await?.job(id).await?,
            Err(_) => None,
        };
        match found.filter(|job| caller.is_none_or(|caller| job.caller == *caller)) {
            Some(job) => Ok(job),
            None => Err(self.unknown(caller, id).await),
        }
    }

    /// The job `id` of `caller`, once it has ended.
    pub(crate) async fn ended(&self, caller: &Caller, id: &str) -> Result<Job, CallError> {
        loop {
            let job = self.get(Some(caller), id).await?;
            if job.state.is_terminal() {
                return Ok(job);
            }
            match self.0.live(job.id) {
                Some(live) => live.gone().await,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// The jobs of `caller`, newest first; everybody's for `None`, who is whoever owns this
    /// machine.
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

    /// Stops the job `id` of `caller`, and gives it as it is then.
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
            // It may have ended since it was looked at.
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

    /// The job `id` of `caller`, and what happened to it after the event numbered `after`, about
    /// `bytes_max` bytes of it.
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

    /// A file that the job `id` of `caller` left.
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

    /// The life of the job `id` of `caller`, from after the event numbered `after`; of anybody's
    /// for `None`, who is whoever owns this machine.
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

    /// A job that is there.
    async fn fetch(&self, id: JobId) -> Result<Job, CallError> {
        let job = self.0.store().await?.job(id).await?;
        job.ok_or_else(|| CallError::NotFound { message: format!("job {id} is not kept any more") })
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
