//! What must be so of content and its etag, and of lists that go on.

use std::fs;
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::client::{Client, join, open};
use super::play::{Came, Play, call};
use super::server::{Server, sh};
use super::spoken::Said;

/// How often each of two writers counts up.
const COUNTS: u32 = 200;
/// How often the server is killed while it writes.
const KILLS: u64 = 6;

/// The etags in what was said: each is 32 digits.
fn etags(said: &Said) -> Vec<String> {
    let raw = String::from_utf8_lossy(&said.raw).into_owned();
    let words = raw.split(|c: char| !c.is_ascii_alphanumeric());
    let is_etag = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    words.filter(is_etag).map(str::to_owned).collect()
}

/// The etag in what was said of one file: the last, since ids of requests come before.
fn etag(said: &Said) -> Option<String> {
    let raw = String::from_utf8_lossy(&said.raw).into_owned();
    let known = etags(said);
    let after = raw.find("etag").map(|at| raw[at..].to_owned())?;
    let first = known.iter().filter_map(|tag| Some((after.find(tag.as_str())?, tag))).min();
    first.map(|(_, tag)| tag.clone())
}

/// E01: an etag that the file has no more.
pub(super) fn stale(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let file = play.stage.ws.join("f");
    let mut read = call(client, "files.read", &json!({ "path": "f" }))?;
    read.judged = false;
    let old = etag(&read.said).with_context(|| format!("no etag: {:?}", read.said.text))?;
    fs::write(&file, "v2")?;
    let mut input = play.form.input.clone();
    input["if_match"] = json!(old);
    let came = call(client, "files.write", &input)?;
    // What it is now can be told by reading it, too.
    let now = etag(&client.call("files.read", &json!({ "path": "f" }))?).context("no etag")?;
    if !etags(&came.said).contains(&now) {
        play.wrong.push("the etag that it has is not told".to_owned());
    }
    // The right one is taken, or this says nothing.
    let mut again = call(client, "files.read", &json!({ "path": "f" }))?;
    again.judged = false;
    let tag = etag(&again.said).context("no etag")?;
    let mut right =
        call(client, "files.write", &json!({ "path": "f", "content": "v2", "if_match": tag }))?;
    right.judged = false;
    ensure!(!right.said.error, "the right etag is refused too: {}", right.said.text);
    Ok(vec![read, came, again, right])
}

/// E04: another content of the same size and time.
pub(super) fn same_size_and_time(
    play: &mut Play,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    let mut tags = Vec::new();
    let mut all = Vec::new();
    for content in ["aaaa", "bbbb"] {
        fs::write(play.stage.ws.join("f"), content)?;
        sh(&play.stage.ws, "touch -d @1700000000 f")?;
        let came = call(client, "files.info", &json!({ "path": "f" }))?;
        tags.push(etag(&came.said).with_context(|| format!("no etag: {:?}", came.said.text))?);
        all.push(came);
    }
    let found = if tags[0] == tags[1] { Err(format!("both have {}", tags[0])) } else { Ok(()) };
    play.show("etag_changed", found);
    Ok(all)
}

/// The number in the file, and its etag.
fn read(client: &mut Client) -> anyhow::Result<(u32, String)> {
    let said = client.call("files.read", &json!({ "path": "ctr" }))?;
    let content = [&said.data["content"], &said.data["stdout"]];
    let content = content.into_iter().find_map(|content| content.as_str()).unwrap_or(&said.text);
    let number = content.trim().parse().with_context(|| format!("no number: {content:?}"))?;
    Ok((number, etag(&said).context("no etag")?))
}

fn next(number: u32, tag: &str) -> serde_json::Value {
    json!({ "path": "ctr", "content": (number + 1).to_string(), "if_match": tag })
}

/// E02: two writers who each count up by what they read.
pub(super) fn counted(
    play: &mut Play,
    server: &mut Server,
    client: &mut Client,
) -> anyhow::Result<Vec<Came>> {
    if client.is_line() {
        in_turn(client)?;
    } else {
        let addr = server.addr.context("no address")?;
        let way = play.way;
        let counted: anyhow::Result<Vec<()>> = scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || -> anyhow::Result<()> {
                        let mut client = join(addr, way)?;
                        let mut won = 0;
                        while won < COUNTS {
                            let (number, tag) = read(&mut client)?;
                            let said = client.call("files.write", &next(number, &tag))?;
                            won += u32::from(!said.error);
                        }
                        Ok(())
                    })
                })
                .collect();
            let joined = writers.into_iter().map(|writer| {
                writer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")))
            });
            joined.collect()
        });
        counted?;
    }
    let (last, _) = read(client)?;
    let found = if last == 2 * COUNTS { Ok(()) } else { Err(format!("the last count is {last}")) };
    play.show("linearizable", found);
    Ok(Vec::new())
}

/// Two writers on one line: both write what they read at the same time, without waiting.
fn in_turn(client: &mut Client) -> anyhow::Result<()> {
    let mut won = [0, 0];
    while won.iter().any(|count| *count < COUNTS) {
        let (number, tag) = read(client)?;
        let mut sent = Vec::new();
        for writer in [0, 1] {
            if won[writer] < COUNTS {
                let asked = client.calling("files.write", &next(number, &tag))?;
                client.send(&asked)?;
                sent.push((writer, asked.id));
            }
        }
        for (writer, id) in sent {
            let said = client.answer(id, client.patience)?.context("no answer")?;
            won[writer] += u32::from(!said.error);
        }
    }
    Ok(())
}

/// E13: killed while it writes, again and again.
pub(super) fn killed_while_it_writes(play: &mut Play) -> anyhow::Result<Vec<Came>> {
    let file = play.stage.ws.join("f");
    let old = fs::read(&file)?;
    let new = "n".repeat(8 << 20);
    let input = json!({ "path": "f", "content": new, "overwrite": true });
    let mut seen = [0, 0];
    for kill in 0..KILLS {
        let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
        let asked = client.calling("files.write", &input)?;
        if client.is_line() {
            // It may die before it has read all.
            _ = client.send(&asked);
            sleep(Duration::from_millis(kill * 25));
            server.kill();
        } else {
            scope(|scope| {
                scope.spawn(|| _ = client.post(&asked.request));
                sleep(Duration::from_millis(15 + kill * 25));
                server.kill();
            });
        }
        play.heard.append(&mut client.heard);
        let now = fs::read(&file)?;
        let is_new = now == new.as_bytes();
        let found = match is_new || now == old {
            true => Ok(()),
            false => Err(format!("{} bytes, neither the old nor the new", now.len())),
        };
        play.show("atomic", found);
        seen[usize::from(is_new)] += 1;
        fs::write(&file, &old)?;
    }
    play.notes.push(format!("{} kills left the old, {} the new", seen[0], seen[1]));
    // What a dead server left lies there for a while, and no longer.
    sh(&play.stage.ws, "find . -name '.toolgate-*' -exec touch -d '1 hour ago' {} +")?;
    let (mut server, mut client) = open(&play.launch, &play.stage, play.way)?;
    client.call("files.write", &json!({ "path": "g", "content": "x", "overwrite": true }))?;
    play.after(&mut server, &mut client);
    let left = sh(&play.stage.ws, "find . -name '.toolgate-*'")?;
    if !left.trim().is_empty() {
        play.show("atomic", Err(format!("left behind: {}", left.trim().replace('\n', " "))));
    }
    Ok(Vec::new())
}

/// R03: a list in pages, which stays itself while the folder changes.
pub(super) fn in_pages(play: &mut Play, client: &mut Client) -> anyhow::Result<Vec<Came>> {
    let first = call(client, &play.form.tool, &play.form.input)?;
    let names = |said: &Said| -> Vec<String> {
        let entries = said.data["entries"].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    };
    let cursor = first.said.data["cursor"].clone();
    let page = names(&first.said);
    let mut found = Ok(());
    if cursor.is_null() || page.is_empty() || page.len() > 10_000 {
        found = Err(format!("{} names in a page, and {cursor} to go on", page.len()));
    } else {
        fs::write(play.stage.ws.join("many/!first"), "")?;
        let input = json!({ "path": "many", "cursor": cursor });
        let mut second = call(client, &play.form.tool, &input)?;
        second.judged = false;
        let more = names(&second.said);
        if more.is_empty() || more.iter().any(|name| page.contains(name)) {
            found = Err("the second page has names of the first, or none".to_owned());
        }
    }
    play.show("paginated", found);
    Ok(vec![first])
}
