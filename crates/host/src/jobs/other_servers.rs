//! Cancels and answers jobs across the servers that share a job store.
//!
//! A server that does not run a job leaves a request in the store. The server that runs the job
//! looks for requests as long as it has jobs, and fulfils them like requests of its own clients.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use toolgate_contract::{
    CallError, ClientAnswers, ClientQuestions, JobId, JobSnapshot, lock_mutex,
};

use super::live::UnfinishedJob;
use super::operations::STOP_WAIT;
use super::store::{JobStoreError, RequestToJobOwner};
use super::{JobService, JobServiceState, JobStoreKind, MAINTENANCE_INTERVAL};

/// Pause before a failed query for requests of other servers is repeated.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which this server checks if another server has done what was requested about a job.
const EFFECT_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait until the server that runs a job has fetched the answers to the job's questions.
const FETCH_WAIT: Duration = Duration::from_secs(5);
/// Number of checks of this server's lease in the time for which a renewed lease is trusted.
const LEASE_CHECKS: u32 = 16;
/// Interval at which a job of another server is checked for its end and for questions.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl JobServiceState {
    /// Fulfils requests of other servers about jobs of this server (such as cancellations), until
    /// [`JobService::stop`].
    pub(super) async fn fulfil_requests(self: &Arc<Self>) {
        let mut last_warning: Option<Instant> = None;
        loop {
            let is_idle = lock_mutex(&self.live).is_empty();
            let next_look = async {
                match self.store.get() {
                    Some(store) if !is_idle => store.wait_for_requests().await,
                    Some(_) | None => self.registered.notified().await,
                }
            };
            tokio::select! {
                () = self.stopping.cancelled() => return,
                () = next_look => {}
            }
            if let Err(err) = self.fulfil_waiting().await {
                if last_warning.is_none_or(|at| at.elapsed() >= MAINTENANCE_INTERVAL) {
                    tracing::warn!("{err}; requests from other servers about jobs wait");
                    last_warning = Some(Instant::now());
                }
                self.wait_for_stop(RETRY_PAUSE).await;
            }
        }
    }

    /// Stops the jobs that another server may run again, as soon as this server does not know
    /// whether its lease is still valid. Ends with [`JobService::stop`].
    ///
    /// Must run beside all queries: a query to a database that does not answer takes many seconds,
    /// in which the lease may expire.
    pub(super) async fn watch_lease(&self) {
        let JobStoreKind::Postgres(database) = &self.settings.place else { return };
        let interval = database.trusted_time() / LEASE_CHECKS;
        while !self.wait_for_stop(interval).await {
            self.stop_uncertain_runs();
        }
    }

    /// Stops the jobs that another server may run again, if this server does not know whether its
    /// lease is still valid.
    fn stop_uncertain_runs(&self) {
        let is_certain = self.store.get().is_none_or(|store| store.is_owner_certain());
        if !is_certain {
            self.stop_runs(false, "the job store was unavailable");
        }
    }

    /// Stops the jobs that another server may run again, and with `are_lost` also those that another
    /// server may have ended as interrupted. `why` says why another server may have taken them over.
    pub(super) fn stop_runs(&self, are_lost: bool, why: &str) {
        let live: Vec<_> = lock_mutex(&self.live).values().cloned().collect();
        let waiting = lock_mutex(&self.queue).waiting();
        for job in live {
            let is_lost = are_lost && !waiting.contains(&job.id);
            if (is_lost || job.is_repeatable()) && !job.is_stopped_here() {
                tracing::warn!(
                    job = %job.id,
                    "this server stops the job: {why} for so long that another server may have taken \
                     it over"
                );
                job.stop_here();
            }
        }
    }

    /// Fulfils the requests of other servers that are waiting now.
    async fn fulfil_waiting(self: &Arc<Self>) -> Result<(), JobStoreError> {
        for request in self.store().await?.take_requests().await? {
            match request {
                RequestToJobOwner::Cancel(id) => {
                    // The request stays until the job has ended.
                    if let Some(live) = self.live_job(id).filter(|live| !live.is_cancelled()) {
                        self.cancel_job(&live);
                    }
                }
                RequestToJobOwner::Stop(id) => {
                    let Some(live) = self.live_job(id) else { continue };
                    live.stop_here();
                    self.leave_claimed(&live);
                }
                RequestToJobOwner::Answer(id, given) => {
                    if let Some(live) = self.live_job(id) {
                        live.answer_questions(given);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the job `live` from this server's queue if another server is known to have claimed
    /// the job. Call this function both after the job is stopped at this server and after it is
    /// queued, because either may happen first.
    pub(super) fn leave_claimed(&self, live: &UnfinishedJob) {
        if live.is_stopped_here() && lock_mutex(&self.queue).remove(live.id) {
            self.unregister(live);
        }
    }
}

impl JobService {
    /// Cancels the job `id`, which another server runs, waits for its end for a bounded time, and
    /// returns the job.
    ///
    /// # Errors
    /// The other server does not stop the job in time.
    pub(super) async fn cancel_elsewhere(&self, id: JobId) -> Result<JobSnapshot, CallError> {
        self.0.store().await?.request_cancel(id).await?;
        let at_most = self.0.gate().settings.cancel_grace + STOP_WAIT;
        let has_ended = |job: &JobSnapshot| job.state.is_terminal();
        let job = self.wait_for_effect(id, at_most, has_ended).await?;
        if has_ended(&job) {
            return Ok(job);
        }
        Err(CallError::Unavailable {
            message: format!(
                "job {id} runs on another server, which did not stop it within {} s; the request \
                 is stored, and that server, or the next server for this folder, will stop the job",
                at_most.as_secs()
            ),
        })
    }

    /// Passes the answers `given` to the server that runs `job`. Returns the job once that server
    /// has the answers, or after a bounded time. Answers that fit no open question are ignored.
    pub(super) async fn answer_elsewhere(
        &self,
        job: JobSnapshot,
        mut given: ClientAnswers,
    ) -> Result<JobSnapshot, CallError> {
        given.retain(|name, answer| {
            job.questions.get(name).is_some_and(|question| question.is_answered_by(answer))
        });
        if given.is_empty() {
            return Ok(job);
        }
        // Durable: the answers are not asked for again, even if the other server ends now.
        self.0.store().await?.add_answers(job.id, given.clone()).await?;
        let has_them = |job: &JobSnapshot| {
            job.state.is_terminal() || given.keys().all(|name| !job.questions.contains_key(name))
        };
        self.wait_for_effect(job.id, FETCH_WAIT, has_them).await
    }

    /// Waits until `is_done` returns true for the job, but no longer than `at_most`, and returns
    /// the job.
    async fn wait_for_effect(
        &self,
        id: JobId,
        at_most: Duration,
        is_done: impl Fn(&JobSnapshot) -> bool,
    ) -> Result<JobSnapshot, CallError> {
        let until = Instant::now() + at_most;
        let store = self.0.store().await?;
        loop {
            // Begins before the job is read, so that a change right after that is noticed at once.
            let changed = store.wait_for_change(id, EFFECT_INTERVAL);
            let job = self.get_existing(id).await?;
            if is_done(&job) || Instant::now() >= until {
                return Ok(job);
            }
            changed.await;
        }
    }

    /// Waits until a job of this server has ended. Waits even if another server claims the job in
    /// the meantime.
    pub(super) async fn wait_until_over(&self, live: &UnfinishedJob) {
        live.wait_until_closed().await;
        if !self.0.is_shared() || self.0.stopping.is_cancelled() {
            return;
        }
        if self.get_existing(live.id).await.is_ok_and(|job| !job.state.is_terminal()) {
            tokio::select! {
                () = self.0.stopping.cancelled() => {}
                () = self.wait_while_elsewhere(live.id) => {}
            }
        }
    }

    /// Waits while another server runs the job `id`.
    pub(super) async fn wait_while_elsewhere(&self, id: JobId) {
        loop {
            sleep(POLL_INTERVAL).await;
            match self.get_existing(id).await {
                Ok(job) if !job.state.is_terminal() && self.0.live_job(id).is_none() => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Waits until a job that another server runs has open questions, and returns them.
    pub(super) async fn wait_for_questions_elsewhere(&self, id: JobId) -> ClientQuestions {
        loop {
            match self.get_existing(id).await {
                Ok(job) if !job.questions.is_empty() => return job.questions,
                Ok(_) | Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Records for all servers that share the job store that the confirmation `code` was used, for
    /// the time `keep`. Returns false if it was used before.
    pub(crate) async fn use_confirmation(
        &self,
        code: [u8; 32],
        keep: Duration,
    ) -> Result<bool, JobStoreError> {
        self.0.store().await?.use_confirmation(code, Timestamp::now(), keep).await
    }
}
