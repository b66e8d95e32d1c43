//! Cuts the servers and workers of a fleet off from their database, each for a moment, while
//! servers accept jobs and answer plain calls.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::ensure;
use toolgate_test_support::SeededRng;

use super::LEASE_MS;
use super::cluster::{DatabaseKind, FleetDatabase};
use super::members::FleetMemberStarter;
use super::promises::FleetPromiseCheck;
use super::proxy::{DatabaseProxy, DatabaseProxyMode};
use super::submitters::SubmittedJobs;
use crate::requests::call_plainly;
use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// Number of servers that accept jobs and run none.
const FRONTS: usize = 2;
/// Number of workers that run jobs.
const WORKERS: usize = 3;
/// The longest partition between a worker and the database, in milliseconds. It is longer than a
/// lease.
const WORKER_PARTITION_MS_MAX: u64 = 8000;
/// The longest partition between a server that accepts jobs and the database, in milliseconds. It
/// is short, because such a server refuses jobs meanwhile.
const FRONT_PARTITION_MS_MAX: u64 = 2000;
/// Delay of the traffic in a partition that delays and loses nothing.
const DELAY: Duration = Duration::from_millis(500);
/// Pause between two calls that start no job.
const CALL_PAUSE: Duration = Duration::from_millis(20);
/// Pause between two checks of a condition that the test waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Tool for calls that start no job.
const PLAIN_TOOL: &str = "files_tree";

/// Server or worker that reaches the database through its own proxy.
struct PartitionedMember {
    _process: ChaosServerProcess,
    proxy: DatabaseProxy,
    /// The longest partition of this member, in milliseconds.
    partition_ms_max: u64,
    /// End of the current partition, or `None` if there is none.
    heals_at: Option<Instant>,
}

/// Running fleet, and the number of its network partitions so far.
struct PartitionRun {
    database: FleetDatabase,
    members: Vec<PartitionedMember>,
    /// Addresses of the servers that accept jobs.
    fronts: Vec<SocketAddr>,
    rng: SeededRng,
    stalled: usize,
    dropped: usize,
    unanswered: usize,
    delayed: usize,
}

/// Counts of the calls that start no job.
#[derive(Default)]
struct PlainCallTally {
    calls: usize,
    failures: Vec<String>,
}

/// Partitions a fleet for `duration`, and prints the outcome in one line. Fails if the fleet broke
/// a promise.
pub(super) fn run(folder: &ChaosRunFolder, duration: Duration) -> anyhow::Result<()> {
    let mut fleet = PartitionRun::start(folder)?;
    let fronts = fleet.fronts.clone();
    let jobs = SubmittedJobs::default();
    let tally = Mutex::new(PlainCallTally::default());
    scope(|threads| {
        jobs.start_clients(threads, &fronts, folder.seed);
        jobs.start_client_of_long_jobs(threads, &fronts, folder.seed);
        threads.spawn(|| {
            let counted = make_plain_calls(&fronts, &jobs);
            *tally.lock().unwrap_or_else(PoisonError::into_inner) = counted;
        });
        fleet.partition_for(duration);
        jobs.stop();
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let check = FleetPromiseCheck { folder, database: &fleet.database, front: fleet.fronts[0] };
    let report = check.check(jobs.into_accepted(), |_| false)?;
    let PartitionRun { stalled, dropped, unanswered, delayed, .. } = fleet;
    let PlainCallTally { calls, failures } = tally;
    failures.iter().for_each(|failure| eprintln!("failure: {failure}"));
    println!("{calls} plain calls, {} failures", failures.len());
    report.print(&format!(
        "partitions: {stalled} stalled, {dropped} dropped, {unanswered} unanswered, {delayed} \
         delayed"
    ))?;
    ensure!(calls > 0 && failures.is_empty(), "plain calls failed");
    ensure!(stalled + dropped + unanswered + delayed > 0, "the run was too short for a partition");
    Ok(())
}

impl PartitionRun {
    /// Starts the database, and the servers and workers, each with its own proxy to the database.
    fn start(folder: &ChaosRunFolder) -> anyhow::Result<Self> {
        let database = FleetDatabase::start(DatabaseKind::Single);
        let mut starter = FleetMemberStarter::new(folder, database.url(), LEASE_MS)?;
        let mut members = Vec::new();
        let mut fronts = Vec::new();
        for number in 0..FRONTS + WORKERS {
            let proxy = DatabaseProxy::start(&database.socket())?;
            starter.set_url(proxy.url());
            let (process, partition_ms_max) = if number < FRONTS {
                let (process, address) = starter.start_server(&["--no-jobs"])?;
                fronts.push(address);
                (process, FRONT_PARTITION_MS_MAX)
            } else {
                (starter.start_worker()?, WORKER_PARTITION_MS_MAX)
            };
            members.push(PartitionedMember {
                _process: process,
                proxy,
                partition_ms_max,
                heals_at: None,
            });
        }
        Ok(Self {
            database,
            members,
            fronts,
            rng: SeededRng::from_seed(folder.seed),
            stalled: 0,
            dropped: 0,
            unanswered: 0,
            delayed: 0,
        })
    }

    /// Partitions members from the database at random moments until `duration` has passed. Then
    /// ends all partitions.
    fn partition_for(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        let mut next_partition = Instant::now() + self.rng.duration_between(1000, 2000);
        while Instant::now() < end {
            self.heal(Instant::now());
            if Instant::now() >= next_partition {
                self.partition_member();
                next_partition = Instant::now() + self.rng.duration_between(500, 2000);
            }
            sleep(POLL_INTERVAL);
        }
        self.heal(end + Duration::from_millis(WORKER_PARTITION_MS_MAX));
    }

    /// Partitions a random member from the database, unless it is partitioned already.
    fn partition_member(&mut self) {
        let at = self.rng.between(0, self.members.len() as u64);
        let member = &mut self.members[usize::try_from(at).unwrap_or_default()];
        if member.heals_at.is_some() {
            return;
        }
        let (mode, count) = match self.rng.between(0, 4) {
            0 => (DatabaseProxyMode::Stalled, &mut self.stalled),
            1 => (DatabaseProxyMode::Dropped, &mut self.dropped),
            2 => (DatabaseProxyMode::Unanswered, &mut self.unanswered),
            _ => (DatabaseProxyMode::Delayed(DELAY), &mut self.delayed),
        };
        *count += 1;
        let time = self.rng.duration_between(200, member.partition_ms_max);
        member.proxy.set_mode(mode);
        member.heals_at = Some(Instant::now() + time);
    }

    /// Ends the partitions whose end is not after `now`.
    fn heal(&mut self, now: Instant) {
        for member in &mut self.members {
            if member.heals_at.is_some_and(|at| at <= now) {
                member.proxy.set_mode(DatabaseProxyMode::Open);
                member.heals_at = None;
            }
        }
    }
}

/// Makes calls that start no job to `fronts` in turn, as long as clients submit `jobs`. Returns the
/// counts of these calls.
fn make_plain_calls(fronts: &[SocketAddr], jobs: &SubmittedJobs) -> PlainCallTally {
    let mut tally = PlainCallTally::default();
    for front in fronts.iter().cycle() {
        if !jobs.is_running() {
            break;
        }
        if let Err(err) = call_plainly(*front, PLAIN_TOOL) {
            tally.failures.push(format!("{err:#}"));
        }
        tally.calls += 1;
        sleep(CALL_PAUSE);
    }
    tally
}
