//! Checks after the last fault that a fleet kept its promises about accepted jobs.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::cluster::FleetDatabase;
use super::submitters::{AcceptedJob, longest_gap};
use crate::job_check::read_program_events;
use crate::job_program::ChaosJobKind;
use crate::requests::get;
use crate::server::ChaosRunFolder;

/// Time after the last fault within which all jobs must have ended.
const END_TIMEOUT: Duration = Duration::from_secs(180);
/// Pause between two checks whether a job has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// SQL that finds the jobs whose events are not numbered from 1 without gaps.
const GAPS_SQL: &str = "select encode(j.id, 'hex') from toolgate_fleet.jobs as j \
    cross join lateral (select count(*) as amount, coalesce(max(e.seq), 0) as latest \
    from toolgate_fleet.events as e where e.job = j.id) as stored \
    where j.last_event <> stored.amount or j.last_event <> stored.latest";

/// Broken promises of a fleet, one line for each violation.
#[derive(Default)]
struct FleetPromiseViolations {
    /// Accepted jobs that do not exist, although the database must keep them.
    lost: Vec<String>,
    /// Jobs that may run only once but ran more often.
    twice: Vec<String>,
    /// Jobs that ran at two servers at once.
    overlaps: Vec<String>,
    /// Jobs that did not end in time.
    stuck: Vec<String>,
    /// Jobs whose event numbers have gaps.
    gaps: Vec<String>,
}

/// Check whether a fleet kept its promises about the jobs that it accepted.
pub(super) struct FleetPromiseCheck<'c> {
    pub(super) folder: &'c ChaosRunFolder,
    pub(super) database: &'c FleetDatabase,
    /// Address of the server that the check asks about jobs.
    pub(super) front: SocketAddr,
}

/// Outcome of the check of a fleet's promises.
pub(super) struct FleetPromiseReport {
    violations: FleetPromiseViolations,
    accepted: Vec<AcceptedJob>,
    /// Number of missing jobs that the documentation allows to be lost.
    pub(super) lost_as_documented: usize,
}

impl FleetPromiseCheck<'_> {
    /// Waits until the jobs `accepted` have ended, and checks the promises of the fleet. A missing
    /// job is no violation if `may_be_lost` returns true for it.
    pub(super) fn check(
        &self,
        accepted: Vec<AcceptedJob>,
        may_be_lost: impl Fn(&AcceptedJob) -> bool,
    ) -> anyhow::Result<FleetPromiseReport> {
        ensure!(!accepted.is_empty(), "no job was accepted");
        let mut violations = FleetPromiseViolations::default();
        let mut lost_as_documented = 0;
        let deadline = Instant::now() + END_TIMEOUT;
        for job in &accepted {
            match self.wait_for_job(&job.id, deadline)? {
                AcceptedJobOutcome::Ended => {}
                AcceptedJobOutcome::Unended(status) => {
                    violations.stuck.push(format!("job {} is {status}", job.id));
                }
                AcceptedJobOutcome::Missing if may_be_lost(job) => lost_as_documented += 1,
                AcceptedJobOutcome::Missing => {
                    let line = format!("job {} was accepted and does not exist", job.id);
                    violations.lost.push(line);
                }
            }
        }
        for (number, events) in read_program_events(self.folder, &[ChaosJobKind::Once])? {
            if events.starts > 1 {
                violations.twice.push(format!("job {number} ran {} times", events.starts));
            }
        }
        for (number, events) in read_program_events(self.folder, &ChaosJobKind::ALL)? {
            if events.has_overlap {
                let line = format!("a run of job {number} ended after the next one had begun");
                violations.overlaps.push(line);
            }
        }
        let gaps = self.database.run(GAPS_SQL);
        violations.gaps =
            gaps.lines().map(|id| format!("the events of job {id} have a gap")).collect();
        Ok(FleetPromiseReport { violations, accepted, lost_as_documented })
    }

    /// Waits until the job `id` has ended, is missing, or `deadline` has passed. Returns which of
    /// these happened.
    fn wait_for_job(&self, id: &str, deadline: Instant) -> anyhow::Result<AcceptedJobOutcome> {
        loop {
            let answer = get(self.front, &format!("/jobs/{id}"))?;
            if answer.status == 404 {
                return Ok(AcceptedJobOutcome::Missing);
            }
            // Without the database, another status says so.
            let job = answer.json()?;
            let has_ended = !matches!(job["status"].as_str(), Some("queued" | "running"));
            if answer.status == 200 && has_ended {
                return Ok(AcceptedJobOutcome::Ended);
            }
            if Instant::now() > deadline {
                return Ok(AcceptedJobOutcome::Unended(job["status"].to_string()));
            }
            sleep(POLL_INTERVAL);
        }
    }
}

impl FleetPromiseReport {
    /// Prints each violation, and then one line with `faults` and the counts. Fails if a promise
    /// was broken.
    pub(super) fn print(&self, faults: &str) -> anyhow::Result<()> {
        let FleetPromiseViolations { lost, twice, overlaps, stuck, gaps } = &self.violations;
        let kinds = [
            ("lost", lost),
            ("twice", twice),
            ("overlaps", overlaps),
            ("stuck", stuck),
            ("gaps", gaps),
        ];
        for (kind, lines) in kinds {
            lines.iter().for_each(|line| eprintln!("{kind}: {line}"));
        }
        let found: Vec<String> =
            kinds.iter().map(|(kind, lines)| format!("{} {kind}", lines.len())).collect();
        println!(
            "{faults}, {} jobs, {}; longest time without an accepted job: {:.1} s",
            self.accepted.len(),
            found.join(", "),
            longest_gap(&self.accepted).as_secs_f64()
        );
        let is_kept = kinds.iter().all(|(_, lines)| lines.is_empty());
        ensure!(is_kept, "the fleet broke a promise");
        Ok(())
    }
}

/// Outcome of an accepted job at the end of the run.
enum AcceptedJobOutcome {
    Ended,
    /// The job did not end in time. The text is its state.
    Unended(String),
    Missing,
}
