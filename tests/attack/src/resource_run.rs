//! Runs resource attacks in random order while normal callers use the server. The option
//! `--resources` starts a run.
//!
//! The server has its default settings, a key for each caller, and one hostile upstream. Its
//! workspace contains all hostile files at once, and its memory is limited.

mod memory_cap;
mod normal_callers;
mod attackers;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use toolgate_test_support::{SeededRng, random_seed};

use super::attempt_process::raise_open_files_limit;
use super::client::{AttackClient, connect_with};
use super::dialects::{AttackDialect, AttackTransport, DialectOverTransport};
use super::folders::AttackFolders;
use super::hostile_files::{UPSTREAM, hostile_tools, write_all_hostile_files};
use super::http_cases::create_key;
use super::server::{AttackServerLaunch, AttackedServer};
use attackers::AttackingCaller;
use memory_cap::{CAP_BYTES, ServerMemoryCap};
use normal_callers::NORMAL_FOLDER;

/// Dialect and transport that all callers use.
const ROUTE: DialectOverTransport =
    DialectOverTransport { dialect: AttackDialect::Mcp2026, transport: AttackTransport::Http };
/// Number of threads that attack at once.
const ATTACKERS: usize = 6;
/// Duration from which a run has more normal callers.
const LONG_RUN: Duration = Duration::from_secs(600);
/// The highest accepted 99th percentile of the duration of normal calls.
const P99_MAX: Duration = Duration::from_millis(250);
/// The longest accepted time from the start of the server to its first answer.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// Memory that the server may still use after the attacks, in MiB.
const FINAL_MIB_MAX: u64 = 400;
/// Time that the server has to release memory after the attacks.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest number of failures that a run prints.
const FAILURES_MAX: usize = 20;

/// Options of a run of resource attacks.
#[derive(Debug)]
pub(super) struct ResourceRunOptions {
    /// Path of the toolgate executable that is attacked.
    pub(super) toolgate: PathBuf,
    pub(super) duration: Duration,
    /// Seed of the random order of attacks. Random if it is `None`.
    pub(super) seed: Option<u64>,
    /// False to ignore the time limits, on a machine that does other work.
    pub(super) is_timed: bool,
    /// True to keep the folder of the run after its end.
    pub(super) keep: bool,
}

/// Counts of attacks and calls in a run, shared by its threads.
#[derive(Default)]
struct ResourceRunTally {
    is_over: AtomicBool,
    attacks_started: AtomicUsize,
    /// Number of attacks, and of attacks without an answer, by the name of the attack.
    attacks: Mutex<BTreeMap<&'static str, (usize, usize)>>,
    /// Durations of normal calls, by the tool that they call.
    latencies: Mutex<BTreeMap<&'static str, Vec<Duration>>>,
    /// Failures of normal calls, one line each.
    failures: Mutex<Vec<String>>,
}

/// Measurements at the end of a run, in addition to the counts in [`ResourceRunTally`].
struct ResourceRunMeasurements {
    first_answer: Duration,
    peak_mib: u64,
    final_mib: u64,
    /// True if the server exited during the run, which is a failure.
    has_exited: bool,
}

/// Server in a workspace with hostile files, with the API keys of its callers.
struct ResourceRunServer {
    server: AttackedServer,
    addr: SocketAddr,
    attacker_key: String,
    normal_keys: Vec<String>,
    first_answer: Duration,
}

impl ResourceRunOptions {
    /// Runs attacks and prints the outcome. Fails if a normal call or the server suffered.
    ///
    /// # Errors
    ///
    /// If the server does not start, or the outcome breaks a promise.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        raise_open_files_limit()?;
        let seed = self.seed.unwrap_or_else(random_seed);
        let base = std::env::temp_dir().join(format!("toolgate-resources-{}", std::process::id()));
        let folders = AttackFolders::create(base.clone())?;
        let outcome = self.run_in(&folders, seed);
        if self.keep {
            eprintln!("the folder of the run is {}", base.display());
        } else {
            fs::remove_dir_all(&base).context("cannot remove the folder of the run")?;
        }
        outcome
    }

    fn run_in(&self, folders: &AttackFolders, seed: u64) -> anyhow::Result<()> {
        let seconds = self.duration.as_secs();
        let callers = if self.duration < LONG_RUN { 8 } else { 16 };
        let cap = ServerMemoryCap::create();
        println!("memory limit: {cap}");
        println!("{seconds} s with --seed {seed}, {callers} normal callers, {ATTACKERS} attackers");
        let mut running = start_server(&self.toolgate, folders, &cap, callers)?;
        let tally = ResourceRunTally::default();
        let measured = self.measure(&mut running, seed, &tally);
        let stopped = if measured.has_exited { Ok(()) } else { running.server.stop() };
        let log = String::from_utf8_lossy(&running.server.log()).into_owned();
        drop(running);
        drop(cap);
        if measured.has_exited || stopped.is_err() {
            let last: Vec<_> = log.lines().rev().take(FAILURES_MAX).collect();
            last.iter().rev().for_each(|line| eprintln!("log: {line}"));
        }
        tally.print(&measured);
        stopped.map_err(|reason| anyhow::anyhow!("stopping: {reason}"))?;
        tally.check(&measured, self.is_timed)
    }

    /// Runs all attackers and normal callers until the time is over or the server has exited.
    /// Returns the measurements.
    fn measure(
        &self,
        running: &mut ResourceRunServer,
        seed: u64,
        tally: &ResourceRunTally,
    ) -> ResourceRunMeasurements {
        let ResourceRunServer { server, addr, attacker_key, normal_keys, first_answer } = running;
        let addr = *addr;
        let attacker_key: &str = attacker_key;
        let normal_keys: &[String] = normal_keys;
        let mut has_exited = false;
        scope(|threads| {
            let rng = |thread: usize| SeededRng::from_seed(seed ^ ((thread as u64) << 32));
            for (number, key) in normal_keys.iter().enumerate() {
                let rng = rng(number);
                threads.spawn(move || normal_callers::call_normally(addr, key, number, rng, tally));
            }
            for number in 0..ATTACKERS {
                let attacker = AttackingCaller { addr, key: attacker_key };
                let rng = rng(1000 + number);
                threads.spawn(move || attackers::attack(&attacker, rng, tally));
            }
            let started = Instant::now();
            while started.elapsed() < self.duration && !has_exited {
                sleep(Duration::from_millis(100));
                has_exited = !server.is_running();
            }
            tally.is_over.store(true, Ordering::Release);
        });
        has_exited |= !server.is_running();
        let started = Instant::now();
        let (mut final_kib, mut peak_kib) = server.memory_kib();
        while final_kib >> 10 >= FINAL_MIB_MAX && started.elapsed() < RELEASE_TIMEOUT {
            sleep(Duration::from_millis(500));
            (final_kib, peak_kib) = server.memory_kib();
        }
        ResourceRunMeasurements {
            first_answer: *first_answer,
            peak_mib: peak_kib >> 10,
            final_mib: final_kib >> 10,
            has_exited,
        }
    }
}

/// Writes the workspace, starts the server in it, and waits until its first call succeeds.
fn start_server(
    toolgate: &Path,
    folders: &AttackFolders,
    cap: &ServerMemoryCap,
    callers: usize,
) -> anyhow::Result<ResourceRunServer> {
    write_all_hostile_files(&folders.ws)?;
    let normal = folders.ws.join(NORMAL_FOLDER);
    fs::create_dir(&normal)?;
    fs::write(normal.join("greet.py"), "def greet():\n    return 'hello'\n".repeat(20))?;
    for number in 0..callers {
        fs::write(normal.join(format!("{number}.txt")), "line 1\n")?;
    }
    let script = folders.home.join("evil.py");
    let list = folders.home.join("tools.json");
    fs::write(&script, UPSTREAM)?;
    fs::write(&list, json!(hostile_tools()).to_string())?;
    let mut launch = AttackServerLaunch::new(toolgate, folders);
    launch.wrapper = cap.wrapper();
    launch.config = format!("[upstream.evil]\ncommand = {}\n", json!(["python3", script, list]));
    let (attacker_config, attacker_key) = create_key(toolgate, &folders.home, "mallory")?;
    launch.config += &attacker_config;
    let mut normal_keys = Vec::new();
    for number in 0..callers {
        let (config, key) = create_key(toolgate, &folders.home, &format!("caller{number}"))?;
        launch.config += &config;
        normal_keys.push(key);
    }
    let started = Instant::now();
    let server = launch.serve(folders)?;
    let addr = server.addr.context("no address")?;
    let mut client = connect_with(addr, ROUTE, bearer(&normal_keys[0]))?;
    let response = client.call("files.read", &json!({ "path": "ok.txt" }))?;
    let first_answer = started.elapsed();
    ensure!(!response.is_error, "the first call failed: {}", response.text);
    wait_for_upstream(&mut client)?;
    Ok(ResourceRunServer { server, addr, attacker_key, normal_keys, first_answer })
}

/// Waits until the tools of the hostile upstream can be called.
fn wait_for_upstream(client: &mut AttackClient) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        // A pattern of this tool matches the text at once.
        if !client.call("evil.slow", &json!({ "text": "z" }))?.is_error {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    anyhow::bail!("the upstream's tools cannot be called")
}

/// Returns the HTTP header that authenticates a caller with `key`.
fn bearer(key: &str) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), format!("Bearer {key}"))]
}

impl ResourceRunTally {
    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }

    /// Returns the index of the next attack to make, and advances the counter.
    fn next_attack(&self) -> usize {
        self.attacks_started.fetch_add(1, Ordering::Relaxed)
    }

    fn add_attack(&self, name: &'static str, has_answer: bool) {
        let mut attacks = lock(&self.attacks);
        let (played, unanswered) = attacks.entry(name).or_default();
        *played += 1;
        *unanswered += usize::from(!has_answer);
    }

    fn add_latency(&self, tool: &'static str, latency: Duration) {
        lock(&self.latencies).entry(tool).or_default().push(latency);
    }

    /// Records that a normal call failed.
    fn fail(&self, failure: String) {
        lock(&self.failures).push(failure);
    }

    /// Returns the duration that `percent` percent of all normal calls do not exceed.
    fn latency_at(&self, percent: usize) -> Duration {
        percentile(lock(&self.latencies).values().flatten().copied().collect(), percent)
    }

    fn print(&self, measured: &ResourceRunMeasurements) {
        let attacks = lock(&self.attacks);
        for (name, (played, unanswered)) in attacks.iter() {
            println!("{name}: {played}, {unanswered} without an answer");
        }
        let failures = lock(&self.failures);
        failures.iter().take(FAILURES_MAX).for_each(|failure| println!("failed: {failure}"));
        let latencies = lock(&self.latencies).clone();
        let calls: usize = latencies.values().map(Vec::len).sum();
        for (tool, latencies) in latencies {
            let [middle, high] =
                [50, 99].map(|percent| milliseconds(percentile(latencies.clone(), percent)));
            println!("{tool}: {} calls, p50 {middle:.1} ms, p99 {high:.1} ms", latencies.len());
        }
        println!(
            "first answer after {:.2} s; {} normal calls, {} failed; p50 {:.1} ms, p99 {:.1} ms, \
             longest {:.1} ms",
            measured.first_answer.as_secs_f64(),
            calls,
            failures.len(),
            milliseconds(self.latency_at(50)),
            milliseconds(self.latency_at(99)),
            milliseconds(self.latency_at(100)),
        );
        println!(
            "{} attacks; memory {} MiB at the end, {} MiB at most; {} restarts",
            attacks.values().map(|(played, _)| played).sum::<usize>(),
            measured.final_mib,
            measured.peak_mib,
            usize::from(measured.has_exited),
        );
    }

    fn check(&self, measured: &ResourceRunMeasurements, is_timed: bool) -> anyhow::Result<()> {
        ensure!(!measured.has_exited, "the server has exited");
        let failures = lock(&self.failures).len();
        ensure!(failures == 0, "{failures} normal calls failed");
        ensure!(!lock(&self.latencies).is_empty(), "no normal call was made");
        let peak = measured.peak_mib;
        let is_within_cap = peak < CAP_BYTES >> 20;
        ensure!(is_within_cap, "the server took {peak} MiB");
        if !is_timed {
            return Ok(());
        }
        let p99 = self.latency_at(99);
        ensure!(p99 < P99_MAX, "the p99 of normal calls is {p99:?}");
        let kept = measured.final_mib;
        ensure!(kept < FINAL_MIB_MAX, "the server keeps {kept} MiB");
        let first = measured.first_answer;
        ensure!(first < FIRST_ANSWER_MAX, "the first answer came after {first:?}");
        Ok(())
    }
}

/// Returns the duration that `percent` percent of `durations` do not exceed, or zero if there are
/// none.
fn percentile(mut durations: Vec<Duration>, percent: usize) -> Duration {
    durations.sort_unstable();
    let last = durations.len().saturating_sub(1);
    durations.get(last * percent / 100).copied().unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_latency_of_a_call() {
        let tally = ResourceRunTally::default();
        assert_eq!(tally.latency_at(99), Duration::ZERO);
        for ms in (1..=200).rev() {
            let tool = if ms % 2 == 0 { "files.read" } else { "files.list" };
            tally.add_latency(tool, Duration::from_millis(ms));
        }
        assert_eq!(
            [50, 99, 100].map(|percent| tally.latency_at(percent).as_millis()),
            [100, 198, 200]
        );
    }
}
