//! Attack cases about misleading texts and folder names, and about secrets in messages.

use std::fs;

use anyhow::ensure;
use serde_json::json;

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call};
use super::client::AttackClient;
use super::oracle::summary;
use super::server::sh;

/// Number of jobs that a caller starts at once. So many may not run, and their inputs exceed the
/// memory for waiting jobs.
const LARGE_JOBS: usize = 20;
/// Size of the input of each of the [`LARGE_JOBS`] jobs, in bytes.
const LARGE_JOB_BYTES: usize = 12 << 20;
/// File name with a line break, whose second line looks like another entry of a list.
const FORGING_NAME: &str = "plain.txt\nforged.txt";

/// Prepares the files and settings of an attack case about misleading texts or secrets.
pub(super) fn prepare(attempt: &mut AttackAttempt) -> anyhow::Result<()> {
    let ws = attempt.folders.ws.clone();
    match attempt.case.id.as_str() {
        "M65" => {
            for (folder, name) in [("src", "inside"), ("src_evil", "outside")] {
                fs::create_dir(ws.join(folder))?;
                let code = format!("def okapi_{name}():\n    return 'okapi'\n");
                fs::write(ws.join(folder).join("okapi.py"), code)?;
            }
        }
        "M67" => fs::write(ws.join(FORGING_NAME), "okapi\n")?,
        "M68" => {
            sh(
                &ws,
                "git init -q . && git config user.name a && git config user.email a@b.example",
            )?;
            fs::write(ws.join("subject"), "s".repeat(5_000_000))?;
            for message in ["-m old", "-F subject", "-m new"] {
                sh(&ws, &format!("git commit -q --allow-empty {message}"))?;
            }
        }
        "M69" => {
            let canary = attempt.folders.canary.clone();
            attempt.launch.env("ATTACK_SECRET", canary);
            attempt.launch.config = "[secrets]\nvalues_from = [\"ATTACK_SECRET\"]\n".to_owned();
        }
        // The jobs still run when the server stops.
        "M66" => attempt.launch.set("SERVER_DRAIN_MS", "1000"),
        _ => {}
    }
    Ok(())
}

/// Performs an attack case about misleading texts or secrets against a running server.
pub(super) fn perform(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    match attempt.case.id.as_str() {
        "M65" => search_one_folder(attempt, client),
        "M66" => start_large_jobs(attempt, client),
        "M67" => list_forging_name(attempt, client),
        "M68" => {
            let result = call(client, "git.log", &json!({}))?;
            let commits = result.response.data["commits"].as_array().map_or(0, Vec::len);
            if commits != 3 {
                let summary = summary(&result.response);
                attempt.failures.push(format!("{commits} commits are listed: {summary}"));
            }
            Ok(vec![result])
        }
        // M69
        _ => send_secret_as_method(attempt, client),
    }
}

/// Attack case M65: searches the folder `src`. The name of a folder beside it begins with `src`,
/// too, and must not be searched.
fn search_one_folder(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let mut results = Vec::new();
    for tool in ["search.semantic", "search.names", "search.text"] {
        let result = call(client, tool, &json!({ "query": "okapi", "path": "src" }))?;
        let raw = String::from_utf8_lossy(&result.response.raw).into_owned();
        if raw.contains("src_evil") || raw.contains("okapi_outside") {
            attempt.failures.push(format!("{tool} also searches `src_evil`"));
        }
        if !raw.contains("okapi_inside") {
            let summary = summary(&result.response);
            attempt.failures.push(format!("{tool} finds nothing in `src`: {summary}"));
        }
        results.push(result);
    }
    Ok(results)
}

/// Attack case M66: starts jobs with large inputs until the server refuses one.
fn start_large_jobs(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let input = json!({ "command": "sleep", "args": ["60"], "stdin": "x".repeat(LARGE_JOB_BYTES) });
    let job = json!({ "tool": "exec.run", "arguments": input });
    let mut last = AttackCallResult::default();
    for _ in 0..LARGE_JOBS {
        last = call(client, "jobs.start", &job)?;
        if last.response.is_error {
            break;
        }
    }
    if !last.response.text.contains("too large together") {
        let summary = summary(&last.response);
        attempt.failures.push(format!("{LARGE_JOBS} large jobs may wait: {summary}"));
    }
    Ok(vec![last])
}

/// Attack case M67: lists a file whose name has two lines. The second line must not be a line of
/// the list.
fn list_forging_name(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let mut results = Vec::new();
    for (tool, input) in [
        ("files.list", json!({})),
        ("files.tree", json!({})),
        ("files.search", json!({ "glob": "*" })),
        ("files.search", json!({ "query": "okapi" })),
        ("search.text", json!({ "query": "okapi" })),
    ] {
        let result = call(client, tool, &input)?;
        let forged = result.response.text.lines().find(|line| line.trim().starts_with("forged"));
        if let Some(line) = forged {
            attempt.failures.push(format!("{tool} {input} has the line {line:?}"));
        }
        results.push(result);
    }
    Ok(results)
}

/// Attack case M69: sends a secret in the place of a method or tool name. No answer may repeat the
/// secret.
fn send_secret_as_method(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let canary = attempt.folders.canary.clone();
    let request = client.codec.method_request(&canary, &json!({}));
    let response = client.send_and_wait(&request)?;
    ensure!(response.is_error || response.status >= 400, "a method is named like a secret");
    Ok(vec![AttackCallResult { response, ..AttackCallResult::default() }])
}
