//! Finds processes of a run that still exist, by the marker text in their environment or command
//! line.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time that processes may take to end after the last server has exited.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two searches for processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Process whose environment or command line contains the marker of a run.
pub(super) struct MarkedProcess {
    pub(super) pid: u32,
    command_line: String,
}

impl fmt::Display for MarkedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} `{}`", self.pid, self.command_line)
    }
}

/// Waits until all processes with `marker` have ended. Returns those that do not end within
/// [`END_TIMEOUT`].
pub(super) fn wait_for_end(marker: &str) -> Vec<MarkedProcess> {
    let started = Instant::now();
    loop {
        let left = find_marked(marker);
        if left.is_empty() || started.elapsed() > END_TIMEOUT {
            return left;
        }
        sleep(POLL_INTERVAL);
    }
}

/// Returns all processes whose environment or command line contains `marker`.
pub(super) fn find_marked(marker: &str) -> Vec<MarkedProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &u32| {
        *pid != std::process::id()
            && ["environ", "cmdline"].iter().any(|name| {
                let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
                text.windows(marker.len()).any(|part| part == marker.as_bytes())
            })
    };
    pids.filter(is_marked)
        .map(|pid| MarkedProcess { pid, command_line: command_line(pid) })
        .collect()
}

fn command_line(pid: u32) -> String {
    let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let name = read("comm");
    let words = read("cmdline");
    let name = String::from_utf8_lossy(&name).trim_end().to_owned();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    format!("{name}: {}", words.trim_end())
}

/// Kills `processes`. Ignores those that have ended already.
pub(super) fn kill_all(processes: &[MarkedProcess]) {
    if processes.is_empty() {
        return;
    }
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -KILL \"$@\"", "sh"]);
    let _ = kill.args(processes.iter().map(|process| process.pid.to_string())).status();
}
