//! Measures the time from the start of a server to its first answer, and the memory of an idle
//! server.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::child::{PipedProcess, start_server};
use crate::files::folder;
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, lines, median, program, text};

/// Measures how long a server takes to start, and how much memory it takes when idle.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let folder = folder()?;
    let mut rows = vec![measure_cold_start(run, folder.path())?];
    rows.extend(measure_idle_memory(folder.path())?);
    Ok(rows)
}

/// Measures the time from the start of a server to its first answer.
fn measure_cold_start(run: &BenchRunOptions, folder: &Path) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: cold start");
    let question =
        BenchRequestTemplate::stateless("files_read", &json!({ "path": "one.txt" }), "toolgate ");
    let file = folder.join("one.txt");
    let mut ours = Vec::new();
    let mut floors = Vec::new();
    for _ in 0..run.choose(7, 31) {
        floors.push(lines::first_answer(
            || PipedProcess::stdio(&program("floor")?, &["stdio", &text(&file)]),
            &question,
        )?);
        ours.push(lines::first_answer(
            || PipedProcess::stdio(&program("toolgate")?, &["stdio", &text(folder)]),
            &question,
        )?);
    }
    let row = BenchResultRow::new("cold start to first answer, stdio", " ms", median(ours));
    Ok(row.with_floor(median(floors)).with_target(PerformanceGoal::AtMost(4.0)))
}

/// Measures the memory of an idle toolgate, over stdio and over HTTP.
fn measure_idle_memory(folder: &Path) -> anyhow::Result<Vec<BenchResultRow>> {
    eprintln!("measuring: memory of an idle server");
    let mut stdio = PipedProcess::stdio(&program("toolgate")?, &["stdio", &text(folder)])?;
    lines::initialize(&mut stdio)?;
    let question =
        BenchRequestTemplate::call("files_read", &json!({ "path": "one.txt" }), "toolgate ");
    lines::rate(&mut stdio, 1, Duration::from_millis(100), &question)?;
    let http =
        start_server(&program("toolgate")?, &["serve", &text(folder), "--listen", "127.0.0.1:0"])?;
    let row = |what, ours| {
        BenchResultRow::new(what, " MiB", ours).with_target(PerformanceGoal::AtMost(7.0))
    };
    Ok(vec![
        row("idle RSS, stdio", stdio.idle_mib()?),
        row("idle RSS, serve", http.child.idle_mib()?),
    ])
}
