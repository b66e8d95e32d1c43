//! Clients that submit jobs whether the server runs or not, and remember every answer of the
//! server.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use toolgate_test_support::SeededRng;

use super::job_program::{ChaosJobKind, ChaosJobPlan};
use super::requests::{ChaosRequestOutcome, cancel_job, submit_job};
use super::server::ChaosRunFolder;

/// Number of clients that submit jobs at once.
pub(super) const CLIENTS: u64 = 6;
/// Approximate number of waiting jobs above which clients pause.
const WAITING_JOBS_MAX: u64 = 300;
/// Largest number of long jobs that run or wait at once.
const LONG_JOBS_MAX: usize = 6;
/// Percentage of the accepted jobs that clients cancel.
const CANCEL_PERCENT: u64 = 4;
/// The longest pause of a client between two jobs, in milliseconds.
const PAUSE_MS_MAX: u64 = 60;
/// Pause between two checks of a condition that a client waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Job that a client submitted, with the outcome of the request.
pub(super) struct JobSubmission {
    pub(super) number: u64,
    pub(super) kind: ChaosJobKind,
    pub(super) outcome: JobSubmissionOutcome,
    pub(super) cancellation: JobCancellation,
}

/// Outcome of a client's request to submit a job.
pub(super) enum JobSubmissionOutcome {
    /// The server accepted the job. The text is the id of the job.
    Accepted(String),
    /// The server refused the job. The text is its message.
    Refused(String),
    /// No complete answer arrived, so the job may exist or not.
    Unknown,
}

/// Tells whether a client cancelled a job, and whether the server confirmed that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobCancellation {
    /// The client did not cancel the job.
    None,
    /// The client cancelled the job, but the server did not confirm the cancellation.
    Unconfirmed,
    /// The client cancelled the job, and the server confirmed the cancellation.
    Confirmed,
}

/// All jobs that the clients of a run submitted.
#[derive(Default)]
pub(super) struct JobSubmissionLog(pub(super) Vec<JobSubmission>);

impl JobSubmissionLog {
    /// Returns each accepted job with its id, in the order of submission.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (&str, &JobSubmission)> {
        self.0.iter().filter_map(|submission| match &submission.outcome {
            JobSubmissionOutcome::Accepted(id) => Some((id.as_str(), submission)),
            JobSubmissionOutcome::Refused(_) | JobSubmissionOutcome::Unknown => None,
        })
    }
}

/// State that clients share with the thread that starts and kills servers.
#[derive(Default)]
pub(super) struct ChaosSharedState {
    /// Address of the running server, or `None` if no server listens.
    address: Mutex<Option<SocketAddr>>,
    submissions: Mutex<JobSubmissionLog>,
    next_number: AtomicU64,
    accepted: AtomicUsize,
    long_jobs: AtomicUsize,
    progress: Mutex<JobLogProgress>,
    is_over: AtomicBool,
}

/// Progress of all jobs, read from the logs of their programs.
#[derive(Default)]
struct JobLogProgress {
    read_bytes: [u64; ChaosJobKind::ALL.len()],
    /// Highest number of a started job. Jobs start roughly in the order of their numbers.
    newest_started: u64,
    long_ended: usize,
    ended: usize,
}

impl ChaosSharedState {
    /// Sets the address of the running server, or `None` if no server listens.
    pub(super) fn set_address(&self, addr: Option<SocketAddr>) {
        *lock(&self.address) = addr;
    }

    /// Returns the number of jobs that servers have accepted.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of job programs that have ended.
    pub(super) fn ended(&self) -> usize {
        lock(&self.progress).ended
    }

    /// Ends the run, so that all its clients stop.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn into_submissions(self) -> JobSubmissionLog {
        self.submissions.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        let newest = lock(&self.progress).newest_started;
        self.next_number.load(Ordering::Relaxed) > newest + WAITING_JOBS_MAX
    }

    fn next_plan(&self, seed: u64) -> ChaosJobPlan {
        loop {
            let plan = ChaosJobPlan::new(seed, self.next_number.fetch_add(1, Ordering::Relaxed));
            if plan.kind != ChaosJobKind::Long {
                return plan;
            }
            let long_jobs = self.long_jobs.fetch_add(1, Ordering::Relaxed);
            if long_jobs < lock(&self.progress).long_ended + LONG_JOBS_MAX {
                return plan;
            }
            self.long_jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn record(
        &self,
        plan: &ChaosJobPlan,
        outcome: JobSubmissionOutcome,
        cancellation: JobCancellation,
    ) {
        if matches!(outcome, JobSubmissionOutcome::Accepted(_)) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let ChaosJobPlan { number, kind, .. } = *plan;
        let submission = JobSubmission { number, kind, outcome, cancellation };
        lock(&self.submissions).0.push(submission);
    }
}

/// Submits jobs as the client number `client` until the run is over, and records every answer.
pub(super) fn submit_jobs(folder: &ChaosRunFolder, shared: &ChaosSharedState, client: u64) {
    let mut rng = SeededRng::from_seed(folder.seed.rotate_left(17) ^ client);
    let mut plan = shared.next_plan(folder.seed);
    while !shared.is_over() {
        let addr = *lock(&shared.address);
        let Some(addr) = addr.filter(|_| !shared.is_full()) else {
            sleep(POLL_INTERVAL);
            continue;
        };
        let outcome = match submit_job(addr, &plan.kind.tool(), plan.number) {
            ChaosRequestOutcome::NotSent => {
                sleep(POLL_INTERVAL);
                continue;
            }
            ChaosRequestOutcome::Unknown(_) => JobSubmissionOutcome::Unknown,
            ChaosRequestOutcome::Answered(answer) => match answer.json() {
                Ok(message) => match message["result"]["job_id"].as_str() {
                    Some(id) => JobSubmissionOutcome::Accepted(id.to_owned()),
                    None => JobSubmissionOutcome::Refused(message.to_string()),
                },
                Err(err) => JobSubmissionOutcome::Refused(format!("{} {err:#}", answer.status)),
            },
        };
        let cancellation = match &outcome {
            JobSubmissionOutcome::Accepted(id) if rng.chance(CANCEL_PERCENT) => cancel(addr, id),
            JobSubmissionOutcome::Accepted(_)
            | JobSubmissionOutcome::Refused(_)
            | JobSubmissionOutcome::Unknown => JobCancellation::None,
        };
        shared.record(&plan, outcome, cancellation);
        plan = shared.next_plan(folder.seed);
        sleep(rng.duration_between(0, PAUSE_MS_MAX));
    }
}

/// Sends a request to cancel the job `id`, and returns whether the server confirmed it.
fn cancel(addr: SocketAddr, id: &str) -> JobCancellation {
    let job = match cancel_job(addr, id) {
        ChaosRequestOutcome::Answered(answer) => answer.json(),
        ChaosRequestOutcome::NotSent => return JobCancellation::None,
        ChaosRequestOutcome::Unknown(_) => return JobCancellation::Unconfirmed,
    };
    match job {
        Ok(job) if job["status"] == "canceled" => JobCancellation::Confirmed,
        Ok(_) | Err(_) => JobCancellation::Unconfirmed,
    }
}

/// Reads the logs of the jobs' programs until the run is over, and updates the shared progress.
pub(super) fn follow_logs(folder: &ChaosRunFolder, shared: &ChaosSharedState) {
    while !shared.is_over() {
        for (at, kind) in ChaosJobKind::ALL.into_iter().enumerate() {
            let mut progress = lock(&shared.progress);
            // The next turn reads what this one cannot.
            let _ = progress.read_log(folder, at, kind);
        }
        sleep(POLL_INTERVAL);
    }
}

impl JobLogProgress {
    fn read_log(
        &mut self,
        folder: &ChaosRunFolder,
        at: usize,
        kind: ChaosJobKind,
    ) -> std::io::Result<()> {
        let mut log = File::open(folder.log(kind))?;
        log.seek(SeekFrom::Start(self.read_bytes[at]))?;
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        let complete = text.rfind('\n').map_or(0, |last| last + 1);
        self.read_bytes[at] += complete as u64;
        for line in text[..complete].lines() {
            let number = line.split(' ').next().and_then(|number| number.parse().ok());
            self.newest_started = self.newest_started.max(number.unwrap_or_default());
            if line.ends_with(" end") {
                self.ended += 1;
                self.long_ended += usize::from(kind == ChaosJobKind::Long);
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
