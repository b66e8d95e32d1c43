//! Clients that submit jobs to the servers of a fleet, and remember the accepted jobs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use toolgate_test_support::SeededRng;

use crate::job_program::{ChaosJobKind, ChaosJobPlan};
use crate::requests::{ChaosRequestOutcome, submit_job};

/// Number of clients that submit jobs at once.
const SUBMITTERS: u64 = 2;

/// Job that a server of the fleet accepted.
pub(super) struct AcceptedJob {
    pub(super) id: String,
    pub(super) at: Instant,
}

/// Accepted jobs of all clients, which the clients share.
#[derive(Default)]
pub(super) struct SubmittedJobs {
    next_number: AtomicU64,
    accepted: Mutex<Vec<AcceptedJob>>,
    is_over: AtomicBool,
}

impl SubmittedJobs {
    /// Starts clients in `threads` that submit jobs to `fronts` until [`SubmittedJobs::stop`] is
    /// called.
    pub(super) fn start_clients<'scope>(
        &'scope self,
        threads: &'scope Scope<'scope, '_>,
        fronts: &'scope [SocketAddr],
        seed: u64,
    ) {
        for client in 0..SUBMITTERS {
            let mut rng = SeededRng::from_seed(seed ^ (client + 1));
            threads.spawn(move || {
                while self.is_running() {
                    self.submit_next(fronts, seed, |_| true);
                    sleep(rng.duration_between(50, 200));
                }
            });
        }
    }

    /// Starts a client in `threads` that submits long jobs to `fronts` until
    /// [`SubmittedJobs::stop`] is called.
    pub(super) fn start_client_of_long_jobs<'scope>(
        &'scope self,
        threads: &'scope Scope<'scope, '_>,
        fronts: &'scope [SocketAddr],
        seed: u64,
    ) {
        let mut rng = SeededRng::from_seed(seed ^ (SUBMITTERS + 1));
        threads.spawn(move || {
            while self.is_running() {
                self.submit_next(fronts, seed, |plan| plan.kind == ChaosJobKind::Long);
                sleep(rng.duration_between(300, 900));
            }
        });
    }

    /// Returns true until [`SubmittedJobs::stop`] is called, so that clients go on.
    pub(super) fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns the accepted jobs in the order in which the servers answered.
    pub(super) fn into_accepted(self) -> Vec<AcceptedJob> {
        self.accepted.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits the next job for which `is_wanted` returns true to one of `fronts`, and records the
    /// job if a server accepts it. A server without a database refuses it.
    fn submit_next(
        &self,
        fronts: &[SocketAddr],
        seed: u64,
        is_wanted: impl Fn(&ChaosJobPlan) -> bool,
    ) {
        let plan = loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let plan = ChaosJobPlan::new(seed, number);
            if is_wanted(&plan) {
                break plan;
            }
        };
        let number = plan.number;
        let front = fronts[usize::try_from(number).unwrap_or_default() % fronts.len()];
        match submit_job(front, &plan.kind.tool(), number) {
            ChaosRequestOutcome::Answered(answer) => {
                let message = answer.json().unwrap_or_default();
                if let Some(id) = message["result"]["job_id"].as_str() {
                    let job = AcceptedJob { id: id.to_owned(), at: Instant::now() };
                    self.lock_accepted().push(job);
                }
            }
            ChaosRequestOutcome::NotSent | ChaosRequestOutcome::Unknown(_) => {}
        }
    }

    fn lock_accepted(&self) -> MutexGuard<'_, Vec<AcceptedJob>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the longest time between two consecutive accepted jobs.
pub(super) fn longest_gap(accepted: &[AcceptedJob]) -> Duration {
    let pairs = accepted.windows(2);
    pairs.map(|pair| pair[1].at.saturating_duration_since(pair[0].at)).max().unwrap_or_default()
}
