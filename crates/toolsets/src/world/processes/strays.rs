//! Finds all processes of a run by the tag that they carry, even after they left its group.
//!
//! A process with the right to raise limits can remove its tag. Its orphans still become our
//! children. An orphan without a live run is lost and is killed at once.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid,
};

use super::mark::{Mark, Tag, Worn};

/// Held while children are listed or reaped: the kernel's list may skip one if its predecessor is
/// reaped meanwhile.
static CHILDREN: Mutex<()> = Mutex::new(());

/// The tags of all runs that have not ended.
static LIVE: Mutex<BTreeSet<Tag>> = Mutex::new(BTreeSet::new());

/// A run that has not ended, identified by its tag.
pub(super) struct Live(Tag);

/// A process that carries a tag.
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
    /// Registers a new run of the server `mark` with an unused tag.
    pub(super) fn new(mark: Mark) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let tag = mark.tag(RUNS.fetch_add(1, Ordering::Relaxed));
            // A long run may still have that number.
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

/// Reads the limits of the process `pid`, which may contain a tag.
fn worn(pid: Pid) -> Worn {
    Worn::read(&fs::read(format!("/proc/{pid}/limits")).unwrap_or_default())
}

/// Returns the orphans with `tag` that this process adopted, other than `main`.
///
/// Once `main` has ended, the list is empty only if nothing it started is left, because every
/// orphan becomes our child. `None` if the kernel does not list children.
pub(super) fn adopted(tag: Tag, main: Pid) -> Option<Vec<Stray>> {
    Some(orphans()?.into_iter().filter_map(|pid| Stray::find(pid, tag, main)).collect())
}

/// Kills and reaps the adopted orphans that belong to no live run. Returns `true` if any is still
/// alive.
pub(super) fn end_lost() -> bool {
    let mut is_any_alive = false;
    for pid in orphans().unwrap_or_default() {
        // Opening the handle before the check ensures that the signal cannot reach another process.
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

/// Returns the children of this process's first thread, which adopts orphans and starts no
/// programs.
fn orphans() -> Option<Vec<Pid>> {
    let own = getpid();
    let _listed = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
    let pids = children.split_whitespace();
    Some(pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// Returns all processes with `tag` other than `main`. It scans all of `/proc`.
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

    /// Returns the orphan `pid` if no live run is known to have started it.
    ///
    /// The server's other children share its session, which no program does.
    fn find_lost(pid: Pid) -> Option<Self> {
        let (stray, session) = Self::look(pid)?;
        // Both sessions are read from `/proc`. In a container whose first process has a parent
        // outside, both are 0, which getsid() cannot return.
        let is_ours = Self::look(getpid()).is_some_and(|(_, own)| own == session);
        let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_live = worn(pid).tags().any(|tag| live.contains(&tag));
        (!is_ours && !is_live).then_some(stray)
    }

    /// Reads the state of the process `pid`, and its session.
    fn look(pid: Pid) -> Option<(Self, i32)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before the `)` may contain spaces and parentheses.
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

    /// Sends `signal`, unless another process has got the number meanwhile.
    pub(super) fn signal(&self, tag: Tag, signal: Signal) {
        let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) else {
            return;
        };
        if tag.is_on(worn(self.pid)) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Reaps the process if it is dead and our child.
    pub(super) fn reap(&self) {
        if self.state == State::Dead {
            let _buried = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
            // It may be another process's child.
            let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        }
    }
}
