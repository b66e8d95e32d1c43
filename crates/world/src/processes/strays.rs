//! Finds all processes of a run by the tag that they carry, even after they left the process group.
//!
//! A process with the right to raise limits can remove its tag, but its orphans still become
//! children of the server. An orphan that belongs to no live run is lost, and is killed at once.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid,
};
use toolgate_contract::lock_mutex;

use crate::programs::{ProgramRunTag, RlimitLocksValues, ServerProcessMark};

/// A lock for listing or reaping children of this process. The kernel's list may skip a child if
/// the child before it is reaped meanwhile.
static CHILDREN_LOCK: Mutex<()> = Mutex::new(());

/// The tags of all runs of programs that have not ended.
static LIVE_RUNS: Mutex<BTreeSet<ProgramRunTag>> = Mutex::new(BTreeSet::new());

/// A run of a program that has not ended. The tag of its processes identifies the run.
pub(super) struct UnfinishedProgramRun(ProgramRunTag);

/// A process that carries the tag of a run of a program.
pub(super) struct TaggedProcess {
    pid: Pid,
    group: i32,
    state: ProcessLiveness,
}

/// The state of a process: alive, or dead but not reaped yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProcessLiveness {
    Alive,
    Dead,
}

impl UnfinishedProgramRun {
    /// Registers a new run of a program, under an unused tag of the server with the mark `mark`.
    pub(super) fn new(mark: ServerProcessMark) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let mut live = lock_mutex(&LIVE_RUNS);
        loop {
            let tag = mark.tag(RUNS.fetch_add(1, Ordering::Relaxed));
            // A long run may still have that number.
            if live.insert(tag) {
                return Self(tag);
            }
        }
    }

    pub(super) fn tag(&self) -> ProgramRunTag {
        self.0
    }
}

impl Drop for UnfinishedProgramRun {
    fn drop(&mut self) {
        lock_mutex(&LIVE_RUNS).remove(&self.0);
    }
}

/// Reads the resource limits of the process `pid`, which may contain a tag.
fn read_tag_limits(pid: Pid) -> RlimitLocksValues {
    RlimitLocksValues::parse(&fs::read(format!("/proc/{pid}/limits")).unwrap_or_default())
}

/// Returns the orphans with `tag` that this process adopted, other than `main`. Returns `None` if
/// the kernel does not list children.
///
/// Once `main` has ended, all its orphans are children of this process. The list is then empty only
/// if no process that `main` started is left.
pub(super) fn adopted_orphans(tag: ProgramRunTag, main: Pid) -> Option<Vec<TaggedProcess>> {
    Some(
        adopted_children()?
            .into_iter()
            .filter_map(|pid| TaggedProcess::find(pid, tag, main))
            .collect(),
    )
}

/// Kills and reaps the adopted orphans that belong to no current run. Returns `true` if any of them
/// is still alive.
pub(super) fn kill_lost_orphans() -> bool {
    let mut is_any_alive = false;
    for pid in adopted_children().unwrap_or_default() {
        // Opening the handle before the check ensures that the signal cannot reach another process.
        let handle = pidfd_open(pid, PidfdFlags::empty());
        let Some(lost) = TaggedProcess::find_lost(pid) else { continue };
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

/// Returns the children of this process's first thread. That thread adopts orphans and starts no
/// programs.
fn adopted_children() -> Option<Vec<Pid>> {
    let own = getpid();
    let _listed = lock_mutex(&CHILDREN_LOCK);
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
    let pids = children.split_whitespace();
    Some(pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

/// Scans all of `/proc` for processes with `tag`, and returns them except `main`.
pub(super) fn all_tagged(tag: ProgramRunTag, main: Pid) -> Vec<TaggedProcess> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
    pids.filter_map(|pid| TaggedProcess::find(pid, tag, main)).collect()
}

impl TaggedProcess {
    fn find(pid: Pid, tag: ProgramRunTag, main: Pid) -> Option<Self> {
        if pid == main || !tag.matches(read_tag_limits(pid)) {
            return None;
        }
        Self::read(pid).map(|(stray, _)| stray)
    }

    /// Returns the child process `pid` of this server if it is an orphan that belongs to no current
    /// run.
    ///
    /// Programs never run in the server's session, but other children of the server do.
    fn find_lost(pid: Pid) -> Option<Self> {
        let (stray, session) = Self::read(pid)?;
        // Both sessions are read from `/proc`. In a container whose first process has a parent
        // outside, both are 0, which getsid() cannot return.
        let is_ours = Self::read(getpid()).is_some_and(|(_, own)| own == session);
        let live = lock_mutex(&LIVE_RUNS);
        let is_live = read_tag_limits(pid).candidate_tags().any(|tag| live.contains(&tag));
        (!is_ours && !is_live).then_some(stray)
    }

    /// Reads the state of the process `pid`. Returns it with the session number of the process.
    fn read(pid: Pid) -> Option<(Self, i32)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before the `)` may contain spaces and parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = if matches!(fields.next()?, "Z" | "X") {
            ProcessLiveness::Dead
        } else {
            ProcessLiveness::Alive
        };
        let group = fields.nth(1)?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        Some((Self { pid, group, state }, session))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.state == ProcessLiveness::Alive
    }

    pub(super) fn is_in_group_of(&self, main: Pid) -> bool {
        self.group == main.as_raw_pid()
    }

    /// Sends `signal` to the process, unless its number belongs to a process without `tag` now.
    pub(super) fn signal(&self, tag: ProgramRunTag, signal: Signal) {
        let Ok(handle) = pidfd_open(self.pid, PidfdFlags::empty()) else {
            return;
        };
        if tag.matches(read_tag_limits(self.pid)) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    /// Reaps the process if it is dead and a child of this process.
    pub(super) fn reap(&self) {
        if self.state == ProcessLiveness::Dead {
            let _buried = lock_mutex(&CHILDREN_LOCK);
            // It may be another process's child.
            let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
        }
    }
}
