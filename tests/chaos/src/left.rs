//! What of ours still runs on this machine.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long what is about to end is waited for.
const ENDING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// A process that bears our marker.
pub(super) struct Left {
    pub(super) pid: u32,
    command: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} `{}`", self.pid, self.command)
    }
}

/// What bears `marker` and does not end.
pub(super) fn waited_for(marker: &str) -> Vec<Left> {
    let begun = Instant::now();
    loop {
        let left = running(marker);
        if left.is_empty() || begun.elapsed() > ENDING {
            return left;
        }
        sleep(LOOK);
    }
}

/// What bears `marker` in its environment or its words.
pub(super) fn running(marker: &str) -> Vec<Left> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ours = |pid: &u32| {
        *pid != std::process::id()
            && ["environ", "cmdline"].iter().any(|name| {
                let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
                text.windows(marker.len()).any(|part| part == marker.as_bytes())
            })
    };
    pids.filter(ours).map(|pid| Left { pid, command: command(pid) }).collect()
}

fn command(pid: u32) -> String {
    let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let name = read("comm");
    let words = read("cmdline");
    let name = String::from_utf8_lossy(&name).trim_end().to_owned();
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    format!("{name}: {}", words.trim_end())
}

/// Ends what is left.
pub(super) fn end(left: &[Left]) {
    if left.is_empty() {
        return;
    }
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -KILL \"$@\"", "sh"]);
    // They may have ended by themselves.
    let _ = kill.args(left.iter().map(|left| left.pid.to_string())).status();
}
