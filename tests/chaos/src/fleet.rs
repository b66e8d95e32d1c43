//! Injects faults into a fleet of servers, checks that the fleet keeps its promises, and measures
//! it.
//!
//! Each part of the run has separate servers. The parts are faults of workers and the database,
//! failovers of the database, partitions between servers and the database, wrong clocks, restarts
//! of servers behind a load balancer, and performance figures.

#[path = "../../postgres/server.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the server")]
mod database;
#[path = "../../postgres/proxy.rs"]
mod proxy;
#[path = "../../haproxy/balancer.rs"]
mod balancer;
mod members;
mod cluster;
mod submitters;
mod promises;
mod job_faults;
mod partitions;
mod session_client;
mod restarts;
mod claims;
mod event_times;
mod figures;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};

use super::server::ChaosRunFolder;
use super::{ChaosOptions, kept_in, leftovers};
use cluster::DatabaseKind;
use members::MemberClocks;

/// Duration of a server's lease, and of the further time until its job counts as interrupted, in
/// milliseconds.
const LEASE_MS: u64 = 3000;

/// Options of a test run of a fleet.
pub(super) struct FleetOptions {
    /// Duration of the run, without the part that measures figures.
    pub(super) duration: Duration,
    /// The only part to run. If it is `None`, all parts run.
    pub(super) part: Option<FleetRunPart>,
    /// True to measure all figures with much data, and to fail if one of them misses its required
    /// value.
    pub(super) has_full_figures: bool,
    /// Executable of an older toolgate, which every second server and worker runs.
    pub(super) older: Option<PathBuf>,
}

/// Part of a test run of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FleetRunPart {
    /// Workers are killed and frozen, and the database crashes.
    Kills,
    /// The database fails over to a standby server.
    Failover,
    /// Each server and worker loses the connection to the database for a moment, at different
    /// times.
    Partition,
    /// Workers are killed and frozen, and the database crashes, while clocks are wrong.
    Clocks,
    /// Servers behind a load balancer restart.
    Restarts,
    /// Performance figures are measured.
    Figures,
}

impl FleetRunPart {
    const ALL: [Self; 6] =
        [Self::Kills, Self::Failover, Self::Partition, Self::Clocks, Self::Restarts, Self::Figures];

    pub(super) fn parse(name: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|part| part.name() == name) {
            Some(part) => Ok(part),
            None => bail!(
                "unknown part `{name}`; the parts are {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kills => "kills",
            Self::Failover => "failover",
            Self::Partition => "partition",
            Self::Clocks => "clocks",
            Self::Restarts => "restarts",
            Self::Figures => "figures",
        }
    }

    /// Returns the share of the total duration that this part takes if all parts run, from 0 to 1.
    fn share(self) -> f64 {
        match self {
            Self::Kills | Self::Partition => 0.25,
            Self::Failover | Self::Restarts => 0.2,
            Self::Clocks => 0.1,
            Self::Figures => 0.0,
        }
    }
}

/// Runs the selected parts one after another. Fails if the fleet breaks a promise in one of them.
pub(super) fn run(options: &ChaosOptions, fleet: &FleetOptions) -> anyhow::Result<()> {
    let is_selected = |part: &FleetRunPart| fleet.part.is_none_or(|only| only == *part);
    for part in FleetRunPart::ALL.into_iter().filter(is_selected) {
        let share = if fleet.part.is_some() { 1.0 } else { part.share() };
        let duration = fleet.duration.mul_f64(share);
        match part {
            FleetRunPart::Kills => run_in_folder(options, part, |folder| {
                job_faults::run(folder, DatabaseKind::Single, MemberClocks::Right, duration)
            }),
            FleetRunPart::Failover => {
                [DatabaseKind::SynchronousStandby, DatabaseKind::AsynchronousStandby]
                    .into_iter()
                    .try_for_each(|kind| {
                        run_in_folder(options, part, |folder| {
                            job_faults::run(folder, kind, MemberClocks::Right, duration / 2)
                        })
                    })
            }
            FleetRunPart::Partition => {
                run_in_folder(options, part, |folder| partitions::run(folder, duration))
            }
            FleetRunPart::Clocks => run_in_folder(options, part, |folder| {
                job_faults::run(folder, DatabaseKind::Single, MemberClocks::Wrong, duration)
            }),
            FleetRunPart::Restarts => {
                run_in_folder(options, part, |folder| restarts::run(folder, duration))
            }
            FleetRunPart::Figures => {
                run_in_folder(options, part, |folder| figures::run(folder, fleet.has_full_figures))
            }
        }?;
    }
    Ok(())
}

/// Runs `work` in a new folder. Then ends its processes, and removes the folder if `work`
/// succeeded.
fn run_in_folder(
    options: &ChaosOptions,
    part: FleetRunPart,
    work: impl FnOnce(&ChaosRunFolder) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut folder = ChaosRunFolder::create(&options.server()?, options.seed)?;
    if let Some(older) = options.fleet.as_ref().and_then(|fleet| fleet.older.as_ref()) {
        folder.add_older(older)?;
    }
    let name = part.name();
    eprintln!("fleet, {name}: --seed {}, in {}", options.seed, folder.folder.display());
    let outcome = work(&folder);
    let left = leftovers::wait_for_end(&folder.marker);
    leftovers::kill_all(&left);
    outcome.with_context(|| kept_in(&folder.folder))?;
    fs::remove_dir_all(&folder.folder).context("cannot remove the folder of the run")
}
