//! Runs one program: feeds it, reads its output, enforces its time limit and ends it.

use std::io;
use std::mem;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolgate_contract::Stream;

use super::captured::Capture;
use super::family::Family;
use super::image::Child;
use super::{Bounds, Ended, Processes, Start, Stopped};

/// The time that output must be silent before reading stops. It applies after the main process has
/// ended, if a leftover process holds the streams open.
const DRAIN: Duration = Duration::from_millis(200);

/// The longest time to read on after the main process has ended.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The longest wait for a killed process to end.
const DEATH: Duration = Duration::from_secs(2);

/// The phase of a run.
#[derive(Clone, Copy)]
enum Phase {
    /// The main process is running.
    Going,
    /// The program was asked to stop: the reason and the time.
    Asked(Stopped, Instant),
    /// The program was killed: the reason, and when it was asked to stop.
    Killed(Stopped, Instant),
    /// The main process has ended, and its remaining output is being read.
    Draining(Option<(Stopped, Instant)>),
}

/// An event that a run waits for.
enum Happened {
    Read,
    Fed,
    Exited,
    Unwanted,
    Alarm,
}

pub(super) async fn run(
    processes: &Processes,
    mut start: Start,
    cancel: &CancellationToken,
    watch: &(dyn Fn(Stream, &[u8]) + Send + Sync),
) -> io::Result<Ended> {
    if cancel.is_cancelled() || processes.0.closing.is_cancelled() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let Bounds { timeout, grace, held_bytes_max, spool_bytes_max } = start.bounds;
    let input = start.stdin.as_mut().map(mem::take).unwrap_or_default();
    let started = Instant::now();
    let mut running = Running::start(processes, start).await?;
    let (stdin, stdout, stderr) = pipes(&mut running.family_mut().child)?;
    let family = running.family();

    let mut out = Capture::new(held_bytes_max, spool_bytes_max);
    let mut err = Capture::new(held_bytes_max, spool_bytes_max);
    let came = AtomicU64::new(0);
    let take = |stream, chunk: &[u8]| {
        came.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        watch(stream, chunk);
    };
    let mut reading = Box::pin(async {
        tokio::join!(
            out.read(stdout, |chunk| take(Stream::Stdout, chunk)),
            err.read(stderr, |chunk| take(Stream::Stderr, chunk)),
        )
    });
    let mut feeding = pin!(feed(stdin, input));
    let mut exit = Box::pin(family.exit());
    let mut unwanted = pin!(first(cancel.cancelled(), processes.0.closing.cancelled()));

    let mut is_read = false;
    let mut is_fed = false;
    let mut phase = Phase::Going;
    let mut alarm = started + timeout;
    let mut took = timeout;
    let mut seen = 0;
    while !(is_read && phase.is_draining()) {
        let happened = tokio::select! {
            // Pending output is read before the time limit is checked.
            biased;
            _ = &mut reading, if !is_read => Happened::Read,
            () = &mut feeding, if !is_fed => Happened::Fed,
            ended = &mut exit, if !phase.is_draining() => ended.map(|()| Happened::Exited)?,
            () = &mut unwanted, if phase.is_going() => Happened::Unwanted,
            () = sleep_until(alarm) => Happened::Alarm,
        };
        let why = match happened {
            Happened::Read => {
                is_read = true;
                continue;
            }
            Happened::Fed => {
                is_fed = true;
                continue;
            }
            Happened::Exited => {
                took = started.elapsed();
                phase = Phase::Draining(phase.stopped());
                seen = came.load(Ordering::Relaxed);
                alarm = Instant::now() + DRAIN;
                continue;
            }
            Happened::Unwanted => Stopped::Canceled,
            Happened::Alarm => Stopped::TimedOut,
        };
        match phase {
            Phase::Going => {
                phase = Phase::Asked(why, Instant::now());
                alarm = Instant::now() + grace;
                family.ask().await;
            }
            Phase::Asked(why, since) => {
                phase = Phase::Killed(why, since);
                alarm = Instant::now() + DEATH;
                family.kill().await;
            }
            Phase::Killed(..) => return Err(io::ErrorKind::TimedOut.into()),
            Phase::Draining(_) => {
                let seen_before = mem::replace(&mut seen, came.load(Ordering::Relaxed));
                if seen == seen_before || started.elapsed() > took + DRAIN_MAX {
                    break;
                }
                alarm = Instant::now() + DRAIN;
            }
        }
    }
    drop(exit);
    let (stopped, asked) = phase.stopped().unzip();
    let sandbox = family.held();
    let failure = family.failure();
    let status = {
        let mut ending = pin!(running.end(asked));
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
        let _ = tokio::time::timeout(DRAIN, &mut reading).await;
    }
    drop(reading);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let stdout = out.finish().await;
    let stderr = err.finish().await;
    Ok(Ended { status, stopped, took, stdout, stderr, sandbox })
}

/// A running program with open pipes.
pub struct Spoken {
    /// The program's standard input.
    pub stdin: ChildStdin,
    /// The program's standard output.
    pub stdout: ChildStdout,
    /// The program's standard error.
    pub stderr: ChildStderr,
    /// Cancelled when the main process has ended, even if a child of it has not.
    pub ended: CancellationToken,
    /// A guard that stops the program and all its processes when dropped.
    pub runs: Runs,
}

/// A guard that stops a program when dropped.
pub struct Runs {
    running: Arc<Mutex<Option<Running>>>,
    watch: JoinHandle<()>,
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.watch.abort();
        drop(taken(&self.running));
    }
}

fn taken(running: &Mutex<Option<Running>>) -> Option<Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Starts a program with open pipes. Ignores its `stdin` and all its bounds but the grace.
pub(super) async fn open(processes: &Processes, start: Start) -> io::Result<Spoken> {
    if processes.0.closing.is_cancelled() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let start = Start { stdin: Some(Vec::new()), ..start };
    let mut running = Running::start(processes, start).await?;
    let (stdin, stdout, stderr) = pipes(&mut running.family_mut().child)?;
    let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    let ends = running.family().ends()?;
    let ended = CancellationToken::new();
    let running = Arc::new(Mutex::new(Some(running)));
    let watched = running.clone();
    let closing = processes.0.closing.clone();
    let says = ended.clone();
    let ending = async move {
        if ends.await.is_ok() {
            says.cancel();
        }
        // The rest of the family is ended by the holder of the guard.
        std::future::pending::<()>().await;
    };
    let watch = tokio::spawn(async move {
        first(closing.cancelled(), ending).await;
        drop(taken(&watched));
    });
    Ok(Spoken { stdin, stdout, stderr, ended, runs: Runs { running, watch } })
}

impl Phase {
    fn is_going(self) -> bool {
        matches!(self, Self::Going)
    }

    fn is_draining(self) -> bool {
        matches!(self, Self::Draining(_))
    }

    fn stopped(self) -> Option<(Stopped, Instant)> {
        match self {
            Self::Going => None,
            Self::Asked(why, since) | Self::Killed(why, since) => Some((why, since)),
            Self::Draining(stopped) => stopped,
        }
    }
}

/// Writes `input` to `stdin` and closes it. The program may have closed it before.
async fn feed(stdin: Option<ChildStdin>, input: Vec<u8>) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&input).await;
    }
}

async fn first(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// Takes our ends of a program's pipes.
fn pipes(child: &mut Child) -> io::Result<(Option<ChildStdin>, ChildStdout, ChildStderr)> {
    let stdin = child.stdin.take().map(|fd| ChildStdin::from_std(fd.into())).transpose()?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok((stdin, ChildStdout::from_std(stdout.into())?, ChildStderr::from_std(stderr.into())?))
}

/// A guard that stops a family in the background when the caller drops it.
struct Running {
    /// `None` once the family has ended.
    family: Option<Family>,
    grace: Duration,
    /// Keeps the spawning thread alive: its end would kill the family.
    processes: Processes,
}

impl Running {
    async fn start(processes: &Processes, start: Start) -> io::Result<Self> {
        let grace = start.bounds.grace;
        let family =
            processes.0.spawner.spawn(start, processes, processes.0.running.token()).await?;
        Ok(Self { family: Some(family), grace, processes: processes.clone() })
    }

    fn family(&self) -> &Family {
        self.family.as_ref().expect("the family is there until it has ended")
    }

    fn family_mut(&mut self) -> &mut Family {
        self.family.as_mut().expect("the family is there until it has ended")
    }

    async fn end(&mut self, asked: Option<Instant>) -> io::Result<ExitStatus> {
        let grace = self.grace;
        let status = self.family_mut().end(asked, grace).await?;
        self.family = None;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (Some(family), Ok(runtime)) = (self.family.take(), Handle::try_current()) else {
            return;
        };
        let grace = self.grace;
        let processes = self.processes.clone();
        runtime.spawn(async move {
            // If the stop fails, dropping the family kills the rest.
            let _ = family.stop(grace).await;
            drop(processes);
        });
    }
}
