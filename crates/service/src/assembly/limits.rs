//! Limits of calls and jobs. Some limits come from the settings, and the others are constants.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolgate_host::{
    CallLimits, CallRateLimit, CallerByteRate, FleetServerRole, JobSettings, JobStoreKind,
    RateOutagePolicy,
};

use crate::config::{self, Config, FleetOutagePolicy, LimitsSection};

/// Maximum number of calls that wait for a free call slot. A call waits for at most
/// `limits.wait_ms`.
const WAITING_MAX: usize = 8192;

/// Number of refused calls of one caller that the audit log records in a burst. Further refusals
/// are not recorded, so that a program that calls in a loop does not fill the log.
const REFUSED: NonZeroU32 = NonZeroU32::new(1_000).expect("not zero");

/// Number of refused calls per second that the audit log records for one caller after the burst of
/// [`REFUSED`]. A person never makes so many.
const REFUSED_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).expect("not zero");

/// Number of bytes that one caller may write with file tools: in a burst, and per second after
/// that. The limit keeps a program that writes in a loop from filling the disk.
const WRITTEN: CallerByteRate = CallerByteRate { at_once: 1 << 30, per_second: 16 << 20 };

/// Number of bytes of requests and answers that one caller may exchange: in a burst, and per second
/// after that. Applies only if callers need a credential, so that no caller uses the complete
/// network bandwidth.
const CARRIED: CallerByteRate = CallerByteRate { at_once: 4 << 30, per_second: 64 << 20 };

/// Maximum number of jobs that wait to run. The server refuses further jobs.
pub(super) const QUEUED_JOBS_MAX: usize = 10_000;

/// Time for which the server keeps an ended job if the request sets no time. A client can collect
/// the result the next day.
const JOB_KEEP: Duration = Duration::from_secs(24 * 3600);

/// Longest time for which a request may let the server keep an ended job: a week.
const JOB_KEEP_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum number of ended jobs that are kept, so that the store stays small. Beyond this number,
/// the oldest jobs are deleted.
const ENDED_JOBS_MAX: usize = 100_000;

/// Number of bytes of program output that are kept for each job: as many as in a long build log.
const JOB_OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Maximum total size of the files that are kept for one job, in bytes.
const JOB_FILES_BYTES_MAX: u64 = 1 << 30;

/// Returns the limits of concurrency, rate and size of calls.
///
/// # Errors
/// A rate rule is invalid.
pub(super) fn call_limits(config: &Config) -> anyhow::Result<CallLimits> {
    let limits = &config.limits;
    let wait = Duration::from_millis(limits.wait_ms);
    let slots = CallLimits::new(limits.calls, limits.programs, WAITING_MAX, wait)
        .with_rates(&rate_rules(&limits.rate))?;
    let uncounted = match limits.away {
        FleetOutagePolicy::Share => RateOutagePolicy::Share,
        FleetOutagePolicy::Refuse => RateOutagePolicy::Refuse,
    };
    // The default rate only stops runaway callers, for which a server needs no other one.
    let slots = match limits.rate == LimitsSection::default().rate {
        true => slots,
        false => slots.with_shared_rates(uncounted),
    };
    Ok(with_caller_shares(slots, config))
}

/// Adds the limits of each single caller to `slots`, which contains the limits of all callers
/// together.
fn with_caller_shares(slots: CallLimits, config: &Config) -> CallLimits {
    let limits = &config.limits;
    let share = caller_share(config);
    let calls = share(limits.calls);
    let programs = share(limits.programs);
    let slots = match calls < limits.calls || programs < limits.programs {
        true => slots.with_caller_limits(calls, programs),
        false => slots,
    };
    let slots = slots.with_refusal_limit(REFUSED, REFUSED_PER_SECOND).with_write_budget(WRITTEN);
    // An invalid key file stops the server elsewhere.
    match config.requires_credential().unwrap_or(true) {
        true => slots.with_traffic_budget(CARRIED),
        false => slots,
    }
}

/// Returns a function that computes one caller's share of a limit: the complete limit if callers
/// need no credential, and otherwise three quarters of it.
pub(super) fn caller_share(config: &Config) -> impl Fn(usize) -> usize {
    // An invalid key file stops the server elsewhere.
    let several = config.requires_credential().unwrap_or(true);
    // A single caller gets everything; one of several gets three quarters.
    move |all| if several { (all * 3).div_ceil(4) } else { all }
}

/// Converts the configured rate limits to a list of `CallRateLimit`.
fn rate_rules(rules: &[config::RateLimitEntry]) -> Vec<CallRateLimit> {
    let rules = rules.iter().filter_map(|rule| {
        Some(CallRateLimit {
            tools: rule.tools.clone(),
            calls: NonZeroU32::new(rule.calls)?,
            per: Duration::from_millis(rule.in_ms),
        })
    });
    rules.collect()
}

/// Returns two numbers: the maximum number of running jobs in total, and of one caller. Both are 0
/// for a server that only accepts jobs.
pub(crate) fn job_limits(config: &Config) -> (usize, usize) {
    let total = match config.fleet.kind {
        FleetServerRole::Front => 0,
        FleetServerRole::Server | FleetServerRole::Worker => config.limits.jobs(),
    };
    (total, caller_share(config)(total))
}

/// Returns the settings of jobs that are stored in `folder`, for a server whose tools leave no
/// programs running after a crash.
pub(crate) fn job_settings_in(folder: PathBuf, config: &Config) -> JobSettings {
    let (running_max, _) = job_limits(config);
    JobSettings {
        folder,
        place: JobStoreKind::Folder,
        running_max,
        running_per_caller: running_max,
        queued_max: QUEUED_JOBS_MAX,
        queued_per_caller: QUEUED_JOBS_MAX,
        keep: JOB_KEEP,
        keep_max: JOB_KEEP_MAX,
        ended_max: ENDED_JOBS_MAX,
        output_bytes_max: JOB_OUTPUT_BYTES_MAX,
        files_bytes_max: JOB_FILES_BYTES_MAX,
        drain: Duration::from_millis(config.jobs.drain_ms),
        mark: 0,
        end_leftovers: Arc::new(|_| {}),
        report_alive: Arc::new(|_| {}),
    }
}
