//! Kills clients and upstreams of a gateway at random, and checks that no other caller notices.
//!
//! The gateway itself is not killed. Some of its clients call upstreams that are never killed, and
//! each of those calls must succeed. Other clients disconnect during a call, or are killed together
//! with another gateway. Some upstreams are killed, or stopped and then killed, and one over HTTP
//! exits and starts again.

mod gateway_folder;
mod callers;
mod killers;
mod resource_use;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use toolgate_test_support::SeededRng;

use super::{ChaosOptions, kept_in, leftovers};
use gateway_folder::GatewayFolder;
use resource_use::ServerResourceUse;

/// Pause between two measurements of the gateway's memory and open files.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Largest accepted growth of the gateway's memory from the second to the last fifth of the run, in
/// MiB.
const GROWTH_MIB_MAX: f64 = 4.0;
/// Largest accepted growth of the number of the gateway's open files, which varies.
const GROWTH_FILES_MAX: usize = 40;

/// Counts and failures of a gateway run, shared by all its threads.
#[derive(Default)]
struct GatewayRunTally {
    is_over: AtomicBool,
    /// Number of calls to upstreams that are never killed.
    healthy_calls: AtomicUsize,
    /// Number of calls to upstreams that are killed at random.
    fragile_calls: AtomicUsize,
    upstreams_killed: AtomicUsize,
    clients_killed: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl GatewayRunTally {
    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }

    /// Prints `failure` and records it.
    fn fail(&self, failure: String) {
        eprintln!("failure: {failure}");
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
    }
}

fn increment(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Runs a gateway for `duration`, and prints the outcome in one line. Fails if a normal caller
/// noticed something.
pub(super) fn run(options: &ChaosOptions, duration: Duration) -> anyhow::Result<()> {
    let toolgate = options.server()?;
    let seed = options.seed;
    let folder = GatewayFolder::create(&toolgate, seed)?;
    let seconds = duration.as_secs();
    eprintln!("{seconds} s with --seed {seed}, in {}", folder.folder.display());
    let tally = GatewayRunTally::default();
    let outcome = run_threads(&folder, seed, duration, &tally);
    let leftovers = leftovers::wait_for_end(&folder.marker);
    leftovers::kill_all(&leftovers);
    let (first, last) = outcome.with_context(|| kept_in(&folder.folder))?;

    leftovers.iter().for_each(|process| eprintln!("left running: {process}"));
    let failures = tally.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{seconds} s: {} calls of healthy upstreams and {} of others, {} failures; {} upstreams \
         and {} clients killed, {} left running; memory {:.1} MiB, then {:.1}; files {}, then {}",
        tally.healthy_calls.into_inner(),
        tally.fragile_calls.into_inner(),
        failures.len(),
        tally.upstreams_killed.into_inner(),
        tally.clients_killed.into_inner(),
        leftovers.len(),
        first.memory_mib,
        last.memory_mib,
        first.open_files,
        last.open_files,
    );
    ensure!(
        failures.is_empty() && leftovers.is_empty(),
        "calls failed or processes were left running; {}",
        kept_in(&folder.folder)
    );
    ensure!(
        last.memory_mib <= first.memory_mib + GROWTH_MIB_MAX,
        "the memory of the gateway keeps growing"
    );
    ensure!(
        last.open_files <= first.open_files + GROWTH_FILES_MAX,
        "the gateway opens more and more files"
    );
    std::fs::remove_dir_all(&folder.folder).context("cannot remove the folder of the run")
}

/// Runs the gateway, its callers and the killers for `duration`. Returns the peak use of resources
/// in the second fifth and in the last fifth of the run.
fn run_threads(
    folder: &GatewayFolder,
    seed: u64,
    duration: Duration,
    tally: &GatewayRunTally,
) -> anyhow::Result<(ServerResourceUse, ServerResourceUse)> {
    let web_upstream = folder.start_web_upstream()?;
    let mut gateway = folder.start_gateway(web_upstream.addr)?;
    let addr = gateway.address()?;
    callers::wait_for_upstreams(addr)?;
    let samples = scope(|threads| {
        let rng = |thread: u64| SeededRng::from_seed(seed ^ thread);
        for number in 0..3 {
            threads.spawn(move || callers::call_healthy(addr, rng(number), tally));
            threads.spawn(move || callers::call_fragile(addr, rng(16 + number), tally));
            threads.spawn(move || callers::disconnect_early(addr, rng(32 + number), tally));
        }
        threads.spawn(move || callers::run_own_gateways(folder, rng(64), tally));
        threads.spawn(move || killers::kill_programs(folder, rng(128), tally));
        threads.spawn(move || killers::kill_web_upstream(web_upstream, rng(256), tally));
        let started = Instant::now();
        let mut samples = Vec::new();
        while started.elapsed() < duration {
            sleep(SAMPLE_INTERVAL);
            match ServerResourceUse::measure(gateway.pid()) {
                Ok(sample) => samples.push(sample),
                Err(_) => {
                    tally.fail("the gateway has exited".to_owned());
                    break;
                }
            }
        }
        tally.is_over.store(true, Ordering::Release);
        samples
    });
    gateway.stop()?;
    folder.logged_errors()?.into_iter().for_each(|line| tally.fail(format!("logged: {line}")));
    let fifth = samples.len() / 5;
    let peak = |part: &[ServerResourceUse]| part.iter().copied().reduce(ServerResourceUse::max);
    let first = peak(&samples[fifth..2 * fifth]);
    let last = peak(&samples[4 * fifth..]);
    first.zip(last).context("the run was too short to compare the use of resources")
}
