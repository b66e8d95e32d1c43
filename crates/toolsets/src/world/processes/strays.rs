//! Finds what a program started, wherever it went.
//!
//! A process can leave its group (`setsid`) and its parent (a double fork), and it
//! can empty its environment. What it does not think of is a resource limit Linux
//! has ignored since 2.4, is inherited by every child and shown in `/proc`, of
//! zombies too: `RLIMIT_LOCKS`. Each run starts with a number of its own there.
//!
//! A process with the right to raise limits can take even that off. Its orphans are
//! ours all the same, and who is ours without a live run is lost: it is ended at once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, pidfd_open,
    pidfd_send_signal, setrlimit, waitpid,
};

/// Held while children are listed or buried: the kernel's list may miss one when the one
/// before it is buried meanwhile.
static CHILDREN: Mutex<()> = Mutex::new(());

/// The tags of the runs that are not over.
static LIVE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// A run that is not over, by its tag. Who bears no such tag is nobody's.
pub(super) struct Live(Tag);

/// The number all processes of one run bear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(u64);

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
    /// A run that is about to start.
    pub(super) fn new() -> io::Result<Self> {
        let tag = Tag::new()?;
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).insert(tag.0);
        Ok(Self(tag))
    }

    pub(super) fn tag(&self) -> Tag {
        self.0
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0.0);
    }
}

impl Tag {
    /// A number nobody else bears.
    fn new() -> io::Result<Self> {
        let number = getrandom::u64().map_err(io::Error::other)? >> 2;
        // A server that runs below another has a ceiling of its own.
        Ok(Self(match getrlimit(Resource::Locks).maximum {
            Some(ceiling) => number % ceiling.max(1),
            None => number,
        }))
    }

    /// Marks the calling process and all it will start. Only a system call.
    pub(super) fn mark(self) -> io::Result<()> {
        let limit = Rlimit { current: Some(self.0), maximum: Some(self.0) };
        Ok(setrlimit(Resource::Locks, limit)?)
    }

    fn is_on(self, pid: Pid) -> bool {
        tags(pid).contains(&Some(self.0))
    }
}

/// The limits of a process that may bear a tag, which it may have lowered one of.
fn tags(pid: Pid) -> [Option<u64>; 2] {
    let limits = fs::read(format!("/proc/{pid}/limits")).unwrap_or_default();
    let limits = String::from_utf8_lossy(&limits);
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
    let mut fields = line.unwrap_or_default().split_whitespace();
    [(); 2].map(|()| fields.next()?.parse().ok())
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
        if pid == main || !tag.is_on(pid) {
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
        let is_live = tags(pid).iter().flatten().any(|tag| live.contains(tag));
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
        if tag.is_on(self.pid) {
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
