//! Kills the server at random moments while clients submit jobs, and checks that it keeps its
//! promises.
//!
//! The server is the real executable, over HTTP. The checks use only its answers to clients, the
//! logs of the jobs' programs, and the processes of this machine.
//!
//! `toolgate-chaos [--kills N | --gateway [--minutes N] | --fleet [--minutes N] [--part NAME]
//! [--figures] [--older FILE]] [--seed S] [--server FILE]`; `cargo xtask chaos` builds the program
//! and starts it. By default, it kills the `toolgate` in its own folder.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test program, which owns the folders it runs in and prints for a person"
)]

mod job_program;
mod requests;
mod server;
mod clients;
mod kill_loop;
mod job_check;
mod leftovers;
mod gateway;
mod fleet;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use toolgate_test_support::{SeededRng, random_seed, sibling_toolgate};

use fleet::{FleetOptions, FleetRunPart};
use server::ChaosRunFolder;

/// Minimum number of submitted jobs, even if there are few kills.
const JOBS_MIN: usize = 200;
/// Default number of servers to kill.
const KILLS: usize = 200;
/// Default duration of a gateway run or a fleet run, in minutes.
const MINUTES: f64 = 10.0;

/// Command-line options of the chaos program.
struct ChaosOptions {
    kills: usize,
    seed: u64,
    /// Executable of the server to kill. By default, the `toolgate` beside this program.
    server: Option<PathBuf>,
    /// Duration of a gateway run, which kills clients and upstreams instead of servers.
    gateway: Option<Duration>,
    /// Options of a fleet run, which injects faults into several servers and their database.
    fleet: Option<FleetOptions>,
}

/// Promises that the server broke, one line for each violation.
#[derive(Default)]
struct PromiseViolations {
    /// Accepted jobs that do not exist, do not end, or end with a wrong result.
    lost: Vec<String>,
    /// Programs that ran more often than they may, and jobs that are listed twice.
    duplicated: Vec<String>,
    /// Processes that still ran after the last server had exited.
    left_running: Vec<String>,
}

impl ChaosOptions {
    fn parse(arguments: &[String]) -> anyhow::Result<Self> {
        let seed = random_seed();
        let mut options = Self { kills: KILLS, seed, server: None, gateway: None, fleet: None };
        let mut is_gateway = false;
        let mut is_fleet = false;
        let mut minutes = MINUTES;
        let mut part = None;
        let mut has_full_figures = false;
        let mut older = None;
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("`{name}` needs a value"));
            match name.as_str() {
                "--kills" => options.kills = value()?.parse().context("--kills")?,
                "--seed" => options.seed = value()?.parse().context("--seed")?,
                "--gateway" => is_gateway = true,
                "--fleet" => is_fleet = true,
                "--part" => part = Some(FleetRunPart::parse(value()?)?),
                "--figures" => has_full_figures = true,
                "--older" => older = Some(PathBuf::from(value()?)),
                "--minutes" => minutes = value()?.parse().context("--minutes")?,
                "--server" => options.server = Some(value()?.into()),
                other => bail!(
                    "unknown option `{other}`; the options are --kills N, --gateway, --fleet, \
                     --minutes N, --part NAME, --figures, --older FILE, --seed S, --server FILE"
                ),
            }
        }
        ensure!(!(is_gateway && is_fleet), "--gateway and --fleet are separate runs; choose one");
        ensure!(
            is_fleet || (part.is_none() && !has_full_figures && older.is_none()),
            "--part, --figures and --older belong to --fleet"
        );
        let duration = Duration::from_secs_f64(minutes * 60.0);
        options.gateway = is_gateway.then_some(duration);
        options.fleet =
            is_fleet.then_some(FleetOptions { duration, part, has_full_figures, older });
        Ok(options)
    }

    fn server(&self) -> anyhow::Result<PathBuf> {
        self.server.clone().map_or_else(|| sibling_toolgate(&std::env::current_exe()?), Ok)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("toolgate-chaos: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    if let [first, rest @ ..] = arguments
        && first == job_program::JOB_COMMAND
    {
        return job_program::run(rest);
    }
    let options = ChaosOptions::parse(arguments)?;
    match (options.gateway, &options.fleet) {
        (Some(duration), _) => gateway::run(&options, duration),
        (None, Some(fleet)) => fleet::run(&options, fleet),
        (None, None) => kill_servers(&options),
    }
}

/// Kills servers and prints the outcome in one line. Fails if the server broke a promise.
fn kill_servers(options: &ChaosOptions) -> anyhow::Result<()> {
    let ChaosOptions { kills, seed, .. } = *options;
    let toolgate = options.server()?;
    let started = Instant::now();
    let folder = ChaosRunFolder::create(&toolgate, seed)?;
    eprintln!("{kills} kills with --seed {seed}, in {}", folder.folder.display());

    let outcome = kill_loop::run(&folder, kills, &mut SeededRng::from_seed(seed))
        .and_then(|log| Ok((job_check::find_violations(&folder, &log)?, log)));
    // An error must not leave processes, either.
    let leftovers = leftovers::wait_for_end(&folder.marker);
    leftovers::kill_all(&leftovers);
    let (mut violations, submissions) = outcome.with_context(|| kept_in(&folder.folder))?;
    violations.left_running = leftovers.iter().map(ToString::to_string).collect();

    let jobs = submissions.accepted().count();
    let PromiseViolations { lost, duplicated, left_running } = &violations;
    for (kind, lines) in
        [("lost", lost), ("duplicated", duplicated), ("left running", left_running)]
    {
        lines.iter().for_each(|line| eprintln!("{kind}: {line}"));
    }
    let lost = lost.len();
    let duplicated = duplicated.len();
    let left_running = left_running.len();
    eprintln!("{:.1} s", started.elapsed().as_secs_f64());
    println!(
        "{kills} kills, {jobs} jobs, {lost} lost, {duplicated} duplicated, {left_running} left \
         running"
    );
    ensure!(
        lost + duplicated + left_running == 0,
        "jobs were lost, duplicated or left running; {}",
        kept_in(&folder.folder)
    );
    std::fs::remove_dir_all(&folder.folder).context("cannot remove the folder of the run")
}

fn kept_in(folder: &Path) -> String {
    format!("everything is in {}", folder.display())
}
