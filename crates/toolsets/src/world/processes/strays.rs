//! Finds what a program started, wherever it went.
//!
//! A process can leave its group (`setsid`) and its parent (a double fork), and it
//! can empty its environment. What it does not think of is a resource limit Linux
//! has ignored since 2.4, is inherited by every child and shown in `/proc`, of
//! zombies too: `RLIMIT_LOCKS`. Each run starts with a number of its own there.

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

impl Tag {
    /// A number nobody else bears.
    pub(super) fn new() -> io::Result<Self> {
        let number = getrandom::u64().map_err(io::Error::other)? >> 2;
        // A server that runs below another has a ceiling of its own.
        Ok(Self(match getrlimit(Resource::Locks).maximum {
            Some(ceiling) => number % ceiling.max(1),
            None => number,
        }))
    }

    /// Marks the calling process and all it will start. Only a system call.
    pub(super) fn mark(self) -> io::Result<()> {
        let maximum = getrlimit(Resource::Locks).maximum;
        Ok(setrlimit(Resource::Locks, Rlimit { current: Some(self.0), maximum })?)
    }

    fn is_on(self, pid: Pid) -> bool {
        let limits = fs::read(format!("/proc/{pid}/limits")).unwrap_or_default();
        let limits = String::from_utf8_lossy(&limits);
        let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()) == Some(self.0)
    }
}

/// The orphans with `tag` that fell to this process, other than `main`.
///
/// Once `main` is dead there are some exactly if anything it started is left: who
/// has lost all parents is ours. `None` where the kernel does not list children.
pub(super) fn adopted(tag: Tag, main: Pid) -> Option<Vec<Stray>> {
    let own = getpid();
    let children = {
        let _listed = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?
    };
    let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    Some(pids.filter_map(|pid| Stray::find(pid, tag, main)).collect())
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
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before the `)` may hold anything, spaces and parentheses too.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = if matches!(fields.next()?, "Z" | "X") { State::Dead } else { State::Alive };
        let group = fields.nth(1)?.parse().ok()?;
        Some(Self { pid, group, state })
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
