//! Measures toolgate against floors and against others' servers in one run: interleaved rounds,
//! medians, every answer checked.
//!
//! `bench [--quick] [--alone] [--into FOLDER] [SECTION…]`; `--alone` leaves others' servers out.
//! Absolute figures depend on the machine and the
//! minute; ratios of one run do not.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a developer's tool that starts programs, reads files and prints a table"
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
use std::time::Duration;

use anyhow::Context;

use contenders::{FLOOR, OURS};
use row::Row;

/// What is measured, by its name, in this order.
const SECTIONS: [(&str, Section); 10] = [
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

type Section = fn(&Run) -> anyhow::Result<Vec<Row>>;

/// How long it is measured.
struct Run {
    /// Figures are wanted soon, and need not be the best.
    quick: bool,
    /// Others' servers are left out.
    alone: bool,
    rounds: usize,
    /// How long a load lasts in each.
    time: Duration,
}

impl Run {
    /// The one number where it is to be quick, else the other.
    fn of<T>(&self, quick: T, whole: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// `all`, and the servers of `others` unless they are left out.
    fn beside<T>(
        &self,
        mut all: Vec<T>,
        others: impl FnOnce() -> anyhow::Result<Vec<T>>,
    ) -> anyhow::Result<Vec<T>> {
        if !self.alone {
            all.extend(others()?);
        }
        Ok(all)
    }

    /// A row of what each of `all` comes to, measured in turn; medians.
    fn row<T>(
        &self,
        what: &'static str,
        unit: &'static str,
        all: &mut [T],
        name: impl Fn(&T) -> &'static str,
        mut once: impl FnMut(&mut T) -> anyhow::Result<f64>,
    ) -> anyhow::Result<Row> {
        eprintln!("measuring: {what}");
        let mut samples: Vec<_> = all.iter().map(|it| (name(it), Vec::new())).collect();
        for _ in 0..self.rounds {
            for (it, (name, samples)) in all.iter_mut().zip(&mut samples) {
                samples.push(once(it).context(*name)?);
            }
        }
        let mut medians: Vec<_> =
            samples.into_iter().map(|(name, samples)| (name, median(samples))).collect();
        let mut take = |name| {
            let at = medians.iter().position(|(its, _)| *its == name);
            at.map(|at| medians.remove(at).1)
        };
        let ours = take(OURS).context("toolgate was not measured")?;
        let floor = take(FLOOR);
        let row = Row::new(what, unit, ours).peers(medians);
        Ok(match floor {
            Some(floor) => row.floor(floor),
            None => row,
        })
    }
}

fn main() -> anyhow::Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut flag =
        |name| words.iter().position(|it| it == name).map(|at| words.remove(at)).is_some();
    let quick = flag("--quick");
    let alone = flag("--alone");
    let into = words.iter().position(|it| it == "--into").map(|at| {
        words.remove(at);
        PathBuf::from(words.remove(at))
    });
    for word in &words {
        let names = SECTIONS.map(|(name, _)| name);
        anyhow::ensure!(
            names.contains(&word.as_str()),
            "unknown section `{word}`; the sections are {}",
            names.join(", ")
        );
    }
    let rounds = if quick { 3 } else { 7 };
    let time = Duration::from_millis(if quick { 300 } else { 1500 });
    let run = Run { quick, alone, rounds, time };
    let mut rows = Vec::new();
    let mut failed = Ok(());
    for (name, measure) in SECTIONS {
        if words.is_empty() || words.iter().any(|word| word == name) {
            // What is measured already is worth seeing when something goes wrong.
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
    println!("{}", row::beside_others(&rows));
    failed?;
    into.map_or(Ok(()), |into| page::write(&into, &rows))
}

/// A program of this workspace, built beside this one.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    anyhow::ensure!(path.exists(), "{} is not built; run `cargo xtask bench`", path.display());
    Ok(path)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
