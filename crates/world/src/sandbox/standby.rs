//! Idle sandbox helpers, which are started before a program needs them. Each helper confines
//! several programs, one after another, and is already in the control groups of these programs.
//!
//! Starting a helper and moving a process into control groups take longer than all other steps of
//! the confinement.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::io::retry_on_intr;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use toolgate_contract::lock_mutex;
use toolgate_net::spawn_blocking;

use super::cgroups::RunCgroups;
use super::helper_executable;
use super::helper_messages::{SandboxHelperAnswer, SandboxHelperOrder, message_pair};
use super::layers::NO_WAIT;
use super::plan::{FileIdentity, SandboxMount, SandboxPlan, seal};
use super::setup_step::SandboxSetupFailure;
use crate::programs::{ChildProcess, PreparedProgram, SERVER_FILE, StandardStreams, kill_and_wait};

/// The file that lists the mounts in the server's mount namespace.
const MOUNTS_FILE: &str = "/proc/self/mounts";
/// The maximum number of idle sandbox helpers.
const IDLE_MAX: usize = 6;
/// The time after which an idle sandbox helper ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum duration of a run after which its sandbox helper takes the next task although the
/// first process of the run may still be ending.
const BRIEF_RUN: Duration = Duration::from_millis(50);
/// The maximum number of checks for leftover processes of a program, with [`CHECK_PAUSE`] between
/// them.
const CHECKS_MAX: usize = 200;
/// The pause between two checks for leftover processes of a program.
const CHECK_PAUSE: Duration = Duration::from_millis(1);
/// The longest wait for a sandbox helper to report a new process.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A running sandbox helper. Dropping this value ends the helper and then removes its control
/// groups.
pub(super) struct SandboxHelperProcess {
    connection: OwnedFd,
    helper: ChildProcess,
    /// The waiting process that gets the next task, once the helper has reported its process
    /// number.
    next_process: Option<Pid>,
    /// The process that got the last task, and the time of its start. This process may still be
    /// ending after all its children have ended.
    last_process: Option<(Pid, Instant)>,
    /// The mount generation when the helper started. This number changes with every mount.
    mounts: u64,
    has_failed: bool,
    groups: Option<RunCgroups>,
    /// The listener of a forwarder in the helper's network, once the helper has opened it.
    listener: Option<OwnedFd>,
}

/// A task for a sandbox helper: the request to start a program, and the helper's ends of the pipes.
pub(super) struct SandboxHelperTask {
    /// The sealed [`SandboxSpawnRequest`](super::plan::SandboxSpawnRequest).
    pub(super) request: OwnedFd,
    pub(super) failure_pipe: OwnedFd,
    pub(super) exit_pipe: OwnedFd,
    pub(super) workspace: OwnedFd,
    pub(super) is_fed: bool,
}

/// The key that decides if a sandbox helper fits a task: its plan, and the identity of each file
/// that the helper has mounted.
///
/// A helper prepares the process of the next program after it has started a program, when the files
/// may already be others than those of this key. Therefore this process compares them again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SandboxHelperKey {
    pub(super) plan: SandboxPlan,
    /// The file at each [prepared mount](SandboxPlan::prepared_mounts).
    pub(super) mounted_files: Vec<Option<FileIdentity>>,
}

/// Idle sandbox helpers that wait for the next task. Clones share them.
#[derive(Clone, Default)]
pub(super) struct IdleSandboxHelpers(Arc<Mutex<IdleHelpersState>>);

#[derive(Default)]
struct IdleHelpersState {
    helpers: Vec<(Instant, SandboxHelperKey, SandboxHelperProcess)>,
    /// The open list of the server's mounts, which becomes readable when a mount changes. Running
    /// helpers do not show new mounts.
    mounts: Option<File>,
    /// The number of changes of mounts since the server started to watch them.
    mount_changes: u64,
    is_watched: bool,
    is_closed: bool,
}

impl SandboxHelperProcess {
    /// Starts a sandbox helper in `groups` with `start` and lets it prepare `plan`. `mounts` is the
    /// current mount generation. Blocks.
    pub(super) fn start(
        groups: Option<RunCgroups>,
        mounts: u64,
        mut plan: SandboxPlan,
        task: &SandboxHelperTask,
        start: impl Fn(PreparedProgram) -> io::Result<ChildProcess>,
    ) -> io::Result<Self> {
        let (line, theirs) = message_pair()?;
        plan.groups = groups.as_ref().map(RunCgroups::join_files).unwrap_or_default();
        let streams = StandardStreams::new(false)?;
        task.send(&line, seal(&plan)?.as_fd(), streams.program_ends.each_ref().map(AsFd::as_fd))?;
        let begin = |executable| start(PreparedProgram::helper(executable, &theirs)?);
        let helper = match begin(helper_executable::current_path()) {
            // The system may not execute files in memory.
            Err(err) if is_exec_refusal(&err) && helper_executable::disable_small_helper() => {
                begin(SERVER_FILE.into())?
            }
            started => started?,
        };
        let next = None;
        let last = None;
        Ok(Self {
            connection: line,
            helper,
            next_process: next,
            last_process: last,
            mounts,
            has_failed: false,
            groups,
            listener: None,
        })
    }

    /// Returns `true` if the sandbox helper is still running.
    pub(super) fn is_running(&self) -> bool {
        poll(&mut [PollFd::new(&self.connection, PollFlags::empty())], Some(&NO_WAIT)) == Ok(0)
    }

    /// Passes `task` to the sandbox helper. Returns the process that handles the task. Blocks until
    /// the process exists.
    pub(super) fn run_task(
        &mut self,
        task: &SandboxHelperTask,
    ) -> io::Result<Result<ChildProcess, SandboxSetupFailure>> {
        let streams = StandardStreams::new(task.is_fed)?;
        let sent = task.send(
            &self.connection,
            task.request.as_fd(),
            streams.program_ends.each_ref().map(AsFd::as_fd),
        );
        // The process may report its order before the helper reports the process.
        let mut is_apart = false;
        let failed = loop {
            match self.read_answer(&ANSWER_TIMEOUT) {
                Ok(SandboxHelperAnswer::ProcessReady(pid)) => self.next_process = Some(pid),
                Ok(SandboxHelperAnswer::OrderTaken) => is_apart = true,
                Ok(SandboxHelperAnswer::ListenerOpened(listener)) => self.listener = Some(listener),
                Ok(SandboxHelperAnswer::Failed(failed)) => break Ok(Err(failed)),
                // If the message could not be sent, the helper has reported the reason before, if
                // it could.
                Err(err) => break Err(sent.err().unwrap_or(err)),
            }
            if let (true, Some(pid)) = (is_apart, self.next_process) {
                (self.next_process, self.last_process) = (None, Some((pid, Instant::now())));
                return Ok(Ok(ChildProcess::new(pid, streams)));
            }
        };
        self.has_failed = true;
        failed
    }

    /// Takes the listener of a forwarder in the helper's network namespace. Returns `None` if the
    /// helper has not opened a listener or the listener was taken before.
    pub(super) fn take_listener(&mut self) -> Option<OwnedFd> {
        self.listener.take()
    }

    fn read_answer(&self, limit: &Timespec) -> io::Result<SandboxHelperAnswer> {
        let ready = || poll(&mut [PollFd::new(&self.connection, PollFlags::IN)], Some(limit));
        match retry_on_intr(ready)? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => SandboxHelperAnswer::receive(&self.connection),
        }
    }

    /// Waits until the sandbox helper has a process for the next task, and the processes of earlier
    /// programs have left the helper's control groups. Returns `false` if that fails. Blocks.
    fn wait_until_alone(&mut self) -> bool {
        if let (None, Ok(SandboxHelperAnswer::ProcessReady(pid))) =
            (self.next_process, self.read_answer(&ANSWER_TIMEOUT))
        {
            self.next_process = Some(pid);
        }
        let Some(next) = self.next_process else { return false };
        let Some(groups) = &self.groups else { return true };
        let own = [self.helper.pid, next];
        match self.last_process {
            // In so little time a program takes little of its groups' resources.
            Some((last, since)) if since.elapsed() < BRIEF_RUN => {
                groups.contain_only(&[&own[..], &[last]].concat())
            }
            Some(_) => (0..CHECKS_MAX).any(|look| {
                thread::sleep(if look == 0 { Duration::ZERO } else { CHECK_PAUSE });
                groups.contain_only(&own)
            }),
            None => groups.contain_only(&own),
        }
    }

    fn kill_next(&mut self) {
        if let Some(next) = self.next_process.take() {
            // It may have ended by itself.
            let _ = kill_and_wait(next);
        }
    }
}

impl Drop for SandboxHelperProcess {
    /// Closes the connection to the sandbox helper. The helper and its waiting process then end.
    fn drop(&mut self) {
        let _ = shutdown(&self.connection, Shutdown::Write);
        if self.has_failed {
            // An order that was not executed in time must not be executed later.
            let _ = kill_process(self.helper.pid, Signal::KILL);
            self.kill_next();
        }
        // Before it ends, the helper reports each process that it has created.
        while let Ok(answer) = self.read_answer(&ANSWER_TIMEOUT) {
            if let SandboxHelperAnswer::ProcessReady(pid) = answer {
                self.kill_next();
                self.next_process = Some(pid);
            }
        }
        self.kill_next();
        let _ = kill_and_wait(self.helper.pid);
    }
}

impl SandboxHelperTask {
    fn send(
        &self,
        line: &OwnedFd,
        message: BorrowedFd<'_>,
        streams: [BorrowedFd<'_>; 3],
    ) -> io::Result<()> {
        let Self { failure_pipe: birth, exit_pipe: end, workspace, request: _, is_fed: _ } = self;
        let [birth, end, workspace] = [birth, end, workspace].map(AsFd::as_fd);
        SandboxHelperOrder { streams, message, failure_pipe: birth, exit_pipe: end, workspace }
            .send(line)
    }
}

/// Returns `true` if `err` means that a file cannot be executed.
fn is_exec_refusal(err: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied};
    matches!(err.kind(), NotFound | PermissionDenied) || err.raw_os_error() == Some(libc::ENOEXEC)
}

/// Returns `true` if `err` means that the sandbox helper has ended.
pub(super) fn has_helper_ended(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(err.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl SandboxHelperKey {
    /// Creates the key for a helper with `plan`, from the current identity of the file at each
    /// prepared mount.
    pub(super) fn new(plan: SandboxPlan) -> Self {
        if plan.spaces.is_none() {
            return Self { plan, mounted_files: Vec::new() };
        }
        let mounted_files = plan.prepared_mounts().map(identity_at).collect();
        Self { plan, mounted_files }
    }
}

/// Returns the identity of the file at the mount `place`. Makes no query to a remote file system.
fn identity_at(place: &SandboxMount) -> Option<FileIdentity> {
    // A memory folder also needs the entry below it.
    let (SandboxMount::SamePath { at, .. } | SandboxMount::EmptyFolder { at, .. }) = place else {
        return None;
    };
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, at.path(), how, StatxFlags::INO).ok()?;
    Some((makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

impl IdleSandboxHelpers {
    /// Takes an idle sandbox helper with the key `like`, if there is one. Blocks.
    pub(super) fn take(&self, like: &SandboxHelperKey) -> Option<SandboxHelperProcess> {
        let mut waiting = lock_mutex(&self.0);
        let mounts = waiting.mount_generation();
        let old: Vec<_> =
            waiting.helpers.extract_if(.., |(_, _, it)| it.mounts != mounts).collect();
        if !old.is_empty() {
            drop(waiting);
            drop(old);
            waiting = lock_mutex(&self.0);
        }
        loop {
            let at = waiting.helpers.iter().rposition(|(_, it, _)| it == like)?;
            let (_, _, mut standby) = waiting.helpers.remove(at);
            drop(waiting);
            if standby.is_running() && standby.wait_until_alone() {
                return Some(standby);
            }
            waiting = lock_mutex(&self.0);
        }
    }

    /// Stores the helper `standby` for reuse with the key `like`. All processes of its last program
    /// must have ended.
    pub(super) fn give_back(&self, standby: SandboxHelperProcess, like: SandboxHelperKey) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut waiting = lock_mutex(&self.0);
        if waiting.is_closed || waiting.mount_generation() != standby.mounts {
            drop(waiting);
            runtime.spawn_blocking(move || drop(standby));
            return;
        }
        waiting.helpers.push((Instant::now(), like, standby));
        let too_many = (waiting.helpers.len() > IDLE_MAX).then(|| waiting.helpers.remove(0));
        if !waiting.is_watched {
            waiting.is_watched = true;
            toolgate_net::spawn_task_on(&runtime, end_expired(Arc::downgrade(&self.0)));
        }
        drop(waiting);
        if let Some(too_many) = too_many {
            runtime.spawn_blocking(move || drop(too_many));
        }
    }

    /// Ends the sandbox helper `standby` in the background.
    pub(super) fn retire(standby: SandboxHelperProcess) {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(standby))),
            Err(_) => drop(standby),
        }
    }

    /// Ends all idle sandbox helpers. Helpers that are given back later are ended, too.
    pub(super) fn close(&self) {
        let mut waiting = lock_mutex(&self.0);
        waiting.is_closed = true;
        let ended = std::mem::take(&mut waiting.helpers);
        drop(waiting);
        drop(ended);
    }

    /// Starts to watch the list of mounts, so that helpers with outdated mounts are not reused.
    pub(super) fn watch_mounts(&self) {
        let mut waiting = lock_mutex(&self.0);
        if waiting.mounts.is_none() {
            waiting.mounts = File::open(MOUNTS_FILE).ok();
        }
    }

    /// Returns the mount generation, a number that changes with every mount.
    pub(super) fn mount_generation(&self) -> u64 {
        lock_mutex(&self.0).mount_generation()
    }
}

impl IdleHelpersState {
    /// Returns the mount generation. If mounts cannot be watched, each call returns a different
    /// number.
    fn mount_generation(&mut self) -> u64 {
        let same = self.mounts.as_ref().is_some_and(|mounts| {
            poll(&mut [PollFd::new(mounts, PollFlags::PRI)], Some(&NO_WAIT)) == Ok(0)
        });
        self.mount_changes += u64::from(!same);
        self.mount_changes
    }
}

/// Ends sandbox helpers that have been idle too long, until no idle helper is left.
async fn end_expired(waiting: Weak<Mutex<IdleHelpersState>>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT / 2).await;
        let Some(waiting) = waiting.upgrade() else { return };
        let mut waiting = lock_mutex(&waiting);
        let ended: Vec<_> = waiting
            .helpers
            .extract_if(.., |(since, _, _)| since.elapsed() >= IDLE_TIMEOUT)
            .collect();
        waiting.is_watched = !waiting.helpers.is_empty();
        let is_over = !waiting.is_watched;
        drop(waiting);
        spawn_blocking(move || drop(ended));
        if is_over {
            return;
        }
    }
}
