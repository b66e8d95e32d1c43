//! Kills and freezes the workers of a fleet, and crashes its database or lets it fail over to a
//! standby, while servers accept jobs.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use toolgate_test_support::SeededRng;

use super::LEASE_MS;
use super::cluster::{DatabaseKind, FleetDatabase};
use super::members::MemberStarter;
use super::submitters::{AcceptedJob, SubmittedJobs, longest_gap};
use crate::job_program::ChaosJobKind;
use crate::requests::get;
use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// The number of servers that accept jobs.
const FRONTS: usize = 2;
/// The least number of workers that are not frozen.
const WORKERS: usize = 3;
/// The longest pause of a frozen worker, in milliseconds. It is longer than a lease.
const FREEZE_MS_MAX: u64 = 8000;
/// The longest outage of the database, in milliseconds.
const OUTAGE_MS_MAX: u64 = 2000;
/// The time from the start to the first failover, and from one to the next.
const FAILOVER_INTERVAL: Duration = Duration::from_secs(7);
/// The time before a failover for which the standby receives nothing.
const STANDBY_DELAY: Duration = Duration::from_millis(1500);
/// The further time for which an asynchronous standby may have lagged behind already.
const STANDBY_LAG_MAX: Duration = Duration::from_secs(1);
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
struct FleetPromiseViolations {
    /// Accepted jobs that do not exist, although the database promises to keep them.
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
    worker: ChaosServerProcess,
    until: Instant,
}

/// A failover to the standby.
struct DatabaseFailover {
    /// The time from which the standby received nothing.
    cut: Instant,
    /// The time from which the standby accepted writes.
    promoted: Instant,
}

/// The outcome of a run.
struct JobFaultOutcome {
    violations: FleetPromiseViolations,
    /// Accepted jobs that an asynchronous standby had not received, as documented.
    lost_in_failovers: usize,
    accepted: Vec<AcceptedJob>,
}

/// A running fleet, and the faults so far.
struct JobFaultRun<'f> {
    members: MemberStarter<'f>,
    database: FleetDatabase,
    kind: DatabaseKind,
    rng: SeededRng,
    /// The servers that accept jobs, with their addresses.
    fronts: Vec<(ChaosServerProcess, SocketAddr)>,
    workers: Vec<ChaosServerProcess>,
    frozen: Vec<FrozenWorker>,
    kills: usize,
    freezes: usize,
    crashes: usize,
    failovers: Vec<DatabaseFailover>,
}

/// Breaks workers and the database of a fleet for the time `duration`, prints the outcome in one
/// line, and fails if a promise was broken.
pub(super) fn run(
    folder: &ChaosRunFolder,
    kind: DatabaseKind,
    duration: Duration,
) -> anyhow::Result<()> {
    let mut fleet = JobFaultRun::start(folder, kind)?;
    let jobs = SubmittedJobs::default();
    let fronts: Vec<SocketAddr> = fleet.fronts.iter().map(|(_, address)| *address).collect();
    scope(|threads| {
        jobs.start_clients(threads, &fronts, folder.seed);
        let outcome = fleet.break_for(duration);
        jobs.stop();
        outcome
    })?;
    let outcome = fleet.check(jobs.into_accepted())?;
    fleet.report(&outcome)
}

impl<'f> JobFaultRun<'f> {
    /// Starts the database, the servers and the workers.
    fn start(folder: &'f ChaosRunFolder, kind: DatabaseKind) -> anyhow::Result<Self> {
        let database = FleetDatabase::start(kind);
        let mut fleet = Self {
            members: MemberStarter::new(folder, database.url(), LEASE_MS)?,
            database,
            kind,
            rng: SeededRng::from_seed(folder.seed),
            fronts: Vec::new(),
            workers: Vec::new(),
            frozen: Vec::new(),
            kills: 0,
            freezes: 0,
            crashes: 0,
            failovers: Vec::new(),
        };
        for _ in 0..FRONTS {
            let front = fleet.members.start_server(&["--no-jobs"])?;
            fleet.fronts.push(front);
        }
        fleet.start_missing_workers()?;
        Ok(fleet)
    }

    fn start_missing_workers(&mut self) -> anyhow::Result<()> {
        while self.workers.len() < WORKERS {
            let worker = self.members.start_worker()?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Breaks something at random moments, until `duration` has passed.
    fn break_for(&mut self, duration: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + duration;
        let mut next_fault = Instant::now() + self.rng.duration_between(1000, 2000);
        let mut next_failover = Instant::now() + FAILOVER_INTERVAL;
        while Instant::now() < end {
            self.wake_workers(Instant::now())?;
            if Instant::now() >= next_fault {
                self.break_something()?;
                next_fault = Instant::now() + self.rng.duration_between(300, 1500);
            }
            if self.kind != DatabaseKind::Single && Instant::now() >= next_failover {
                self.fail_over();
                next_failover = Instant::now() + FAILOVER_INTERVAL;
            }
            sleep(POLL_INTERVAL);
        }
        self.wake_workers(end + Duration::from_millis(2 * FREEZE_MS_MAX))
    }

    /// Kills or freezes a worker, or crashes a database without a standby for a moment.
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
            _ if self.kind == DatabaseKind::Single => {
                self.database.crash();
                sleep(self.rng.duration_between(0, OUTAGE_MS_MAX));
                self.database.restart();
                self.crashes += 1;
            }
            _ => {}
        }
        self.start_missing_workers()
    }

    /// Cuts the standby off for a moment, ends the database server, and lets the standby replace
    /// it.
    fn fail_over(&mut self) {
        let cut = Instant::now();
        self.database.stop_replication();
        sleep(STANDBY_DELAY);
        self.database.fail_over();
        self.failovers.push(DatabaseFailover { cut, promoted: Instant::now() });
        self.database.rebuild_standby();
    }

    /// Wakes each frozen worker whose time to sleep has ended at `now`.
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
    fn check(&self, accepted: Vec<AcceptedJob>) -> anyhow::Result<JobFaultOutcome> {
        ensure!(!accepted.is_empty(), "no job was accepted");
        let mut violations = FleetPromiseViolations::default();
        let mut lost_in_failovers = 0;
        let deadline = Instant::now() + END_TIMEOUT;
        for job in &accepted {
            match self.wait_for_job(&job.id, deadline)? {
                JobFate::Ended => {}
                JobFate::Unended(status) => {
                    violations.stuck.push(format!("job {} is {status}", job.id));
                }
                JobFate::Missing if self.may_be_lost(job) => lost_in_failovers += 1,
                JobFate::Missing => {
                    let line = format!("job {} was accepted and does not exist", job.id);
                    violations.lost.push(line);
                }
            }
        }
        let log = fs::read_to_string(self.members.folder.log(ChaosJobKind::Once))?;
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
        Ok(JobFaultOutcome { violations, lost_in_failovers, accepted })
    }

    /// Returns true if an asynchronous standby cannot have received the job before it replaced its
    /// primary server.
    fn may_be_lost(&self, job: &AcceptedJob) -> bool {
        let is_between =
            |it: &DatabaseFailover| job.at + STANDBY_LAG_MAX >= it.cut && job.at <= it.promoted;
        self.kind == DatabaseKind::AsynchronousStandby && self.failovers.iter().any(is_between)
    }

    /// Waits until the job `id` has ended, the server says that no such job exists, or `deadline`
    /// has passed.
    fn wait_for_job(&self, id: &str, deadline: Instant) -> anyhow::Result<JobFate> {
        let (_, address) = &self.fronts[0];
        loop {
            let answer = get(*address, &format!("/jobs/{id}"))?;
            if answer.status == 404 {
                return Ok(JobFate::Missing);
            }
            // Without the database, another status says so.
            let job = answer.json()?;
            let has_ended = !matches!(job["status"].as_str(), Some("queued" | "running"));
            if answer.status == 200 && has_ended {
                return Ok(JobFate::Ended);
            }
            if Instant::now() > deadline {
                return Ok(JobFate::Unended(job["status"].to_string()));
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Prints the outcome, and fails if a promise was broken.
    fn report(&self, outcome: &JobFaultOutcome) -> anyhow::Result<()> {
        let FleetPromiseViolations { lost, twice, stuck, gaps } = &outcome.violations;
        let kinds = [("lost", lost), ("twice", twice), ("stuck", stuck), ("gaps", gaps)];
        for (kind, lines) in kinds {
            lines.iter().for_each(|line| eprintln!("{kind}: {line}"));
        }
        let found: Vec<String> =
            kinds.iter().map(|(kind, lines)| format!("{} {kind}", lines.len())).collect();
        let Self { kills, freezes, crashes, failovers, .. } = self;
        println!(
            "{kills} kills, {freezes} freezes, {crashes} crashes, {} failovers, {} jobs, {}; \
             longest time without an accepted job: {:.1} s",
            failovers.len(),
            outcome.accepted.len(),
            found.join(", "),
            longest_gap(&outcome.accepted).as_secs_f64()
        );
        if self.kind == DatabaseKind::AsynchronousStandby {
            println!(
                "{} jobs were lost with an asynchronous standby that was {} ms behind, as documented",
                outcome.lost_in_failovers,
                STANDBY_DELAY.as_millis()
            );
        }
        let is_kept = kinds.iter().all(|(_, lines)| lines.is_empty());
        ensure!(is_kept, "the fleet broke a promise");
        let had_failover = self.kind == DatabaseKind::Single || !failovers.is_empty();
        had_failover.then_some(()).context("the run was too short for a failover")
    }
}

/// The fate of an accepted job.
enum JobFate {
    Ended,
    /// The job has not ended in time. The text is its state.
    Unended(String),
    Missing,
}
