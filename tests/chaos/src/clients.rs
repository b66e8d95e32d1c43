//! Clients that submit jobs whether the server runs or not, and remember every answer.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use toolgate_test_support::SeededRng;

use super::job_program::{JobKind, JobPlan};
use super::requests::{RequestOutcome, cancel_job, submit_job};
use super::server::RunFolder;

/// Number of clients that submit jobs.
pub(super) const CLIENTS: u64 = 6;
/// About how many jobs may wait for their turn. Then clients pause.
const WAITING_JOBS_MAX: u64 = 300;
/// The highest number of long jobs that have not ended.
const LONG_JOBS_MAX: usize = 6;
/// The percentage of accepted jobs that a client cancels.
const CANCEL_PERCENT: u64 = 4;
/// The longest pause of a client between two jobs.
const PAUSE_MS_MAX: u64 = 60;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Job that a client submitted, with the answer of the server.
pub(super) struct Submission {
    pub(super) number: u64,
    pub(super) kind: JobKind,
    pub(super) outcome: SubmissionOutcome,
    pub(super) cancellation: Cancellation,
}

/// Answer of the server to a submitted job.
pub(super) enum SubmissionOutcome {
    /// Answer by which the server accepted the job, with the job's id.
    Accepted(String),
    /// Answer by which the server refused the job, with the message.
    Refused(String),
    /// No answer arrived, so the job may exist or not.
    Unknown,
}

/// Cancellation of a job by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cancellation {
    /// Absence of a cancellation.
    None,
    /// The client cancelled the job, and the server did not confirm that.
    Unconfirmed,
    /// Cancellation that the server confirmed.
    Confirmed,
}

/// All jobs that the clients of a run submitted.
#[derive(Default)]
pub(super) struct SubmissionLog(pub(super) Vec<Submission>);

impl SubmissionLog {
    /// Returns each accepted job with its id.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (&str, &Submission)> {
        self.0.iter().filter_map(|submission| match &submission.outcome {
            SubmissionOutcome::Accepted(id) => Some((id.as_str(), submission)),
            SubmissionOutcome::Refused(_) | SubmissionOutcome::Unknown => None,
        })
    }
}

/// The state that clients share with the thread that starts servers.
#[derive(Default)]
pub(super) struct SharedState {
    /// The address of the present server, if it listens.
    address: Mutex<Option<SocketAddr>>,
    submissions: Mutex<SubmissionLog>,
    next_number: AtomicU64,
    accepted: AtomicUsize,
    long_jobs: AtomicUsize,
    progress: Mutex<LogProgress>,
    is_over: AtomicBool,
}

/// The progress of all jobs in the logs of their programs.
#[derive(Default)]
struct LogProgress {
    read_bytes: [u64; JobKind::ALL.len()],
    /// The highest number of a started job. Jobs start roughly in the order of their numbers.
    newest_started: u64,
    long_ended: usize,
    ended: usize,
}

impl SharedState {
    /// Sets the address of the present server.
    pub(super) fn set_address(&self, addr: Option<SocketAddr>) {
        *lock(&self.address) = addr;
    }

    /// Returns how many jobs servers have accepted.
    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many programs have ended.
    pub(super) fn ended(&self) -> usize {
        lock(&self.progress).ended
    }

    /// Stops all clients of the run.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn into_submissions(self) -> SubmissionLog {
        self.submissions.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        let newest = lock(&self.progress).newest_started;
        self.next_number.load(Ordering::Relaxed) > newest + WAITING_JOBS_MAX
    }

    fn next_plan(&self, seed: u64) -> JobPlan {
        loop {
            let plan = JobPlan::new(seed, self.next_number.fetch_add(1, Ordering::Relaxed));
            if plan.kind != JobKind::Long {
                return plan;
            }
            let long_jobs = self.long_jobs.fetch_add(1, Ordering::Relaxed);
            if long_jobs < lock(&self.progress).long_ended + LONG_JOBS_MAX {
                return plan;
            }
            self.long_jobs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn record(&self, plan: &JobPlan, outcome: SubmissionOutcome, cancellation: Cancellation) {
        if matches!(outcome, SubmissionOutcome::Accepted(_)) {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let JobPlan { number, kind, .. } = *plan;
        let submission = Submission { number, kind, outcome, cancellation };
        lock(&self.submissions).0.push(submission);
    }
}

/// Submits jobs until the run is over.
pub(super) fn submit_jobs(folder: &RunFolder, shared: &SharedState, client: u64) {
    let mut rng = SeededRng::from_seed(folder.seed.rotate_left(17) ^ client);
    let mut plan = shared.next_plan(folder.seed);
    while !shared.is_over() {
        let addr = *lock(&shared.address);
        let Some(addr) = addr.filter(|_| !shared.is_full()) else {
            sleep(POLL_INTERVAL);
            continue;
        };
        let outcome = match submit_job(addr, &plan.kind.tool(), plan.number) {
            RequestOutcome::NotSent => {
                sleep(POLL_INTERVAL);
                continue;
            }
            RequestOutcome::Unknown(_) => SubmissionOutcome::Unknown,
            RequestOutcome::Answered(answer) => match answer.json() {
                Ok(message) => match message["result"]["job_id"].as_str() {
                    Some(id) => SubmissionOutcome::Accepted(id.to_owned()),
                    None => SubmissionOutcome::Refused(message.to_string()),
                },
                Err(err) => SubmissionOutcome::Refused(format!("{} {err:#}", answer.status)),
            },
        };
        let cancellation = match &outcome {
            SubmissionOutcome::Accepted(id) if rng.chance(CANCEL_PERCENT) => cancel(addr, id),
            SubmissionOutcome::Accepted(_)
            | SubmissionOutcome::Refused(_)
            | SubmissionOutcome::Unknown => Cancellation::None,
        };
        shared.record(&plan, outcome, cancellation);
        plan = shared.next_plan(folder.seed);
        sleep(rng.duration_between(0, PAUSE_MS_MAX));
    }
}

/// Cancels the job `id`.
fn cancel(addr: SocketAddr, id: &str) -> Cancellation {
    let job = match cancel_job(addr, id) {
        RequestOutcome::Answered(answer) => answer.json(),
        RequestOutcome::NotSent => return Cancellation::None,
        RequestOutcome::Unknown(_) => return Cancellation::Unconfirmed,
    };
    match job {
        Ok(job) if job["status"] == "canceled" => Cancellation::Confirmed,
        Ok(_) | Err(_) => Cancellation::Unconfirmed,
    }
}

/// Follows the logs of the jobs' programs until the run is over.
pub(super) fn follow_logs(folder: &RunFolder, shared: &SharedState) {
    while !shared.is_over() {
        for (at, kind) in JobKind::ALL.into_iter().enumerate() {
            let mut progress = lock(&shared.progress);
            // The next turn reads what this one cannot.
            let _ = progress.read_log(folder, at, kind);
        }
        sleep(POLL_INTERVAL);
    }
}

impl LogProgress {
    fn read_log(&mut self, folder: &RunFolder, at: usize, kind: JobKind) -> std::io::Result<()> {
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
                self.long_ended += usize::from(kind == JobKind::Long);
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
