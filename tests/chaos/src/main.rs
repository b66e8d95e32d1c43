//! Kills the server at every bad moment while jobs come in, and sees whether it keeps its word.
//!
//! The server is the real one, in a folder of its own, over HTTP. What it must keep is looked at
//! from outside: what its clients were told, what the jobs' own programs wrote down, and what
//! still runs on this machine.
//!
//! `toolgate-chaos [--kills N | --gateway [--minutes N]] [--seed S] [--server FILE]`;
//! `cargo xtask chaos` builds it and starts it. Without `--server`, it kills the `toolgate` beside it.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test program, which owns the folders it runs in and talks to a person"
)]

mod chance;
mod work;
mod wire;
mod server;
mod clients;
mod storm;
mod check;
mod left;
mod gateway;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use toolgate_test_support::toolgate_beside;

use chance::Chance;
use server::Stage;

/// How many jobs there are at least, however few kills.
const JOBS_MIN: usize = 200;
/// How often the server is killed where nobody says.
const KILLS: usize = 200;
/// For how long the gateway is tried where nobody says.
const MINUTES: f64 = 10.0;

/// What `cargo xtask chaos` is asked for.
struct ChaosOptions {
    kills: usize,
    seed: u64,
    /// The program that is killed; by default the one beside this.
    server: Option<PathBuf>,
    /// For how long clients and upstreams of the gateway are killed, instead of the server.
    gateway: Option<Duration>,
}

/// What went wrong, a line each.
#[derive(Default)]
struct Wrong {
    /// Accepted jobs that are not there, do not end, or end otherwise than they must.
    lost: Vec<String>,
    /// Programs that ran twice and must not, and jobs that are there twice.
    doubled: Vec<String>,
    /// Processes that outlived the last server.
    left: Vec<String>,
}

impl ChaosOptions {
    fn server(&self) -> anyhow::Result<PathBuf> {
        self.server.clone().map_or_else(|| toolgate_beside(&std::env::current_exe()?), Ok)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match from_words(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("toolgate-chaos: {err:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what `words` say: `--kills N` or `--gateway` and `--minutes N`, `--seed S`,
/// `--server FILE`; or is the program of a job.
fn from_words(words: &[String]) -> anyhow::Result<()> {
    if let [first, rest @ ..] = words
        && first == work::WORD
    {
        return work::run(rest);
    }
    let mut wanted =
        ChaosOptions { kills: KILLS, seed: chance::seed(), server: None, gateway: None };
    let mut minutes = MINUTES;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
        match word.as_str() {
            "--kills" => wanted.kills = value()?.parse().context("--kills")?,
            "--seed" => wanted.seed = value()?.parse().context("--seed")?,
            "--gateway" => wanted.gateway = Some(Duration::ZERO),
            "--minutes" => minutes = value()?.parse().context("--minutes")?,
            "--server" => wanted.server = Some(value()?.into()),
            other => bail!(
                "unknown option `{other}`; the options are --kills N, --gateway, --minutes N, --seed S, --server FILE"
            ),
        }
    }
    wanted.gateway = wanted.gateway.map(|_| Duration::from_secs_f64(minutes * 60.0));
    wreak(&wanted)
}

/// Kills the server as often as wanted, says what came of it in a line, and fails if that is bad.
fn wreak(wanted: &ChaosOptions) -> anyhow::Result<()> {
    if let Some(lasting) = wanted.gateway {
        return gateway::soak(wanted, lasting);
    }
    let ChaosOptions { kills, seed, .. } = *wanted;
    let toolgate = wanted.server()?;
    let begun = Instant::now();
    let stage = Stage::set(&toolgate, seed)?;
    eprintln!("{kills} kills with --seed {seed}, in {}", stage.folder.display());

    let outcome = storm::rage(&stage, kills, &mut Chance::of(seed))
        .and_then(|ledger| Ok((check::settled(&stage, &ledger)?, ledger)));
    // Whatever went wrong, nothing is left behind.
    let left = left::waited_for(&stage.marker);
    left::end(&left);
    let (mut wrong, ledger) = outcome.with_context(|| kept(&stage.folder))?;
    wrong.left = left.iter().map(ToString::to_string).collect();

    let jobs = ledger.accepted().count();
    for (what, lines) in
        [("lost", &wrong.lost), ("doubled", &wrong.doubled), ("left running", &wrong.left)]
    {
        lines.iter().for_each(|line| eprintln!("{what}: {line}"));
    }
    let Wrong { lost, doubled, left } = &wrong;
    let lost = lost.len();
    let doubled = doubled.len();
    let left = left.len();
    eprintln!("{:.1} s", begun.elapsed().as_secs_f64());
    println!("{kills} kills, {jobs} jobs, {lost} lost, {doubled} doubled, {left} left running");
    ensure!(
        lost + doubled + left == 0,
        "jobs were lost, doubled or left running; {}",
        kept(&stage.folder)
    );
    std::fs::remove_dir_all(&stage.folder).context("cannot remove the folder of the run")
}

fn kept(folder: &Path) -> String {
    format!("everything is kept in {}", folder.display())
}
