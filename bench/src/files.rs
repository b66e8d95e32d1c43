//! Measures reading files, listing a folder and running a program, each compared with a minimal
//! program that does the same.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::ensure;
use serde_json::json;

use crate::contenders::{
    BenchmarkedStdioServer, FILESYSTEM, FLOOR, OURS, RUST_FILESYSTEM, listers, readers,
};
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, lines, program, text};

/// Settings without rate limits, because a benchmark calls far more often than users do.
pub(crate) const UNLIMITED: &str = "[limits]\nrate = []\n";

/// Number of processes that each round starts directly, without toolgate, for comparison.
const PROGRAMS: u64 = 100;

/// Measures how fast toolgate and other servers read files, list a folder and run a program.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let folder = folder()?;
    let path = folder.path();
    let rate = |what, all: &mut Vec<BenchmarkedStdioServer>, depth, floor| {
        let row = run.measure_rates(
            what,
            all,
            |server| server.name,
            |server| Some(&server.child),
            |server| lines::rate(&mut server.child, depth, run.time, &server.question),
        )?;
        anyhow::Ok(row.with_target(PerformanceGoal::RatioAtLeast(floor)))
    };
    let mut small = readers(run, path, "one.txt", "toolgate toolgate ")?;
    let mut rows = vec![
        rate("files_read 1 KiB, stdio, depth 1", &mut small, 1, 0.6)?,
        rate("files_read 1 KiB, stdio, depth 32", &mut small, 32, 0.55)?,
    ];
    drop(small);
    let mut large = readers(run, path, "large.txt", "toolgate toolgate ")?;
    let large_rate = rate("files_read 10 MiB, stdio", &mut large, 1, 0.8)?;
    let peers = [RUST_FILESYSTEM, FILESYSTEM];
    rows.push(peers.into_iter().fold(large_rate, |row, peer| {
        row.with_target(PerformanceGoal::PeerRatioAtLeast(peer, 1.0))
    }));
    drop(large);
    let mut many = listers(run, &path.join("many"), "f0999.txt")?;
    rows.push(rate("files_list of 1,000 entries, stdio", &mut many, 1, 0.8)?);
    rows.push(programs(run, path)?);
    Ok(rows)
}

/// Creates a temporary folder with the files to read and to list, and with `toolgate.toml`.
pub(crate) fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let many = folder.path().join("many");
    fs::create_dir(&many)?;
    for number in 0..1000 {
        fs::write(many.join(format!("f{number:04}.txt")), "toolgate")?;
    }
    // One answer holds at most 10 MiB.
    let text = "toolgate ".repeat((10 << 20) / 9 + 1);
    fs::write(folder.path().join("one.txt"), &text.as_bytes()[..1024])?;
    fs::write(folder.path().join("large.txt"), &text.as_bytes()[..10 << 20])?;
    fs::write(folder.path().join("toolgate.toml"), UNLIMITED)?;
    fs::write(many.join("toolgate.toml"), UNLIMITED)?;
    Ok(folder)
}

/// Measures how fast toolgate runs the program `true` in the sandbox, compared with starting this
/// program directly.
fn programs(run: &BenchRunOptions, folder: &Path) -> anyhow::Result<BenchResultRow> {
    let question =
        BenchRequestTemplate::call("exec_run", &json!({ "command": "true" }), "exit code 0");
    let ours = BenchmarkedStdioServer::start(
        OURS,
        &program("toolgate")?,
        &["stdio", &text(folder)],
        question,
    )?;
    let mut both = [(OURS, Some(ours)), (FLOOR, None)];
    let what = "exec_run of `true`, stdio, one by one (floor: spawn and wait)";
    let row = run.measure_row(
        what,
        "/s",
        &mut both,
        |(name, _)| *name,
        |(_, ours)| {
            let started = Instant::now();
            match ours {
                Some(ours) => {
                    return lines::rate(&mut ours.child, 1, run.time, &ours.question);
                }
                None => {
                    for _ in 0..PROGRAMS {
                        ensure!(Command::new("true").status()?.success(), "`true` failed");
                    }
                }
            }
            Ok(PROGRAMS as f64 / started.elapsed().as_secs_f64())
        },
    )?;
    Ok(row.with_target(PerformanceGoal::RatioAtLeast(0.45)))
}
