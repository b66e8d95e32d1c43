//! What many do at once, and what changes under the server's hands.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::Ordering;
use std::thread::scope;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::client::{Client, join};
use super::play::{Came, Play, call};
use super::server::Server;
use super::setups::{Going, exchanging};
use super::spoken::Said;

/// How many calls a race is.
const CALLS: usize = 4000;
/// How many are on their way at once, where answers come on a line.
const WINDOW: usize = 16;
/// How often things must have changed places for it to have been a race.
const SWAPS_MIN: u64 = 100;

/// Makes all calls, some at once where that is possible.
fn all(client: &mut Client, calls: &[(&str, Value)]) -> anyhow::Result<Vec<Said>> {
    let mut said = Vec::new();
    for window in calls.chunks(WINDOW) {
        if !client.is_line() {
            for (tool, input) in window {
                said.push(client.call(tool, input)?);
            }
            continue;
        }
        let mut ids = Vec::new();
        for (tool, input) in window {
            let asked = client.calling(tool, input)?;
            client.send(&asked)?;
            ids.push(asked.id);
        }
        for id in ids {
            let patience = client.patience;
            said.push(client.answer(id, patience)?.context("no answer")?);
        }
    }
    Ok(said)
}

/// Makes the calls while the folder and the link change places.
fn race(
    play: &mut Play,
    client: &mut Client,
    calls: &[(&str, Value)],
) -> anyhow::Result<Vec<Said>> {
    let ws = play.stage.ws.clone();
    for _ in 0..3 {
        let (going, swaps) = exchanging(&ws.join("x"), &ws.join("xl"));
        let said = all(client, calls)?;
        let swapped = swaps.load(Ordering::Relaxed);
        drop(going);
        if swapped >= SWAPS_MIN {
            play.notes.push(format!("{} calls, {swapped} swaps", calls.len()));
            return Ok(said);
        }
    }
    bail!("the harness: it swaps too seldom to be a race")
}

/// F23: reads through a folder that is a link out at times.
pub(super) fn read(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let calls = vec![("files.read", json!({ "path": "x/secret" })); CALLS];
    let said = race(play, client, &calls)?;
    let has = |said: &Said, text: &str| String::from_utf8_lossy(&said.raw).contains(text);
    let leaks = said.iter().filter(|said| has(said, &play.stage.canary)).count();
    let inside = said.iter().filter(|said| has(said, "inside") && !said.error).count();
    let found = match (leaks, inside) {
        (0, 1..) => Ok(()),
        (0, _) => Err("not one read found what is inside".to_owned()),
        (leaks, _) => Err(format!("{leaks} of {} reads leaked", said.len())),
    };
    play.show("race:no_canary", found);
    play.notes.push(format!("{inside} reads inside"));
    Ok(Vec::new())
}

/// F24: writes, edits, copies, moves, deletes and makes folders through it.
pub(super) fn written(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let calls: Vec<(&str, Value)> = (0..CALLS)
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
        .filter(|(tool, input)| client.can_say(tool, input))
        .collect();
    let said = race(play, client, &calls)?;
    let done = said.iter().filter(|said| !said.error).count();
    let changed = match &play.outside {
        Some((before, _)) => before.changed(&play.outside_now()?),
        None => Some("nobody looked before".to_owned()),
    };
    let found = match (changed, done) {
        (Some(changed), _) => Err(changed),
        (None, 0) => Err("not one write was done inside".to_owned()),
        (None, _) => Ok(()),
    };
    play.show("race:outside_unchanged", found);
    play.notes.push(format!("{done} done inside"));
    Ok(Vec::new())
}

/// X08: the file that the list names becomes another between the look and the start.
pub(super) fn swapped_program(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let base = play.stage.base.clone();
    for (folder, says) in [("good", "good"), ("bad", play.stage.canary.as_str())] {
        fs::create_dir(base.join(folder))?;
        let file = base.join(folder).join("tool");
        fs::write(&file, format!("#!/bin/sh\necho {says}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    fs::create_dir(base.join("bin"))?;
    let named = base.join("bin/tool");
    symlink(base.join("good/tool"), &named)?;
    symlink(base.join("bad/tool"), base.join("bin/other"))?;
    play.launch.set("EXEC_ALLOW", &named.display().to_string());
    let (mut server, mut client) = super::client::open(&play.launch, &play.stage, play.way)?;
    let (going, swaps): (Going, _) = exchanging(&named, &base.join("bin/other"));
    let input = json!({ "command": base.join("good/tool").display().to_string() });
    let mut good = 0;
    let mut bad = 0;
    let mut last = Said::default();
    for nth in 0..2000 {
        // Seldom does it stay the same for as long as it takes to be started.
        if nth >= 300 && good > 0 {
            break;
        }
        let came = call(&mut client, "exec.run", &input)?;
        let raw = String::from_utf8_lossy(&came.said.raw).into_owned();
        bad += u32::from(raw.contains(&play.stage.canary));
        good += u32::from(raw.contains("good") && !came.said.error);
        last = came.said;
    }
    drop(going);
    let found = match (good, bad) {
        (1.., 0) => Ok(()),
        (0, 0) => Err(format!("it never ran at all: {}", super::oracle::brief(&last))),
        (_, bad) => Err(format!("another program than the one looked at ran, {bad} times")),
    };
    play.show("race:no_canary", found);
    play.notes.push(format!("{} swaps, {good} runs", swaps.load(Ordering::Relaxed)));
    play.after(&mut server, &mut client);
    Ok(Vec::new())
}

/// R12: files of 10 MB without end: a few written, and then copies, which are written as well and
/// need not be read from a wire first.
pub(super) fn flooded(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let content = "x".repeat(10_000_000);
    let write =
        |i: usize| json!({ "path": format!("f{i}"), "content": content, "overwrite": true });
    let mut all = vec![call(client, "files.write", &write(0))?];
    all[0].judged = false;
    let begun = Instant::now();
    for i in 1..600 {
        let input = json!({ "source": "f0", "destination": format!("f{i}") });
        let said = client.call("files.copy", &input)?;
        if said.error {
            // Whoever may copy no more may write no more: a little, or by the time that all of it
            // has come in there is room again, as there is soon.
            let little = json!({ "path": format!("f{i}"), "content": "x", "overwrite": true });
            let written = call(client, "files.write", &little)?;
            if written.said.error {
                all.push(written);
                play.notes.push(format!("refused after {i} files"));
                return Ok(all);
            }
        }
        // The disk is not the harness's to fill.
        if i > 4 {
            fs::remove_file(play.stage.ws.join(format!("f{}", i - 4)))?;
        }
        if begun.elapsed().as_secs() > 100 {
            bail!("{} MB in 100 s, and no bound is met", i * 10);
        }
    }
    bail!("6000 MB were written, and no bound was met")
}

/// R13: 5000 reads at once.
pub(super) fn at_once(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let input = json!({ "path": "ok.txt" });
    let mut ok = 0;
    if client.is_line() {
        let mut ids = Vec::new();
        for _ in 0..5000 {
            let asked = client.calling("files.read", &input)?;
            client.send(&asked)?;
            ids.push(asked.id);
        }
        for id in ids {
            let patience = client.patience;
            ok += usize::from(!client.answer(id, patience)?.context("no answer")?.error);
        }
    } else {
        let addr = server.addr.context("no address")?;
        let way = play.way;
        let done: anyhow::Result<Vec<usize>> = scope(|scope| {
            let readers: Vec<_> = (0..500)
                .map(|_| {
                    scope.spawn(|| -> anyhow::Result<usize> {
                        let mut client = join(addr, way)?;
                        let mut ok = 0;
                        for _ in 0..10 {
                            ok += usize::from(!client.call("files.read", &input)?.error);
                        }
                        Ok(ok)
                    })
                })
                .collect();
            let joined = readers.into_iter().map(|reader| {
                reader.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a reader panicked")))
            });
            joined.collect()
        });
        ok = done?.into_iter().sum();
    }
    if ok == 0 {
        play.wrong.push("not one of 5000 reads was done".to_owned());
    }
    play.notes.push(format!("{ok} of 5000 done"));
    Ok(Vec::new())
}
