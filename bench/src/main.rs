//! Measures toolgate, the floors (minimal programs that do the same) and the servers of other
//! projects in one run.
//!
//! Rounds are interleaved, every answer is checked, and the figures are medians. Usage: `bench
//! [--quick] [--alone] [--into FOLDER] [SECTION…]`. `--alone` leaves the servers of other projects
//! out. Absolute figures depend on the machine and the moment; ratios of one run hardly do.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a tool for developers that starts programs, reads files and prints a table"
)]

mod child;
mod contenders;
mod files;
mod gate;
mod gateway;
mod http;
mod jobs;
mod lines;
mod page;
mod plot;
mod question;
mod row;
mod scale;
mod search;
mod sockets;
mod start;
mod stdio;
mod timer;
mod vectors;
mod web;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use child::PipedProcess;
use contenders::{FLOOR, OURS};
use row::BenchResultRow;

/// Name and function of each section of the results page, in the order in which they run.
const SECTIONS: [(&str, BenchSectionFn); 10] = [
    ("stdio", stdio::measure),
    ("web", web::measure),
    ("files", files::measure),
    ("start", start::measure),
    ("gate", gate::measure),
    ("gateway", gateway::measure),
    ("jobs", jobs::measure),
    ("search", search::measure),
    ("vectors", vectors::measure),
    ("scale", scale::measure),
];

/// Function that measures the rows of one section of the results page.
type BenchSectionFn = fn(&BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>>;

/// Command-line options of one benchmark run.
struct BenchRunOptions {
    /// True to measure for a shorter time, with less exact figures.
    quick: bool,
    /// True to leave out the servers of other projects.
    alone: bool,
    /// Number of times that each figure is measured.
    rounds: usize,
    /// Duration of each load test in a round of measurements.
    time: Duration,
}

impl BenchRunOptions {
    /// Returns `quick` in a quick run, and `whole` in a full run.
    fn choose<T>(&self, quick: T, whole: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// Returns the measured servers in `all`, and also those in `others` unless the options leave
    /// out the servers of other projects.
    fn with_others<T>(
        &self,
        mut all: Vec<T>,
        others: impl FnOnce() -> anyhow::Result<Vec<T>>,
    ) -> anyhow::Result<Vec<T>> {
        if !self.alone {
            all.extend(others()?);
        }
        Ok(all)
    }

    /// Measures each server in `all` in turn with `once`, for all rounds. Returns a row with the
    /// median of each server.
    fn measure_row<T>(
        &self,
        what: &'static str,
        unit: &'static str,
        all: &mut [T],
        name: impl Fn(&T) -> &'static str,
        mut once: impl FnMut(&mut T) -> anyhow::Result<f64>,
    ) -> anyhow::Result<BenchResultRow> {
        eprintln!("measuring: {what}");
        let mut samples: Vec<_> =
            all.iter().map(|contender| (name(contender), Vec::new())).collect();
        for _ in 0..self.rounds {
            for (contender, (name, samples)) in all.iter_mut().zip(&mut samples) {
                samples.push(once(contender).context(*name)?);
            }
        }
        let mut medians: Vec<_> =
            samples.into_iter().map(|(name, samples)| (name, median(samples))).collect();
        let mut take = |name| {
            let index = medians.iter().position(|(other, _)| *other == name);
            index.map(|index| medians.remove(index).1)
        };
        let ours = take(OURS).context("toolgate was not measured")?;
        let floor = take(FLOOR);
        let row = BenchResultRow::new(what, unit, ours).with_peers(medians);
        Ok(match floor {
            Some(floor) => row.with_floor(floor),
            None => row,
        })
    }

    /// Measures the calls per second of each server in `all` in turn with `once`, and its processor
    /// time per call. `process` returns the process of a server, or `None` to leave the processor
    /// time out.
    fn measure_rates<T>(
        &self,
        what: &'static str,
        all: &mut [T],
        name: impl Fn(&T) -> &'static str,
        process: impl Fn(&T) -> Option<&PipedProcess>,
        mut once: impl FnMut(&mut T) -> anyhow::Result<f64>,
    ) -> anyhow::Result<BenchResultRow> {
        let mut cpu: Vec<_> = all.iter().map(|contender| (name(contender), Vec::new())).collect();
        let micros = |contender: &T| process(contender).map(PipedProcess::cpu_micros).transpose();
        let row = self.measure_row(what, "/s", all, &name, |contender| {
            let before = micros(contender)?;
            let started = Instant::now();
            let rate = once(contender)?;
            let calls = rate * started.elapsed().as_secs_f64();
            let samples = cpu.iter_mut().find(|(other, _)| *other == name(contender));
            if let (Some(before), Some(after), Some((_, samples))) =
                (before, micros(contender)?, samples)
            {
                samples.push((after - before) / calls);
            }
            Ok(rate)
        })?;
        let measured = cpu.into_iter().filter(|(_, samples)| !samples.is_empty());
        Ok(row.with_cpu(measured.map(|(name, samples)| (name, median(samples))).collect()))
    }
}

fn main() -> anyhow::Result<()> {
    // The section `search` also measures the processes that parse code.
    toolgate_toolsets::grammars::run_worker_if_asked(Some(toolgate_grammars::find_grammar));
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name| {
        args.iter().position(|known| known == name).map(|index| args.remove(index)).is_some()
    };
    let quick = flag("--quick");
    let alone = flag("--alone");
    let into = args.iter().position(|known| known == "--into").map(|index| {
        args.remove(index);
        PathBuf::from(args.remove(index))
    });
    for arg in &args {
        let names = SECTIONS.map(|(name, _)| name);
        anyhow::ensure!(
            names.contains(&arg.as_str()),
            "unknown section `{arg}`; the sections are {}",
            names.join(", ")
        );
    }
    let rounds = if quick { 3 } else { 7 };
    let time = Duration::from_millis(if quick { 300 } else { 1500 });
    let run = BenchRunOptions { quick, alone, rounds, time };
    let mut rows = Vec::new();
    let mut failed = Ok(());
    for (name, measure) in SECTIONS {
        if args.is_empty() || args.iter().any(|arg| arg == name) {
            // If a section fails, the others are still worth printing.
            match measure(&run).context(name) {
                Ok(more) => rows.extend(more),
                Err(err) => {
                    eprintln!("{err:#}");
                    failed = Err(err);
                }
            }
        }
    }
    println!("{}", row::table(&rows));
    println!("{}", row::peer_table(&rows));
    let state = child::state_folder();
    if let Err(err) = std::fs::remove_dir_all(&state)
        && err.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("cannot delete {}, which has the state of the servers: {err}", state.display());
    }
    failed?;
    into.map_or(Ok(()), |into| page::write(&into, &rows))
}

/// Returns the path of the program `name`, which Cargo builds into the folder of the running
/// program.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    anyhow::ensure!(path.exists(), "{} is not built; run `cargo xtask bench`", path.display());
    Ok(path)
}

/// Returns `path` as text. Replaces bytes that are not UTF-8.
fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the median of `values`. For an even number of values, returns the greater of the two
/// middle values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
