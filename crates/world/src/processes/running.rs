//! Runs one program: writes its input, reads its output, enforces its time limit and ends it.

use std::io;
use std::mem;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{OutputStreamKind, lock_mutex};

use super::family::ProcessTree;
use super::output_capture::RunningOutputCapture;
use super::{
    ProcessRunner, ProgramOutcome, ProgramRunLimits, ProgramStartRequest, ProgramStopReason,
};
use crate::forwarder::ProgramNetworkUsage;
use crate::programs::ChildProcess;

/// The time without output after which the server stops reading a program's output. The limit
/// applies if the main process has ended but another process keeps the streams open.
const DRAIN_SILENCE: Duration = Duration::from_millis(200);

/// The longest time to read a program's output after the main process has ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The longest wait for a killed program to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of a program's run.
#[derive(Clone, Copy)]
enum ProgramRunPhase {
    /// The main process of the program runs.
    Running,
    /// The program was asked to stop, for this reason and at this time.
    Stopping(ProgramStopReason, Instant),
    /// The program was killed: the reason, and the time at which it was asked to stop.
    Killed(ProgramStopReason, Instant),
    /// The main process has ended, and its remaining output is being read.
    Draining(Option<(ProgramStopReason, Instant)>),
}

/// An event that wakes the task that runs a program.
enum ProgramRunEvent {
    OutputEnded,
    InputWritten,
    Exited,
    Canceled,
    TimerElapsed,
}

pub(super) async fn run(
    processes: &ProcessRunner,
    mut start: ProgramStartRequest,
    cancel: &CancellationToken,
    watch: &(dyn Fn(OutputStreamKind, &[u8]) + Send + Sync),
) -> io::Result<ProgramOutcome> {
    if cancel.is_cancelled() || processes.0.shutdown.is_cancelled() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let ProgramRunLimits { timeout, grace, memory_bytes_max: held_bytes_max, spool_bytes_max } =
        start.bounds;
    let input = start.stdin.as_mut().map(mem::take).unwrap_or_default();
    let started = Instant::now();
    let mut running = ProcessTreeGuard::start(processes, start, cancel).await?;
    let (stdin, stdout, stderr) = take_pipes(&mut running.family_mut().child)?;
    let family = running.family();

    let mut out = RunningOutputCapture::new(held_bytes_max, spool_bytes_max);
    let mut err = RunningOutputCapture::new(held_bytes_max, spool_bytes_max);
    let received_bytes = AtomicU64::new(0);
    let take = |stream, chunk: &[u8]| {
        received_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        watch(stream, chunk);
    };
    let mut reading = Box::pin(async {
        tokio::join!(
            out.read(stdout, |chunk| take(OutputStreamKind::Stdout, chunk)),
            err.read(stderr, |chunk| take(OutputStreamKind::Stderr, chunk)),
        )
    });
    let mut feeding = pin!(write_input(stdin, input));
    let mut exit = Box::pin(family.wait_for_exit());
    let mut unwanted = pin!(first_of(cancel.cancelled(), processes.0.shutdown.cancelled()));

    let mut is_read = false;
    let mut is_fed = false;
    let mut phase = ProgramRunPhase::Running;
    let mut alarm = started + timeout;
    let mut duration = timeout;
    let mut seen_bytes = 0;
    while !(is_read && phase.is_draining()) {
        let happened = tokio::select! {
            // Pending output is read before the time limit is checked.
            biased;
            _ = &mut reading, if !is_read => ProgramRunEvent::OutputEnded,
            () = &mut feeding, if !is_fed => ProgramRunEvent::InputWritten,
            ended = &mut exit, if !phase.is_draining() => ended.map(|()| ProgramRunEvent::Exited)?,
            () = &mut unwanted, if phase.is_running() => ProgramRunEvent::Canceled,
            () = sleep_until(alarm) => ProgramRunEvent::TimerElapsed,
        };
        let why = match happened {
            ProgramRunEvent::OutputEnded => {
                is_read = true;
                continue;
            }
            ProgramRunEvent::InputWritten => {
                is_fed = true;
                continue;
            }
            ProgramRunEvent::Exited => {
                duration = started.elapsed();
                phase = ProgramRunPhase::Draining(phase.stop_reason());
                seen_bytes = received_bytes.load(Ordering::Relaxed);
                alarm = Instant::now() + DRAIN_SILENCE;
                continue;
            }
            ProgramRunEvent::Canceled => ProgramStopReason::Canceled,
            ProgramRunEvent::TimerElapsed => ProgramStopReason::TimedOut,
        };
        match phase {
            ProgramRunPhase::Running => {
                phase = ProgramRunPhase::Stopping(why, Instant::now());
                alarm = Instant::now() + grace;
                family.request_stop().await;
            }
            ProgramRunPhase::Stopping(why, since) => {
                phase = ProgramRunPhase::Killed(why, since);
                alarm = Instant::now() + KILL_TIMEOUT;
                family.kill().await;
            }
            ProgramRunPhase::Killed(..) => return Err(io::ErrorKind::TimedOut.into()),
            ProgramRunPhase::Draining(_) => {
                let seen_before =
                    mem::replace(&mut seen_bytes, received_bytes.load(Ordering::Relaxed));
                if seen_bytes == seen_before || started.elapsed() > duration + DRAIN_MAX {
                    break;
                }
                alarm = Instant::now() + DRAIN_SILENCE;
            }
        }
    }
    drop(exit);
    let (stopped, stopped_at) = phase.stop_reason().unzip();
    let sandbox = family.coverage();
    let network = family.network_use();
    let failure = family.failure();
    let status = {
        let mut ending = pin!(running.finish(stopped_at));
        loop {
            tokio::select! {
                biased;
                status = &mut ending => break status?,
                _ = &mut reading, if !is_read => is_read = true,
            }
        }
    };
    if !is_read {
        // No process of the program is left, so the streams end now unless an unrelated process
        // holds them.
        let _ = tokio::time::timeout(DRAIN_SILENCE, &mut reading).await;
    }
    drop(reading);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let stdout = out.finish().await;
    let stderr = err.finish().await;
    Ok(ProgramOutcome { status, stop_reason: stopped, duration, stdout, stderr, sandbox, network })
}

/// A running program whose pipes are open.
pub struct PipedProgram {
    /// The program's standard input.
    pub stdin: ChildStdin,
    /// The program's standard output.
    pub stdout: ChildStdout,
    /// The program's standard error.
    pub stderr: ChildStderr,
    /// A token that is cancelled when the main process has ended, even if its children have not.
    pub ended: CancellationToken,
    /// A monitor of the program's network use.
    pub network: ProgramNetworkMonitor,
    /// A guard that stops the program and all its processes when dropped.
    pub guard: RunningProgramGuard,
}

/// A guard that stops a program when dropped.
pub struct RunningProgramGuard {
    running: Arc<Mutex<Option<ProcessTreeGuard>>>,
    watch: JoinHandle<()>,
}

impl Drop for RunningProgramGuard {
    fn drop(&mut self) {
        self.watch.abort();
        drop(take_family(&self.running));
    }
}

/// A monitor of a running program's network use. The monitor does not keep the program running.
#[derive(Clone)]
pub struct ProgramNetworkMonitor(Weak<Mutex<Option<ProcessTreeGuard>>>);

impl ProgramNetworkMonitor {
    /// Returns the program's network use so far, or an empty result if the program was stopped.
    pub fn network_use(&self) -> ProgramNetworkUsage {
        let Some(running) = self.0.upgrade() else { return ProgramNetworkUsage::default() };
        let running = lock_mutex(&running);
        running.as_ref().map(|running| running.family().network_use()).unwrap_or_default()
    }
}

fn take_family(running: &Mutex<Option<ProcessTreeGuard>>) -> Option<ProcessTreeGuard> {
    lock_mutex(running).take()
}

/// Starts a program with open pipes. Ignores the program's `stdin` and all its limits except the
/// time between asking it to stop and killing it.
pub(super) async fn open(
    processes: &ProcessRunner,
    start: ProgramStartRequest,
) -> io::Result<PipedProgram> {
    if processes.0.shutdown.is_cancelled() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let start = ProgramStartRequest { stdin: Some(Vec::new()), ..start };
    let mut running = ProcessTreeGuard::start(processes, start, &processes.0.shutdown).await?;
    let (stdin, stdout, stderr) = take_pipes(&mut running.family_mut().child)?;
    let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    let exit = running.family().wait_for_exit_detached()?;
    let ended = CancellationToken::new();
    let running = Arc::new(Mutex::new(Some(running)));
    let watched = running.clone();
    let closing = processes.0.shutdown.clone();
    let ended_signal = ended.clone();
    let ending = async move {
        if exit.await.is_ok() {
            ended_signal.cancel();
        }
        // The rest of the family is ended by the holder of the guard.
        std::future::pending::<()>().await;
    };
    let watch = toolgate_net::spawn_task(async move {
        first_of(closing.cancelled(), ending).await;
        drop(take_family(&watched));
    });
    let network = ProgramNetworkMonitor(Arc::downgrade(&running));
    let guard = RunningProgramGuard { running, watch };
    Ok(PipedProgram { stdin, stdout, stderr, ended, network, guard })
}

impl ProgramRunPhase {
    fn is_running(self) -> bool {
        matches!(self, Self::Running)
    }

    fn is_draining(self) -> bool {
        matches!(self, Self::Draining(_))
    }

    fn stop_reason(self) -> Option<(ProgramStopReason, Instant)> {
        match self {
            Self::Running => None,
            Self::Stopping(why, since) | Self::Killed(why, since) => Some((why, since)),
            Self::Draining(stopped) => stopped,
        }
    }
}

/// Writes `input` to `stdin` and closes the pipe. Ignores errors, because the program may close the
/// pipe first.
async fn write_input(stdin: Option<ChildStdin>, input: Vec<u8>) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&input).await;
    }
}

async fn first_of(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// Takes the server's ends of the program's pipes from `child`: standard input if it is a pipe,
/// standard output and standard error.
fn take_pipes(
    child: &mut ChildProcess,
) -> io::Result<(Option<ChildStdin>, ChildStdout, ChildStderr)> {
    let stdin = child.stdin.take().map(|fd| ChildStdin::from_std(fd.into())).transpose()?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok((stdin, ChildStdout::from_std(stdout.into())?, ChildStderr::from_std(stderr.into())?))
}

/// A guard that stops a program and all its processes in the background when dropped.
struct ProcessTreeGuard {
    /// The processes of the program. `None` once they have ended.
    family: Option<ProcessTree>,
    grace: Duration,
    /// A handle that keeps the spawning thread alive. If this thread ended, the kernel would kill
    /// the program and its processes.
    processes: ProcessRunner,
}

impl ProcessTreeGuard {
    /// Starts a program, unless `cancel` is cancelled before.
    async fn start(
        processes: &ProcessRunner,
        start: ProgramStartRequest,
        cancel: &CancellationToken,
    ) -> io::Result<Self> {
        let grace = start.bounds.grace;
        let family = processes
            .0
            .spawner
            .spawn_unconfined(start, processes, processes.0.tasks.token(), cancel.clone())
            .await?;
        Ok(Self { family: Some(family), grace, processes: processes.clone() })
    }

    fn family(&self) -> &ProcessTree {
        self.family.as_ref().expect("the family exists until it has ended")
    }

    fn family_mut(&mut self) -> &mut ProcessTree {
        self.family.as_mut().expect("the family exists until it has ended")
    }

    async fn finish(&mut self, stopped_at: Option<Instant>) -> io::Result<ExitStatus> {
        let grace = self.grace;
        let status = self.family_mut().finish(stopped_at, grace).await?;
        self.family = None;
        Ok(status)
    }
}

impl Drop for ProcessTreeGuard {
    fn drop(&mut self) {
        let (Some(family), Ok(runtime)) = (self.family.take(), Handle::try_current()) else {
            return;
        };
        let grace = self.grace;
        let processes = self.processes.clone();
        toolgate_net::spawn_task_on(&runtime, async move {
            // If the stop fails, dropping the family kills the rest.
            let _ = family.stop(grace).await;
            drop(processes);
        });
    }
}
