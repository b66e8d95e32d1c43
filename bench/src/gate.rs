//! What it costs that a call is judged, limited and recorded, and that a program is confined.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::child::Child;
use crate::question::Question;
use crate::row::{Asked, Row};
use crate::{Run, lines, median, program, text};

/// All that the gate can be given to do for a call, which lets it pass.
const WITH: &str = r#"
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

/// The same without.
const WITHOUT: &str = "[limits]\nrate = []\n[audit]\nto = \"off\"\n";

pub(crate) fn measure(run: &Run) -> anyhow::Result<Vec<Row>> {
    let programs = run.of(40, 200);
    Ok(vec![
        judged(run, "CPU of files_read with rules, rates and records, depth 1", 1)?,
        judged(run, "CPU of files_read with rules, rates and records, depth 32", 32)?,
        confined(
            "exec_run of `true`, inside and outside the sandbox, workspace in memory, p50",
            Path::new("/dev/shm"),
            programs,
        )?,
        confined(
            "exec_run of `true`, inside and outside the sandbox, workspace on disk, p50",
            &std::env::temp_dir(),
            programs,
        )?,
    ])
}

/// Microseconds of the processors a call, with all of it and without, in turn: all threads of the
/// server, and not how long it takes two processes to wake each other.
fn judged(run: &Run, what: &'static str, depth: usize) -> anyhow::Result<Row> {
    eprintln!("measuring: {what}");
    let question = Question::call("files_read", &json!({ "path": "one.txt" }), "toolgate ");
    let around = std::env::temp_dir();
    let folders = [served(&around, WITH)?, served(&around, WITHOUT)?];
    let mut servers = [opened(folders[0].path())?, opened(folders[1].path())?];
    let mut micros = [Vec::new(), Vec::new()];
    for _ in 0..run.rounds + 2 {
        for (server, micros) in servers.iter_mut().zip(&mut micros) {
            let spent = server.cpu_micros()?;
            let begun = Instant::now();
            let rate = lines::rate(server, depth, run.time, &question)?;
            let calls = rate * begun.elapsed().as_secs_f64();
            micros.push((server.cpu_micros()? - spent) / calls);
        }
    }
    let [ours, floor] = micros.map(median);
    Ok(Row::new(what, " µs", ours).floor(floor).asked(Asked::Over(8.0)))
}

/// Milliseconds of a call that runs `true`, inside and outside the sandbox, in turn.
fn confined(what: &'static str, around: &Path, rounds: usize) -> anyhow::Result<Row> {
    eprintln!("measuring: {what}");
    let question = Question::call("exec_run", &json!({ "command": "true" }), "\"exit_code\":0");
    let settings =
        ["workspace", "off"].map(|it| format!("{WITHOUT}[sandbox]\nprofile = \"{it}\"\n"));
    let folders = [served(around, &settings[0])?, served(around, &settings[1])?];
    let mut servers = [opened(folders[0].path())?, opened(folders[1].path())?];
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for (server, taken) in servers.iter_mut().zip(&mut taken) {
            let begun = Instant::now();
            lines::answer(server, &question)?;
            // The first finds out what this system has.
            if round > 0 {
                taken.push(begun.elapsed().as_secs_f64() * 1000.0);
            }
        }
    }
    let [ours, floor] = taken.map(median);
    Ok(Row::new(what, " ms", ours).floor(floor).asked(Asked::Over(3.0)))
}

fn served(around: &Path, settings: &str) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::tempdir_in(around)?;
    fs::write(folder.path().join("one.txt"), &"toolgate ".repeat(128).as_bytes()[..1024])?;
    fs::write(folder.path().join("toolgate.toml"), settings)?;
    Ok(folder)
}

fn opened(folder: &Path) -> anyhow::Result<Child> {
    let mut child = Child::stdio(&program("toolgate")?, &["stdio", &text(folder)])?;
    lines::initialize(&mut child)?;
    Ok(child)
}
