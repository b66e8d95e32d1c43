//! Threads that kill upstream processes at random times.

use std::fs;
use std::process::Command;
use std::thread::sleep;

use toolgate_test_support::SeededRng;

use super::super::leftovers::find_marked;
use super::gateway_folder::{FRAGILE_ROLE, GatewayFolder, HttpTestUpstream};
use super::{GatewayRunTally, increment};

/// Kills upstream processes over stdio, of all gateways, until the run is over. Stops some of them
/// with SIGSTOP first.
pub(super) fn kill_programs(folder: &GatewayFolder, mut rng: SeededRng, tally: &GatewayRunTally) {
    while tally.is_running() {
        sleep(rng.duration_between(100, 900));
        let marked = find_marked(&folder.marker);
        let fragile: Vec<_> =
            marked.iter().map(|process| process.pid).filter(|&pid| is_fragile(pid)).collect();
        if fragile.is_empty() {
            continue;
        }
        let at = rng.between(0, fragile.len() as u64);
        let pid = fragile[usize::try_from(at).unwrap_or_default()];
        match rng.between(0, 4) {
            0 => signal(pid, "TERM"),
            1 => {
                signal(pid, "STOP");
                sleep(rng.duration_between(100, 3000));
                // It may have ended, and another process may have its id by now.
                if is_fragile(pid) {
                    signal(pid, "KILL");
                }
            }
            _ => signal(pid, "KILL"),
        }
        increment(&tally.upstreams_killed);
    }
}

/// Kills the upstream over HTTP repeatedly until the run is over, and starts it again after a
/// pause.
pub(super) fn kill_web_upstream(
    mut upstream: HttpTestUpstream,
    mut rng: SeededRng,
    tally: &GatewayRunTally,
) {
    while tally.is_running() {
        sleep(rng.duration_between(1000, 6000));
        upstream.kill();
        increment(&tally.upstreams_killed);
        sleep(rng.duration_between(0, 2000));
        match upstream.start_again() {
            Ok(next) => upstream = next,
            Err(err) => return tally.fail(format!("{err:#}")),
        }
    }
}

fn is_fragile(pid: u32) -> bool {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    text.windows(FRAGILE_ROLE.len()).any(|part| part == FRAGILE_ROLE.as_bytes())
}

/// Sends the signal `name` to the process `pid`. Ignores the error if the process has ended.
fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("sh");
    let _ = kill.args(["-c", "kill -$0 $1 2> /dev/null", name, &pid.to_string()]).status();
}
