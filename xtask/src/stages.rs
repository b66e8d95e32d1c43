//! Runs the stages of `cargo xtask test`, alone or side by side, and prints how long each took.

use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::shell::{checkout, command};

/// Names and durations of the stages of `cargo xtask test` that have run.
pub(crate) struct CheckStageTimes {
    started: Instant,
    rows: Vec<(String, Duration)>,
}

/// Stage of `cargo xtask test` that runs in a separate process. Its output is printed after its
/// end.
pub(crate) struct BackgroundStageProcess {
    name: String,
    log: PathBuf,
    process: Pid,
    /// Thread that waits for the process. It returns the exit status and the duration.
    waiter: Option<JoinHandle<io::Result<(ExitStatus, Duration)>>>,
}

impl CheckStageTimes {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), rows: Vec::new() }
    }

    /// Runs the function `stage` in this process, shows its output immediately, and records its
    /// duration.
    pub(crate) fn run(
        &mut self,
        name: &str,
        stage: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let outcome = stage();
        self.rows.push((name.to_owned(), started.elapsed()));
        outcome
    }

    /// Waits until `stage` has ended, prints its output and records its duration. Fails if the
    /// stage failed.
    pub(crate) fn wait_for(&mut self, mut stage: BackgroundStageProcess) -> anyhow::Result<()> {
        let name = stage.name.clone();
        let waiter = stage.waiter.take().context("a stage is waited for once")?;
        let ended = waiter.join().unwrap_or_else(|panic| resume_unwind(panic));
        let (status, took) = ended.with_context(|| format!("cannot wait for {name}"))?;
        self.rows.push((name.clone(), took));
        show(&name, took, &fs::read(&stage.log)?)?;
        if !status.success() {
            bail!("`cargo xtask {name}` failed: {status}");
        }
        Ok(())
    }

    /// Runs the lists of commands in `lanes` side by side, and the commands of each list in order.
    /// Each list ends at its first failure. Waits for all lists, and fails if one of them failed.
    pub(crate) fn side_by_side(&mut self, lanes: &[&[&str]]) -> anyhow::Result<()> {
        let outcomes: Vec<(Self, anyhow::Result<()>)> = thread::scope(|scope| {
            let run = |lane: &[&str]| {
                let mut stages = Self::new();
                let outcome = lane.iter().try_for_each(|command| {
                    stages.wait_for(BackgroundStageProcess::start(command)?)
                });
                (stages, outcome)
            };
            let lanes: Vec<_> = lanes.iter().map(|lane| scope.spawn(move || run(lane))).collect();
            let joined = lanes.into_iter().map(thread::ScopedJoinHandle::join);
            joined.map(|lane| lane.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        let mut failures = Vec::new();
        for (stages, outcome) in outcomes {
            self.rows.extend(stages.rows);
            failures.extend(outcome.err().map(|err| format!("{err:#}")));
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("\n  "));
        }
        Ok(())
    }

    /// Prints a table of the stages and their durations. Stages that ran side by side add up to
    /// more than the total.
    pub(crate) fn print_table(&self) {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default().max(5);
        eprintln!("\n{:width$}  seconds", "stage");
        for (name, took) in &self.rows {
            eprintln!("{name:width$}  {:7.1}", took.as_secs_f64());
        }
        eprintln!("{:width$}  {:7.1}", "total", self.started.elapsed().as_secs_f64());
    }
}

impl BackgroundStageProcess {
    /// Starts the stage `cargo xtask COMMAND_LINE` in a separate process of this program.
    pub(crate) fn start(command_line: &str) -> anyhow::Result<Self> {
        let folder = checkout().join("target/xtask");
        fs::create_dir_all(&folder)?;
        let log = folder.join(format!("{}.log", command_line.replace(' ', "-")));
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        // A build may have replaced this program's file since it started.
        let mut command = command("/proc/self/exe");
        command.args(command_line.split_whitespace()).current_dir(checkout()).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output);
        let mut child = command.spawn().with_context(|| format!("cannot start {command_line}"))?;
        let started = Instant::now();
        let process = Pid::from_child(&child);
        let wait = move || child.wait().map(|status| (status, started.elapsed()));
        let waiter = Some(thread::spawn(wait));
        Ok(Self { name: command_line.to_owned(), log, process, waiter })
    }
}

impl Drop for BackgroundStageProcess {
    /// Kills a stage that is still running, because an earlier stage failed.
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            let _ = kill_process(self.process, Signal::KILL);
            let _ = waiter.join();
        }
    }
}

/// Prints the name, duration and complete output of a stage.
fn show(name: &str, took: Duration, output: &[u8]) -> anyhow::Result<()> {
    let mut stderr = io::stderr().lock();
    writeln!(stderr, "\n==> cargo xtask {name}")?;
    stderr.write_all(output)?;
    writeln!(stderr, "    {:.1} s", took.as_secs_f64())?;
    Ok(())
}
