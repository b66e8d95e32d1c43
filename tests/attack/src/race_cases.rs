//! Attack cases about races: files that change during a call, and many calls at once.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::Ordering;
use std::thread::scope;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, CallResults, call};
use super::client::{AttackClient, connect, start_and_connect};
use super::dialects::AttackResponse;
use super::oracle::summary;
use super::server::AttackedServer;
use super::setup::start_swapping;

/// Number of calls in a full attempt to win a race.
const RACE_CALLS: usize = 4000;
/// Number of calls that are in flight at once on a stream.
const CALLS_IN_FLIGHT: usize = 16;
/// Minimum number of swaps of paths during a race.
const SWAPS_MIN: u64 = 100;

/// Makes all calls and returns their answers in order. On a stream, keeps several calls in flight.
fn call_all(
    client: &mut AttackClient,
    calls: &[(&str, Value)],
) -> anyhow::Result<Vec<AttackResponse>> {
    let mut responses = Vec::new();
    for window in calls.chunks(CALLS_IN_FLIGHT) {
        if !client.is_stream() {
            for (tool, input) in window {
                responses.push(client.call(tool, input)?);
            }
            continue;
        }
        let mut ids = Vec::new();
        for (tool, input) in window {
            let request = client.call_request(tool, input)?;
            client.send(&request)?;
            ids.push(request.id);
        }
        for id in ids {
            let timeout = client.timeout;
            responses.push(client.wait_for_answer(id, timeout)?.context("no answer")?);
        }
    }
    Ok(responses)
}

/// Makes the calls while another thread swaps a folder and a symlink to the outside. Repeats all
/// calls if there were fewer than [`SWAPS_MIN`] swaps.
fn race(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
    calls: &[(&str, Value)],
) -> anyhow::Result<Vec<AttackResponse>> {
    let ws = attempt.folders.ws.clone();
    for _ in 0..3 {
        let (swapping, swaps) = start_swapping(&ws.join("x"), &ws.join("xl"));
        let responses = call_all(client, calls)?;
        let swapped = swaps.load(Ordering::Relaxed);
        drop(swapping);
        if swapped >= SWAPS_MIN {
            attempt.notes.push(format!("{} calls, {swapped} swaps", calls.len()));
            return Ok(responses);
        }
    }
    bail!("the harness: too few swaps for a race")
}

/// Attack case F23: reads through a folder that another thread replaces by a symlink to the outside
/// and back.
pub(super) fn read_through_swapped_folder(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let calls =
        vec![("files.read", json!({ "path": "x/secret" })); attempt.length.repetitions(RACE_CALLS)];
    let responses = race(attempt, client, &calls)?;
    let has = |response: &AttackResponse, text: &str| {
        String::from_utf8_lossy(&response.raw).contains(text)
    };
    let leaks = responses.iter().filter(|response| has(response, &attempt.folders.canary)).count();
    let inside =
        responses.iter().filter(|response| has(response, "inside") && !response.is_error).count();
    let finding = match (leaks, inside) {
        (0, 1..) => Ok(()),
        (0, _) => Err("no read returned the content inside".to_owned()),
        (leaks, _) => Err(format!("{leaks} of {} reads leaked", responses.len())),
    };
    attempt.record_finding("race:no_canary", finding);
    attempt.notes.push(format!("{inside} reads inside"));
    Ok(Vec::new())
}

/// Attack case F24: changes files through a folder that another thread replaces by a symlink to the
/// outside and back.
pub(super) fn write_through_swapped_folder(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let calls: Vec<(&str, Value)> = (0..attempt.length.repetitions(RACE_CALLS))
        .map(|i| match i % 6 {
            0 => (
                "files.write",
                json!({ "path": format!("x/new_{i}"), "content": "w", "overwrite": true }),
            ),
            1 => {
                let edit =
                    json!([{ "start_line": 1, "end_line": 1, "new": format!("inside {i}\n") }]);
                ("files.edit", json!({ "path": "x/secret", "edits": edit }))
            }
            2 => (
                "files.copy",
                json!({ "source": "ok.txt", "destination": format!("x/copied_{i}") }),
            ),
            3 => {
                let from = format!("x/copied_{}", i - 1);
                ("files.move", json!({ "source": from, "destination": format!("x/moved_{i}") }))
            }
            4 => ("files.delete", json!({ "path": "x/victim" })),
            _ => ("files.mkdir", json!({ "path": format!("x/made_{i}") })),
        })
        .filter(|(tool, input)| client.can_send(tool, input))
        .collect();
    let responses = race(attempt, client, &calls)?;
    let succeeded = responses.iter().filter(|response| !response.is_error).count();
    let changes = match &attempt.outside_before {
        Some((before, _)) => before.difference(&attempt.outside_snapshot()?),
        None => Some("the harness has no snapshot".to_owned()),
    };
    let finding = match (changes, succeeded) {
        (Some(changes), _) => Err(changes),
        (None, 0) => Err("no write inside succeeded".to_owned()),
        (None, _) => Ok(()),
    };
    attempt.record_finding("race:outside_unchanged", finding);
    attempt.notes.push(format!("{succeeded} succeeded inside"));
    Ok(Vec::new())
}

/// Attack case X08: replaces an allowed program by another program between its check and its start.
pub(super) fn swap_program(attempt: &mut AttackAttempt) -> CallResults {
    let base = attempt.folders.base.clone();
    for (folder, text) in [("good", "good"), ("bad", attempt.folders.canary.as_str())] {
        fs::create_dir(base.join(folder))?;
        let file = base.join(folder).join("tool");
        fs::write(&file, format!("#!/bin/sh\necho {text}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    fs::create_dir(base.join("bin"))?;
    let allowed = base.join("bin/tool");
    symlink(base.join("good/tool"), &allowed)?;
    symlink(base.join("bad/tool"), base.join("bin/other"))?;
    attempt.launch.set("EXEC_ALLOW", &allowed.display().to_string());
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let (swapping, swaps) = start_swapping(&allowed, &base.join("bin/other"));
    let input = json!({ "command": base.join("good/tool").display().to_string() });
    let mut allowed_runs = 0;
    let mut other_runs = 0;
    let mut last = AttackResponse::default();
    for nth in 0..2000 {
        // A start seldom falls between two swaps.
        if nth >= attempt.length.repetitions(300) && allowed_runs > 0 {
            break;
        }
        let result = call(&mut client, "exec.run", &input)?;
        let raw = String::from_utf8_lossy(&result.response.raw).into_owned();
        other_runs += u32::from(raw.contains(&attempt.folders.canary));
        allowed_runs += u32::from(raw.contains("good") && !result.response.is_error);
        last = result.response;
    }
    drop(swapping);
    let finding = match (allowed_runs, other_runs) {
        (1.., 0) => Ok(()),
        (0, 0) => Err(format!("the allowed program never ran: {}", summary(&last))),
        (_, other_runs) => Err(format!("a program that was not checked ran {other_runs} times")),
    };
    attempt.record_finding("race:no_canary", finding);
    attempt.notes.push(format!("{} swaps, {allowed_runs} runs", swaps.load(Ordering::Relaxed)));
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(Vec::new())
}

/// Attack case R12: fills the disk with files of 10 MB until the server refuses one. The client
/// writes the first file and copies it, because a copy sends no content.
pub(super) fn flood_disk(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let content = "x".repeat(10_000_000);
    let write =
        |i: usize| json!({ "path": format!("f{i}"), "content": content, "overwrite": true });
    let mut first = call(client, "files.write", &write(0))?;
    first.is_judged = false;
    let mut results = vec![first];
    let started = Instant::now();
    for i in 1..600 {
        let input = json!({ "source": "f0", "destination": format!("f{i}") });
        let response = client.call("files.copy", &input)?;
        if response.is_error {
            // A write must be refused, too. A long one may be accepted: while the server receives
            // it, the limit leaves room again.
            let short = json!({ "path": format!("f{i}"), "content": "x", "overwrite": true });
            let result = call(client, "files.write", &short)?;
            if result.response.is_error {
                results.push(result);
                attempt.notes.push(format!("refused after {i} files"));
                return Ok(results);
            }
        }
        // The harness keeps only a few files.
        if i > 4 {
            fs::remove_file(attempt.folders.ws.join(format!("f{}", i - 4)))?;
        }
        if started.elapsed().as_secs() > 100 {
            bail!("{} MB in 100 s without a refusal", i * 10);
        }
    }
    bail!("6000 MB were written without a refusal")
}

/// Attack case R13: makes 5,000 reads at once.
pub(super) fn read_in_parallel(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let input = json!({ "path": "ok.txt" });
    let mut succeeded = 0;
    if client.is_stream() {
        let mut ids = Vec::new();
        for _ in 0..5000 {
            let request = client.call_request("files.read", &input)?;
            client.send(&request)?;
            ids.push(request.id);
        }
        for id in ids {
            let timeout = client.timeout;
            let response = client.wait_for_answer(id, timeout)?.context("no answer")?;
            succeeded += usize::from(!response.is_error);
        }
    } else {
        let addr = server.addr.context("no address")?;
        let route = attempt.route;
        let counts: anyhow::Result<Vec<usize>> = scope(|scope| {
            let readers: Vec<_> = (0..500)
                .map(|_| {
                    scope.spawn(|| -> anyhow::Result<usize> {
                        let mut client = connect(addr, route)?;
                        let mut succeeded = 0;
                        for _ in 0..10 {
                            let response = client.call("files.read", &input)?;
                            succeeded += usize::from(!response.is_error);
                        }
                        Ok(succeeded)
                    })
                })
                .collect();
            let joined = readers.into_iter().map(|reader| {
                reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a reader panicked")))
            });
            joined.collect()
        });
        succeeded = counts?.into_iter().sum();
    }
    if succeeded == 0 {
        attempt.failures.push("none of 5000 reads succeeded".to_owned());
    }
    attempt.notes.push(format!("{succeeded} of 5000 succeeded"));
    Ok(Vec::new())
}
