//! Runs programs for all tools that start them, with a workspace, settings and stored outputs.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use toolgate_contract::{OutputStreamKind, ToolContext, ToolError, ToolErrorKind, lock_mutex};

use super::ExecSettings;
use super::meter::OutputProgressParser;
use super::outcome::{ProgramRunResult, SandboxStatus, decode_exit};
use super::output_extent::shown_part;
use super::output_forwarder::ProgramOutputForwarder;
use super::output_store::{CapturedProgramOutput, ProgramOutputStore};
use toolgate_world::processes::{ProgramOutcome, ProgramStartRequest, ProgramStopReason};
use toolgate_world::sandbox::{
    IncompleteSandboxError, ProgramConfinement, SandboxSetupFailure, SandboxSetupStep,
};
use toolgate_world::{ProcessRunner, Root};

/// The time for which a program's output is buffered before it is sent as an event.
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Runner of programs in a workspace. Stores output that is too long for a result. Clones are
/// cheap.
#[derive(Clone)]
pub struct WorkspaceProgramRunner {
    pub(crate) root: Root,
    pub(crate) processes: ProcessRunner,
    pub(crate) settings: Arc<ExecSettings>,
    pub(super) outputs: Arc<ProgramOutputStore>,
    /// The id of the tool that runs the programs. The id selects the sandbox profile.
    tool: Arc<str>,
    /// True if the tool that runs the programs changes nothing in the workspace.
    only_reads: bool,
}

/// A function that receives bytes of a program's output and returns the bytes to show instead.
type ProgramOutputFilter<'s> = &'s (dyn Fn(OutputStreamKind, &[u8]) -> Vec<u8> + Send + Sync);

/// The reason why a program that was found could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartFailureCause {
    /// The program file has an invalid format or may not be executed.
    Program,
    /// The arguments are longer than the system allows.
    Arguments,
}

impl WorkspaceProgramRunner {
    /// Creates a runner for programs that start in the workspace `root`, with `settings`.
    pub fn new(root: &Root, processes: &ProcessRunner, settings: &ExecSettings) -> Self {
        Self {
            root: root.clone(),
            processes: processes.clone(),
            settings: Arc::new(settings.clone()),
            outputs: Arc::new(ProgramOutputStore::new(&settings.stored_output)),
            tool: "exec.run".into(),
            only_reads: false,
        }
    }

    /// Returns a copy of this runner with other `settings`. The copy shares the stored outputs.
    pub fn with_settings(&self, settings: &ExecSettings) -> Self {
        Self { settings: Arc::new(settings.clone()), ..self.clone() }
    }

    /// Returns a copy of this runner for the programs of `tool`, whose id selects the sandbox
    /// profile.
    pub(crate) fn for_tool(&self, tool: &str) -> Self {
        Self { tool: tool.into(), ..self.clone() }
    }

    /// Returns this runner with `only_reads` set. If `only_reads` is true, its programs cannot
    /// change the workspace.
    pub(crate) fn with_only_reads(self, only_reads: bool) -> Self {
        Self { only_reads, ..self }
    }

    /// Returns the sandbox limits of programs that this runner starts. Returns `None` if they run
    /// without a sandbox.
    pub(crate) fn confinement(&self) -> Option<ProgramConfinement> {
        self.processes.sandbox().confinement_for(&self.tool, self.only_reads, &self.root)
    }

    /// Runs a program to its end, and streams its output to the call's listener. `to_error` creates
    /// the error if the program cannot be started.
    pub(crate) async fn run(
        &self,
        ctx: &ToolContext,
        start: ProgramStartRequest,
        meter: Option<OutputProgressParser<'_>>,
        to_error: impl Fn(StartFailureCause, String) -> ToolError,
    ) -> Result<ProgramRunResult, ToolError> {
        let name = start.program.name.clone();
        let ended = self
            .run_forwarded(ctx, start, meter, None)
            .await
            .map_err(|err| start_error(&name, &err, to_error))?;
        self.report_outcome(ctx, ended)
    }

    /// Runs a program to its end, and streams the bytes that `show` returns for each chunk of
    /// output. `to_error` creates the error if the program cannot be started.
    pub(crate) async fn run_filtered(
        &self,
        ctx: &ToolContext,
        start: ProgramStartRequest,
        to_error: impl Fn(StartFailureCause, String) -> ToolError,
        show: ProgramOutputFilter<'_>,
    ) -> Result<ProgramRunResult, ToolError> {
        let name = start.program.name.clone();
        let ended = self.run_forwarded(ctx, start, None, Some(show)).await;
        let ended = ended.map_err(|err| start_error(&name, &err, to_error))?;
        self.report_outcome(ctx, ended)
    }

    /// Creates the result of the ended program `ended`, and adds its sandbox profile and refused
    /// hosts to the call's report. Fails if the call was cancelled.
    fn report_outcome(
        &self,
        ctx: &ToolContext,
        ended: ProgramOutcome,
    ) -> Result<ProgramRunResult, ToolError> {
        ctx.sandbox_report.add_profile(ended.sandbox.summary());
        for refused in &ended.network.refused {
            ctx.sandbox_report.add_refused_host(&refused.host, refused.summary());
        }
        match ended.stop_reason {
            Some(ProgramStopReason::Canceled) => Err(ToolError::canceled()),
            Some(ProgramStopReason::TimedOut) | None => Ok(self.store_outcome(ctx, ended)),
        }
    }

    /// Runs a program to its end. Streams its output if the call has a listener. `show` replaces
    /// the streamed bytes.
    async fn run_forwarded(
        &self,
        ctx: &ToolContext,
        start: ProgramStartRequest,
        meter: Option<OutputProgressParser<'_>>,
        show: Option<ProgramOutputFilter<'_>>,
    ) -> io::Result<ProgramOutcome> {
        if !ctx.events.has_receiver() {
            let read = |stream, bytes: &[u8]| {
                if let Some(show) = show {
                    show(stream, bytes);
                }
            };
            return self.processes.run(start, &ctx.cancel, &read).await;
        }
        let forwarder = Mutex::new(ProgramOutputForwarder::new(ctx, meter));
        let forwarder = || lock_mutex(&forwarder);
        let watch = |stream, bytes: &[u8]| match show {
            Some(show) => forwarder().buffer(stream, &show(stream, bytes)),
            None => forwarder().buffer(stream, bytes),
        };
        let mut run = pin!(self.processes.run(start, &ctx.cancel, &watch));
        let mut tick = interval_at(Instant::now() + FLUSH_INTERVAL, FLUSH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = &mut run => {
                    forwarder().finish();
                    return ended;
                }
                _ = tick.tick() => forwarder().send_buffered(),
            }
        }
    }

    /// Creates the result of the ended program `ended`. Stores the complete output if the result
    /// shows only some of it.
    fn store_outcome(&self, ctx: &ToolContext, ended: ProgramOutcome) -> ProgramRunResult {
        let ProgramOutcome { status, stop_reason, duration, stdout, stderr, sandbox, network } =
            ended;
        let timed_out = stop_reason == Some(ProgramStopReason::TimedOut);
        let (exit_code, signal) = decode_exit(status, timed_out);
        let (stdout_shown, stdout_extent) = shown_part(&stdout);
        let (stderr_shown, stderr_extent) = shown_part(&stderr);
        let is_cut = stdout_extent.cut.is_some() || stderr_extent.cut.is_some();
        let store =
            || self.outputs.store(&ctx.caller, Arc::new(CapturedProgramOutput { stdout, stderr }));
        ProgramRunResult {
            exit_code,
            signal,
            timed_out,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            stdout: stdout_shown,
            stdout_extent,
            stderr: stderr_shown,
            stderr_extent,
            output_id: (is_cut && ctx.may_read_output).then(store).flatten(),
            sandbox: SandboxStatus::from_coverage(&sandbox),
            refused_hosts: network.refused,
            is_forwarded: network.is_forwarded,
            tool: self.tool.clone(),
        }
    }
}

/// Returns the error that `err` wraps, if it has the type `T`.
fn inner_error<T: std::error::Error + 'static>(err: &io::Error) -> Option<&T> {
    err.get_ref()?.downcast_ref()
}

/// Returns the error for the program `name`, which the sandbox could not start.
fn sandbox_start_error(
    name: &str,
    failed: &SandboxSetupFailure,
    to_error: impl Fn(StartFailureCause, String) -> ToolError,
) -> ToolError {
    match (failed.step, failed.cause.raw_os_error()) {
        (SandboxSetupStep::Program, Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => to_error(
            StartFailureCause::Program,
            format!(
                "the sandbox hides `{name}`; the server's operator can add its folder to \
                 `sandbox.read`"
            ),
        ),
        (
            SandboxSetupStep::Program | SandboxSetupStep::Folder,
            Some(libc::ESTALE | libc::ENOENT),
        ) => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("`{name}` or its folder was replaced while it was starting; try again"),
        ),
        _ => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("`{name}` was not run: the sandbox could not be set up ({failed})"),
        ),
    }
}

/// Returns the error for the program `name`, which was found but could not be started.
fn start_error(
    name: &str,
    err: &io::Error,
    to_error: impl Fn(StartFailureCause, String) -> ToolError,
) -> ToolError {
    let name = name.escape_debug();
    if let Some(incomplete) = inner_error::<IncompleteSandboxError>(err) {
        return ToolError::new(
            ToolErrorKind::Unavailable,
            format!(
                "`{name}` was not run: {incomplete}; `toolgate doctor` shows details, and the \
                 server's operator can change `sandbox.require`"
            ),
        );
    }
    if let Some(failed) = inner_error::<SandboxSetupFailure>(err) {
        return sandbox_start_error(&name.to_string(), failed, to_error);
    }
    match err.kind() {
        io::ErrorKind::Interrupted => ToolError::canceled(),
        io::ErrorKind::NotFound => to_error(
            StartFailureCause::Program,
            format!(
                "`{name}` cannot be run: the program or its interpreter does not exist, or is not \
                 visible in the sandbox; add its folder to `sandbox.read`"
            ),
        ),
        io::ErrorKind::PermissionDenied => to_error(
            StartFailureCause::Program,
            format!("`{name}` cannot be run: permission denied"),
        ),
        io::ErrorKind::ArgumentListTooLong => to_error(
            StartFailureCause::Arguments,
            format!("the arguments of `{name}` are too long; use `stdin` or a file"),
        ),
        io::ErrorKind::ExecutableFileBusy => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("`{name}` is still being written; try again later"),
        ),
        io::ErrorKind::TimedOut => {
            ToolError::with_cause(format!("`{name}` was killed but has not ended"), err)
        }
        _ if err.raw_os_error() == Some(libc::ENOEXEC) => to_error(
            StartFailureCause::Program,
            format!("`{name}` is not a program that this machine can run"),
        ),
        _ => ToolError::with_cause(format!("`{name}` could not be started"), err),
    }
}
