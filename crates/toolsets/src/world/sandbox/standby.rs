//! Helpers that stand by. Each has been started ahead of the programs it confines, one after
//! another, and is in the groups that bound each of them: to start one, and to move a process into
//! groups, takes longer than all that is around a program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::groups::Groups;
use super::layers::AT_ONCE;
use super::orders::{Answer, Order, line};
use super::plan::{Bytes, Place, Plan, Spaces};
use super::step::Failed;
use crate::world::processes::{Child, Image, Streams, end};

/// The helper: the server's own program.
const HELPER_FILE: &str = "/proc/self/exe";
/// How many stand by with nothing to do.
const IDLE_MAX: usize = 6;
/// How long one does.
const IDLE: Duration = Duration::from_secs(60);
/// How long a helper may take to have a process made.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A helper, which is ended when this is dropped, and then its groups with it.
pub(super) struct Standby {
    line: OwnedFd,
    helper: Child,
    /// The process for the next task, once it is known.
    next: Option<Pid>,
    has_failed: bool,
    groups: Option<Groups>,
}

/// What a helper is to do, with its ends of what it says.
pub(super) struct Task {
    /// Sealed.
    pub(super) plan: OwnedFd,
    pub(super) birth: OwnedFd,
    pub(super) end: OwnedFd,
    pub(super) workspace: OwnedFd,
    pub(super) is_fed: bool,
}

/// For which tasks a helper is: in one workspace, in such namespaces, and with such a view, since
/// names of what one program saw beside the others stay in what the next sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Likeness {
    pub(super) workspace: Bytes,
    pub(super) spaces: Option<Spaces>,
    pub(super) view: Vec<Place>,
}

/// Those that have nothing to do.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    helpers: Vec<(Instant, Likeness, Standby)>,
    is_watched: bool,
    is_closed: bool,
}

impl Standby {
    /// One that is in `groups`, started by `start`, and makes ready what plans like `plan` need,
    /// which names no program: nothing of one is to lie in what another is started by. Blocks.
    pub(super) fn begin(
        groups: Option<Groups>,
        mut plan: Plan,
        task: &Task,
        start: impl FnOnce(Image) -> io::Result<Child>,
    ) -> io::Result<Self> {
        let (line, theirs) = line()?;
        plan.groups = groups.as_ref().map(Groups::doors).unwrap_or_default();
        let image = Image::helper(HELPER_FILE.into(), &theirs)?;
        let streams = Streams::new(false)?;
        task.send(&line, plan.seal()?.as_fd(), streams.theirs.each_ref().map(AsFd::as_fd))?;
        Ok(Self { line, helper: start(image)?, next: None, has_failed: false, groups })
    }

    /// Whether it is still there.
    pub(super) fn is_there(&self) -> bool {
        poll(&mut [PollFd::new(&self.line, PollFlags::empty())], Some(&AT_ONCE)) == Ok(0)
    }

    /// Has it do `task`, in a process that can be ended by its number. Blocks until there is one.
    pub(super) fn order(&mut self, task: &Task) -> io::Result<Result<Child, Failed>> {
        let streams = Streams::new(task.is_fed)?;
        let sent =
            task.send(&self.line, task.plan.as_fd(), streams.theirs.each_ref().map(AsFd::as_fd));
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
                self.next = None;
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
    /// itself. Blocks.
    fn is_alone(&mut self) -> bool {
        if let (None, Ok(Answer::Made(pid))) = (self.next, self.told(&PATIENCE)) {
            self.next = Some(pid);
        }
        let Some(next) = self.next else { return false };
        let pids = [self.helper.pid, next];
        self.groups.as_ref().is_none_or(|groups| groups.hold_only(&pids))
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
        plan: BorrowedFd<'_>,
        streams: [BorrowedFd<'_>; 3],
    ) -> io::Result<()> {
        let Self { birth, end, workspace, plan: _, is_fed: _ } = self;
        let [birth, end, workspace] = [birth, end, workspace].map(AsFd::as_fd);
        Order { streams, plan, birth, end, workspace }.send(line)
    }
}

/// Whether `err` says that a helper has ended.
pub(super) fn is_gone(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(err.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Idle {
    /// One that stands by for what is `like` that, if any does. Blocks.
    pub(super) fn take(&self, like: &Likeness) -> Option<Standby> {
        let mut waiting = self.waiting();
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
        if waiting.is_closed {
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

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
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
