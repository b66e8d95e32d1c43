//! Performs the attack of each case. A case without special code is one tool call.

use std::time::Duration;

use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults, call, fill};
use super::client::AttackClient;
use super::dialects::AttackDialect;
use super::oracle::summary;
use super::server::AttackedServer;
use super::{
    absent_tools, etag_cases, extra_cases, http_cases, program_cases, race_cases, search_cases,
    stream_cases,
};

/// Performs an attack case whose code starts the servers. Returns `None` for any other case.
pub(super) fn perform_without_server(attempt: &mut AttackAttempt) -> Option<CallResults> {
    let id = attempt.case.id.clone();
    Some(match id.as_str() {
        "E13" => etag_cases::kill_during_write(attempt),
        "J06" => program_cases::restart_during_job(attempt),
        "X52" => program_cases::run_without_sandbox(attempt),
        "X08" => race_cases::swap_program(attempt),
        "T02" => extra_cases::shadow_builtin_tools(attempt),
        "J01" => http_cases::use_foreign_job(attempt),
        "H07" => http_cases::bind_public_addresses(attempt),
        "H12" => http_cases::use_ended_sessions(attempt),
        "H20" | "H21" => http_cases::send_foreign_tokens(attempt),
        "I13" => stream_cases::send_without_reading(attempt),
        "V04" => search_cases::search_without_embedder(attempt),
        "V08" => search_cases::search_tampered_index(attempt),
        "M30" => extra_cases::swap_working_folder(attempt),
        _ => return None,
    })
}

/// Performs an attack case against the running server.
pub(super) fn perform(
    attempt: &mut AttackAttempt,
    server: &mut AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let id = attempt.case.id.clone();
    match id.as_str() {
        id if absent_tools::is_absent_tool_case(id) => absent_tools::check_absence(attempt, client),
        "F23" => race_cases::read_through_swapped_folder(attempt, client),
        "F24" => race_cases::write_through_swapped_folder(attempt, client),
        "F29" | "F30" | "F31" | "I15" => send_mcp_request(attempt, client),
        "F48" => stream_cases::send_foreign_roots(attempt, client),
        "E01" => etag_cases::write_with_stale_etag(attempt, client),
        "E02" => etag_cases::count_concurrently(attempt, server, client),
        "E04" => etag_cases::change_only_content(attempt, client),
        "R03" => etag_cases::list_in_pages(attempt, client),
        "R12" => race_cases::flood_disk(attempt, client),
        "R13" => race_cases::read_in_parallel(attempt, server, client),
        "X46" => program_cases::cancel_call(attempt, server, client),
        "X47" => program_cases::disconnect_during_call(attempt, server, client),
        "J02" => program_cases::check_job_ids(attempt, client),
        "J03" => program_cases::check_job_expiry(attempt, client),
        "J05" => program_cases::read_odd_offsets(client),
        "V01" | "V03" | "V06" => search_cases::search_index(attempt, client),
        "I04" => stream_cases::send_deep_json(client),
        "I05" => stream_cases::send_duplicate_keys(attempt, client),
        "I10" => stream_cases::ping_during_slow_call(attempt, server, client),
        _ if id.starts_with('H') => http_cases::perform(attempt, server, client),
        _ if attempt.case.is_extra => extra_cases::perform(attempt, server, client),
        _ => call_once(attempt, client),
    }
}

/// Sends the MCP request of an attack case that calls no tool.
fn send_mcp_request(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let params = fill(&attempt.case.input["params"], &attempt.folders);
    let method = attempt.case.input["method"].as_str().unwrap_or_default().to_owned();
    let request = client.codec.method_request(&method, &params);
    let response = client.send_and_wait(&request)?;
    // The audit log records the read of a resource as a call of the tool that reads files.
    let tool = if method == "resources/read" { "files.read" } else { "" };
    let tool = tool.to_owned();
    Ok(vec![AttackCallResult { tool, response, is_judged: true, ..AttackCallResult::default() }])
}

/// Makes the call of the case once. For some cases, then makes a similar call inside the workspace,
/// which must succeed. Otherwise, a refusal would prove nothing.
pub(super) fn call_once(attempt: &mut AttackAttempt, client: &mut AttackClient) -> CallResults {
    let variant = attempt.variant.clone();
    let runs_program =
        variant.tool == "exec.run" && !matches!(attempt.case.id.as_str(), "X06" | "X20");
    let mut results = Vec::new();
    if runs_program {
        results.push(check_programs_start(attempt, client)?);
    }
    results.push(call(client, &variant.tool, &variant.input)?);
    if let Some(input) = input_inside_workspace(attempt) {
        let mut result = call(client, &variant.tool, &input)?;
        result.is_judged = false;
        if !attempt.folders.ws.join("inside-w").exists() {
            let summary = summary(&result.response);
            attempt.failures.push(format!("it does nothing in the workspace either: {summary}"));
        }
        results.push(result);
    }
    check_script_ran(attempt, &results);
    record_listener_events(attempt);
    record_response_findings(attempt, results.iter().find(|one| one.is_judged));
    Ok(results)
}

/// Checks that programs start and can write in the workspace. Otherwise, a refusal outside the
/// workspace would prove nothing.
fn check_programs_start(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
) -> anyhow::Result<AttackCallResult> {
    let input = json!({ "command": "sh", "args": ["-c", "echo in > started.txt"] });
    let mut result = call(client, "exec.run", &input)?;
    result.is_judged = false;
    if !attempt.folders.ws.join("started.txt").exists() {
        let summary = summary(&result.response);
        attempt.failures.push(format!("no program starts and writes in the workspace: {summary}"));
    }
    Ok(result)
}

/// Returns the input of the case with a path inside the workspace, if that call must succeed.
fn input_inside_workspace(attempt: &AttackAttempt) -> Option<Value> {
    let can_succeed =
        matches!(attempt.case.id.as_str(), "X09" | "X12" | "X14" | "X15" | "X22" | "X55" | "X56");
    // A whole line as a program's name fails everywhere, and so does Docker without its daemon.
    let can_succeed = can_succeed && !matches!(&*attempt.variant.label, "command" | "docker");
    let text = attempt.variant.input.to_string();
    let outside = attempt.folders.fill("{EVIL}/w");
    if !can_succeed || !text.contains(&outside) {
        return None;
    }
    let inside = attempt.folders.fill("{WS}/inside-w");
    let secret = attempt.folders.fill("{EVIL}/secret");
    let text = text.replace(&secret, &attempt.folders.fill("{WS}/names.txt"));
    serde_json::from_str(&text.replace(&outside, &inside)).ok()
}

/// Records a failure unless the script of the case has run. Otherwise, the case would prove
/// nothing.
fn check_script_ran(attempt: &mut AttackAttempt, results: &[AttackCallResult]) {
    let text = attempt.variant.input.to_string();
    let has_script =
        attempt.case.id == "C02" || (attempt.case.id.starts_with('X') && text.contains("pre.sh"));
    if has_script && !attempt.folders.ws.join("ran").exists() {
        let last = results.last().map(|result| summary(&result.response)).unwrap_or_default();
        attempt.failures.push(format!("the script did not run, so this proves nothing: {last}"));
    }
}

/// Records a finding about whether the listeners of the case received something.
pub(super) fn record_listener_events(attempt: &mut AttackAttempt) {
    if attempt.listeners.is_empty() {
        return;
    }
    let events = attempt.listeners.take_events();
    let finding = if events.is_empty() { Ok(()) } else { Err(events.join(", ")) };
    attempt.record_finding("listener_silent", finding);
}

/// Records a finding that tells whether the listeners of the case received anything.
fn record_response_findings(attempt: &mut AttackAttempt, result: Option<&AttackCallResult>) {
    let Some(result) = result else { return };
    let response = &result.response;
    match attempt.case.id.as_str() {
        "X35" => {
            let inherited: Vec<&str> = response
                .text
                .lines()
                .chain(response.text.split("\\n"))
                .filter_map(|line| line.rsplit_once(" -> ").map(|_| line))
                .filter(|line| descriptor_in(line).is_some_and(|number| number > 2))
                .filter(|line| !line.contains("/proc/"))
                .collect();
            let is_list = response.text.contains(" -> ");
            let finding = match (is_list, inherited.is_empty()) {
                (false, _) => Err(format!("no list of descriptors: {}", summary(response))),
                (true, true) => Ok(()),
                (true, false) => Err(format!("a program has {}", inherited.join(" and "))),
            };
            attempt.record_finding("fds:0,1,2", finding);
        }
        "X16" => {
            let allowed = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "PWD", "SHLVL", "_"];
            let others: Vec<&str> = response
                .text
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(name, _)| name.trim())
                .filter(|name| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
                .filter(|name| !allowed.contains(name))
                .collect();
            if !others.is_empty() {
                attempt.notes.push(format!("programs get {}", others.join(", ")));
            }
        }
        "X27" => {
            let raw = String::from_utf8_lossy(&response.raw);
            if response.data["exit_code"] == 0 || raw.contains("io_uring_setup gave") {
                attempt.record_finding("listener_silent", Err("io_uring_setup is open".to_owned()));
            }
        }
        "G33" => {
            // Structured results are JSON and keep such characters. Text for a person does not.
            let is_for_a_person = matches!(
                attempt.route.dialect,
                AttackDialect::Mcp2026
                    | AttackDialect::Mcp2025
                    | AttackDialect::Zyra
                    | AttackDialect::Workstation
            );
            let finding = match first_control_character(&response.text) {
                Some(character) if is_for_a_person => {
                    Err(format!("{character} in {}", summary(response)))
                }
                Some(_) | None => Ok(()),
            };
            attempt.record_finding("no_ctrl", finding);
        }
        _ => {}
    }
}

fn descriptor_in(line: &str) -> Option<u32> {
    let (before, _) = line.split_once(" -> ")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Describes the first character in `text` that controls a terminal or reverses text.
fn first_control_character(text: &str) -> Option<String> {
    let bad = text.chars().find(|c| {
        (c.is_control() && !matches!(c, '\n' | '\t' | '\r'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    bad.map(|c| format!("U+{:04X}", c as u32))
}

/// Waits until `condition` returns true, but no longer than `timeout`. Returns true if that
/// happened in time.
pub(super) fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = std::time::Instant::now();
    while !condition() {
        if started.elapsed() > timeout {
            return false;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    true
}
