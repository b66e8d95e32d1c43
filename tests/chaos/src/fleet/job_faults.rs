//! Kills and freezes the workers of a fleet, and makes its database crash or fail over to a
//! standby, while servers accept jobs.

use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::ensure;
use toolgate_test_support::SeededRng;

use super::LEASE_MS;
use super::cluster::{DatabaseKind, FleetDatabase};
use super::members::{FleetMemberStarter, MemberClocks, ensure_wrong_clock};
use super::promises::FleetPromiseCheck;
use super::submitters::{AcceptedJob, SubmittedJobs};
use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// Number of servers that accept jobs and run none.
const FRONTS: usize = 2;
/// Minimum number of workers that are not frozen.
const WORKERS: usize = 3;
/// The longest time for which a worker is frozen, in milliseconds. It is longer than a lease.
const FREEZE_MS_MAX: u64 = 8000;
/// The longest time for which the database is down, in milliseconds.
const OUTAGE_MS_MAX: u64 = 2000;
/// Time from the start to the first failover of the database, and between two failovers.
const FAILOVER_INTERVAL: Duration = Duration::from_secs(7);
/// Time before a failover for which the standby receives no changes.
const STANDBY_DELAY: Duration = Duration::from_millis(1500);
/// Additional time by which an asynchronous standby may have lagged behind before.
const STANDBY_LAG_MAX: Duration = Duration::from_secs(1);
/// Pause between two checks of a condition that the test waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Worker that was frozen with SIGSTOP.
struct FrozenWorker {
    worker: ChaosServerProcess,
    until: Instant,
}

/// Times of a failover from the database server to its standby.
struct DatabaseFailover {
    /// Time at which the standby was cut off from changes.
    cut: Instant,
    /// Time at which the standby accepted writes.
    promoted: Instant,
}

/// Running fleet, and the faults that the test has injected.
struct FleetFaultInjectionRun<'f> {
    members: FleetMemberStarter<'f>,
    database: FleetDatabase,
    kind: DatabaseKind,
    rng: SeededRng,
    /// Servers that accept jobs, each with its address.
    fronts: Vec<(ChaosServerProcess, SocketAddr)>,
    workers: Vec<ChaosServerProcess>,
    frozen: Vec<FrozenWorker>,
    kills: usize,
    freezes: usize,
    crashes: usize,
    failovers: Vec<DatabaseFailover>,
}

/// Injects faults into workers and the database of a fleet for `duration`, and prints the outcome
/// in one line. Fails if the fleet broke a promise.
///
/// With [`MemberClocks::Wrong`], the clocks of most servers and workers are wrong by minutes.
pub(super) fn run(
    folder: &ChaosRunFolder,
    kind: DatabaseKind,
    clocks: MemberClocks,
    duration: Duration,
) -> anyhow::Result<()> {
    let mut fleet = FleetFaultInjectionRun::start(folder, kind, clocks)?;
    let jobs = SubmittedJobs::default();
    let fronts: Vec<SocketAddr> = fleet.fronts.iter().map(|(_, address)| *address).collect();
    scope(|threads| {
        jobs.start_clients(threads, &fronts, folder.seed);
        let outcome = fleet.break_for(duration);
        jobs.stop();
        outcome
    })?;
    fleet.check(jobs.into_accepted())
}

impl<'f> FleetFaultInjectionRun<'f> {
    /// Starts the database, the servers and the workers in `folder`.
    fn start(
        folder: &'f ChaosRunFolder,
        kind: DatabaseKind,
        clocks: MemberClocks,
    ) -> anyhow::Result<Self> {
        let database = FleetDatabase::start(kind);
        let mut fleet = Self {
            members: FleetMemberStarter::new(folder, database.url(), LEASE_MS)?,
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
        fleet.members.set_clocks(clocks);
        for _ in 0..FRONTS {
            let front = fleet.members.start_server(&["--no-jobs"])?;
            fleet.fronts.push(front);
        }
        if clocks == MemberClocks::Wrong {
            fleet.fronts.iter().try_for_each(|(_, address)| ensure_wrong_clock(*address))?;
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

    /// Injects faults at random moments until `duration` has passed.
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

    /// Kills or freezes a worker, or makes a database without a standby crash and start again.
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

    /// Cuts the standby off for a moment, ends the database server, and makes the standby take its
    /// role.
    fn fail_over(&mut self) {
        let cut = Instant::now();
        self.database.stop_replication();
        sleep(STANDBY_DELAY);
        self.database.fail_over();
        self.failovers.push(DatabaseFailover { cut, promoted: Instant::now() });
        self.database.rebuild_standby();
    }

    /// Wakes each frozen worker whose pause has ended at `now`.
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

    /// Checks the promises of the fleet about the jobs `accepted`, and prints the outcome. Fails if
    /// a promise was broken.
    fn check(&self, accepted: Vec<AcceptedJob>) -> anyhow::Result<()> {
        let front = self.fronts[0].1;
        let check =
            FleetPromiseCheck { folder: self.members.folder, database: &self.database, front };
        let report = check.check(accepted, |job| self.may_be_lost(job))?;
        let Self { kills, freezes, crashes, failovers, .. } = self;
        let failovers = failovers.len();
        let faults =
            format!("{kills} kills, {freezes} freezes, {crashes} crashes, {failovers} failovers");
        if self.kind == DatabaseKind::AsynchronousStandby {
            println!(
                "{} jobs were lost with an asynchronous standby that was {} ms behind, as documented",
                report.lost_as_documented,
                STANDBY_DELAY.as_millis()
            );
        }
        report.print(&faults)?;
        let had_failover = self.kind == DatabaseKind::Single || failovers > 0;
        ensure!(had_failover, "the run was too short for a failover");
        Ok(())
    }

    /// Returns true if an asynchronous standby may have missed the job before it took over.
    fn may_be_lost(&self, job: &AcceptedJob) -> bool {
        let is_between =
            |it: &DatabaseFailover| job.at + STANDBY_LAG_MAX >= it.cut && job.at <= it.promoted;
        self.kind == DatabaseKind::AsynchronousStandby && self.failovers.iter().any(is_between)
    }
}
