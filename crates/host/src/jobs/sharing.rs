//! Shares waiting jobs among the servers of a fleet: a server with free places claims jobs that wait
//! at others. A server that drains leaves its waiting jobs to them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use toolgate_contract::BoxFuture;

use super::store::{AdoptFilter, JobClaim, JobLane, JobStore, JobStoreError};
use super::{JobServiceState, JobSettings, JobStorePlace, MAINTENANCE_INTERVAL};
use crate::limits::{RateBucket, RateGrant, RateLedger};

/// Pause until a store that is not open yet, or that failed, is looked at again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl JobServiceState {
    /// Claims waiting jobs of other servers as long as there are free places, until
    /// [`JobService::stop`](super::JobService::stop) or until this server drains.
    pub(super) async fn claim_jobs(self: &Arc<Self>) {
        if !self.is_shared() {
            return;
        }
        let mut place_freed = self.place_freed.subscribe();
        let mut last_warning: Option<Instant> = None;
        while !self.stopping.is_cancelled() {
            let Some(store) = self.store.get() else {
                // The search for orphaned jobs opens it.
                self.wait_for_stop(RETRY_PAUSE).await;
                continue;
            };
            if store.is_draining() {
                tracing::info!("this server drains: it runs no further jobs");
                return self.drain().await;
            }
            match self.claim_waiting(store).await {
                Ok(true) => {}
                Ok(false) if store.is_draining() => {}
                Ok(false) => {
                    tokio::select! {
                        () = self.stopping.cancelled() => return,
                        () = store.wait_for_offers() => {}
                        // Cannot fail: the sender lives in `self`.
                        _ = place_freed.changed() => {}
                    }
                }
                Err(err) => {
                    if last_warning.is_none_or(|at| at.elapsed() >= MAINTENANCE_INTERVAL) {
                        tracing::warn!("{err}; jobs that wait at other servers are not claimed");
                        last_warning = Some(Instant::now());
                    }
                    self.wait_for_stop(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Claims jobs for the free places of this server. Returns true if there may be more to claim.
    async fn claim_waiting(
        self: &Arc<Self>,
        store: &Arc<dyn JobStore>,
    ) -> Result<bool, JobStoreError> {
        let _one = self.taking_over.lock().await;
        let Some(claim) = self.next_claim() else { return Ok(false) };
        let claimed = store.claim(claim).await?;
        for job in &claimed {
            self.take_over(store, job).await;
        }
        self.dispatch();
        Ok(!claimed.is_empty())
    }

    /// Returns the free places of this server and the jobs that fit, or `None` if it has none.
    fn next_claim(self: &Arc<Self>) -> Option<JobClaim> {
        let gate = self.gate();
        let catalog = gate.catalog.snapshot();
        let queue = self.lock_queue();
        let room = queue.room();
        if room == 0 {
            return None;
        }
        let lanes = catalog.job_lanes().map(|(spec, lane)| {
            let running = queue.running_of_tool(&spec.id);
            let has_room = spec.concurrency_max.is_none_or(|max| running < max);
            JobLane { name: lane.to_owned(), idempotent: spec.idempotent, has_room }
        });
        let lanes: Vec<JobLane> = lanes.collect();
        let busy_callers = queue.busy_callers();
        drop(queue);
        let jobs = self.clone();
        let may_claim: AdoptFilter = Arc::new(move |job| jobs.may_adopt(job));
        (!lanes.is_empty()).then_some(JobClaim { room, lanes, busy_callers, may_claim })
    }

    /// Begins no further jobs, and leaves the waiting ones to other servers.
    pub(super) fn leave_waiting(&self) {
        self.lock_queue().pause();
        if let Some(store) = self.store.get() {
            store.offer_jobs();
        }
    }

    /// Begins no further jobs, leaves the waiting ones to other servers, and waits for the end of
    /// the running ones for the time [`JobSettings::drain`](super::JobSettings::drain). After that, it
    /// stops them: idempotent ones run again at another server, the others end as interrupted.
    pub(super) async fn drain(self: &Arc<Self>) {
        self.leave_waiting();
        if timeout(self.settings.drain, self.wait_until_idle()).await.is_err() {
            let live: Vec<_> = self.lock_live().values().cloned().collect();
            let waiting = self.lock_queue().waiting();
            for job in live.iter().filter(|job| !waiting.contains(&job.id)) {
                tracing::warn!(job = %job.id, "the job is stopped, because this server drains");
                job.stop_here();
            }
        }
    }

    /// Reports that this server is not frozen, until it stops. If a report is overdue, a watchdog ends
    /// the programs of this server before another one may run its jobs.
    pub(super) async fn report_alive(&self) {
        let JobStorePlace::Postgres(database) = &self.settings.place else { return };
        let silence = database.trusted_time();
        let _last = FinalReport(&self.settings);
        while !self.stopping.is_cancelled() {
            (self.settings.report_alive)(silence);
            self.wait_for_stop(silence / 8).await;
        }
    }

    /// Waits until no job runs here.
    async fn wait_until_idle(&self) {
        let mut place_freed = self.place_freed.subscribe();
        while self.lock_queue().running() > 0 {
            // Cannot fail: the sender lives in `self`.
            let _ = place_freed.changed().await;
        }
    }
}

/// Reports on drop that no further report is due, so that the programs of a server that stops may end
/// by themselves.
struct FinalReport<'s>(&'s JobSettings);

impl Drop for FinalReport<'_> {
    fn drop(&mut self) {
        (self.0.report_alive)(Duration::ZERO);
    }
}

/// The rates in the job store, for the limits of calls.
pub(super) struct JobRateLedger(pub(super) Weak<JobServiceState>);

impl RateLedger for JobRateLedger {
    fn take_calls(&self, bucket: RateBucket) -> BoxFuture<'_, Option<RateGrant>> {
        Box::pin(async move {
            let jobs = self.0.upgrade()?;
            let store = jobs.store().await.ok()?;
            store.take_calls(bucket).await.ok()
        })
    }
}
