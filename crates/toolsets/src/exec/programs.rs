//! State that all tools share which run programs: workspace, settings and stored outputs.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use toolgate_contract::{Ctx, Fault, Stream, ToolError};

use super::Settings;
use super::echo::Echo;
use super::kept::{Kept, Streams};
use super::meter::Meter;
use super::outcome::{Confined, Outcome, exit};
use super::shown::shown;
use crate::world::processes::{Ended, Start, Stopped};
use crate::world::sandbox::{Failed, Inside, Step, Unheld};
use crate::world::{Processes, Root};

/// The pause in which output is collected before it is sent.
const TICK: Duration = Duration::from_millis(50);

/// Runs programs in a workspace, and stores output that is too long for a result. Cheap to clone.
#[derive(Clone)]
pub struct Programs {
    pub(crate) root: Root,
    pub(crate) processes: Processes,
    pub(crate) settings: Arc<Settings>,
    pub(super) kept: Arc<Kept>,
    /// The id of the tool that runs the programs. It selects the sandbox profile.
    tool: Arc<str>,
    /// Set if the tool only reads.
    only_reads: bool,
}

/// A function that returns the text to show for a piece of output.
type Show<'s> = &'s (dyn Fn(Stream, &[u8]) -> Vec<u8> + Send + Sync);

/// The part of a call that caused a start failure, although the program was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blamed {
    /// The program: it has an invalid format or may not be executed.
    Program,
    /// The arguments: they are too long.
    Arguments,
}

impl Programs {
    /// Creates the runner of programs that start in `root`, with `settings`.
    pub fn new(root: &Root, processes: &Processes, settings: &Settings) -> Self {
        Self {
            root: root.clone(),
            processes: processes.clone(),
            settings: Arc::new(settings.clone()),
            kept: Arc::new(Kept::new(settings.kept_runs_max, settings.kept_bytes_max)),
            tool: "exec.run".into(),
            only_reads: false,
        }
    }

    /// Returns a copy for the programs of `tool`, whose id selects the sandbox profile.
    pub(crate) fn of(&self, tool: &str) -> Self {
        Self { tool: tool.into(), ..self.clone() }
    }

    /// Returns a copy that is confined as a reading tool if `only_reads` is set.
    pub(crate) fn reading(self, only_reads: bool) -> Self {
        Self { only_reads, ..self }
    }

    /// Returns the sandbox to use for the next program, if any.
    pub(crate) fn inside(&self) -> Option<Inside> {
        self.processes.sandbox().inside(&self.tool, self.only_reads, &self.root)
    }

    /// Runs a program to its end and streams its output. `blamed` creates the error if the program
    /// cannot be started.
    pub(crate) async fn run(
        &self,
        ctx: &Ctx,
        start: Start,
        meter: Option<Meter<'_>>,
        blamed: impl Fn(Blamed, String) -> ToolError,
    ) -> Result<Outcome, ToolError> {
        let name = start.program.name.clone();
        let ended = self
            .watched(ctx, start, meter, None)
            .await
            .map_err(|err| not_run(&name, &err, blamed))?;
        ctx.ran.confined(ended.sandbox.told());
        match ended.stopped {
            Some(Stopped::Canceled) => Err(ToolError::canceled()),
            Some(Stopped::TimedOut) | None => Ok(self.outcome(ctx, ended)),
        }
    }

    /// Runs a program to its end and streams the text that `show` returns for each piece of output.
    /// `blamed` creates the error if the program cannot be started.
    pub(crate) async fn run_read(
        &self,
        ctx: &Ctx,
        start: Start,
        blamed: impl Fn(Blamed, String) -> ToolError,
        show: Show<'_>,
    ) -> Result<Outcome, ToolError> {
        let name = start.program.name.clone();
        let ended = self.watched(ctx, start, None, Some(show)).await;
        let ended = ended.map_err(|err| not_run(&name, &err, blamed))?;
        ctx.ran.confined(ended.sandbox.told());
        match ended.stopped {
            Some(Stopped::Canceled) => Err(ToolError::canceled()),
            Some(Stopped::TimedOut) | None => Ok(self.outcome(ctx, ended)),
        }
    }

    /// Runs a program, and streams its output if the call has a listener.
    async fn watched(
        &self,
        ctx: &Ctx,
        start: Start,
        meter: Option<Meter<'_>>,
        show: Option<Show<'_>>,
    ) -> io::Result<Ended> {
        if !ctx.events.is_watched() {
            let read = |stream, bytes: &[u8]| {
                if let Some(show) = show {
                    show(stream, bytes);
                }
            };
            return self.processes.run(start, &ctx.cancel, &read).await;
        }
        let echo = Mutex::new(Echo::new(ctx, meter));
        let echo = || echo.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = |stream, bytes: &[u8]| match show {
            Some(show) => echo().take(stream, &show(stream, bytes)),
            None => echo().take(stream, bytes),
        };
        let mut run = pin!(self.processes.run(start, &ctx.cancel, &watch));
        let mut tick = interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = &mut run => {
                    echo().say_all();
                    return ended;
                }
                _ = tick.tick() => echo().say(),
            }
        }
    }

    /// Creates the result of a program that has ended, and stores the output that the result leaves
    /// out.
    fn outcome(&self, ctx: &Ctx, ended: Ended) -> Outcome {
        let Ended { status, stopped, took, stdout, stderr, sandbox } = ended;
        let timed_out = stopped == Some(Stopped::TimedOut);
        let (exit_code, signal) = exit(status, timed_out);
        let (stdout_shown, stdout_extent) = shown(&stdout);
        let (stderr_shown, stderr_extent) = shown(&stderr);
        let is_cut = stdout_extent.cut.is_some() || stderr_extent.cut.is_some();
        let keep = || self.kept.keep(&ctx.caller, Arc::new(Streams { stdout, stderr }));
        Outcome {
            exit_code,
            signal,
            timed_out,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            stdout: stdout_shown,
            stdout_extent,
            stderr: stderr_shown,
            stderr_extent,
            output_id: is_cut.then(keep).flatten(),
            sandbox: Confined::of(&sandbox),
        }
    }
}

/// Returns the error inside `err`, if it is a `T`.
fn inner<T: std::error::Error + 'static>(err: &io::Error) -> Option<&T> {
    err.get_ref()?.downcast_ref()
}

/// Explains why a program could not be started in the sandbox.
fn not_entered(
    name: &str,
    failed: &Failed,
    blamed: impl Fn(Blamed, String) -> ToolError,
) -> ToolError {
    match (failed.step, failed.why.raw_os_error()) {
        (Step::Program, Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => blamed(
            Blamed::Program,
            format!(
                "`{name}` lies outside of what programs see in the sandbox; whoever runs the server \
                 can add its folder to `sandbox.read`"
            ),
        ),
        (Step::Program | Step::Folder, Some(libc::ESTALE | libc::ENOENT)) => ToolError::new(
            Fault::Unavailable,
            format!("`{name}` or its folder was replaced while it was started; try again"),
        ),
        _ => ToolError::new(
            Fault::Unavailable,
            format!("`{name}` is not run: the sandbox was not entered ({failed})"),
        ),
    }
}

/// Explains why a program that was found could not be run.
fn not_run(name: &str, err: &io::Error, blamed: impl Fn(Blamed, String) -> ToolError) -> ToolError {
    let name = name.escape_debug();
    if let Some(unheld) = inner::<Unheld>(err) {
        return ToolError::new(
            Fault::Unavailable,
            format!(
                "`{name}` is not run: {unheld}; `toolgate doctor` says more, and whoever runs the \
                 server decides with `sandbox.require`"
            ),
        );
    }
    if let Some(failed) = inner::<Failed>(err) {
        return not_entered(&name.to_string(), failed, blamed);
    }
    match err.kind() {
        io::ErrorKind::Interrupted => ToolError::canceled(),
        io::ErrorKind::NotFound => blamed(
            Blamed::Program,
            format!("`{name}` cannot be run: the interpreter it names is not there"),
        ),
        io::ErrorKind::PermissionDenied => {
            blamed(Blamed::Program, format!("`{name}` may not be executed"))
        }
        io::ErrorKind::ArgumentListTooLong => blamed(
            Blamed::Arguments,
            format!("`{name}` cannot take that many bytes of arguments; use `stdin` or a file"),
        ),
        io::ErrorKind::ExecutableFileBusy => ToolError::new(
            Fault::Unavailable,
            format!("`{name}` is being written; try again when it is finished"),
        ),
        io::ErrorKind::TimedOut => {
            ToolError::because(format!("`{name}` was killed, and does not end"), err)
        }
        _ if err.raw_os_error() == Some(libc::ENOEXEC) => {
            blamed(Blamed::Program, format!("`{name}` is not a program this machine can run"))
        }
        _ => ToolError::because(format!("`{name}` could not be started"), err),
    }
}
