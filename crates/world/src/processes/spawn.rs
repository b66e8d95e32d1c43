//! The thread that starts all programs, and the setup of each new process.

use std::io;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, fchdir, getpid, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit, setsid,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use toolgate_net::spawn_blocking;

use super::family::ProcessTree;
use super::keeper::{ProcessKeeperHandle, ProcessKeeperPipe};
use super::strays::UnfinishedProgramRun;
use super::{ProcessRunner, ProgramStartRequest};
use crate::programs::{ChildProcess, PreparedProgram};
use crate::programs::{ProgramRunTag, ServerProcessMark};
use crate::sandbox;
use crate::sandbox::LeftoverPlaceholders;

/// The maximum number of requests to start a program that may wait in the queue.
const QUEUE_MAX: usize = 64;
/// The maximum number of tries to queue the start of a worker, with [`QUEUE_PAUSE`] between them.
const QUEUE_TRIES: usize = 1000;
/// The pause between two attempts to queue the start of a worker.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// The highest descriptor number that is closed if descriptors must be closed one by one.
const FD_MAX: u64 = 1 << 20;

/// A handle of the thread that starts all programs. The thread outlives the programs.
///
/// Two reasons require this thread. Programs must die with the server, and Linux sends the death
/// signal when the thread that started the program ends. Starting a program also blocks, and a
/// worker thread of the runtime must not block.
pub(super) struct ProgramSpawner {
    requests: mpsc::Sender<SpawnerRequest>,
    mark: ServerProcessMark,
    lifeline: ProcessKeeperPipe,
}

/// A request to the thread that starts programs.
enum SpawnerRequest {
    Program {
        image: PreparedProgram,
        cwd: OwnedFd,
        live: UnfinishedProgramRun,
        token: TaskTrackerToken,
        cancel: CancellationToken,
        reply: oneshot::Sender<io::Result<ProcessTree>>,
    },
    /// Ensures that a keeper process runs, for a program that has already started.
    Keeper,
    /// Starts a sandbox helper process.
    Helper { image: PreparedProgram, reply: SyncSender<io::Result<ChildProcess>> },
    /// Starts a worker process.
    Worker { image: PreparedProgram, reply: SyncSender<io::Result<ChildProcess>> },
}

impl ProgramSpawner {
    /// Starts the thread that starts programs. All programs carry `mark`. When the thread ends, its
    /// keeper process removes the placeholder folders `leftovers`.
    pub(super) fn start(
        mark: ServerProcessMark,
        leftovers: Option<LeftoverPlaceholders>,
    ) -> io::Result<Self> {
        let (sender, mut requests) = mpsc::channel::<SpawnerRequest>(QUEUE_MAX);
        let lifeline = ProcessKeeperPipe::default();
        let [reports, starts] = [(); 2].map(|()| lifeline.clone());
        thread::Builder::new().name("toolgate-spawn".to_owned()).spawn(move || {
            let mut keeper = ProcessKeeperHandle::new(mark, leftovers, lifeline);
            while let Some(request) = requests.blocking_recv() {
                let kept = match request {
                    // A worker has no children, so it needs no keeper.
                    SpawnerRequest::Worker { .. } => Ok(()),
                    _ => keeper.ensure_running(),
                };
                match request {
                    SpawnerRequest::Keeper => {}
                    SpawnerRequest::Program { reply, .. } if reply.is_closed() => {}
                    SpawnerRequest::Program { image, cwd, live, token, cancel, reply } => {
                        // If nobody waits for it any more, it is dropped here, which kills it.
                        let may_start = kept.and_then(|()| check_start(&starts, &cancel));
                        let family = may_start.and_then(|()| spawn(&image, &cwd, live, token));
                        let _ = reply.send(family);
                    }
                    SpawnerRequest::Helper { image, reply } => {
                        // The requester waits for the reply.
                        let _ = reply.send(kept.and_then(|()| spawn_helper(&image, mark)));
                    }
                    SpawnerRequest::Worker { image, reply } => {
                        let _ = reply.send(spawn_helper(&image, mark));
                    }
                }
            }
        })?;
        Ok(Self { requests: sender, mark, lifeline: reports })
    }

    pub(super) fn mark(&self) -> ServerProcessMark {
        self.mark
    }

    /// Reports that this process is not frozen, as in [`ProcessRunner::report_alive`].
    pub(super) fn report_alive(&self, silence: Duration) {
        self.lifeline.report_alive(silence);
    }

    /// Starts a worker from `image` and waits until the process exists. Blocks. Can be called on
    /// any thread.
    pub(super) fn spawn_worker(&self, image: PreparedProgram) -> io::Result<ChildProcess> {
        let (reply, worker) = sync_channel(1);
        let mut request = SpawnerRequest::Worker { image, reply };
        for _ in 0..QUEUE_TRIES {
            // A blocking send panics on a thread of the runtime.
            match self.requests.try_send(request) {
                Ok(()) => return worker.recv().map_err(|_| thread_ended())?,
                Err(TrySendError::Full(unsent)) => {
                    request = unsent;
                    thread::sleep(QUEUE_PAUSE);
                }
                Err(TrySendError::Closed(_)) => return Err(thread_ended()),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Starts a program with pipes for its output: in the sandbox if `start` has a confinement, and
    /// without a sandbox otherwise.
    pub(super) async fn spawn_unconfined(
        &self,
        start: ProgramStartRequest,
        house: &ProcessRunner,
        token: TaskTrackerToken,
        cancel: CancellationToken,
    ) -> io::Result<ProcessTree> {
        let live = UnfinishedProgramRun::new(self.mark);
        if start.confinement.is_some() {
            let house = house.clone();
            let requests = self.requests.clone();
            let wanted = Arc::new(());
            let is_wanted = Arc::downgrade(&wanted);
            let confined = spawn_blocking(move || match is_wanted.upgrade() {
                // Nobody waits for the program any more.
                None => Err(io::ErrorKind::Interrupted.into()),
                Some(_) => spawn_confined(start, live, &house, &requests, token, &cancel),
            });
            return confined.await.map_err(io::Error::other)?;
        }
        house.sandbox().release_names();
        let ProgramStartRequest { program, args, cwd, env, stdin, bounds: _, confinement: _ } =
            start;
        let image = PreparedProgram::new(program.path, program.name, args, env, stdin.is_some())?;
        let (reply, family) = oneshot::channel();
        let request = SpawnerRequest::Program { image, cwd, live, token, cancel, reply };
        self.requests.send(request).await.map_err(|_| thread_ended())?;
        family.await.map_err(|_| thread_ended())?
    }
}

/// Fails if a program may not start any more: its run was cancelled, or this server was frozen.
///
/// Call this as the last step before a program starts. After a freeze, the server first cancels its
/// jobs and then reports that it is not frozen any more.
///
/// # Errors
/// An `Interrupted` error if the program may not start.
fn check_start(lifeline: &ProcessKeeperPipe, cancel: &CancellationToken) -> io::Result<()> {
    lifeline.check_report()?;
    if cancel.is_cancelled() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that starts programs has ended")
}

/// Starts a confined program. If no idle sandbox helper is available, `requests` asks the thread
/// that starts programs to start a new helper.
fn spawn_confined(
    start: ProgramStartRequest,
    live: UnfinishedProgramRun,
    house: &ProcessRunner,
    requests: &mpsc::Sender<SpawnerRequest>,
    token: TaskTrackerToken,
    cancel: &CancellationToken,
) -> io::Result<ProcessTree> {
    let ProgramStartRequest { program, args, cwd, env, stdin, bounds, confinement: inside } = start;
    let inside = inside.ok_or(io::ErrorKind::InvalidInput)?;
    let is_fed = stdin.is_some();
    let grace = bounds.grace;
    let tag = live.tag();
    let start = sandbox::SandboxedProgramStart { program, args, cwd, env, is_fed, grace, tag };
    let begin = |image| {
        let (reply, helper) = sync_channel(1);
        requests
            .blocking_send(SpawnerRequest::Helper { image, reply })
            .map_err(|_| thread_ended())?;
        helper.recv().map_err(|_| thread_ended())?
    };
    let lifeline = &house.0.spawner.lifeline;
    let may_start = || check_start(lifeline, cancel);
    let (child, around) =
        house.sandbox().confine(&inside, start, house.variables(), begin, may_start)?;
    // A program in its own PID namespace ends with its first process. It needs no keeper, except as
    // a watchdog.
    if !around.has_reaper() || lifeline.is_watched() {
        requests.blocking_send(SpawnerRequest::Keeper).map_err(|_| thread_ended())?;
    }
    ProcessTree::new(child, live, Some(around), token)
}

/// Starts a sandbox helper or a worker in `/`, so that its working directory is in no workspace.
fn spawn_helper(image: &PreparedProgram, mark: ServerProcessMark) -> io::Result<ChildProcess> {
    let root = open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let server = getpid();
    image.start(&|| set_up_process(server, &root, mark.idle_tag()))
}

fn spawn(
    image: &PreparedProgram,
    cwd: &OwnedFd,
    live: UnfinishedProgramRun,
    token: TaskTrackerToken,
) -> io::Result<ProcessTree> {
    let server = getpid();
    let tag = live.tag();
    let set_apart = || set_up_process(server, cwd, tag);
    // A process that is just being forked can briefly hold a freshly written file open.
    for _ in 0..20 {
        match image.start(&set_apart) {
            Err(err) if err.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(err) => return Err(err),
            Ok(child) => return ProcessTree::new(child, live, None, token),
        }
    }
    Err(io::ErrorKind::ExecutableFileBusy.into())
}

/// Gives the new process its own session, working directory and tag, and closes all descriptors of
/// the server. Makes system calls only.
#[allow(unsafe_code, reason = "rustix lacks the one that closes descriptors")]
fn set_up_process(server: Pid, cwd: &OwnedFd, tag: ProgramRunTag) -> io::Result<()> {
    setsid()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(server) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    fchdir(cwd)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    tag.apply()?;
    // SAFETY: it only sets a flag on descriptors.
    let rc =
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if rc != 0 {
        // Linux before 5.11 lacks this flag, and a sandbox may refuse the call.
        close_each_at_exec();
    }
    Ok(())
}

/// Marks every descriptor but the first three close-on-exec, one by one. Makes system calls only.
#[allow(unsafe_code, reason = "between fork and exec the descriptors are known by number alone")]
fn close_each_at_exec() {
    for fd in possible_descriptors(3) {
        // SAFETY: it only sets a flag, and fails if there is no such descriptor.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Returns the possible descriptor numbers from `first` on. Makes a single system call.
pub(super) fn possible_descriptors(first: RawFd) -> Range<RawFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(FD_MAX);
    first..RawFd::try_from(limit).unwrap_or(RawFd::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, dup, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn descriptors_are_closed_at_exec_on_an_older_kernel() {
        let held = dup(io::stderr()).unwrap();
        fcntl_setfd(&held, FdFlags::empty()).unwrap();
        close_each_at_exec();
        assert_eq!(fcntl_getfd(&held).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(fcntl_getfd(io::stderr()).unwrap(), FdFlags::empty());
    }
}
