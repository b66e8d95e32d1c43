//! `exec.run`: one program, run to its end.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use toolgate_contract::{Ctx, Effects, Ending, Fault, Text, Tool, ToolError};

use super::Settings;
use super::echo::Echo;
use super::kept::{Kept, Streams};
use super::shown::{Extent, shown};
use super::start::start;
use crate::world::processes::{Ended, Start, Stopped};
use crate::world::{Processes, Root};

/// The longest a call may ask for.
pub(super) const TIMEOUT_MS_MAX: u64 = 600_000;

/// How often a watched program's output is passed on.
const TICK: Duration = Duration::from_millis(250);

/// Runs programs.
#[derive(Clone)]
pub(super) struct Run {
    root: Root,
    processes: Processes,
    settings: Arc<Settings>,
    kept: Arc<Kept>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The program: a name sought in PATH, or a path, relative to `cwd` or absolute. With
    /// `shell`, a script for `sh`.
    pub(super) command: String,
    /// Its arguments. Each reaches it as it is: nothing is split, expanded or unquoted. With
    /// `shell`, the script's `$1`, `$2` and so on.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// Runs `command` by `sh -c`, for pipes, redirections and globs.
    #[serde(default)]
    pub(super) shell: bool,
    /// The directory to start in, inside the workspace; its root by default.
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Variables to add to the environment, which is otherwise nearly empty.
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// What the program reads from standard input; nothing by default.
    #[serde(default)]
    pub(super) stdin: Option<String>,
    /// How long it may run before it is stopped with all it started; 60000 unless the server
    /// is set otherwise.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub(super) timeout_ms: Option<u64>,
    /// How many bytes of each output the result shows: when there is more, its beginning and
    /// end. 32768 unless the server is set otherwise; no more than 1048576, or what it is set to.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub(super) max_output_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// The exit code; 128 and the signal's number when a signal ended it, -1 when its time was
    /// over.
    exit_code: i32,
    /// The signal that ended it, e.g. `SIGSEGV`.
    signal: Option<String>,
    /// Whether it was stopped because its time was over.
    timed_out: bool,
    /// How long it ran.
    duration_ms: u64,
    /// What it printed to standard output; its beginning and end if that was too much.
    stdout: String,
    /// How much that is and how it is written.
    stdout_extent: Extent,
    /// What it printed to standard error; its beginning and end if that was too much.
    stderr: String,
    /// How much that is and how it is written.
    stderr_extent: Extent,
    /// What to give exec_output to read what was left out; null when nothing was.
    output_id: Option<String>,
}

impl Tool for Run {
    const NAME: &'static str = "exec.run";
    const TITLE: &'static str = "Run program";
    const ABOUT: &'static str = "Runs one program in the workspace and returns its exit code and \
        what it printed. Give the program in `command` and each argument in `args`; set `shell` \
        only for pipes, redirections or globs. There is no terminal and nobody to answer \
        questions. When it ends or its time is over everything it started is ended too, so \
        nothing can be left running in the background. Long output is cut in the middle; read \
        the rest with exec_output.";
    const EFFECTS: Effects = Effects::Runs;
    /// Longer than the longest timeout, so that a program is stopped by its own.
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let this = self.clone();
        let start =
            spawn_blocking(move || start(input, &this.root, &this.processes, &this.settings))
                .await
                .map_err(|err| ToolError::because("the program could not be looked up", err))??;
        let name = start.program.name.clone();
        let ended = self.watched(ctx, start).await.map_err(|err| not_run(&name, &err))?;
        match ended.stopped {
            Some(Stopped::Canceled) => Err(ToolError::canceled()),
            Some(Stopped::TimedOut) | None => Ok(self.output(ctx, ended)),
        }
    }

    fn text(output: &Output) -> Text {
        let Output { exit_code, duration_ms, output_id, .. } = output;
        let id = output_id.as_deref();
        let mut body = output.stdout_extent.show(&output.stdout).into_owned();
        if !output.stderr.is_empty() {
            if !body.is_empty() && !body.ends_with('\n') {
                body.push('\n');
            }
            body.push_str("stderr:\n");
            body.push_str(&output.stderr_extent.show(&output.stderr));
        }
        let mut note = match (&output.signal, output.timed_out) {
            (_, true) => format!(
                "timed out and was stopped after {duration_ms} ms; timeout_ms gives it longer, \
                 up to {TIMEOUT_MS_MAX}"
            ),
            (Some(signal), false) => {
                format!("ended by {signal}, exit code {exit_code}, after {duration_ms} ms")
            }
            (None, false) => format!("exit code {exit_code} in {duration_ms} ms"),
        };
        note.extend(output.stdout_extent.note("stdout", id));
        note.extend(output.stderr_extent.note("stderr", id));
        Text::body(body).with_note(note)
    }

    fn ending(output: &Output) -> Ending {
        if output.exit_code == 0 { Ending::Done } else { Ending::ProgramFailed }
    }
}

impl Run {
    pub(super) fn new(
        root: &Root,
        processes: &Processes,
        settings: &Arc<Settings>,
        kept: &Arc<Kept>,
    ) -> Self {
        Self {
            root: root.clone(),
            processes: processes.clone(),
            settings: settings.clone(),
            kept: kept.clone(),
        }
    }

    /// Runs a program, and says what it prints meanwhile if anybody listens.
    async fn watched(&self, ctx: &Ctx, start: Start) -> io::Result<Ended> {
        if !ctx.events.is_watched() {
            return self.processes.run(start, &ctx.cancel, &|_, _| {}).await;
        }
        let echo = Mutex::new(Echo::new(start.bounds.held_bytes_max));
        let echo = || echo.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = |stream, bytes: &[u8]| echo().take(stream, bytes);
        let mut run = pin!(self.processes.run(start, &ctx.cancel, &watch));
        let mut tick = interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = &mut run => {
                    echo().say_all(ctx);
                    return ended;
                }
                _ = tick.tick() => echo().say(ctx),
            }
        }
    }

    /// The result of a program that has ended, with what it leaves out kept.
    fn output(&self, ctx: &Ctx, ended: Ended) -> Output {
        let Ended { status, stopped, took, stdout, stderr } = ended;
        let timed_out = stopped == Some(Stopped::TimedOut);
        let exit_code = match (timed_out, status.code(), status.signal()) {
            (true, _, _) => -1,
            (false, Some(code), _) => code,
            (false, None, signal) => 128 + signal.unwrap_or(0),
        };
        let (stdout_shown, stdout_extent) = shown(&stdout);
        let (stderr_shown, stderr_extent) = shown(&stderr);
        let is_cut = stdout_extent.cut.is_some() || stderr_extent.cut.is_some();
        let keep = || self.kept.keep(&ctx.caller, Arc::new(Streams { stdout, stderr }));
        Output {
            exit_code,
            signal: status.signal().map(signal_name),
            timed_out,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            stdout: stdout_shown,
            stdout_extent,
            stderr: stderr_shown,
            stderr_extent,
            output_id: is_cut.then(keep).flatten(),
        }
    }
}

/// Why the kernel would not run a program that was found.
fn not_run(name: &str, err: &io::Error) -> ToolError {
    let name = name.escape_debug();
    let invalid = |pointer: &str, message: String| ToolError::invalid(pointer, message);
    match err.kind() {
        io::ErrorKind::Interrupted => ToolError::canceled(),
        io::ErrorKind::NotFound => invalid(
            "/command",
            format!("`{name}` cannot be run: the interpreter it names is not there"),
        ),
        io::ErrorKind::PermissionDenied => {
            invalid("/command", format!("`{name}` may not be executed"))
        }
        io::ErrorKind::ArgumentListTooLong => invalid(
            "/args",
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
            invalid("/command", format!("`{name}` is not a program this machine can run"))
        }
        _ => ToolError::because(format!("`{name}` could not be started"), err),
    }
}

/// The name of a signal, as `kill -l` has it with `SIG` before.
fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    let name = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    name.map_or_else(|| format!("SIG{number}"), |name| format!("SIG{name}"))
}
