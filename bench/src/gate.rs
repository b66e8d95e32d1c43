//! Measures what policy, limits and audit records cost per call, and what the sandbox costs per
//! program.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::child::PipedProcess;
use crate::question::BenchRequestTemplate;
use crate::row::{BenchResultRow, PerformanceGoal};
use crate::{BenchRunOptions, lines, median, program, text};

/// Settings with rate limits and policy rules, all of which allow the measured call.
const FULL_GATE: &str = r#"
[[limits.rate]]
tools = "files.*"
calls = 1000000
in_ms = 1000
[[limits.rate]]
tools = "*"
calls = 1000000
in_ms = 1000

[[policy.rules]]
name = "no-infra"
effect = "deny"
tools = ["files.*"]
when = 'under(input.path, "infra") || input.path.endsWith(".pem")'
[[policy.rules]]
name = "nobody-else"
effect = "deny"
when = 'caller.name != "local" && tool.effects != "reads"'
[[policy.rules]]
name = "reads"
effect = "allow"
effects = ["reads"]
"#;

/// Settings of a server without rate limits, policy rules and audit log.
const BARE_GATE: &str = "[limits]\nrate = []\n[audit]\nto = \"off\"\n";

/// Measures the time that policy, limits and audit records add to a call, and that the sandbox adds
/// to a program.
pub(crate) fn measure(run: &BenchRunOptions) -> anyhow::Result<Vec<BenchResultRow>> {
    let programs = run.choose(40, 200);
    Ok(vec![
        measure_gate(
            run,
            "CPU time of files_read with policy rules, rate limits and audit records, depth 1",
            1,
        )?,
        measure_gate(
            run,
            "CPU time of files_read with policy rules, rate limits and audit records, depth 32",
            32,
        )?,
        measure_sandbox(
            "exec_run of `true` in the sandbox (floor: outside it), workspace in memory, p50",
            Path::new("/dev/shm"),
            programs,
            3.0,
        )?,
        measure_sandbox(
            "exec_run of `true` in the sandbox (floor: outside it), workspace on disk, p50",
            &std::env::temp_dir(),
            programs,
            1.2,
        )?,
    ])
}

/// Measures the processor time of a call with [`FULL_GATE`] and with [`BARE_GATE`], in
/// microseconds. Processor time of all server threads counts, but not the time until a waiting
/// process wakes.
fn measure_gate(
    run: &BenchRunOptions,
    what: &'static str,
    depth: usize,
) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: {what}");
    let question =
        BenchRequestTemplate::call("files_read", &json!({ "path": "one.txt" }), "toolgate ");
    let parent = std::env::temp_dir();
    let folders = [create_workspace(&parent, FULL_GATE)?, create_workspace(&parent, BARE_GATE)?];
    let mut servers = [start_server(folders[0].path())?, start_server(folders[1].path())?];
    let mut micros = [Vec::new(), Vec::new()];
    for _ in 0..run.rounds + 2 {
        for (server, micros) in servers.iter_mut().zip(&mut micros) {
            let before = server.cpu_micros()?;
            let started = Instant::now();
            let rate = lines::rate(server, depth, run.time, &question)?;
            let calls = rate * started.elapsed().as_secs_f64();
            micros.push((server.cpu_micros()? - before) / calls);
        }
    }
    let [ours, floor] = micros.map(median);
    Ok(BenchResultRow::new(what, " µs", ours)
        .with_floor(floor)
        .with_target(PerformanceGoal::DifferenceAtMost(8.0)))
}

/// Measures a call that runs `true` inside and outside the sandbox, in milliseconds. The goal is
/// that the sandbox adds at most `added_max` milliseconds.
fn measure_sandbox(
    what: &'static str,
    parent: &Path,
    rounds: usize,
    added_max: f64,
) -> anyhow::Result<BenchResultRow> {
    eprintln!("measuring: {what}");
    let question =
        BenchRequestTemplate::call("exec_run", &json!({ "command": "true" }), "exit code 0");
    let settings = ["workspace", "off"]
        .map(|profile| format!("{BARE_GATE}[sandbox]\nprofile = \"{profile}\"\n"));
    let folders =
        [create_workspace(parent, &settings[0])?, create_workspace(parent, &settings[1])?];
    let mut servers = [start_server(folders[0].path())?, start_server(folders[1].path())?];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (server, times) in servers.iter_mut().zip(&mut times) {
            let started = Instant::now();
            lines::answer(server, &question)?;
            // The first round also checks which sandbox layers this system supports.
            if round > 0 {
                times.push(started.elapsed().as_secs_f64() * 1000.0);
            }
        }
    }
    let [ours, floor] = times.map(median);
    Ok(BenchResultRow::new(what, " ms", ours)
        .with_floor(floor)
        .with_target(PerformanceGoal::DifferenceAtMost(added_max)))
}

/// Creates a workspace folder below `parent` with a file to read, and writes `settings` to its
/// `toolgate.toml`.
fn create_workspace(parent: &Path, settings: &str) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir_in(parent)?;
    fs::write(folder.path().join("one.txt"), &"toolgate ".repeat(128).as_bytes()[..1024])?;
    fs::write(folder.path().join("toolgate.toml"), settings)?;
    Ok(folder)
}

/// Starts toolgate over stdio in the workspace `folder`, and opens a session with it.
fn start_server(folder: &Path) -> anyhow::Result<PipedProcess> {
    let mut child = PipedProcess::stdio(&program("toolgate")?, &["stdio", &text(folder)])?;
    lines::initialize(&mut child)?;
    Ok(child)
}
