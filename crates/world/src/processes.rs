//! Starts programs, and ends each of them together with every process that it started.
//!
//! Callers decide which program may run and with which environment. This module guarantees that no
//! process outlives its run or the server, even if the server is killed. It also limits the memory
//! for output. A program inherits only the environment and the handles that its caller passes.

#![allow(clippy::disallowed_methods, reason = "this module starts programs and reads /proc")]

mod environment;
mod host_questions;
mod host_answers;
mod package_caches;
mod allowed_hosts;
mod output_capture;
mod running;
mod family;
mod strays;
mod keeper;
mod spawn;
mod packed_program;
mod worker;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{OutputStreamKind, lock_read, lock_write};

pub use environment::refused_variable;
pub use host_questions::{ConfiguredRegistryHosts, rule_for_url};
pub use output_capture::{CapturedOutput, CapturedOutputPiece};
pub use packed_program::{PackedProgram, WorkerExecutable};
pub use running::{PipedProgram, ProgramNetworkMonitor, RunningProgramGuard};
pub use worker::{WorkerFailure, WorkerProcess, WorkerProcessStarter};

use crate::programs::{ResolvedProgram, RlimitLocksValues, ServerProcessMark};
use host_answers::ConfiguredRegistryHostsCache;
use spawn::ProgramSpawner;

use super::forwarder::ProgramNetworkUsage;
use super::sandbox::{LeftoverPlaceholders, ProgramConfinement, Sandbox, SandboxCoverage};

/// A runner that starts programs. Clones share the thread that creates the processes.
#[derive(Clone)]
pub struct ProcessRunner(Arc<ProcessRunnerState>);

struct ProcessRunnerState {
    /// The environment variables that the server had when it started.
    environment: BTreeMap<OsString, OsString>,
    spawner: ProgramSpawner,
    sandbox: RwLock<Sandbox>,
    /// The cached answers of package managers about the hosts of their registries.
    host_answers: ConfiguredRegistryHostsCache,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// A program to run, with its arguments, streams and limits.
pub struct ProgramStartRequest {
    /// The executable to run.
    pub program: ResolvedProgram,
    /// The program's arguments, passed on unchanged.
    pub args: Vec<OsString>,
    /// The working directory, as an open handle, so that renaming a folder cannot replace it.
    pub cwd: OwnedFd,
    /// The complete environment of the program.
    pub env: BTreeMap<OsString, OsString>,
    /// The bytes to write to standard input. With `None`, standard input is empty.
    pub stdin: Option<Vec<u8>>,
    /// Limits of the program's time and output.
    pub bounds: ProgramRunLimits,
    /// The confinement in the sandbox. With `None`, the program has all rights of the server.
    pub confinement: Option<ProgramConfinement>,
}

/// The limits of one run of a program: its time and its stored output.
#[derive(Debug, Clone, Copy)]
pub struct ProgramRunLimits {
    /// The time after which the server asks the program to stop (SIGTERM).
    pub timeout: Duration,
    /// The time between asking the program to stop (SIGTERM) and killing it (SIGKILL).
    pub grace: Duration,
    /// The maximum number of bytes of each output stream to keep in memory.
    pub memory_bytes_max: usize,
    /// The maximum number of bytes of each output stream to keep on disk, once the stream exceeds
    /// the memory limit.
    pub spool_bytes_max: u64,
}

/// The result of running a program. All processes of the program have ended.
pub struct ProgramOutcome {
    /// The exit status of the program's main process.
    pub status: ExitStatus,
    /// The reason why the server stopped the program. `None` if the program ended by itself.
    pub stop_reason: Option<ProgramStopReason>,
    /// The time from the program's start to its end.
    pub duration: Duration,
    /// Output that the program wrote to standard output.
    pub stdout: CapturedOutput,
    /// Output that the program wrote to standard error.
    pub stderr: CapturedOutput,
    /// The profile that confined the program, and the sandbox layers that were missing.
    pub sandbox: Arc<SandboxCoverage>,
    /// The network use of the program.
    pub network: ProgramNetworkUsage,
}

/// The reason why the server stopped a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramStopReason {
    /// The program ran longer than its time limit.
    TimedOut,
    /// The caller cancelled the run, or the server is closing.
    Canceled,
}

impl ProcessRunner {
    /// Creates a runner without a sandbox for a server with the environment `environment`.
    ///
    /// This process becomes a child subreaper: it adopts orphaned processes, so that no double fork
    /// escapes.
    ///
    /// # Errors
    /// The system does not support subreapers, or no thread can be started.
    pub fn new(environment: impl IntoIterator<Item = (OsString, OsString)>) -> io::Result<Self> {
        Self::with_sandbox(environment, Sandbox::disabled())
    }

    /// Creates a runner that confines programs with `sandbox`, for a server with the environment
    /// `environment`.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_sandbox(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
    ) -> io::Result<Self> {
        Self::with_leftovers(environment, sandbox, None)
    }

    /// Creates a runner that confines programs in `workspace` with `sandbox`. First removes the
    /// placeholder folders that killed servers left in the workspace.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_sandbox_in(
        workspace: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
    ) -> io::Result<Self> {
        // A missing folder is reported when it is opened.
        let leftovers = sandbox.leftovers(workspace).ok();
        leftovers.iter().for_each(LeftoverPlaceholders::remove);
        Self::with_leftovers(environment, sandbox, leftovers)
    }

    fn with_leftovers(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sandbox: Sandbox,
        leftovers: Option<LeftoverPlaceholders>,
    ) -> io::Result<Self> {
        family::adopt_orphans()?;
        Ok(Self(Arc::new(ProcessRunnerState {
            environment: environment.into_iter().collect(),
            spawner: ProgramSpawner::start(ServerProcessMark::random()?, leftovers)?,
            sandbox: RwLock::new(sandbox),
            host_answers: ConfiguredRegistryHostsCache::default(),
            shutdown: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Returns the server's own environment variable `name`.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.0.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns the environment variables that the server had when it started.
    pub fn variables(&self) -> &BTreeMap<OsString, OsString> {
        &self.0.environment
    }

    /// Returns the sandbox that confines programs.
    pub fn sandbox(&self) -> Sandbox {
        lock_read(&self.0.sandbox).clone()
    }

    /// Makes `next` confine the programs that start from now on. Running programs are not affected.
    pub fn replace_sandbox(&self, next: Sandbox) {
        let mut sandbox = lock_write(&self.0.sandbox);
        std::mem::replace(&mut *sandbox, next).close();
    }

    /// Returns the folders outside the workspace that the sandbox lets programs write.
    pub fn writable_folders(&self) -> Vec<PathBuf> {
        self.sandbox().writable_folders(&self.0.environment)
    }

    /// Returns `true` if a program with the confinement `inside` sees the file at `named`.
    ///
    /// # Errors
    /// This system cannot confine programs.
    pub fn shows_file(&self, inside: &ProgramConfinement, named: &Path) -> io::Result<bool> {
        self.sandbox().shows_file(inside, named, &self.0.environment)
    }

    /// Returns the kernel's name and release, for example `Linux 6.8.0`.
    pub fn kernel_version(&self) -> String {
        let setting = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        let names = ["ostype", "osrelease"].map(|name| setting(name).unwrap_or_default());
        let names = names.map(|text| text.trim().to_owned()).join(" ");
        if names.trim().is_empty() { std::env::consts::OS.to_owned() } else { names }
    }

    /// Runs a program to its end. Stops the program when its time is over or when `cancel` is
    /// cancelled.
    ///
    /// `watch` receives all output as it arrives. When this returns, no process of the program is
    /// left. Dropping the future stops the program in the background.
    ///
    /// # Errors
    /// The program cannot be started, or does not die after a kill. The error is `Interrupted` if
    /// the run was cancelled before the program started.
    pub async fn run(
        &self,
        mut start: ProgramStartRequest,
        cancel: &CancellationToken,
        watch: &(dyn Fn(OutputStreamKind, &[u8]) + Send + Sync),
    ) -> io::Result<ProgramOutcome> {
        Box::pin(host_answers::prepare_network(self, &mut start, cancel)).await;
        running::run(self, start, cancel, watch).await
    }

    /// Starts a program with open pipes. The program runs until the returned value is dropped.
    ///
    /// # Errors
    /// The program cannot be started. The error is `Interrupted` if the server is closing.
    pub async fn open(&self, mut start: ProgramStartRequest) -> io::Result<PipedProgram> {
        let cancel = &self.0.shutdown;
        Box::pin(host_answers::prepare_network(self, &mut start, cancel)).await;
        running::open(self, start).await
    }

    /// Returns a starter of worker processes with the name `name`, which run `executable`. The
    /// `main` function of the executable must call
    /// [`run_worker_if_asked`](crate::sandbox::run_worker_if_asked) with that name.
    ///
    /// The starter does not keep this runner alive. After the runner is dropped, no more workers
    /// start.
    pub fn workers(
        &self,
        name: &'static str,
        executable: WorkerExecutable,
    ) -> WorkerProcessStarter {
        WorkerProcessStarter::new(Arc::downgrade(&self.0), name, executable)
    }

    /// Returns the mark of all programs of this server. After a crash, the next server finds the
    /// programs by this mark.
    pub fn mark(&self) -> ServerProcessMark {
        self.0.spawner.mark()
    }

    /// Kills the programs that an exited server with the mark `mark` left running. Returns `true`
    /// if it found any.
    ///
    /// Usually that server's keeper process has already killed these programs, unless the keeper
    /// was killed too. Blocks until no program is left, for at most 10 s. Does nothing if `mark`
    /// belongs to this server or to a server that started it.
    pub fn kill_leftovers_of(&self, mark: ServerProcessMark) -> bool {
        mark != self.mark()
            && !mark.matches(RlimitLocksValues::read_own())
            && keeper::kill_all_marked(mark)
    }

    /// Reports that this server is not frozen. If the next report does not come within `silence`,
    /// all programs of this server are killed. With zero, no further report is expected.
    ///
    /// Servers that share jobs must report, because another server may run a job again if this
    /// server is silent. The time does not count while the machine is suspended.
    pub fn report_alive(&self, silence: Duration) {
        self.0.spawner.report_alive(silence);
    }

    /// Stops all running programs and waits until they have ended.
    pub async fn close(&self) {
        self.0.shutdown.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.sandbox().close();
    }
}
