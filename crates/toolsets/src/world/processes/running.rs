//! One run: fed, read, timed and ended.

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

/// How long the outputs are read on after the main process has ended and nothing more
/// comes, when something it left behind holds them open.
const DRAIN: Duration = Duration::from_millis(200);

/// How long they are read on at most, when more and more comes.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// How long the kernel may take to end a process that was killed.
const DEATH: Duration = Duration::from_secs(2);

/// Where a run is.
#[derive(Clone, Copy)]
enum Phase {
    /// The main process runs.
    Going,
    /// It was asked to stop: why, and when.
    Asked(Stopped, Instant),
    /// It was killed; it had been asked before.
    Killed(Stopped, Instant),
    /// It has ended, stopped or not, and its outputs are read to their ends.
    Draining(Option<(Stopped, Instant)>),
}

/// What a run waits for.
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

    let (mut is_read, mut is_fed) = (false, false);
    let mut phase = Phase::Going;
    let mut alarm = started + timeout;
    let mut took = timeout;
    let mut seen = 0;
    while !(is_read && phase.is_draining()) {
        let happened = tokio::select! {
            // What waits in the pipes is read before the time is looked at.
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
    let (sandbox, failure) = (family.held(), family.failure());
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
        // Nothing of the program is left, so this is the end unless another has its pipes.
        let _ = tokio::time::timeout(DRAIN, &mut reading).await;
    }
    drop(reading);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let (stdout, stderr) = (out.finish().await, err.finish().await);
    Ok(Ended { status, stopped, took, stdout, stderr, sandbox })
}

/// A program that is spoken to for as long as it runs.
pub struct Spoken {
    /// What it reads.
    pub stdin: ChildStdin,
    /// What it prints.
    pub stdout: ChildStdout,
    /// What it says beside.
    pub stderr: ChildStderr,
    /// Cancelled when it has ended, also where something that it started has not.
    pub ended: CancellationToken,
    /// Ends it, with all it started, when dropped.
    pub runs: Runs,
}

/// A program that runs for as long as this is held.
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

/// Starts a program that is spoken to. What it was given to read, and its bounds but the grace, do
/// not matter.
pub(super) async fn open(processes: &Processes, start: Start) -> io::Result<Spoken> {
    if processes.0.closing.is_cancelled() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let start = Start { stdin: Some(Vec::new()), ..start };
    let mut running = Running::start(processes, start).await?;
    let (stdin, stdout, stderr) = pipes(&mut running.family_mut().child)?;
    let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
    let (ends, ended) = (running.family().ends()?, CancellationToken::new());
    let running = Arc::new(Mutex::new(Some(running)));
    let (watched, closing) = (running.clone(), processes.0.closing.clone());
    let says = ended.clone();
    let ending = async move {
        if ends.await.is_ok() {
            says.cancel();
        }
        // What is left of it is ended by whoever holds it.
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

/// Our ends of a program's pipes.
fn pipes(child: &mut Child) -> io::Result<(Option<ChildStdin>, ChildStdout, ChildStderr)> {
    let stdin = child.stdin.take().map(|fd| ChildStdin::from_std(fd.into())).transpose()?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok((stdin, ChildStdout::from_std(stdout.into())?, ChildStderr::from_std(stderr.into())?))
}

/// A family that is stopped behind the caller's back when the caller goes away.
struct Running {
    /// `None` only once it is over.
    family: Option<Family>,
    grace: Duration,
    /// Keeps the spawning thread alive, whose end would be the family's.
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
        let (grace, processes) = (self.grace, self.processes.clone());
        runtime.spawn(async move {
            // If it cannot be stopped, dropping it has killed what could be killed.
            let _ = family.stop(grace).await;
            drop(processes);
        });
    }
}
