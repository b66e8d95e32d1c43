//! What an index shows, and what it says of itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::client::{Client, open};
use super::play::{Came, Play, call};
use super::spoken::Said;

/// Waits until the index has all.
fn indexed(client: &mut Client) -> anyhow::Result<Said> {
    client.call("search.index_status", &json!({ "wait_ms": 30_000 }))
}

fn raw(said: &Said) -> String {
    String::from_utf8_lossy(&said.raw).into_owned()
}

/// V01, V03, V06: what is found, and what is not.
pub(super) fn found(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let status = indexed(client)?;
    match play.case.id.as_str() {
        "V01" => {
            let came = call(client, "search.semantic", &json!({ "query": "canary" }))?;
            let text = raw(&came.said);
            if !text.contains("inside.py") {
                play.wrong.push(format!("it does not find what is inside either: {text:.200}"));
            }
            if text.contains("abs_dir") || text.contains("s.py") {
                play.wrong.push("it found what is outside".to_owned());
            }
            Ok(vec![came])
        }
        "V03" => {
            let query = json!({ "query": "xylophone" });
            let before = raw(&client.call("search.semantic", &query)?);
            if !before.contains("xylophone_stale") || !before.contains("xylophone_kept") {
                play.wrong.push(format!(
                    "it did not find what was there: {before:.200}; {}",
                    super::oracle::brief(&status)
                ));
            }
            fs::remove_file(play.stage.ws.join("stale.py"))?;
            fs::write(play.stage.ws.join("kept.py"), "def trombone_kept():\n    return 1\n")?;
            let after = raw(&client.call("search.semantic", &query)?);
            let stale = ["xylophone_stale", "xylophone_kept"];
            let stale: Vec<&str> = stale.into_iter().filter(|name| after.contains(name)).collect();
            let shown = match stale[..] {
                [] => Ok(()),
                [..] => Err(format!("{} is shown, and there no more", stale.join(" and "))),
            };
            play.show("no_stale", shown);
            Ok(Vec::new())
        }
        _ => {
            let came = call(client, "search.semantic", &json!({ "query": "setup" }))?;
            let text = raw(&came.said);
            let where_it_is = text.contains("README.md") && text.contains('1');
            let listed = client.tools()?;
            let echoed = Value::from(listed).to_string().contains("IGNORE PREVIOUS");
            let shown = match (where_it_is, echoed) {
                (_, true) => Err("a description says it".to_owned()),
                (false, _) => Err(format!("a match without its place: {text:.200}")),
                (true, false) => Ok(()),
            };
            play.show("structured_only", shown);
            Ok(vec![came])
        }
    }
}

/// V04: an embedder that is configured and away.
pub(super) fn without_embedder(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    client.call("search.semantic", &json!({ "query": "setup" }))?;
    indexed(&mut client)?;
    let came = call(&mut client, "search.index_status", &json!({}))?;
    let text = raw(&came.said).to_lowercase();
    let words = [
        "\"complete\":false",
        "unavailable",
        "unreachable",
        "does not answer",
        "refused",
        "no vector",
    ];
    let told = words.iter().any(|word| text.contains(word));
    let shown = match told {
        true => Ok(()),
        false => Err(format!("it says nothing of it: {text:.400}")),
    };
    play.show("state:degraded", shown);
    play.after(&mut server, &mut client);
    Ok(vec![came])
}

/// V08: every file of the index has other bytes than were written.
pub(super) fn tampered(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let query = json!({ "query": "x" });
    {
        let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
        client.call("search.semantic", &query)?;
        indexed(&mut client)?;
        play.after(&mut server, &mut client);
    }
    let cache = play.stage.home.join(".cache");
    let mut flipped = 0;
    for file in files(&cache) {
        let mut bytes = fs::read(&file)?;
        let step = (bytes.len() / 7).max(1);
        for at in (0..bytes.len()).step_by(step) {
            bytes[at] ^= 0x5a;
        }
        flipped += usize::from(!bytes.is_empty());
        fs::write(&file, bytes)?;
    }
    if flipped == 0 {
        play.wrong.push(format!("the harness: no index in {}", cache.display()));
    }
    play.notes.push(format!("{flipped} files changed"));
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    let mut all = vec![call(&mut client, "search.semantic", &query)?];
    indexed(&mut client)?;
    all.push(call(&mut client, "search.semantic", &query)?);
    let last = raw(&all.last().context("nothing")?.said);
    if !last.contains("a.py") {
        play.wrong.push(format!("it was not made again: {last:.200}"));
    }
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    if log.contains("panicked") {
        play.wrong.push("it panicked".to_owned());
    }
    play.after(&mut server, &mut client);
    Ok(all)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(files(&entry.path())),
            Ok(kind) if kind.is_file() => all.push(entry.path()),
            _ => {}
        }
    }
    all
}
