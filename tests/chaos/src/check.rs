//! What must be true in the end, job by job.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Value, json};

use super::Wrong;
use super::clients::{Cancel, Fate, Ledger, Submission};
use super::server::Stage;
use super::wire::{call, get};
use super::work::{Kind, Plan};

/// How long all jobs may take to end once nobody is killed any more, and how much longer for each.
const SETTLE: Duration = Duration::from_secs(60);
const SETTLE_EACH: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(20);
/// How many ask at once how the jobs ended.
const ASKERS: usize = 8;
/// How often a job may begin that servers do not survive; then it is given no other.
const ATTEMPTS_MAX: u64 = 5;
/// Of so many jobs that began once, one is asked for what was told while it ran.
const SAMPLE: u64 = 8;
/// What a job says that was cut short and is not run again.
const INTERRUPTED: &str = "the server stopped during the call";

/// A job as the server lists it.
struct Listed {
    id: String,
    tool: String,
    attempts: u64,
}

/// What the programs of one job wrote down.
#[derive(Default)]
struct Wrote {
    starts: u64,
    ends: u64,
    /// The program that started last.
    last: String,
    /// Whether one went on when the next had started.
    overlap: bool,
}

/// Starts the server a last time, waits until all jobs have ended, and says what is wrong.
pub(super) fn settled(stage: &Stage, ledger: &Ledger) -> anyhow::Result<Wrong> {
    let begun = Instant::now();
    let mut server = stage.start(0)?;
    let at = server.address()?;
    let jobs = listed(at)?;
    let until = begun + SETTLE + SETTLE_EACH * u32::try_from(jobs.len())?;
    let ended = all_ended(at, &jobs, until)?;
    eprintln!("{} jobs had ended after {:.1} s", jobs.len(), begun.elapsed().as_secs_f64());
    // Listed again: how often a job began is known only now.
    let check = Check::new(stage, ledger, at, listed(at)?)?;
    let wrong = check.all(&jobs, ended)?;
    server.stop()?;
    stage.complaints()?.iter().for_each(|line| eprintln!("a server said: {line}"));
    Ok(wrong)
}

/// Every job there is.
fn listed(at: SocketAddr) -> anyhow::Result<Vec<Listed>> {
    let mut all = Vec::new();
    let mut arguments = json!({});
    loop {
        let page = call(at, "jobs_list", &arguments)?;
        for job in page["jobs"].as_array().context("no jobs in the list")? {
            let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
            let attempts = job["attempts"].as_u64().unwrap_or_default();
            all.push(Listed { id: text("job_id"), tool: text("tool"), attempts });
        }
        match page["next"].as_str() {
            Some(next) => arguments = json!({ "after": next }),
            None => return Ok(all),
        }
    }
}

/// The jobs once they have ended, asked for by several at once.
fn all_ended(at: SocketAddr, jobs: &[Listed], until: Instant) -> anyhow::Result<Vec<Value>> {
    let each = |jobs: &[Listed]| -> anyhow::Result<Vec<Value>> {
        jobs.iter().map(|job| ended(at, &job.id, until)).collect()
    };
    let parts = scope(|threads| {
        let parts = jobs.chunks(jobs.len().div_ceil(ASKERS).max(1));
        let askers: Vec<_> = parts.map(|jobs| threads.spawn(move || each(jobs))).collect();
        askers.into_iter().map(|asker| asker.join().expect("nobody panics")).collect::<Vec<_>>()
    });
    Ok(parts.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat())
}

/// The job `id` once it has ended; as it is, where that takes too long.
fn ended(at: SocketAddr, id: &str, until: Instant) -> anyhow::Result<Value> {
    loop {
        let answer = get(at, &format!("/jobs/{id}"))?;
        let job = answer.json()?;
        if answer.status != 200 {
            return Ok(json!({ "status": format!("{} {job}", answer.status) }));
        }
        let has_ended = !matches!(job["status"].as_str(), Some("queued" | "running"));
        if has_ended || Instant::now() > until {
            return Ok(job);
        }
        sleep(LOOK);
    }
}

impl Wrote {
    fn take(&mut self, pid: &str, is_end: bool) {
        if is_end {
            self.ends += 1;
            self.overlap |= self.last != pid;
        } else {
            self.starts += 1;
            pid.clone_into(&mut self.last);
        }
    }
}

/// What the job `id` printed to standard output, as it was told while it ran.
fn streamed(at: SocketAddr, id: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut after = 0;
    loop {
        let arguments = json!({ "job_id": id, "after": after, "max_bytes": 1 << 20 });
        let page = call(at, "jobs_output", &arguments)?;
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

struct Check<'c> {
    stage: &'c Stage,
    ledger: &'c Ledger,
    at: SocketAddr,
    wrote: HashMap<u64, Wrote>,
    attempts: HashMap<String, u64>,
    wrong: Wrong,
    interrupted: usize,
    canceled: usize,
    worn_out: usize,
}

impl<'c> Check<'c> {
    fn new(
        stage: &'c Stage,
        ledger: &'c Ledger,
        at: SocketAddr,
        jobs: Vec<Listed>,
    ) -> anyhow::Result<Self> {
        let mut wrote: HashMap<u64, Wrote> = HashMap::new();
        for kind in Kind::ALL {
            for line in fs::read_to_string(stage.log(kind))?.lines() {
                let mut words = line.split(' ');
                let n = words.next().unwrap_or_default().parse().with_context(|| {
                    format!("`{line}` is in {}, which nobody writes", stage.log(kind).display())
                })?;
                let pid = words.next().unwrap_or_default();
                wrote.entry(n).or_default().take(pid, words.next() == Some("end"));
            }
        }
        let attempts = jobs.into_iter().map(|job| (job.id, job.attempts)).collect();
        let wrong = Wrong::default();
        Ok(Self {
            stage,
            ledger,
            at,
            wrote,
            attempts,
            wrong,
            interrupted: 0,
            canceled: 0,
            worn_out: 0,
        })
    }

    fn all(mut self, jobs: &[Listed], ended: Vec<Value>) -> anyhow::Result<Wrong> {
        let known: HashMap<&str, &Submission> = self.ledger.accepted().collect();
        self.all_are_there(jobs, &known);
        let mut numbers = HashMap::new();
        for (job, ended) in jobs.iter().zip(ended) {
            let stderr = ended["stderr"].as_str().unwrap_or_default();
            let submission = known.get(job.id.as_str());
            let cancel = submission.map_or(Cancel::No, |submission| submission.cancel);
            let Some(n) =
                submission.map(|submission| submission.n).or_else(|| Plan::number(stderr))
            else {
                // Nobody was told of it, and it does not say which it is.
                self.nameless(job, &ended);
                continue;
            };
            if let Some(first) = numbers.insert(n, &job.id) {
                self.wrong.doubled.push(format!("job {n} is there twice: {first}, {}", job.id));
            }
            self.one(job, &ended, &Plan::of(self.stage.seed, n), cancel)?;
        }
        self.none_ran_twice();
        self.tell(jobs.len());
        Ok(self.wrong)
    }

    /// No more than was asked for, no less than was promised, and nothing twice.
    fn all_are_there(&mut self, jobs: &[Listed], known: &HashMap<&str, &Submission>) {
        let mut there = HashSet::new();
        for job in jobs {
            if !there.insert(job.id.as_str()) {
                self.wrong.doubled.push(format!("job {} is listed twice", job.id));
            }
        }
        let mut listed = HashSet::new();
        for (id, submission) in self.ledger.accepted() {
            let n = submission.n;
            if !there.contains(id) {
                self.wrong.lost.push(format!("job {n} was accepted as {id} and is not there"));
            }
            if !listed.insert(id) {
                self.wrong.doubled.push(format!("job {n} was given the id {id} of another"));
            }
        }
        for kind in Kind::ALL {
            let tool = kind.tool();
            let untold = jobs
                .iter()
                .filter(|job| job.tool == tool && !known.contains_key(job.id.as_str()))
                .count();
            let submitted = self.ledger.0.iter().filter(|submission| {
                submission.kind == kind && matches!(submission.fate, Fate::Unknown)
            });
            let submitted = submitted.count();
            if untold > submitted {
                self.wrong.doubled.push(format!(
                    "{untold} jobs of {tool} are there that nobody was told of, and only {submitted} \
                     can be"
                ));
            }
        }
    }

    /// A job that may only be one that was interrupted for good.
    fn nameless(&mut self, job: &Listed, ended: &Value) {
        let attempts = self.attempts.get(&job.id).copied().unwrap_or_default();
        match is_interrupted(ended) {
            true if job.tool == Kind::Once.tool() => self.interrupted += 1,
            true if attempts >= ATTEMPTS_MAX => self.worn_out += 1,
            true | false => {
                self.wrong.lost.push(format!("job {} is nobody's: {}", job.id, shown(ended)));
            }
        }
    }

    /// Whether the job ended as its plan says.
    fn one(
        &mut self,
        job: &Listed,
        ended: &Value,
        plan: &Plan,
        cancel: Cancel,
    ) -> anyhow::Result<()> {
        let Plan { n, kind, exit_code, .. } = *plan;
        let Wrote { starts, ends, overlap, .. } = self.wrote.remove(&n).unwrap_or_default();
        let attempts = self.attempts.get(&job.id).copied().unwrap_or_default();
        let mut lost = |why: String| {
            let id = &job.id;
            self.wrong.lost.push(format!("job {n} ({id}, {}): {why}", kind.name()));
        };
        if job.tool != kind.tool() {
            lost(format!("it is of {}", job.tool));
        }
        if overlap || starts > attempts || kind == Kind::Once && attempts > 1 {
            let id = &job.id;
            let name = kind.name();
            let how = if overlap { ", one while another did" } else { "" };
            self.wrong.doubled.push(format!(
                "job {n} ({id}, {name}) ran {starts} times{how}, and was begun {attempts} times"
            ));
            return Ok(());
        }
        match (cancel, ended["status"] == "canceled") {
            (Cancel::Yes | Cancel::Perhaps, true) => {
                self.canceled += 1;
                return Ok(());
            }
            (Cancel::Yes, false) => {
                lost(format!("it was cancelled, and is not: {}", shown(ended)));
                return Ok(());
            }
            (Cancel::No, true) => {
                lost("it is cancelled, and nobody did it".to_owned());
                return Ok(());
            }
            (Cancel::No | Cancel::Perhaps, false) => {}
        }
        if is_interrupted(ended) && !kind.is_idempotent() {
            self.interrupted += 1;
            return Ok(());
        }
        if is_interrupted(ended) && attempts >= ATTEMPTS_MAX {
            self.worn_out += 1;
            return Ok(());
        }
        if ends == 0 {
            lost(format!("it never ran to its end: {}", shown(ended)));
            return Ok(());
        }
        let status = if exit_code == 0 { "succeeded" } else { "failed" };
        if ended["status"] != status || ended["exit_code"] != exit_code {
            lost(format!("it should have {status} with {exit_code}: {}", shown(ended)));
            return Ok(());
        }
        if attempts > 1 || n % SAMPLE == 0 {
            // What attempts before it said stands before it.
            let kept = streamed(self.at, &job.id)?;
            let whole = plan.printed();
            if !kept.ends_with(&whole) {
                let kept = kept.len();
                let whole = whole.len();
                lost(format!("{kept} bytes were told as they came, not the {whole} it printed"));
            }
        }
        for (name, whole) in [("stdout", plan.printed()), ("stderr", plan.complaint())] {
            let kept = ended[name].as_str().unwrap_or_default();
            if kept != whole {
                let kept = kept.len();
                let whole = whole.len();
                lost(format!("{kept} bytes of {name} are not the {whole} that it printed"));
            }
        }
        if let Some((name, text)) = plan.artefact() {
            let answer = get(self.at, &format!("/jobs/{}/download?file={name}", job.id))?;
            if answer.status != 200 || answer.body != text.as_bytes() {
                let status = answer.status;
                let kept = answer.body.len();
                let whole = text.len();
                lost(format!("{status}, {kept} bytes of {name} are not the {whole} it wrote"));
            }
        }
        Ok(())
    }

    /// Of what ran and is of no job that could be told, nothing ran twice that must not.
    fn none_ran_twice(&mut self) {
        for (n, Wrote { starts, .. }) in &self.wrote {
            if Plan::of(self.stage.seed, *n).kind == Kind::Once && *starts > 1 {
                self.wrong.doubled.push(format!("job {n} ran {starts} times"));
            }
        }
    }

    fn tell(&self, there: usize) {
        let count = |is: fn(&Fate) -> bool| self.ledger.0.iter().filter(|it| is(&it.fate)).count();
        let unknown = count(|fate| matches!(fate, Fate::Unknown));
        let refused = count(|fate| matches!(fate, Fate::Refused(_)));
        eprintln!(
            "{there} jobs are there; of {unknown} more nobody knew whether they were accepted, \
             {refused} were refused, {} were cancelled, {} were interrupted and may not be run \
             again, {} were interrupted {ATTEMPTS_MAX} times",
            self.canceled, self.interrupted, self.worn_out
        );
        let mut refusals: Vec<_> = self.ledger.0.iter().filter_map(refusal).collect();
        refusals.sort_unstable();
        refusals.dedup();
        refusals.truncate(5);
        refusals.iter().for_each(|why| eprintln!("refused: {why}"));
    }
}

fn refusal(submission: &Submission) -> Option<&str> {
    match &submission.fate {
        Fate::Refused(why) => Some(why),
        Fate::Accepted(_) | Fate::Unknown => None,
    }
}

fn is_interrupted(ended: &Value) -> bool {
    let stderr = ended["stderr"].as_str().unwrap_or_default();
    ended["status"] == "failed" && ended["exit_code"].is_null() && stderr.contains(INTERRUPTED)
}

/// A job in a line.
fn shown(job: &Value) -> String {
    let text = |name: &str| job[name].as_str().unwrap_or_default().chars().take(200).collect();
    let (status, stderr): (String, String) = (text("status"), text("stderr"));
    format!("{status}, exit code {}, {stderr:?}", job["exit_code"])
}
