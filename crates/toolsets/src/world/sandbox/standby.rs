//! Helpers that stand by. Each has been started ahead of the programs it confines, one after
//! another, and is in the groups that bound each of them: to start one, and to move a process into
//! groups, takes longer than all that is around a program.

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

/// The helper: the server's own program.
const HELPER_FILE: &str = "/proc/self/exe";
/// What is mounted where the server is.
const MOUNTS: &str = "/proc/self/mounts";
/// How many stand by with nothing to do.
const IDLE_MAX: usize = 6;
/// How long one does.
const IDLE: Duration = Duration::from_secs(60);
/// How long a program runs of which nothing is given back worth waiting for before the next.
const BRIEF: Duration = Duration::from_millis(50);
/// How often, and how far apart, is looked whether the rest has been given back.
const LOOKS: usize = 200;
const LOOK: Duration = Duration::from_millis(1);
/// How long a helper may take to have a process made.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A helper, which is ended when this is dropped, and then its groups with it.
pub(super) struct Standby {
    line: OwnedFd,
    helper: Child,
    /// The process for the next task, once it is known.
    next: Option<Pid>,
    /// That of the last one, which may still be ending when nothing else of it is left, and when
    /// that had its order.
    last: Option<(Pid, Instant)>,
    /// The number of what was mounted when it was begun.
    mounts: u64,
    has_failed: bool,
    groups: Option<Groups>,
}

/// What a helper is to do, with its ends of what it says.
pub(super) struct Task {
    /// Sealed.
    pub(super) errand: OwnedFd,
    pub(super) birth: OwnedFd,
    pub(super) end: OwnedFd,
    pub(super) workspace: OwnedFd,
    pub(super) is_fed: bool,
}

/// For which tasks a helper is: for those around which all is as its plan says, and is what it was
/// when it made that ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Likeness {
    pub(super) plan: Plan,
    /// What is at each place of the plan that is made ready.
    found: Vec<Option<(u32, u32, u64)>>,
}

/// Those that have nothing to do.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    helpers: Vec<(Instant, Likeness, Standby)>,
    /// By which is heard that something was mounted: helpers would not show it.
    mounts: Option<File>,
    /// How often that was heard.
    mounted: u64,
    is_watched: bool,
    is_closed: bool,
}

impl Standby {
    /// One that is in `groups`, started by `start`, and makes ready what `plan` says. Blocks.
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
        let (helper, next, last) = (start(image)?, None, None);
        Ok(Self { line, helper, next, last, mounts, has_failed: false, groups })
    }

    /// Whether it is still there.
    pub(super) fn is_there(&self) -> bool {
        poll(&mut [PollFd::new(&self.line, PollFlags::empty())], Some(&AT_ONCE)) == Ok(0)
    }

    /// Has it do `task`, in a process that can be ended by its number. Blocks until there is one.
    pub(super) fn order(&mut self, task: &Task) -> io::Result<Result<Child, Failed>> {
        let streams = Streams::new(task.is_fed)?;
        let sent =
            task.send(&self.line, task.errand.as_fd(), streams.theirs.each_ref().map(AsFd::as_fd));
        // The process may be faster to tell that it has its order than its helper that it is made.
        let mut is_apart = false;
        let failed = loop {
            match self.told(&PATIENCE) {
                Ok(Answer::Made(pid)) => self.next = Some(pid),
                Ok(Answer::Apart) => is_apart = true,
                Ok(Answer::Failed(failed)) => break Ok(Err(failed)),
                // Who could not be told has said why before, if it could.
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

    /// Whether it has a process for the next task, beside which nothing is left in its groups but
    /// itself and what stood beside the last program. Blocks.
    fn is_alone(&mut self) -> bool {
        if let (None, Ok(Answer::Made(pid))) = (self.next, self.told(&PATIENCE)) {
            self.next = Some(pid);
        }
        let Some(next) = self.next else { return false };
        let Some(groups) = &self.groups else { return true };
        let own = [self.helper.pid, next];
        match self.last {
            // In so little time a program does not take much of what its groups have.
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
    /// Has no more orders for it, upon which it and the process for the next one end.
    fn drop(&mut self) {
        let _ = shutdown(&self.line, Shutdown::Write);
        if self.has_failed {
            // An order that it did not do in time is not to be done later.
            let _ = kill_process(self.helper.pid, Signal::KILL);
            self.end_next();
        }
        // What it has made it tells before it ends.
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

/// Whether `err` says that a helper has ended.
pub(super) fn is_gone(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(err.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Likeness {
    /// That of what is to be as `plan` says, and is what it is now.
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

/// What is at `place`, wherever that leads, as far as is known without asking elsewhere.
fn found(place: &Place) -> Option<(u32, u32, u64)> {
    // An empty folder of its own lies on what is there, too.
    let (Place::Same { at, .. } | Place::Fresh { at, .. }) = place else { return None };
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, at.path(), how, StatxFlags::INO).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

impl Idle {
    /// One that stands by for what is `like` that, if any does. Blocks.
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

    /// Lets `standby`, of whose program nothing is left, stand by for what is `like` that.
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

    /// Ends all, and keeps none any more.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        let ended = std::mem::take(&mut waiting.helpers);
        drop(waiting);
        drop(ended);
    }

    /// From now on hears of what is mounted, of which those that begin later know.
    pub(super) fn watch_mounts(&self) {
        let mut waiting = self.waiting();
        if waiting.mounts.is_none() {
            waiting.mounts = File::open(MOUNTS).ok();
        }
    }

    /// The number of what is mounted, which is another once that has changed.
    pub(super) fn mounts(&self) -> u64 {
        self.waiting().mounts()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }
}

impl Waiting {
    /// The number of what is mounted, which is always another where that cannot be known.
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

/// Ends those that have stood by for long, until there are none.
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
