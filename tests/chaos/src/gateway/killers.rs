//! Those who kill upstreams.

use std::fs;
use std::process::Command;
use std::thread::sleep;

use super::super::chance::Chance;
use super::super::left::running;
use super::stage::{FRAGILE, Stage, Web};
use super::{Tally, count};

/// Kills upstreams that are programs, of whichever gateway: at once, or after they stood still for
/// a while.
pub(super) fn upstreams(stage: &Stage, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        sleep(chance.millis(100, 900));
        let ours = running(&stage.marker);
        let fragile: Vec<_> = ours.iter().map(|it| it.pid).filter(|&pid| is_fragile(pid)).collect();
        if fragile.is_empty() {
            continue;
        }
        let at = chance.between(0, fragile.len() as u64);
        let pid = fragile[usize::try_from(at).unwrap_or_default()];
        match chance.between(0, 4) {
            0 => signal(pid, "TERM"),
            1 => {
                signal(pid, "STOP");
                sleep(chance.millis(100, 3000));
                // It may have ended, and its number may be another's: looked at once more.
                if is_fragile(pid) {
                    signal(pid, "KILL");
                }
            }
            _ => signal(pid, "KILL"),
        }
        count(&tally.upstreams_killed);
    }
}

/// Kills the upstream over HTTP, and starts it again after a while.
pub(super) fn web(mut web: Web, mut chance: Chance, tally: &Tally) {
    while tally.goes_on() {
        sleep(chance.millis(1000, 6000));
        web.kill();
        count(&tally.upstreams_killed);
        sleep(chance.millis(0, 2000));
        match web.again() {
            Ok(again) => web = again,
            Err(err) => return tally.wrong(format!("{err:#}")),
        }
    }
}

fn is_fragile(pid: u32) -> bool {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    text.windows(FRAGILE.len()).any(|part| part == FRAGILE.as_bytes())
}

fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("sh");
    // It may have ended by itself.
    let _ = kill.args(["-c", "kill -$0 $1 2> /dev/null", name, &pid.to_string()]).status();
}
