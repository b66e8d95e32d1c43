//! Attack cases about the search index: its results, and its status.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, CallResults, call};
use super::client::{AttackClient, start_and_connect};
use super::dialects::AttackResponse;
use super::oracle::summary;
use super::perform::wait_until;

/// The time that a failure of the embedder may take to appear in the index status.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until the search index is complete, and returns its status.
fn wait_for_index(client: &mut AttackClient) -> anyhow::Result<AttackResponse> {
    client.call("search.index_status", &json!({ "wait_ms": 30_000 }))
}

fn raw_text(response: &AttackResponse) -> String {
    String::from_utf8_lossy(&response.raw).into_owned()
}

/// Attack cases V01, V03 and V06: searches files with a symlink to the outside, files that change,
/// and files with instructions for a model.
pub(super) fn search_index(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let status = wait_for_index(client)?;
    match attempt.case.id.as_str() {
        "V01" => {
            let result = call(client, "search.semantic", &json!({ "query": "canary" }))?;
            let text = raw_text(&result.response);
            if !text.contains("inside.py") {
                attempt.failures.push(format!("it does not find the file inside: {text:.200}"));
            }
            if text.contains("abs_dir") || text.contains("s.py") {
                attempt.failures.push("it found a file outside".to_owned());
            }
            Ok(vec![result])
        }
        "V03" => {
            let query = json!({ "query": "xylophone" });
            let before = raw_text(&client.call("search.semantic", &query)?);
            if !before.contains("xylophone_stale") || !before.contains("xylophone_kept") {
                attempt.failures.push(format!(
                    "it did not find the first contents: {before:.200}; {}",
                    summary(&status)
                ));
            }
            fs::remove_file(attempt.folders.ws.join("stale.py"))?;
            fs::write(attempt.folders.ws.join("kept.py"), "def trombone_kept():\n    return 1\n")?;
            let after = raw_text(&client.call("search.semantic", &query)?);
            let stale = ["xylophone_stale", "xylophone_kept"];
            let stale: Vec<&str> = stale.into_iter().filter(|name| after.contains(name)).collect();
            let finding = match stale[..] {
                [] => Ok(()),
                [..] => Err(format!("it still finds {}", stale.join(" and "))),
            };
            attempt.record_finding("no_stale", finding);
            Ok(Vec::new())
        }
        _ => {
            let result = call(client, "search.semantic", &json!({ "query": "setup" }))?;
            let text = raw_text(&result.response);
            let has_place = text.contains("README.md") && text.contains('1');
            let tools = Value::from(client.tools()?);
            let is_in_description = tools.to_string().contains("IGNORE PREVIOUS");
            let finding = match (has_place, is_in_description) {
                (_, true) => Err("a description of a tool contains the text".to_owned()),
                (false, _) => Err(format!("a match has no place: {text:.200}")),
                (true, false) => Ok(()),
            };
            attempt.record_finding("structured_only", finding);
            Ok(vec![result])
        }
    }
}

/// Attack case V04: searches while the configured embedding endpoint is unavailable.
pub(super) fn search_without_embedder(attempt: &mut AttackAttempt) -> CallResults {
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    client.call("search.semantic", &json!({ "query": "setup" }))?;
    wait_for_index(&mut client)?;
    // The files are indexed before the first request to the embedder fails.
    let no_arguments = json!({});
    wait_until(REPORT_TIMEOUT, || {
        let status = client.call("search.index_status", &no_arguments);
        status.is_ok_and(|it| reports_missing_vectors(&raw_text(&it)))
    });
    let result = call(&mut client, "search.index_status", &no_arguments)?;
    let text = raw_text(&result.response);
    let is_reported = reports_missing_vectors(&text);
    let finding = match is_reported {
        true => Ok(()),
        false => Err(format!("the status does not report it: {text:.400}")),
    };
    attempt.record_finding("state:degraded", finding);
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(vec![result])
}

/// Returns true if `status`, the text of an index status, says why vectors are missing.
fn reports_missing_vectors(status: &str) -> bool {
    let words = ["unavailable", "unreachable", "does not answer", "refused", "no vector"];
    let status = status.to_lowercase();
    words.iter().any(|word| status.contains(word))
}

/// Attack case V08: changes bytes in every file of the index, and searches.
pub(super) fn search_tampered_index(attempt: &mut AttackAttempt) -> CallResults {
    let query = json!({ "query": "x" });
    {
        let (mut server, mut client) =
            start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
        client.call("search.semantic", &query)?;
        wait_for_index(&mut client)?;
        attempt.check_alive_and_stop(&mut server, &mut client);
    }
    let cache = attempt.folders.home.join(".cache");
    let mut changed_files = 0;
    for file in files_in(&cache) {
        let mut bytes = fs::read(&file)?;
        let step = (bytes.len() / 7).max(1);
        for at in (0..bytes.len()).step_by(step) {
            bytes[at] ^= 0x5a;
        }
        changed_files += usize::from(!bytes.is_empty());
        fs::write(&file, bytes)?;
    }
    if changed_files == 0 {
        attempt.failures.push(format!("the harness: no index in {}", cache.display()));
    }
    attempt.notes.push(format!("{changed_files} files changed"));
    let (mut server, mut client) =
        start_and_connect(&attempt.launch, &attempt.folders, attempt.route)?;
    let mut results = vec![call(&mut client, "search.semantic", &query)?];
    wait_for_index(&mut client)?;
    results.push(call(&mut client, "search.semantic", &query)?);
    let last = raw_text(&results.last().context("nothing")?.response);
    if !last.contains("a.py") {
        attempt.failures.push(format!("the index was not rebuilt: {last:.200}"));
    }
    let log = String::from_utf8_lossy(&server.log()).into_owned();
    if log.contains("panicked") {
        attempt.failures.push("the server panicked".to_owned());
    }
    attempt.check_alive_and_stop(&mut server, &mut client);
    Ok(results)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(files_in(&entry.path())),
            Ok(kind) if kind.is_file() => all.push(entry.path()),
            _ => {}
        }
    }
    all
}
