//! Finds what a program started, wherever it went: by the tag its run bears.
//!
//! A process with the right to raise limits can take even that off. Its orphans are
//! ours all the same, and who is ours without a live run is lost: it is ended at once.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid,
};

use super::mark::{Mark, Tag, Worn};

/// Held while children are listed or buried: the kernel's list may miss one when the one
/// before it is buried meanwhile.
static CHILDREN: Mutex<()> = Mutex::new(());

/// The tags of the runs that are not over.
static LIVE: Mutex<BTreeSet<Tag>> = Mutex::new(BTreeSet::new());

/// A run that is not over, by its tag. Who bears no such tag is nobody's.
pub(super) struct Live(Tag);

/// A process that bears a tag.
pub(super) struct Stray {
    pid: Pid,
    group: i32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    Dead,
}

impl Live {
    /// A run that is about to start, of the server `mark`.
    pub(super) fn new(mark: Mark) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let tag = mark.tag(RUNS.fetch_add(1, Ordering::Relaxed));
            // A run that has gone on since that number came last has it still.
            if live.insert(tag) {
                return Self(tag);
            }
        }
    }

    pub(super) fn tag(&self) -> Tag {
        self.0
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// What the process `pid` wears where a tag would be.
fn worn(pid: Pid) -> Worn {
    Worn::read(&fs::read(format!("/proc/{pid}/limits")).unwrap_or_default())
}

/// The orphans with `tag` that fell to this process, other than `main`.
///
/// Once `main` is dead there are some exactly if anything it started is left: who
/// has lost all parents is ours. `None` where the kernel does not list children.
pub(super) fn adopted(tag: Tag, main: Pid) -> Option<Vec<Stray>> {
    Some(orphans()?.into_iter().filter_map(|pid| Stray::find(pid, tag, main)).collect())
}

/// Kills and buries the orphans that fell to this process and belong to no live run; whether
/// any is still alive.
pub(super) fn end_lost() -> bool {
    let mut is_any_alive = false;
    for pid in orphans().unwrap_or_default() {
        // With the handle open before the look, the signal cannot reach another.
        let handle = pidfd_open(pid, PidfdFlags::empty());
        let Some(lost) = Stray::find_lost(pid) else { continue };
        if lost.is_alive() {
            is_any_alive = true;
            if let Ok(handle) = handle {
                // It may have ended by itself.
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
        }
        lost.reap();
    }
    is_any_alive
}

/// The children of this process's first thread: orphans fall to it, and it starts no programs.
fn orphans() -> Option<Vec<Pid>> {
    let own = getpid();
    let _listed = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
    let pids = children.split_whitespace();
    Some(pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// All processes with `tag` other than `main`. It looks at every process there is.
pub(super) fn everywhere(tag: Tag, main: Pid) -> Vec<Stray> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
    pids.filter_map(|pid| Stray::find(pid, tag, main)).collect()
}

impl Stray {
    fn find(pid: Pid, tag: Tag, main: Pid) -> Option<Self> {
        if pid == main || !tag.is_on(worn(pid)) {
            return None;
        }
        Self::look(pid).map(|(stray, _)| stray)
    }

    /// The orphan `pid`, if no live run is known to have started it.
    ///
    /// A program's session is never the server's own, and a child the server has by other
    /// means is in that.
    fn find_lost(pid: Pid) -> Option<Self> {
        let (stray, session) = Self::look(pid)?;
        // Read as the orphan's is: in a container whose first process is another's child, both
        // are 0, and getsid() has no way to say so.
        let is_ours = Self::look(getpid()).is_some_and(|(_, own)| own == session);
        let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_live = worn(pid).tags().any(|tag| live.contains(&tag));
        (!is_ours && !is_live).then_some(stray)
    }

    /// What the process `pid` is, and its session.
    fn look(pid: Pid) -> Option<(Self, i32)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before the `)` may hold anything, spaces and parentheses too.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = if matches!(fields.next()?, "Z" | "X") { State::Dead } else { State::Alive };
        let group = fields.nth(1)?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        Some((Self { pid, group, state }, session))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.state == State::Alive
    }

    pub(super) fn is_in_group_of(&self, main: Pid) -> bool {
        self.group == main.as_raw_pid()
    }

    /// Sends `signal`, unless the number has passed to another process meanwhile.
    pub(super) fn signal(&self, tag: Tag, signal: Signal) {
        let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) else {
            return;
        };
        if tag.is_on(worn(self.pid)) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Buries it, if it is dead and ours.
    pub(super) fn reap(&self) {
        if self.state == State::Dead {
            let _buried = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
            // It may be another's child.
            let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        }
    }
}
