//! Checks after the last kill that every job ended as its plan requires, and did not run more often
//! than it may.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::PromiseViolations;
use super::clients::{JobCancellation, JobSubmission, JobSubmissionLog, JobSubmissionOutcome};
use super::job_program::{ChaosJobKind, ChaosJobPlan};
use super::requests::{call_tool, get};
use super::server::ChaosRunFolder;

/// Time that all jobs may take to end after the last kill, plus [`SETTLE_TIMEOUT_PER_JOB`] for each
/// job.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that each job adds to [`SETTLE_TIMEOUT`].
const SETTLE_TIMEOUT_PER_JOB: Duration = Duration::from_millis(50);
/// Pause between two checks whether a job has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of threads that wait for the end of jobs.
const WAITERS: usize = 8;
/// Number of starts after which an idempotent job is not started again if its server dies.
const ATTEMPTS_MAX: u64 = 5;
/// One in this many jobs has its streamed output checked. Jobs that started more than once are
/// always checked.
const STREAM_SAMPLE: u64 = 8;
/// Standard error of a job that was interrupted and does not run again.
const INTERRUPTED: &str = "the server stopped during the call";

/// Job as the server lists it.
struct ListedChaosJob {
    id: String,
    tool: String,
    attempts: u64,
}

/// Starts and ends of one job's programs, as they logged them.
#[derive(Default)]
pub(super) struct JobProgramEvents {
    pub(super) starts: u64,
    ends: u64,
    /// Random number of the run that started last, as text.
    last_run: String,
    /// True if a run ended after the next run of the job had started.
    pub(super) has_overlap: bool,
}

/// Starts a last server, waits until all jobs have ended, and checks them. Returns the broken
/// promises.
pub(super) fn find_violations(
    folder: &ChaosRunFolder,
    submissions: &JobSubmissionLog,
) -> anyhow::Result<PromiseViolations> {
    let started = Instant::now();
    let mut server = folder.start_server(0)?;
    let addr = server.address()?;
    let jobs = list_jobs(addr)?;
    let deadline = started + SETTLE_TIMEOUT + SETTLE_TIMEOUT_PER_JOB * u32::try_from(jobs.len())?;
    let ended = wait_for_all(addr, &jobs, deadline)?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} jobs had ended after {seconds:.1} s", jobs.len());
    // Only the second list has the final number of attempts.
    let check = ChaosJobCheck::new(folder, submissions, addr, list_jobs(addr)?)?;
    let violations = check.check_all(&jobs, ended)?;
    server.stop()?;
    folder.logged_errors()?.iter().for_each(|line| eprintln!("logged by a server: {line}"));
    Ok(violations)
}

/// Requests the list of all jobs from the server at `addr`.
fn list_jobs(addr: SocketAddr) -> anyhow::Result<Vec<ListedChaosJob>> {
    let mut all = Vec::new();
    let mut arguments = json!({});
    loop {
        let page = call_tool(addr, "jobs_list", &arguments)?;
        for job in page["jobs"].as_array().context("no jobs in the list")? {
            let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
            let attempts = job["attempts"].as_u64().unwrap_or_default();
            all.push(ListedChaosJob { id: text("job_id"), tool: text("tool"), attempts });
        }
        match page["next"].as_str() {
            Some(next) => arguments = json!({ "after": next }),
            None => return Ok(all),
        }
    }
}

/// Waits for the end of all jobs, in several threads. Returns the JSON of each job, in the order of
/// `jobs`.
fn wait_for_all(
    addr: SocketAddr,
    jobs: &[ListedChaosJob],
    deadline: Instant,
) -> anyhow::Result<Vec<Value>> {
    let wait_for_each = |jobs: &[ListedChaosJob]| -> anyhow::Result<Vec<Value>> {
        jobs.iter().map(|job| wait_for_job(addr, &job.id, deadline)).collect()
    };
    let parts = scope(|threads| {
        let parts = jobs.chunks(jobs.len().div_ceil(WAITERS).max(1));
        let waiters: Vec<_> =
            parts.map(|jobs| threads.spawn(move || wait_for_each(jobs))).collect();
        let joined = waiters.into_iter().map(|waiter| waiter.join().expect("no waiter panics"));
        joined.collect::<Vec<_>>()
    });
    Ok(parts.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat())
}

/// Waits until the job `id` has ended or `deadline` has passed, and returns the JSON of the job.
fn wait_for_job(addr: SocketAddr, id: &str, deadline: Instant) -> anyhow::Result<Value> {
    loop {
        let answer = get(addr, &format!("/jobs/{id}"))?;
        let job = answer.json()?;
        if answer.status != 200 {
            return Ok(json!({ "status": format!("{} {job}", answer.status) }));
        }
        let has_ended = !matches!(job["status"].as_str(), Some("queued" | "running"));
        if has_ended || Instant::now() > deadline {
            return Ok(job);
        }
        sleep(POLL_INTERVAL);
    }
}

impl JobProgramEvents {
    fn add(&mut self, run: &str, is_end: bool) {
        if is_end {
            self.ends += 1;
            self.has_overlap |= self.last_run != run;
        } else {
            self.starts += 1;
            run.clone_into(&mut self.last_run);
        }
    }
}

/// Reads the log files of the jobs of these types. Returns the logged starts and ends by the number
/// of the job.
pub(super) fn read_program_events(
    folder: &ChaosRunFolder,
    kinds: &[ChaosJobKind],
) -> anyhow::Result<HashMap<u64, JobProgramEvents>> {
    let mut events: HashMap<u64, JobProgramEvents> = HashMap::new();
    for log in kinds.iter().map(|kind| folder.log(*kind)) {
        for line in fs::read_to_string(&log)?.lines() {
            let mut words = line.split(' ');
            let number = words.next().unwrap_or_default().parse::<u64>();
            let number = number
                .with_context(|| format!("{} has the unknown line `{line}`", log.display()))?;
            let run = words.next().unwrap_or_default();
            events.entry(number).or_default().add(run, words.next() == Some("end"));
        }
    }
    Ok(events)
}

/// Largest number of bytes of each output in a result. For a longer output, a result has only its
/// start and end.
const RESULT_BYTES: usize = 32 << 10;

/// Returns the standard output of the job `id` as the server streamed it while the job ran.
fn streamed_stdout(addr: SocketAddr, id: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut after = 0;
    loop {
        let arguments = json!({ "job_id": id, "after": after, "max_bytes": 1 << 20 });
        let page = call_tool(addr, "jobs_output", &arguments)?;
        for piece in page["pieces"].as_array().context("no pieces")? {
            if piece["stream"] == "stdout" {
                text.push_str(piece["text"].as_str().unwrap_or_default());
            }
        }
        let next = page["next"].as_u64().context("no next")?;
        if page["ended"] == true || next == after {
            return Ok(text);
        }
        after = next;
    }
}

/// State of the check of all jobs of a run, with the broken promises found so far.
struct ChaosJobCheck<'c> {
    folder: &'c ChaosRunFolder,
    submissions: &'c JobSubmissionLog,
    addr: SocketAddr,
    /// Logged starts and ends of each job that is not checked yet, by job number.
    events: HashMap<u64, JobProgramEvents>,
    /// Number of starts of each job, by job id.
    attempts: HashMap<String, u64>,
    violations: PromiseViolations,
    interrupted: usize,
    cancelled: usize,
    exhausted: usize,
}

impl<'c> ChaosJobCheck<'c> {
    fn new(
        folder: &'c ChaosRunFolder,
        submissions: &'c JobSubmissionLog,
        addr: SocketAddr,
        jobs: Vec<ListedChaosJob>,
    ) -> anyhow::Result<Self> {
        let events = read_program_events(folder, &ChaosJobKind::ALL)?;
        let attempts = jobs.into_iter().map(|job| (job.id, job.attempts)).collect();
        Ok(Self {
            folder,
            submissions,
            addr,
            events,
            attempts,
            violations: PromiseViolations::default(),
            interrupted: 0,
            cancelled: 0,
            exhausted: 0,
        })
    }

    fn check_all(
        mut self,
        jobs: &[ListedChaosJob],
        ended: Vec<Value>,
    ) -> anyhow::Result<PromiseViolations> {
        let accepted: HashMap<&str, &JobSubmission> = self.submissions.accepted().collect();
        self.check_list(jobs, &accepted);
        let mut ids_by_number = HashMap::new();
        for (job, ended) in jobs.iter().zip(ended) {
            let stderr = ended["stderr"].as_str().unwrap_or_default();
            let submission = accepted.get(job.id.as_str());
            let cancellation = submission.map_or(JobCancellation::None, |it| it.cancellation);
            let number = submission.map(|submission| submission.number);
            let Some(number) = number.or_else(|| ChaosJobPlan::number_in(stderr)) else {
                self.check_unknown_job(job, &ended);
                continue;
            };
            if let Some(first) = ids_by_number.insert(number, &job.id) {
                let line = format!("job {number} exists twice: {first}, {}", job.id);
                self.violations.duplicated.push(line);
            }
            self.check_job(
                job,
                &ended,
                &ChaosJobPlan::new(self.folder.seed, number),
                cancellation,
            )?;
        }
        self.check_unlisted_programs();
        self.print_counts(jobs.len());
        Ok(self.violations)
    }

    /// Checks that all accepted jobs are listed, none is listed twice, and no more are listed than
    /// were submitted.
    fn check_list(&mut self, jobs: &[ListedChaosJob], accepted: &HashMap<&str, &JobSubmission>) {
        let mut listed_ids = HashSet::new();
        for job in jobs {
            if !listed_ids.insert(job.id.as_str()) {
                self.violations.duplicated.push(format!("job {} is listed twice", job.id));
            }
        }
        let mut accepted_ids = HashSet::new();
        for (id, JobSubmission { number, .. }) in self.submissions.accepted() {
            if !listed_ids.contains(id) {
                let line = format!("job {number} was accepted as {id} and does not exist");
                self.violations.lost.push(line);
            }
            if !accepted_ids.insert(id) {
                let line = format!("job {number} has the id {id} of another job");
                self.violations.duplicated.push(line);
            }
        }
        for kind in ChaosJobKind::ALL {
            let tool = kind.tool();
            let is_unknown =
                |job: &&ListedChaosJob| job.tool == tool && !accepted.contains_key(job.id.as_str());
            let unknown = jobs.iter().filter(is_unknown).count();
            let is_unanswered = |submission: &&JobSubmission| {
                submission.kind == kind
                    && matches!(submission.outcome, JobSubmissionOutcome::Unknown)
            };
            let unanswered = self.submissions.0.iter().filter(is_unanswered).count();
            if unknown > unanswered {
                self.violations.duplicated.push(format!(
                    "{unknown} jobs of {tool} exist that no client knows, but only {unanswered} \
                     submissions had no answer"
                ));
            }
        }
    }

    /// Checks a job whose number is unknown, because no client knows its id and it has no standard
    /// error. Its server must have died, and the job must not run again.
    fn check_unknown_job(&mut self, job: &ListedChaosJob, ended: &Value) {
        let attempts = self.attempts.get(&job.id).copied().unwrap_or_default();
        if is_interrupted(ended) && job.tool == ChaosJobKind::Once.tool() {
            self.interrupted += 1;
        } else if is_interrupted(ended) && attempts >= ATTEMPTS_MAX {
            self.exhausted += 1;
        } else {
            let line = format!("job {} is unknown: {}", job.id, summary(ended));
            self.violations.lost.push(line);
        }
    }

    /// Checks that a job ended as its plan requires, and records a violation otherwise. `ended` is
    /// the JSON of the ended job.
    fn check_job(
        &mut self,
        job: &ListedChaosJob,
        ended: &Value,
        plan: &ChaosJobPlan,
        cancellation: JobCancellation,
    ) -> anyhow::Result<()> {
        let ChaosJobPlan { number, kind, exit_code, .. } = *plan;
        let events = self.events.remove(&number).unwrap_or_default();
        let attempts = self.attempts.get(&job.id).copied().unwrap_or_default();
        let title = format!("job {number} ({}, {})", job.id, kind.name());
        let mut report_lost =
            |reason: String| self.violations.lost.push(format!("{title}: {reason}"));
        if job.tool != kind.tool() {
            report_lost(format!("its tool is {}", job.tool));
        }
        let JobProgramEvents { starts, ends, has_overlap, .. } = events;
        if has_overlap || starts > attempts || kind == ChaosJobKind::Once && attempts > 1 {
            let overlap = if has_overlap { ", two of them at once" } else { "" };
            self.violations.duplicated.push(format!(
                "{title} ran {starts} times{overlap}, and the server started it {attempts} times"
            ));
            return Ok(());
        }
        match (cancellation, ended["status"] == "canceled") {
            (JobCancellation::Confirmed | JobCancellation::Unconfirmed, true) => {
                self.cancelled += 1;
                return Ok(());
            }
            (JobCancellation::Confirmed, false) => {
                report_lost(format!("its cancellation is lost: {}", summary(ended)));
                return Ok(());
            }
            (JobCancellation::None, true) => {
                report_lost("it is cancelled, but no client did that".to_owned());
                return Ok(());
            }
            (JobCancellation::None | JobCancellation::Unconfirmed, false) => {}
        }
        if is_interrupted(ended) && !kind.is_idempotent() {
            self.interrupted += 1;
            return Ok(());
        }
        if is_interrupted(ended) && attempts >= ATTEMPTS_MAX {
            self.exhausted += 1;
            return Ok(());
        }
        if ends == 0 {
            report_lost(format!("it never ran to its end: {}", summary(ended)));
            return Ok(());
        }
        let status = if exit_code == 0 { "succeeded" } else { "failed" };
        if ended["status"] != status || ended["exit_code"] != exit_code {
            let expected = format!("{status} with {exit_code}");
            report_lost(format!("it should have {expected}: {}", summary(ended)));
            return Ok(());
        }
        let printed = plan.stdout();
        if attempts > 1 || number % STREAM_SAMPLE == 0 || printed.len() > RESULT_BYTES {
            // The output of earlier attempts comes first.
            let streamed = streamed_stdout(self.addr, &job.id)?;
            if !streamed.ends_with(&printed) {
                let (streamed, printed) = (streamed.len(), printed.len());
                report_lost(format!("{streamed} bytes were streamed, not the {printed} printed"));
            }
        }
        for (name, printed) in [("stdout", plan.stdout()), ("stderr", plan.stderr())] {
            let kept = ended[name].as_str().unwrap_or_default();
            if kept != printed && printed.len() <= RESULT_BYTES {
                let (kept, printed) = (kept.len(), printed.len());
                report_lost(format!("{kept} bytes of {name} are not the {printed} printed"));
            }
        }
        if let Some((name, text)) = plan.artefact() {
            let answer = get(self.addr, &format!("/jobs/{}/download?file={name}", job.id))?;
            if answer.status != 200 || answer.body != text.as_bytes() {
                let (status, kept, written) = (answer.status, answer.body.len(), text.len());
                report_lost(format!(
                    "status {status}: {kept} bytes of {name} are not the {written} written"
                ));
            }
        }
        Ok(())
    }

    /// Checks the programs of jobs that the server does not list: none that may run only once may
    /// have run twice.
    fn check_unlisted_programs(&mut self) {
        for (number, JobProgramEvents { starts, .. }) in &self.events {
            let kind = ChaosJobPlan::new(self.folder.seed, *number).kind;
            if kind == ChaosJobKind::Once && *starts > 1 {
                self.violations.duplicated.push(format!("job {number} ran {starts} times"));
            }
        }
    }

    fn print_counts(&self, jobs: usize) {
        let count = |matches: fn(&JobSubmissionOutcome) -> bool| {
            self.submissions.0.iter().filter(|submission| matches(&submission.outcome)).count()
        };
        let unknown = count(|outcome| matches!(outcome, JobSubmissionOutcome::Unknown));
        let refused = count(|outcome| matches!(outcome, JobSubmissionOutcome::Refused(_)));
        eprintln!(
            "{jobs} jobs exist; {unknown} submissions had no answer, {refused} were refused; {} \
             jobs were cancelled, {} were interrupted and may not run again, {} were interrupted \
             {ATTEMPTS_MAX} times",
            self.cancelled, self.interrupted, self.exhausted
        );
        let mut refusals: Vec<_> = self.submissions.0.iter().filter_map(refusal).collect();
        refusals.sort_unstable();
        refusals.dedup();
        refusals.truncate(5);
        refusals.iter().for_each(|message| eprintln!("refused: {message}"));
    }
}

fn refusal(submission: &JobSubmission) -> Option<&str> {
    match &submission.outcome {
        JobSubmissionOutcome::Refused(message) => Some(message),
        JobSubmissionOutcome::Accepted(_) | JobSubmissionOutcome::Unknown => None,
    }
}

fn is_interrupted(job: &Value) -> bool {
    let stderr = job["stderr"].as_str().unwrap_or_default();
    job["status"] == "failed" && job["exit_code"].is_null() && stderr.contains(INTERRUPTED)
}

/// Returns a description of the job `job` in one line.
fn summary(job: &Value) -> String {
    let text = |name: &str| job[name].as_str().unwrap_or_default().chars().take(200).collect();
    let (status, stderr): (String, String) = (text("status"), text("stderr"));
    format!("{status}, exit code {}, {stderr:?}", job["exit_code"])
}
