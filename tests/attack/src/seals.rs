//! What must hold after every case, whatever it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::play::Play;
use super::server::audit;

/// How long what was started may take to be gone.
const GONE: Duration = Duration::from_secs(1);

/// Looks at all of them but two: that it answers and that it says nothing else are seen while
/// it runs.
pub(super) fn look(play: &mut Play) -> anyhow::Result<()> {
    canaries(play);
    outside(play)?;
    survivors(play);
    Ok(())
}

/// Neither canary may be in what was said, logged or recorded.
fn canaries(play: &mut Play) {
    let mut places: Vec<(String, Vec<u8>)> =
        vec![("what was answered or logged".to_owned(), std::mem::take(&mut play.heard))];
    places.push(("the audit log".to_owned(), fs::read(audit(&play.stage)).unwrap_or_default()));
    for file in files(&play.stage.home.join("envelopes")) {
        places.push((format!("{}", file.display()), fs::read(&file).unwrap_or_default()));
    }
    for (name, canary) in
        [("the canary", &play.stage.canary), ("the environment's canary", &play.stage.env_canary)]
    {
        for shape in shapes(canary) {
            for (place, bytes) in &places {
                if contains(bytes, &shape) {
                    play.wrong.push(format!("{name} is in {place}"));
                }
            }
        }
    }
    play.wrong.dedup();
}

/// A text as it may be written: as it is, escaped, and in base64 wherever it begins.
fn shapes(text: &str) -> Vec<Vec<u8>> {
    let escaped: String = text.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut shapes = vec![text.as_bytes().to_vec(), escaped.into_bytes(), hex.into_bytes()];
    for before in 0..3 {
        let padded = [vec![0; before], text.as_bytes().to_vec()].concat();
        let encoded = base64(&padded);
        // What is certain whatever stands around it: whole groups, without the first and last.
        let from = if before == 0 { 0 } else { 4 };
        let to = encoded.len() - 4;
        shapes.push(encoded[from..to].to_vec());
    }
    shapes
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

/// What lies outside the workspace is as it was.
fn outside(play: &mut Play) -> anyhow::Result<()> {
    let Some((before, names)) = play.outside.take() else { return Ok(()) };
    if let Some(changed) = before.changed(&play.outside_now()?) {
        play.wrong.push(format!("outside: {changed}"));
    }
    let now = play.stage.names()?;
    if now != names {
        play.wrong.push(format!("beside the workspace there is {now:?}, there was {names:?}"));
    }
    Ok(())
}

/// Nothing that the server started outlives it.
///
/// This process is who orphans fall to, so whatever way one left its group, its parent and its
/// environment, it is seen here.
fn survivors(play: &mut Play) {
    let begun = Instant::now();
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > GONE {
            let named: Vec<String> =
                left.iter().map(|(pid, what)| format!("{pid} {what}")).collect();
            play.wrong.push(format!("left running: {}", named.join("; ")));
            end(&left);
            return;
        }
        sleep(Duration::from_millis(5));
    }
}

/// The processes that are left of this play, and what they are.
pub(super) fn left() -> Vec<(i32, String)> {
    descendants(std::process::id())
}

/// Every living process beneath `pid`.
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

fn end(left: &[(i32, String)]) {
    for (pid, _) in left {
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
            assert!(shapes(canary).iter().any(|shape| contains(&encoded, shape)), "{before}");
        }
        for said in [canary.to_owned(), "\\u0063anary".replace("\\u0063", "c") + &canary[6..]] {
            assert!(shapes(canary).iter().any(|shape| contains(said.as_bytes(), shape)));
        }
        assert!(!shapes(canary).iter().any(|shape| contains(b"canary-012345678", shape)));
    }
}
