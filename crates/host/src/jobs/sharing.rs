//! Shares waiting jobs among the servers of a fleet. A server that can run further jobs claims jobs
//! that wait at other servers. A server that drains leaves its waiting jobs to other servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use toolgate_contract::{BoxFuture, Caller, ToolId, lock_mutex};

use super::store::{
    AdoptableJob, ClaimableJobQueue, JobClaim, JobStore, JobStoreError, TakeoverFilter,
};
use super::{JobServiceState, JobSettings, JobStoreKind, MAINTENANCE_INTERVAL};
use crate::limits::{RateBucket, RateBucketGrant, SharedRateBucketStore};

/// Pause before this server tries again to claim jobs, if the job store is not open yet or failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl JobServiceState {
    /// Claims waiting jobs of other servers as long as this server can run further jobs, until
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
                tracing::info!("this server is draining and starts no more jobs");
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

    /// Claims as many jobs as this server can run in addition. Returns true if there may be more to
    /// claim.
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

    /// Returns a claim for as many jobs as this server can run in addition, or `None` if this
    /// server can run no further job.
    fn next_claim(self: &Arc<Self>) -> Option<JobClaim> {
        let gate = self.gate();
        let catalog = gate.catalog.snapshot();
        let queue = lock_mutex(&self.queue);
        let room = queue.room();
        if room == 0 {
            return None;
        }
        let limits = catalog
            .job_lanes()
            .filter_map(|(spec, _)| Some((spec.id.clone(), spec.concurrency_max?)));
        let by_tool: HashMap<ToolId, usize> = limits
            .map(|(id, max)| {
                let left = max.saturating_sub(queue.held_of_tool(&id));
                (id, left)
            })
            .collect();
        let places = JobClaimCapacity {
            by_tool,
            by_caller: queue.caller_places(),
            per_caller: queue.running_per_caller(),
        };
        drop(queue);
        let lanes = catalog.job_lanes().map(|(spec, lane)| {
            let has_room = places.by_tool.get(&spec.id) != Some(&0);
            ClaimableJobQueue { name: lane.to_owned(), idempotent: spec.idempotent, has_room }
        });
        let lanes: Vec<ClaimableJobQueue> = lanes.collect();
        let busy = places.by_caller.iter().filter(|(_, left)| **left == 0);
        let busy_callers: Vec<Caller> = busy.map(|(caller, _)| caller.clone()).collect();
        let jobs = self.clone();
        let places = Mutex::new(places);
        let may_claim: TakeoverFilter =
            Arc::new(move |job| jobs.may_adopt(job) && lock_mutex(&places).take(job));
        (!lanes.is_empty()).then_some(JobClaim { room, lanes, busy_callers, may_claim })
    }

    /// Stops beginning queued jobs, and leaves them to other servers.
    pub(super) fn leave_waiting(&self) {
        lock_mutex(&self.queue).pause();
        if let Some(store) = self.store.get() {
            store.offer_jobs();
        }
    }

    /// Stops beginning queued jobs and leaves them to other servers. Waits for the end of the
    /// running jobs for the time [`JobSettings::drain`](super::JobSettings::drain), and then stops
    /// them: idempotent jobs run again at another server, the others end as interrupted.
    pub(super) async fn drain(self: &Arc<Self>) {
        self.leave_waiting();
        if timeout(self.settings.drain, self.wait_until_idle()).await.is_err() {
            let live: Vec<_> = lock_mutex(&self.live).values().cloned().collect();
            let waiting = lock_mutex(&self.queue).waiting();
            for job in live.iter().filter(|job| !waiting.contains(&job.id)) {
                tracing::warn!(
                    job = %job.id,
                    "the job is stopped, because this server is draining"
                );
                job.stop_here();
            }
        }
    }

    /// Reports to the watchdog that this server is not frozen, until the server stops. If a report
    /// is overdue, the watchdog ends the programs of this server before another server may run the
    /// server's jobs. Before the next report, the jobs that another server may have taken over are
    /// stopped, so that none of them starts another program.
    pub(super) async fn report_alive(&self) {
        let JobStoreKind::Postgres(database) = &self.settings.place else { return };
        let trusted_time = database.trusted_time();
        let _last = WatchdogDisarmGuard(&self.settings);
        let mut due: Option<Instant> = None;
        while !self.stopping.is_cancelled() {
            if let Some(silent_for) = due.and_then(|due| Instant::now().checked_duration_since(due))
            {
                let are_lost = silent_for >= database.lost_after;
                self.stop_runs(are_lost, "this server was frozen");
            }
            let rest = self.store.get().and_then(|store| store.owner_certain_for());
            let silence = silence_max(rest, trusted_time);
            // The watchdog counts from a moment later.
            due = Some(Instant::now() + silence);
            (self.settings.report_alive)(silence);
            self.wait_for_stop(trusted_time / 8).await;
        }
    }

    /// Waits until no job runs at this server.
    async fn wait_until_idle(&self) {
        let mut place_freed = self.place_freed.subscribe();
        while lock_mutex(&self.queue).running() > 0 {
            // Cannot fail: the sender lives in `self`.
            let _ = place_freed.changed().await;
        }
    }
}

/// Numbers of further jobs that this server may claim. A job beyond these numbers could not start
/// at this server.
struct JobClaimCapacity {
    /// Number of further jobs of each tool that has its own limit.
    by_tool: HashMap<ToolId, usize>,
    /// Number of further jobs of each caller who has jobs at this server.
    by_caller: HashMap<Caller, usize>,
    /// Number of further jobs of each caller who has no jobs at this server.
    per_caller: usize,
}

impl JobClaimCapacity {
    /// Deducts `job` from these numbers. Returns false if one of the numbers is used up, so that
    /// the job must not be claimed.
    fn take(&mut self, job: &AdoptableJob) -> bool {
        let of_caller = self.by_caller.entry(job.caller.clone()).or_insert(self.per_caller);
        let of_tool = self.by_tool.get_mut(&job.tool);
        if *of_caller == 0 || of_tool.as_ref().is_some_and(|left| **left == 0) {
            return false;
        }
        *of_caller -= 1;
        if let Some(left) = of_tool {
            *left -= 1;
        }
        true
    }
}

/// Returns the longest time for which a server may be silent before its programs are ended. `rest`
/// is the time for which the server's lease is still certain, if the server has a lease.
///
/// Another server may run the server's jobs half of `trusted_time` after the lease has ceased to be
/// certain.
fn silence_max(rest: Option<Duration>, trusted_time: Duration) -> Duration {
    match rest {
        // Reports come every eighth of that time.
        Some(rest) if !rest.is_zero() => rest.max(trusted_time / 4),
        // The jobs that may run again were stopped, and no other server runs the others.
        Some(_) | None => trusted_time,
    }
}

/// Guard that tells the watchdog on drop to expect no further report, so that the programs of a
/// server that stops may end by themselves.
struct WatchdogDisarmGuard<'s>(&'s JobSettings);

impl Drop for WatchdogDisarmGuard<'_> {
    fn drop(&mut self) {
        (self.0.report_alive)(Duration::ZERO);
    }
}

/// Store of rate limit buckets that the servers of a fleet share through the job store.
pub(super) struct JobStoreRateBuckets(pub(super) Weak<JobServiceState>);

impl SharedRateBucketStore for JobStoreRateBuckets {
    fn take_calls(&self, bucket: RateBucket) -> BoxFuture<'_, Option<RateBucketGrant>> {
        Box::pin(async move {
            let jobs = self.0.upgrade()?;
            let store = jobs.store().await.ok()?;
            store.take_calls(bucket).await.ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use toolgate_contract::{JobId, JobState};

    use super::*;

    fn waiting(caller: &str, tool: &str) -> AdoptableJob {
        AdoptableJob {
            id: JobId::from_bits(1),
            tool: ToolId::new(tool).expect("an id"),
            priority: 0,
            state: JobState::Queued,
            caller: Caller::with_key(caller),
            created: Timestamp::UNIX_EPOCH,
            attempts: 0,
            last_event: 1,
            cancel_requested: false,
            is_lost: true,
        }
    }

    #[test]
    fn a_silent_server_ends_its_programs_before_another_one_may_run_its_jobs() {
        let second = Duration::from_secs(1);
        for (rest, expected) in
            [(Some(15), 15), (Some(20), 20), (Some(1), 5), (Some(0), 20), (None, 20)]
        {
            let rest = rest.map(|rest| second * rest);
            assert_eq!(silence_max(rest, 20 * second), second * expected, "{rest:?}");
        }
    }

    #[test]
    fn a_claim_takes_no_more_jobs_of_a_tool_or_caller_than_can_start() {
        let mut places = JobClaimCapacity {
            by_tool: HashMap::from([(ToolId::new("a.one").expect("an id"), 1)]),
            by_caller: HashMap::from([(Caller::with_key("ada"), 0)]),
            per_caller: 2,
        };
        for (caller, tool, expected) in [
            ("ada", "a.two", false),
            ("bob", "a.one", true),
            ("eve", "a.one", false),
            ("bob", "a.two", true),
            ("bob", "a.two", false),
            ("eve", "a.two", true),
        ] {
            assert_eq!(places.take(&waiting(caller, tool)), expected, "{caller} {tool}");
        }
    }
}
