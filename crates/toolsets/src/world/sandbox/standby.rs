//! Helpers that stand by. Each has been started ahead of the programs it confines, one after
//! another, and is in the groups that bound each of them: to start one, and to move a process into
//! groups, takes longer than all that is around a program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::runtime::Handle;

use super::groups::Groups;
use super::orders::{Answer, Order, line};
use super::step::Failed;
use crate::world::processes::{Child, Image, Streams};

/// The helper: the server's own program.
const HELPER_FILE: &str = "/proc/self/exe";
/// How many stand by with nothing to do.
const IDLE_MAX: usize = 4;
/// How long one does.
const IDLE: Duration = Duration::from_secs(60);
/// How long a helper may take to have a process made.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A helper, which is ended when this is dropped, and then its groups with it.
pub(super) struct Standby {
    line: OwnedFd,
    helper: Child,
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

/// Those that have nothing to do.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    helpers: Vec<(Instant, Standby)>,
    is_watched: bool,
    is_closed: bool,
}

impl Standby {
    /// One that is in `groups`, started by `start`. Blocks.
    pub(super) fn begin(
        groups: Option<Groups>,
        start: impl FnOnce(Image) -> io::Result<Child>,
    ) -> io::Result<Self> {
        let (line, theirs) = line()?;
        let doors = groups.as_ref().map(Groups::doors).unwrap_or_default();
        let image = Image::helper(HELPER_FILE.into(), doors, &theirs)?;
        Ok(Self { line, helper: start(image)?, groups })
    }

    /// Whether it is still there.
    pub(super) fn is_there(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It says nothing by itself: what can be read is its end.
        poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(&at_once)) == Ok(0)
    }

    /// Has it make a process, which does what is planned. Blocks until there is one that can be
    /// ended by its number.
    pub(super) fn order(&self, task: &Task) -> io::Result<Result<Child, Failed>> {
        let streams = Streams::new(task.is_fed)?;
        let theirs = streams.theirs.each_ref().map(AsFd::as_fd);
        let Task { plan, birth, end, workspace, is_fed: _ } = task;
        let [plan, birth, end, workspace] = [plan, birth, end, workspace].map(AsFd::as_fd);
        let sent = Order { streams: theirs, plan, birth, end, workspace }.send(&self.line);
        let (mut made, mut is_apart) = (None, false);
        let failed = loop {
            match self.answer() {
                Ok(Answer::Made(pid)) => made = Some(pid),
                Ok(Answer::Apart) => is_apart = true,
                Ok(Answer::Failed(failed)) => break Ok(Err(failed)),
                // Who could not be told has said why before, if it could.
                Err(err) => break Err(sent.err().unwrap_or(err)),
            }
            if let (Some(pid), true) = (made, is_apart) {
                return Ok(Ok(Child::of(pid, streams)));
            }
        };
        made.map_or(Ok(()), |pid| Child::of(pid, streams).end())?;
        failed
    }

    fn answer(&self) -> io::Result<Answer> {
        match poll(&mut [PollFd::new(&self.line, PollFlags::IN)], Some(&PATIENCE))? {
            0 => Err(io::Error::other("the helper that confines programs does not answer")),
            _ => Answer::receive(&self.line),
        }
    }

    /// Whether nothing but itself is left in its groups.
    fn is_alone(&self) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.hold_only(self.helper.pid))
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.helper.end();
    }
}

/// Whether `err` says that a helper has ended.
pub(super) fn is_gone(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(err.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Idle {
    /// One that stands by, if any does.
    pub(super) fn take(&self) -> Option<Standby> {
        let mut waiting = self.waiting();
        loop {
            let (_, standby) = waiting.helpers.pop()?;
            if standby.is_there() {
                return Some(standby);
            }
        }
    }

    /// Lets `standby`, of whose program nothing is left, stand by for another.
    pub(super) fn give_back(&self, standby: Standby) {
        let (Ok(runtime), true) = (Handle::try_current(), standby.is_alone()) else { return };
        let mut waiting = self.waiting();
        if waiting.is_closed || waiting.helpers.len() >= IDLE_MAX {
            return;
        }
        waiting.helpers.push((Instant::now(), standby));
        if !waiting.is_watched {
            waiting.is_watched = true;
            runtime.spawn(end_idle(Arc::downgrade(&self.0)));
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
            waiting.helpers.extract_if(.., |(since, _)| since.elapsed() >= IDLE).collect();
        waiting.is_watched = !waiting.helpers.is_empty();
        let is_over = !waiting.is_watched;
        drop(waiting);
        // It takes a moment, in which the others may be taken.
        drop(ended);
        if is_over {
            return;
        }
    }
}
