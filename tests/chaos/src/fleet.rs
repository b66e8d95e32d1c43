//! Kills and freezes the workers of a fleet, and crashes its database, while servers accept jobs.

#[path = "../../postgres/server.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the server")]
mod database;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use toolgate_test_support::SeededRng;

use super::job_program::{JobKind, JobPlan};
use super::requests::{RequestOutcome, get, submit_job};
use super::server::{RunFolder, Server};
use super::{ChaosOptions, kept_in, leftovers};

/// The number of servers that accept jobs.
const FRONTS: usize = 2;
/// The least number of workers that are not frozen.
const WORKERS: usize = 3;
/// The length of a lease, and the further time until a job counts as interrupted, in milliseconds.
const LEASE_MS: &str = "3000";
/// The longest pause of a frozen worker, in milliseconds. It is longer than a lease.
const FREEZE_MS_MAX: u64 = 8000;
/// The longest outage of the database, in milliseconds.
const OUTAGE_MS_MAX: u64 = 2000;
/// The time in which all jobs must end after the last fault.
const END_TIMEOUT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// SQL for the jobs whose events are not numbered from 1 without gaps.
const GAPS_SQL: &str = "select encode(j.id, 'hex') from toolgate_fleet.jobs as j \
    cross join lateral (select count(*) as amount, coalesce(max(e.seq), 0) as latest \
    from toolgate_fleet.events as e where e.job = j.id) as stored \
    where j.last_event <> stored.amount or j.last_event <> stored.latest";

/// Broken promises of a fleet, one line each.
#[derive(Default)]
struct FleetViolations {
    /// Accepted jobs that do not exist.
    lost: Vec<String>,
    /// Jobs that may run once and ran more often.
    twice: Vec<String>,
    /// Jobs that do not end.
    stuck: Vec<String>,
    /// Jobs whose events have gaps.
    gaps: Vec<String>,
}

/// A worker that was stopped with SIGSTOP.
struct FrozenWorker {
    worker: Server,
    until: Instant,
}

/// A running fleet, and the jobs that it accepted.
struct FleetRun<'f> {
    folder: &'f RunFolder,
    database: database::Server,
    rng: SeededRng,
    /// The servers that accept jobs, with their addresses.
    fronts: Vec<(Server, SocketAddr)>,
    workers: Vec<Server>,
    frozen: Vec<FrozenWorker>,
    /// The number of started servers and workers.
    started: usize,
    /// The ids of the accepted jobs.
    accepted: Vec<String>,
    kills: usize,
    freezes: usize,
    crashes: usize,
}

/// Breaks workers and the database of a fleet for the time `duration`, prints the outcome in one
/// line, and fails if a promise was broken.
pub(super) fn run(options: &ChaosOptions, duration: Duration) -> anyhow::Result<()> {
    let folder = RunFolder::create(&options.server()?, options.seed)?;
    let seconds = duration.as_secs();
    eprintln!(
        "a fleet for {seconds} s with --seed {}, in {}",
        options.seed,
        folder.folder.display()
    );

    let outcome = FleetRun::start(&folder).and_then(|mut fleet| {
        fleet.break_for(duration)?;
        let violations = fleet.find_violations()?;
        let FleetRun { accepted, kills, freezes, crashes, .. } = &fleet;
        let jobs = accepted.len();
        Ok((
            violations,
            format!("{kills} kills, {freezes} freezes, {crashes} crashes, {jobs} jobs"),
        ))
    });
    let left = leftovers::wait_for_end(&folder.marker);
    leftovers::kill_all(&left);
    let (violations, counts) = outcome.with_context(|| kept_in(&folder.folder))?;
    let FleetViolations { lost, twice, stuck, gaps } = &violations;
    let kinds = [("lost", lost), ("twice", twice), ("stuck", stuck), ("gaps", gaps)];
    for (kind, lines) in kinds {
        lines.iter().for_each(|line| eprintln!("{kind}: {line}"));
    }
    let found: Vec<String> =
        kinds.iter().map(|(kind, lines)| format!("{} {kind}", lines.len())).collect();
    println!("{counts}, {}", found.join(", "));
    ensure!(
        kinds.iter().all(|(_, lines)| lines.is_empty()),
        "the fleet broke a promise; {}",
        kept_in(&folder.folder)
    );
    fs::remove_dir_all(&folder.folder).context("cannot remove the folder of the run")
}

impl<'f> FleetRun<'f> {
    /// Starts the database, the servers and the workers.
    fn start(folder: &'f RunFolder) -> anyhow::Result<Self> {
        let mut fleet = Self {
            folder,
            database: database::Server::start(),
            rng: SeededRng::from_seed(folder.seed),
            fronts: Vec::new(),
            workers: Vec::new(),
            frozen: Vec::new(),
            started: 0,
            accepted: Vec::new(),
            kills: 0,
            freezes: 0,
            crashes: 0,
        };
        for _ in 0..FRONTS {
            let mut front =
                fleet.start_member("serve", &["--no-jobs", "--listen", "127.0.0.1:0"])?;
            let address = front.address()?;
            fleet.fronts.push((front, address));
        }
        fleet.start_missing_workers()?;
        Ok(fleet)
    }

    fn start_member(&mut self, word: &str, flags: &[&str]) -> anyhow::Result<Server> {
        self.started += 1;
        let url = self.database.url();
        let variables = [
            ("TOOLGATE_FLEET_URL", url.as_str()),
            ("TOOLGATE_FLEET_LEASE_MS", LEASE_MS),
            ("TOOLGATE_FLEET_LOST_MS", LEASE_MS),
        ];
        self.folder.start_member(self.started, word, flags, &variables)
    }

    fn start_missing_workers(&mut self) -> anyhow::Result<()> {
        while self.workers.len() < WORKERS {
            let worker = self.start_member("work", &[])?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Submits jobs and breaks something at random moments, until `duration` has passed.
    fn break_for(&mut self, duration: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + duration;
        let mut next_fault = Instant::now() + self.rng.duration_between(1000, 2000);
        let mut number = 0;
        while Instant::now() < end {
            self.submit(number);
            number += 1;
            self.wake_workers(Instant::now())?;
            if Instant::now() >= next_fault {
                self.break_something()?;
                next_fault = Instant::now() + self.rng.duration_between(300, 1500);
            }
            sleep(self.rng.duration_between(20, 100));
        }
        self.wake_workers(end + Duration::from_millis(2 * FREEZE_MS_MAX))
    }

    /// Submits the job `number` to one of the servers, which may refuse it without the database.
    fn submit(&mut self, number: u64) {
        let plan = JobPlan::new(self.folder.seed, number);
        let at = usize::try_from(number).unwrap_or_default() % self.fronts.len();
        let (_, address) = &self.fronts[at];
        match submit_job(*address, &plan.kind.tool(), number) {
            RequestOutcome::Answered(answer) => {
                let message = answer.json().unwrap_or_default();
                let id = message["result"]["job_id"].as_str();
                self.accepted.extend(id.map(str::to_owned));
            }
            RequestOutcome::NotSent | RequestOutcome::Unknown(_) => {}
        }
    }

    /// Kills or freezes a worker, or crashes the database for a moment.
    fn break_something(&mut self) -> anyhow::Result<()> {
        let at = self.rng.between(0, self.workers.len() as u64);
        let at = usize::try_from(at).unwrap_or_default();
        match self.rng.between(0, 10) {
            0..5 => {
                self.workers.swap_remove(at).kill()?;
                self.kills += 1;
            }
            5..9 => {
                let worker = self.workers.swap_remove(at);
                worker.signal("STOP")?;
                let until = Instant::now() + self.rng.duration_between(200, FREEZE_MS_MAX);
                self.frozen.push(FrozenWorker { worker, until });
                self.freezes += 1;
            }
            _ => {
                self.database.stop();
                sleep(self.rng.duration_between(0, OUTAGE_MS_MAX));
                self.database.again();
                self.crashes += 1;
            }
        }
        self.start_missing_workers()
    }

    /// Wakes the frozen workers that are to sleep no longer than until `now`.
    fn wake_workers(&mut self, now: Instant) -> anyhow::Result<()> {
        let frozen = std::mem::take(&mut self.frozen);
        let (due, later): (Vec<_>, Vec<_>) = frozen.into_iter().partition(|it| it.until <= now);
        self.frozen = later;
        for FrozenWorker { worker, .. } in due {
            worker.signal("CONT")?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Waits for the end of the accepted jobs, and checks the promises of the fleet.
    fn find_violations(&self) -> anyhow::Result<FleetViolations> {
        ensure!(!self.accepted.is_empty(), "no job was accepted");
        let mut violations = FleetViolations::default();
        let deadline = Instant::now() + END_TIMEOUT;
        for id in &self.accepted {
            self.wait_for_job(id, deadline, &mut violations)?;
        }
        let log = fs::read_to_string(self.folder.log(JobKind::Once))?;
        let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
        for line in log.lines().filter(|line| line.ends_with(" start")) {
            *starts.entry(line.split(' ').next().unwrap_or_default()).or_default() += 1;
        }
        let repeated = starts.iter().filter(|(_, count)| **count > 1);
        violations.twice =
            repeated.map(|(number, count)| format!("job {number} ran {count} times")).collect();
        let gaps = self.database.run(GAPS_SQL);
        violations.gaps =
            gaps.lines().map(|id| format!("the events of job {id} have a gap")).collect();
        Ok(violations)
    }

    /// Waits until the job `id` has ended or `deadline` has passed.
    fn wait_for_job(
        &self,
        id: &str,
        deadline: Instant,
        violations: &mut FleetViolations,
    ) -> anyhow::Result<()> {
        let (_, address) = &self.fronts[0];
        loop {
            let answer = get(*address, &format!("/jobs/{id}"))?;
            if answer.status == 404 {
                violations.lost.push(format!("job {id} was accepted and does not exist"));
                return Ok(());
            }
            // Without the database, another status says so.
            let job = answer.json()?;
            let has_ended = !matches!(job["status"].as_str(), Some("queued" | "running"));
            if answer.status == 200 && has_ended {
                return Ok(());
            }
            if Instant::now() > deadline {
                violations.stuck.push(format!("job {id} is {}", job["status"]));
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
    }
}
