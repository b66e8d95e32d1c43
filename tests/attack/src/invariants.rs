//! Invariants that must hold after every attempt at any attack case.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::attempt::AttackAttempt;
use super::server::audit_log;

/// Time that processes may take to end after the server has stopped.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Checks the invariants about what remains after the server has stopped. Two others are checked
/// before: the server still answers, and its standard output has only messages.
pub(super) fn check_after_exit(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    check_canaries(attempt);
    check_outside(attempt)?;
    check_processes(attempt);
    Ok(())
}

/// Records a failure if the secret text of a file outside the workspace, or of the environment, is
/// in an answer, a log or an audit record.
fn check_canaries(attempt: &mut AttackAttempt) {
    let mut places: Vec<(String, Vec<u8>)> =
        vec![("an answer or the log".to_owned(), std::mem::take(&mut attempt.received))];
    places.push((
        "the audit log".to_owned(),
        fs::read(audit_log(&attempt.folders)).unwrap_or_default(),
    ));
    for file in files(&attempt.folders.home.join("envelopes")) {
        places.push((format!("{}", file.display()), fs::read(&file).unwrap_or_default()));
    }
    for (name, canary) in [
        ("the canary", &attempt.folders.canary),
        ("the environment's canary", &attempt.folders.env_canary),
    ] {
        for encoding in encodings(canary) {
            for (place, bytes) in &places {
                if contains(bytes, &encoding) {
                    attempt.failures.push(format!("{name} is in {place}"));
                }
            }
        }
    }
    attempt.failures.dedup();
}

/// Returns `text` in each encoding in which output may contain it: plain, escaped, hexadecimal, and
/// base64 at three offsets.
fn encodings(text: &str) -> Vec<Vec<u8>> {
    let escaped: String = text.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut encodings = vec![text.as_bytes().to_vec(), escaped.into_bytes(), hex.into_bytes()];
    for before in 0..3 {
        let padded = [vec![0; before], text.as_bytes().to_vec()].concat();
        let encoded = base64(&padded);
        // The first and last group also depend on the bytes around the text.
        let from = if before == 0 { 0 } else { 4 };
        let to = encoded.len() - 4;
        encodings.push(encoded[from..to].to_vec());
    }
    encodings
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for three in bytes.chunks(3) {
        let at = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let group = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            text.push(DIGITS[(group >> (18 - 6 * digit) & 63) as usize]);
        }
    }
    text
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && memchr::memmem::find(bytes, part).is_some()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(files(&entry.path())),
            _ => all.push(entry.path()),
        }
    }
    all
}

/// Records a failure if anything outside the workspace changed.
fn check_outside(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    let Some((before, names)) = attempt.outside_before.take() else { return Ok(()) };
    if let Some(changed) = before.difference(&attempt.outside_snapshot()?) {
        attempt.failures.push(format!("outside: {changed}"));
    }
    let now = attempt.folders.sibling_names()?;
    if now != names {
        attempt.failures.push(format!("beside the workspace are {now:?}, not {names:?}"));
    }
    Ok(())
}

/// Records a failure if a process outlives the server.
///
/// The current process adopts orphans, so it also finds a process that left its group and its
/// parent.
fn check_processes(attempt: &mut AttackAttempt) {
    let started = Instant::now();
    loop {
        let left = descendants(std::process::id());
        if left.is_empty() {
            return;
        }
        if started.elapsed() > END_TIMEOUT {
            let lines: Vec<String> =
                left.iter().map(|(pid, line)| format!("{pid} {line}")).collect();
            attempt.failures.push(format!("left running: {}", lines.join("; ")));
            kill_all(&left);
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

/// Returns the id and the command line of every running descendant of the process `pid`.
pub(super) fn descendants(pid: u32) -> Vec<(i32, String)> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut words = rest.split(' ');
        let state = words.next().unwrap_or_default().to_owned();
        let parent: u32 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        parents.push((child, parent, state));
    }
    let mut found = Vec::new();
    let mut above = vec![pid];
    while let Some(next) = above.pop() {
        for (child, parent, state) in &parents {
            if *parent == next {
                above.push(u32::try_from(*child).unwrap_or(0));
                if state != "Z" {
                    found.push((*child, command_line(*child)));
                } else if next == std::process::id() {
                    reap(*child);
                }
            }
        }
    }
    found
}

fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    line.trim().chars().take(120).collect()
}

fn reap(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

fn kill_all(processes: &[(i32, String)]) {
    for (pid, _) in processes {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_found_in_every_encoding() {
        let canary = "canary-0123456789abcdef";
        for before in ["", "a", "ab", "abc"] {
            let text = format!("{before}{canary}, and more");
            let encoded = base64(text.as_bytes());
            assert!(encodings(canary).iter().any(|it| contains(&encoded, it)), "{before}");
        }
        for text in [canary.to_owned(), "\\u0063anary".replace("\\u0063", "c") + &canary[6..]] {
            assert!(encodings(canary).iter().any(|it| contains(text.as_bytes(), it)));
        }
        assert!(!encodings(canary).iter().any(|it| contains(b"canary-012345678", it)));
    }
}
