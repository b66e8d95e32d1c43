//! Processes on this machine, read from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{wait_for, wait_until};

/// Unique command-line argument by which tests find a program.
///
/// The argument is a number, so that `sleep` accepts it. It means about 300 seconds.
#[derive(Debug, Clone)]
pub(crate) struct ProcessMarker(pub(crate) String);

impl ProcessMarker {
    pub(crate) fn new() -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self(format!("300.{:07}{serial:03}", std::process::id()))
    }

    /// Returns the ids of the processes that have the marker on their command line.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let has = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == self.0.as_bytes())
        };
        pids().filter(has).collect()
    }

    /// Waits until a program with the marker runs, and returns its process id.
    #[track_caller]
    pub(crate) fn wait_until_running(&self) -> u32 {
        wait_for("the program starts", || self.pids().first().copied())
    }

    /// Waits until no program with the marker runs.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self) {
        wait_until("the program has exited", || self.pids().is_empty());
    }
}

/// Returns true if the process `pid` runs. A zombie does not run.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(_, state)| state != 'Z')
}

/// Returns all living descendants of the process `pid`.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let children: Vec<u32> = pids()
        .filter(|child| stat(*child).is_some_and(|(parent, state)| parent == pid && state != 'Z'))
        .collect();
    children.iter().flat_map(|child| descendants(*child)).chain(children.clone()).collect()
}

/// Returns the peak resident memory of the process `pid` in KiB, including its code. The share of
/// the code depends on the compiler, so compare only two readings of one process. Readings may
/// shrink a little, because the kernel counts per processor.
pub(crate) fn peak_memory_kib(pid: u32) -> u64 {
    memory_kib(pid, "VmHWM:")
}

/// Returns the current resident memory of the process `pid` in KiB, without its code.
pub(crate) fn held_memory_kib(pid: u32) -> u64 {
    memory_kib(pid, "RssAnon:")
}

fn memory_kib(pid: u32, kind: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the parent's id and the state of the process `pid`.
fn stat(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
