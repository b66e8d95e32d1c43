//! Measures toolgate against floors in one run: interleaved rounds, medians, every answer checked.
//!
//! Absolute figures depend on the machine and the minute; ratios of one run do not.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a developer's tool that starts programs, reads files and prints a table"
)]

mod child;
mod gate;
mod jobs;
mod lines;
mod requests;
mod search;
mod vectors;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use child::{Child, start_server};

/// One line of the table.
struct Row {
    what: &'static str,
    ours: f64,
    floor: f64,
    unit: &'static str,
    asked: Asked,
}

/// What is asked for.
enum Asked {
    /// Ours over the floor's, at least.
    Ratio(f64),
    /// Ours less the floor's, at most.
    Over(f64),
    /// Ours, at most.
    Most(f64),
    /// Ours, at least.
    Least(f64),
    /// Nothing: it is only shown.
    Shown,
}

fn main() -> anyhow::Result<()> {
    let quick = std::env::args().any(|word| word == "--quick");
    let (rounds, time) =
        if quick { (3, Duration::from_millis(400)) } else { (7, Duration::from_millis(1500)) };
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("one.txt");
    std::fs::write(&file, &"toolgate ".repeat(128).as_bytes()[..1024])?;
    // What is measured here is called more often than anybody does in earnest.
    std::fs::write(folder.path().join("toolgate.toml"), "[limits]\nrate = []\n")?;

    let mut rows = Vec::new();
    let done = measure(&mut rows, quick, rounds, time, folder.path(), &file);
    // What was measured before something went wrong is worth seeing, too.
    print_table(&rows);
    done
}

fn measure(
    rows: &mut Vec<Row>,
    quick: bool,
    rounds: usize,
    time: Duration,
    folder: &Path,
    file: &Path,
) -> anyhow::Result<()> {
    for depth in [1, 32] {
        let floor = || Child::stdio(&program("floor")?, &["stdio", &text(file)]);
        let ours = || toolgate_stdio(folder);
        rows.push(rates(
            if depth == 1 {
                "files_read 1 KiB, stdio, depth 1"
            } else {
                "files_read 1 KiB, stdio, depth 32"
            },
            rounds,
            || lines::rate(&mut ours()?, depth, time, &requests::read_in_session),
            || lines::rate(&mut floor()?, depth, time, &requests::read_in_session),
            Asked::Ratio(0.3),
        )?);
    }
    let floor = start_server(&program("floor")?, &["http"])?;
    let echo = start_server(&program("example-echo")?, &["127.0.0.1:0"])?;
    for (what, request, asked) in [
        (
            "echo, HTTP, 16 connections, in a session",
            requests::echo_in_session(&echo.address)?,
            Asked::Ratio(0.5),
        ),
        (
            "echo, HTTP, 16 connections, stateless",
            requests::echo_stateless(&echo.address),
            Asked::Ratio(0.5),
        ),
    ] {
        let canned = requests::echo_stateless(&floor.address);
        rows.push(rates(
            what,
            rounds,
            || requests::rate(&echo.address, &request, 16, time),
            || requests::rate(&floor.address, &canned, 16, time),
            asked,
        )?);
    }
    rows.push(cold_start(folder, file, if quick { 7 } else { 31 })?);
    rows.extend(idle_memory(folder)?);
    rows.extend(gate::measure(quick)?);
    rows.extend(jobs::measure(quick)?);
    rows.extend(search::measure(quick)?);
    rows.extend(vectors::measure(quick)?);
    Ok(())
}

/// Rates of both, measured in turn; the medians.
fn rates(
    what: &'static str,
    rounds: usize,
    ours: impl Fn() -> anyhow::Result<f64>,
    floor: impl Fn() -> anyhow::Result<f64>,
    asked: Asked,
) -> anyhow::Result<Row> {
    eprintln!("measuring: {what}");
    let (mut our_rates, mut floor_rates) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floor_rates.push(floor().context("the floor")?);
        our_rates.push(ours().context("toolgate")?);
    }
    Ok(Row { what, ours: median(our_rates), floor: median(floor_rates), unit: "/s", asked })
}

/// From the start of a process to its first answer.
fn cold_start(folder: &Path, file: &Path, rounds: usize) -> anyhow::Result<Row> {
    eprintln!("measuring: cold start");
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        floors.push(lines::first_answer(
            || Child::stdio(&program("floor")?, &["stdio", &text(file)]),
            &requests::read_stateless,
            b"toolgate toolgate ",
        )?);
        ours.push(lines::first_answer(
            || Child::stdio(&program("toolgate")?, &["stdio", &text(folder)]),
            &requests::read_stateless,
            b"toolgate toolgate ",
        )?);
    }
    let (ours, floor) = (median(ours), median(floors));
    Ok(Row {
        what: "cold start to first answer, stdio",
        ours,
        floor,
        unit: " ms",
        asked: Asked::Over(15.0),
    })
}

fn idle_memory(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let mut stdio = toolgate_stdio(folder)?;
    lines::rate(&mut stdio, 1, Duration::from_millis(100), &requests::read_in_session)?;
    let http =
        start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])?;
    let row = |what, ours| Row { what, ours, floor: 0.0, unit: " MiB", asked: Asked::Most(12.0) };
    Ok(vec![
        row("idle RSS, stdio", stdio.idle_mib()?),
        row("idle RSS, serve", http.child.idle_mib()?),
    ])
}

fn toolgate_stdio(folder: &Path) -> anyhow::Result<Child> {
    let mut child = Child::stdio(&program("toolgate")?, &["stdio", &text(folder)])?;
    lines::initialize(&mut child)?;
    Ok(child)
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

fn print_table(rows: &[Row]) {
    println!("| | toolgate | floor | ratio | asked | |");
    println!("|---|---|---|---|---|---|");
    for Row { what, ours, floor, unit, asked } in rows {
        let number = |value: f64| match value {
            0.0 => "–".to_owned(),
            value if value < 100.0 => format!("{value:.1}{unit}"),
            value => format!("{value:.0}{unit}"),
        };
        let (asked, held) = match asked {
            Asked::Ratio(least) => (format!("ratio ≥ {least}"), ours / floor >= *least),
            Asked::Over(most) => (format!("≤ floor + {most}{unit}"), ours - floor <= *most),
            Asked::Most(most) => (format!("≤ {most}{unit}"), ours <= most),
            Asked::Least(least) => (format!("≥ {least}{unit}"), ours >= least),
            Asked::Shown => ("–".to_owned(), true),
        };
        let ratio = if *floor > 0.0 { format!("{:.2}", ours / floor) } else { "–".to_owned() };
        let held = if held { "held" } else { "MISSED" };
        println!(
            "| {what} | {} | {} | {ratio} | {asked} | {held} |",
            number(*ours),
            number(*floor)
        );
    }
}
