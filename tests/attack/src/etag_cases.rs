//! Attack cases about etags, atomic writes and lists in pages.

use std::fs;
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::attempt::{AttackAttempt, CallResults, call};
use super::client::{AttackClient, connect, start_and_connect};
use super::dialects::AttackResponse;
use super::server::{AttackedServer, sh};

/// Number of increments that each of two writers makes in a full attempt.
const INCREMENTS: usize = 200;
/// Number of times that the server is killed during a write.
const KILLS: u64 = 6;

/// Returns all words of 32 hexadecimal digits in a response. They may be etags.
fn etags_in(response: &AttackResponse) -> Vec<String> {
    let raw = String::from_utf8_lossy(&response.raw).into_owned();
    let words = raw.split(|c: char| !c.is_ascii_alphanumeric());
    let is_etag = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    words.filter(is_etag).map(str::to_owned).collect()
}

/// Returns the etag of the only file in a response: the first one after the word `etag`. An id of a
/// request may stand before it.
fn etag_in(response: &AttackResponse) -> Option<String> {
    let raw = String::from_utf8_lossy(&response.raw).into_owned();
    let candidates = etags_in(response);
    let after = raw.find("etag").map(|at| raw[at..].to_owned())?;
    let first = candidates.iter().filter_map(|tag| Some((after.find(tag.as_str())?, tag))).min();
    first.map(|(_, tag)| tag.clone())
}

/// Attack case E01: writes a file with an etag that no longer matches its content.
pub(super) fn write_with_stale_etag(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let file = attempt.folders.ws.join("f");
    let mut read = call(client, "files.read", &json!({ "path": "f" }))?;
    read.is_judged = false;
    let old =
        etag_in(&read.response).with_context(|| format!("no etag: {:?}", read.response.text))?;
    fs::write(&file, "v2")?;
    let mut input = attempt.variant.input.clone();
    input["if_match"] = json!(old);
    let result = call(client, "files.write", &input)?;
    let now = etag_in(&client.call("files.read", &json!({ "path": "f" }))?).context("no etag")?;
    if !etags_in(&result.response).contains(&now) {
        attempt.failures.push("the response does not have the present etag".to_owned());
    }
    // Unless the present etag is accepted, a refusal of the stale one proves nothing.
    let mut again = call(client, "files.read", &json!({ "path": "f" }))?;
    again.is_judged = false;
    let tag = etag_in(&again.response).context("no etag")?;
    let mut present =
        call(client, "files.write", &json!({ "path": "f", "content": "v2", "if_match": tag }))?;
    present.is_judged = false;
    ensure!(!present.response.is_error, "the present etag is refused: {}", present.response.text);
    Ok(vec![read, result, again, present])
}

/// Attack case E04: changes the content of a file without a change of its size and modification
/// time.
pub(super) fn change_only_content(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> CallResults {
    let mut tags = Vec::new();
    let mut results = Vec::new();
    for content in ["aaaa", "bbbb"] {
        fs::write(attempt.folders.ws.join("f"), content)?;
        sh(&attempt.folders.ws, "touch -d @1700000000 f")?;
        let result = call(client, "files.info", &json!({ "path": "f" }))?;
        tags.push(
            etag_in(&result.response)
                .with_context(|| format!("no etag: {:?}", result.response.text))?,
        );
        results.push(result);
    }
    let finding = if tags[0] == tags[1] { Err(format!("both have {}", tags[0])) } else { Ok(()) };
    attempt.record_finding("etag_changed", finding);
    Ok(results)
}

/// Reads the file of the counter, and returns its number and its etag.
fn read_counter(client: &mut AttackClient) -> anyhow::Result<(usize, String)> {
    let response = client.call("files.read", &json!({ "path": "ctr" }))?;
    let content = [&response.data["content"], &response.data["stdout"]];
    let content =
        content.into_iter().find_map(|content| content.as_str()).unwrap_or(&response.text);
    let number = content.trim().parse().with_context(|| format!("no number: {content:?}"))?;
    Ok((number, etag_in(&response).context("no etag")?))
}

/// Returns the input of a write that sets the counter to `number + 1`, if its file still has the
/// etag `tag`.
fn increment(number: usize, tag: &str) -> serde_json::Value {
    json!({ "path": "ctr", "content": (number + 1).to_string(), "if_match": tag })
}

/// Attack case E02: lets two writers increment a counter in a file, each with the etag of its last
/// read.
pub(super) fn count_concurrently(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let increments = attempt.length.repetitions(INCREMENTS);
    if client.is_stream() {
        count_on_one_stream(client, increments)?;
    } else {
        let addr = server.addr.context("no address")?;
        let route = attempt.route;
        let counts: anyhow::Result<Vec<()>> = scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(move || -> anyhow::Result<()> {
                        let mut client = connect(addr, route)?;
                        let mut written = 0;
                        while written < increments {
                            let (number, tag) = read_counter(&mut client)?;
                            let response = client.call("files.write", &increment(number, &tag))?;
                            written += usize::from(!response.is_error);
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
        counts?;
    }
    let (last, _) = read_counter(client)?;
    let finding =
        if last == 2 * increments { Ok(()) } else { Err(format!("the last count is {last}")) };
    attempt.record_finding("linearizable", finding);
    Ok(Vec::new())
}

/// Lets two writers increment the counter on one stream. Both send their writes at once, with the
/// etag of the same read.
fn count_on_one_stream(client: &mut AttackClient, increments: usize) -> anyhow::Result<()> {
    let mut written = [0_usize; 2];
    while written.iter().any(|count| *count < increments) {
        let (number, tag) = read_counter(client)?;
        let mut sent = Vec::new();
        for writer in [0, 1] {
            if written[writer] < increments {
                let request = client.call_request("files.write", &increment(number, &tag))?;
                client.send(&request)?;
                sent.push((writer, request.id));
            }
        }
        for (writer, id) in sent {
            let response = client.wait_for_answer(id, client.timeout)?.context("no answer")?;
            written[writer] += usize::from(!response.is_error);
        }
    }
    Ok(())
}

/// Attack case E13: kills the server several times during a write.
pub(super) fn kill_during_write(attempt: &mut AttackAttempt) -> CallResults {
    let file = attempt.folders.ws.join("f");
    let old = fs::read(&file)?;
    let new = "n".repeat(8 << 20);
    let input = json!({ "path": "f", "content": new, "overwrite": true });
    let mut counts = [0, 0];
    for kill in 0..KILLS {
        let (mut server, mut client) =
            start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
        let request = client.call_request("files.write", &input)?;
        if client.is_stream() {
            // The server may end before it has read everything.
            _ = client.send(&request);
            sleep(Duration::from_millis(kill * 25));
            server.kill();
        } else {
            scope(|scope| {
                scope.spawn(|| _ = client.post(&request.http));
                sleep(Duration::from_millis(15 + kill * 25));
                server.kill();
            });
        }
        attempt.received.append(&mut client.received);
        let now = fs::read(&file)?;
        let is_new = now == new.as_bytes();
        let finding = match is_new || now == old {
            true => Ok(()),
            false => Err(format!("{} bytes, neither the old nor the new content", now.len())),
        };
        attempt.record_finding("atomic", finding);
        counts[usize::from(is_new)] += 1;
        fs::write(&file, &old)?;
    }
    attempt.notes.push(format!("{} kills left the old content, {} the new", counts[0], counts[1]));
    // A server removes temporary files of others only if they are old.
    sh(&attempt.folders.ws, "find . -name '.toolgate-*' -exec touch -d '1 hour ago' {} +")?;
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    client.call("files.write", &json!({ "path": "g", "content": "x", "overwrite": true }))?;
    attempt.check_alive_and_stop(&mut server, &mut client);
    let leftovers = sh(&attempt.folders.ws, "find . -name '.toolgate-*'")?;
    if !leftovers.trim().is_empty() {
        attempt.record_finding(
            "atomic",
            Err(format!("temporary files remain: {}", leftovers.trim().replace('\n', " "))),
        );
    }
    Ok(Vec::new())
}

/// Attack case R03: lists a large folder in two pages, and adds a file between the two requests.
pub(super) fn list_in_pages(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let first = call(client, &attempt.variant.tool, &attempt.variant.input)?;
    let names = |response: &AttackResponse| -> Vec<String> {
        let entries = response.data["entries"].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    };
    let cursor = first.response.data["cursor"].clone();
    let page = names(&first.response);
    let mut finding = Ok(());
    if cursor.is_null() || page.is_empty() || page.len() > 10_000 {
        finding = Err(format!("a page has {} names and the cursor {cursor}", page.len()));
    } else {
        fs::write(attempt.folders.ws.join("many/!first"), "")?;
        let input = json!({ "path": "many", "cursor": cursor });
        let mut second = call(client, &attempt.variant.tool, &input)?;
        second.is_judged = false;
        let next_page = names(&second.response);
        if next_page.is_empty() || next_page.iter().any(|name| page.contains(name)) {
            finding = Err("the second page is empty or repeats names".to_owned());
        }
    }
    attempt.record_finding("paginated", finding);
    Ok(vec![first])
}
