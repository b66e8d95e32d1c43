//! Idle sandbox helpers. Each was started before the programs that it confines one after another,
//! and is already in their control groups.
//!
//! Starting a helper and moving a process into groups takes longer than the rest of the
//! confinement.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::retry_on_intr;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::groups::Groups;
use super::layers::AT_ONCE;
use super::orders::{Answer, Order, line};
use super::plan::{Place, Plan, seal};
use super::step::Failed;
use crate::world::processes::{Child, Image, Streams, end};

/// The helper's executable: the server itself.
const HELPER_FILE: &str = "/proc/self/exe";
/// The mounts of the server's namespace.
const MOUNTS: &str = "/proc/self/mounts";
/// The most idle helpers.
const IDLE_MAX: usize = 6;
/// The time after which an idle helper ends.
const IDLE: Duration = Duration::from_secs(60);
/// The lifetime below which a program's remains need not be waited for before the next one.
const BRIEF: Duration = Duration::from_millis(50);
/// The number of checks for remaining processes, and the pause between them.
const LOOKS: usize = 200;
const LOOK: Duration = Duration::from_millis(1);
/// The longest wait for a helper to create a process.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A helper. Dropping it ends the helper and then removes its control groups.
pub(super) struct Standby {
    line: OwnedFd,
    helper: Child,
    /// The process for the next task, once it is known.
    next: Option<Pid>,
    /// The process of the last task and its start. It may still be ending when all its children are
    /// gone.
    last: Option<(Pid, Instant)>,
    /// The mount generation when the helper was started.
    mounts: u64,
    has_failed: bool,
    groups: Option<Groups>,
}

/// A task for a helper, with the helper's ends of the pipes.
pub(super) struct Task {
    /// The sealed request.
    pub(super) errand: OwnedFd,
    pub(super) birth: OwnedFd,
    pub(super) end: OwnedFd,
    pub(super) workspace: OwnedFd,
    pub(super) is_fed: bool,
}

/// The key that decides if a helper fits a task: the plan, and the identity of each file that it
/// has prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Likeness {
    pub(super) plan: Plan,
    /// The identity of each prepared place.
    found: Vec<Option<(u32, u32, u64)>>,
}

/// The idle helpers.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    helpers: Vec<(Instant, Likeness, Standby)>,
    /// Becomes readable when a mount changes, because running helpers do not show new mounts.
    mounts: Option<File>,
    /// The number of mount changes.
    mounted: u64,
    is_watched: bool,
    is_closed: bool,
}

impl Standby {
    /// Starts a helper in `groups` with `start` and lets it prepare `plan`. Blocks.
    pub(super) fn begin(
        groups: Option<Groups>,
        mounts: u64,
        mut plan: Plan,
        task: &Task,
        start: impl FnOnce(Image) -> io::Result<Child>,
    ) -> io::Result<Self> {
        let (line, theirs) = line()?;
        plan.groups = groups.as_ref().map(Groups::doors).unwrap_or_default();
        let image = Image::helper(HELPER_FILE.into(), &theirs)?;
        let streams = Streams::new(false)?;
        task.send(&line, seal(&plan)?.as_fd(), streams.theirs.each_ref().map(AsFd::as_fd))?;
        let helper = start(image)?;
        let next = None;
        let last = None;
        Ok(Self { line, helper, next, last, mounts, has_failed: false, groups })
    }

    /// Returns `true` if the helper is still running.
    pub(super) fn is_there(&self) -> bool {
        poll(&mut [PollFd::new(&self.line, PollFlags::empty())], Some(&AT_ONCE)) == Ok(0)
    }

    /// Lets the helper run `task`. Returns the process, which can be killed by its number. Blocks
    /// until it exists.
    pub(super) fn order(&mut self, task: &Task) -> io::Result<Result<Child, Failed>> {
        let streams = Streams::new(task.is_fed)?;
        let sent =
            task.send(&self.line, task.errand.as_fd(), streams.theirs.each_ref().map(AsFd::as_fd));
        // The process may report its order before the helper reports the process.
        let mut is_apart = false;
        let failed = loop {
            match self.told(&PATIENCE) {
                Ok(Answer::Made(pid)) => self.next = Some(pid),
                Ok(Answer::Apart) => is_apart = true,
                Ok(Answer::Failed(failed)) => break Ok(Err(failed)),
                // If the message could not be sent, the helper has reported the reason before, if
                // it could.
                Err(err) => break Err(sent.err().unwrap_or(err)),
            }
            if let (true, Some(pid)) = (is_apart, self.next) {
                (self.next, self.last) = (None, Some((pid, Instant::now())));
                return Ok(Ok(Child::of(pid, streams)));
            }
        };
        self.has_failed = true;
        failed
    }

    fn told(&self, patience: &Timespec) -> io::Result<Answer> {
        let ready = || poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(patience));
        match retry_on_intr(ready)? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Answer::receive(&self.line),
        }
    }

    /// Returns `true` if the helper has a process for the next task, and its groups contain only
    /// its own processes. Blocks.
    fn is_alone(&mut self) -> bool {
        if let (None, Ok(Answer::Made(pid))) = (self.next, self.told(&PATIENCE)) {
            self.next = Some(pid);
        }
        let Some(next) = self.next else { return false };
        let Some(groups) = &self.groups else { return true };
        let own = [self.helper.pid, next];
        match self.last {
            // In so little time a program takes little of its groups' resources.
            Some((last, since)) if since.elapsed() < BRIEF => {
                groups.hold_only(&[&own[..], &[last]].concat())
            }
            Some(_) => (0..LOOKS).any(|look| {
                thread::sleep(if look == 0 { Duration::ZERO } else { LOOK });
                groups.hold_only(&own)
            }),
            None => groups.hold_only(&own),
        }
    }

    fn end_next(&mut self) {
        if let Some(next) = self.next.take() {
            // It may have ended by itself.
            let _ = end(next);
        }
    }
}

impl Drop for Standby {
    /// Closes the connection for orders, after which the helper and its waiting process end.
    fn drop(&mut self) {
        let _ = shutdown(&self.line, Shutdown::Write);
        if self.has_failed {
            // An order that was not executed in time must not be executed later.
            let _ = kill_process(self.helper.pid, Signal::KILL);
            self.end_next();
        }
        // Before it ends, the helper reports each process that it has created.
        while let Ok(answer) = self.told(&PATIENCE) {
            if let Answer::Made(pid) = answer {
                self.end_next();
                self.next = Some(pid);
            }
        }
        self.end_next();
        let _ = end(self.helper.pid);
    }
}

impl Task {
    fn send(
        &self,
        line: &OwnedFd,
        told: BorrowedFd<'_>,
        streams: [BorrowedFd<'_>; 3],
    ) -> io::Result<()> {
        let Self { birth, end, workspace, errand: _, is_fed: _ } = self;
        let [birth, end, workspace] = [birth, end, workspace].map(AsFd::as_fd);
        Order { streams, told, birth, end, workspace }.send(line)
    }
}

/// Returns `true` if `err` means that the helper has ended.
pub(super) fn is_gone(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(err.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Likeness {
    /// Creates the key of `plan` with the current identity of each prepared place.
    pub(super) fn of(plan: Plan) -> Self {
        if plan.spaces.is_none() {
            return Self { plan, found: Vec::new() };
        }
        let workspace = plan.workspace.path();
        let places = plan.base.iter().chain(&plan.view).filter(|it| !it.is_late(workspace));
        let found = places.map(found).collect();
        Self { plan, found }
    }
}

/// Returns the identity of the entry at `place`, without asking a remote file system.
fn found(place: &Place) -> Option<(u32, u32, u64)> {
    // A memory folder also needs the entry below it.
    let (Place::Same { at, .. } | Place::Fresh { at, .. }) = place else { return None };
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, at.path(), how, StatxFlags::INO).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

impl Idle {
    /// Takes an idle helper for the key `like`, if there is one. Blocks.
    pub(super) fn take(&self, like: &Likeness) -> Option<Standby> {
        let mut waiting = self.waiting();
        let mounts = waiting.mounts();
        let old: Vec<_> =
            waiting.helpers.extract_if(.., |(_, _, it)| it.mounts != mounts).collect();
        if !old.is_empty() {
            drop(waiting);
            drop(old);
            waiting = self.waiting();
        }
        loop {
            let at = waiting.helpers.iter().rposition(|(_, it, _)| it == like)?;
            let (_, _, mut standby) = waiting.helpers.remove(at);
            drop(waiting);
            if standby.is_there() && standby.is_alone() {
                return Some(standby);
            }
            waiting = self.waiting();
        }
    }

    /// Returns `standby` for reuse with the key `like`. No process of its program may be left.
    pub(super) fn give_back(&self, standby: Standby, like: Likeness) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut waiting = self.waiting();
        if waiting.is_closed || waiting.mounts() != standby.mounts {
            drop(waiting);
            runtime.spawn_blocking(move || drop(standby));
            return;
        }
        waiting.helpers.push((Instant::now(), like, standby));
        let too_many = (waiting.helpers.len() > IDLE_MAX).then(|| waiting.helpers.remove(0));
        if !waiting.is_watched {
            waiting.is_watched = true;
            runtime.spawn(end_idle(Arc::downgrade(&self.0)));
        }
        drop(waiting);
        if let Some(too_many) = too_many {
            runtime.spawn_blocking(move || drop(too_many));
        }
    }

    /// Ends all helpers and accepts no more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        let ended = std::mem::take(&mut waiting.helpers);
        drop(waiting);
        drop(ended);
    }

    /// Starts to watch mounts, so that helpers with outdated mounts are not reused.
    pub(super) fn watch_mounts(&self) {
        let mut waiting = self.waiting();
        if waiting.mounts.is_none() {
            waiting.mounts = File::open(MOUNTS).ok();
        }
    }

    /// Returns the mount generation, a number that changes with every mount.
    pub(super) fn mounts(&self) -> u64 {
        self.waiting().mounts()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }
}

impl Waiting {
    /// Returns the mount generation. It always changes if mounts cannot be watched.
    fn mounts(&mut self) -> u64 {
        let same = self.mounts.as_ref().is_some_and(|mounts| {
            poll(&mut [PollFd::new(mounts, PollFlags::PRI)], Some(&AT_ONCE)) == Ok(0)
        });
        self.mounted += u64::from(!same);
        self.mounted
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends helpers that have been idle too long, until none is left.
async fn end_idle(waiting: Weak<Mutex<Waiting>>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(waiting) = waiting.upgrade() else { return };
        let mut waiting = lock(&waiting);
        let ended: Vec<_> =
            waiting.helpers.extract_if(.., |(since, _, _)| since.elapsed() >= IDLE).collect();
        waiting.is_watched = !waiting.helpers.is_empty();
        let is_over = !waiting.is_watched;
        drop(waiting);
        spawn_blocking(move || drop(ended));
        if is_over {
            return;
        }
    }
}
