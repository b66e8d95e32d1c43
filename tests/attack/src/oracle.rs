//! Judges the results of an attack case by its assertions: by the responses, the audit records and
//! the files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use super::absent_tools::is_absent_tool_case;
use super::attempt::{AttackAttempt, AttackCallResult};
use super::case::{AttackCaseAssertion, ExpectedRefusalReason};
use super::dialects::{AttackDialect, AttackResponse};
use super::folders::FolderSnapshot;
use super::server::audit_log;

/// Largest allowed answer to a call, in bytes: four times the most that a tool returns at once,
/// because a dialect may send a result twice and escape it.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Number of failures of one assertion that are listed.
const FAILURES_MAX: usize = 20;
/// Start of the failure message about a call that took too long.
pub(super) const LATE: &str = "it took";

/// Sets the outcome in the audit log for each of `results`.
pub(super) fn add_recorded_outcomes(attempt: &AttackAttempt, results: &mut [AttackCallResult]) {
    let text = fs::read_to_string(audit_log(&attempt.folders)).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut records: Vec<(String, String)> = records
        .filter_map(|record| {
            let tool = normalized_tool(record["tool"].as_str()?);
            Some((tool, record["outcome"].as_str()?.to_owned()))
        })
        .collect();
    for result in results {
        let tool = normalized_tool(&result.tool);
        if let Some(at) = records.iter().position(|(recorded, _)| *recorded == tool) {
            result.recorded_outcome = Some(records.remove(at).1);
        }
    }
}

/// Returns the name of a tool in one common spelling, because dialects and the audit log spell it
/// differently.
fn normalized_tool(name: &str) -> String {
    let name = name.strip_prefix("mcp.tool:").unwrap_or(name);
    let name = match name {
        "exports.render.markdown" => "docs.render",
        "vector.query.search" => "docs.search",
        "vector/search" => "search.semantic",
        name => name,
    };
    let name = name.replace("filesystem", "files");
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// Returns the outcomes in audit records that count as a refusal for `reason`.
fn outcomes(
    reason: ExpectedRefusalReason,
    response: &AttackResponse,
    is_resource: bool,
) -> Vec<&'static str> {
    match reason {
        ExpectedRefusalReason::PathEscape if is_resource => vec!["not_allowed", "not_found"],
        ExpectedRefusalReason::PathEscape | ExpectedRefusalReason::PolicyDenied => {
            vec!["not_allowed"]
        }
        ExpectedRefusalReason::InvalidArg | ExpectedRefusalReason::NotRegular => {
            vec!["invalid_input"]
        }
        ExpectedRefusalReason::NotFound => vec!["not_found", "unknown_tool"],
        ExpectedRefusalReason::PreconditionFailed => vec!["conflict"],
        ExpectedRefusalReason::Limit => vec!["limited", "too_large"],
        ExpectedRefusalReason::Timeout if has_timed_out(response) => {
            vec!["timed_out", "program_failed"]
        }
        ExpectedRefusalReason::Timeout => vec!["timed_out"],
        ExpectedRefusalReason::TooLarge => vec!["too_large"],
    }
}

/// Outcomes of audit records that some dialects also send in their errors.
const SENT_OUTCOMES: [&str; 9] = [
    "invalid_input",
    "not_allowed",
    "not_found",
    "unknown_tool",
    "conflict",
    "limited",
    "too_large",
    "timed_out",
    "unavailable",
];

/// Returns the outcome that the response alone shows, for messages that are no calls and leave no
/// audit record.
fn outcome_on_wire(response: &AttackResponse) -> &str {
    let sent = response.data["reason"].as_str();
    if let Some(outcome) = sent.filter(|outcome| SENT_OUTCOMES.contains(outcome)) {
        return outcome;
    }
    match response.code.as_str() {
        "-32602" | "1003" | "INVALID_INPUT" | "-32600" | "-32700" | "validation_failed" => {
            "invalid_input"
        }
        "-32601" | "1006" | "unsupported" => "unknown_tool",
        "1001" | "-32004" | "NOT_FOUND" | "not_found" => "not_found",
        "1002" | "UNAUTHORIZED" => "not_allowed",
        "1004" | "429" => "limited",
        "1005" => "conflict",
        "1007" => "too_large",
        _ => "unknown",
    }
}

/// Returns true if the response reports a timeout, in a field or in its text.
fn has_timed_out(response: &AttackResponse) -> bool {
    has_flag(response, "timed_out")
        // Zyra has no word for a timeout, and this code for nothing else.
        || response.data["exit_code"] == -1
        || contains(response, "time was over")
        || contains(response, "timed out")
}

/// Returns true if the response reports that its result was shortened, in a field or in its text.
fn is_truncated(response: &AttackResponse) -> bool {
    let words = ["go on with", "continue with", " more", "cut", "left out", "…", "\\u2026"];
    has_flag(response, "truncated") || words.iter().any(|word| contains(response, word))
}

fn has_flag(response: &AttackResponse, key: &str) -> bool {
    response.data[key] == true || response.data["structuredContent"][key] == true
}

fn contains(response: &AttackResponse, words: &str) -> bool {
    String::from_utf8_lossy(&response.raw).contains(words)
}

/// Checks every assertion of the attempt's case, and records a failure for each that does not hold.
pub(super) fn judge(attempt: &mut AttackAttempt, results: &[AttackCallResult]) {
    let judged: Vec<&AttackCallResult> = results.iter().filter(|result| result.is_judged).collect();
    for assertion in attempt.case.assertions.clone() {
        let failure = match &assertion {
            AttackCaseAssertion::Invariant => None,
            AttackCaseAssertion::Finding(name) => check_finding(attempt, name),
            _ if is_about_state(&assertion) => check_state(attempt, &assertion),
            _ if judged.is_empty() => Some("the harness has no result to judge".to_owned()),
            _ => {
                let failures =
                    judged.iter().filter_map(|result| check_result(attempt, &assertion, result));
                let failures: Vec<String> = failures.take(FAILURES_MAX).collect();
                (!failures.is_empty()).then(|| failures.join("; "))
            }
        };
        attempt.failures.extend(failure);
    }
}

fn check_finding(attempt: &AttackAttempt, name: &str) -> Option<String> {
    match attempt.findings.get(name) {
        None => Some(format!("the harness did not check `{name}`")),
        Some(Ok(())) => None,
        Some(Err(why)) => Some(format!("{name}: {why}")),
    }
}

/// Returns true if the assertion is about files or the server, and false if it is about the result
/// of one call.
fn is_about_state(assertion: &AttackCaseAssertion) -> bool {
    matches!(
        assertion,
        AttackCaseAssertion::Exists(_)
            | AttackCaseAssertion::NotExists(_)
            | AttackCaseAssertion::Unchanged(_)
            | AttackCaseAssertion::Content(_)
            | AttackCaseAssertion::Bytes(_)
            | AttackCaseAssertion::Mode(_)
            | AttackCaseAssertion::MaxRssMb(_)
            | AttackCaseAssertion::RpcStreamValid
            | AttackCaseAssertion::WorkspaceUnchanged
    )
}

/// Checks an assertion about files or the server. Returns the reason if it does not hold.
fn check_state(attempt: &AttackAttempt, assertion: &AttackCaseAssertion) -> Option<String> {
    let path = |name: &str| PathBuf::from(attempt.folders.fill(name));
    let subject = || {
        let name = attempt.case.input["arguments"]["path"].as_str().unwrap_or("f");
        attempt.folders.ws.join(name)
    };
    match assertion {
        AttackCaseAssertion::Exists(name) if fs::symlink_metadata(path(name)).is_err() => {
            Some(format!("{name} is missing"))
        }
        AttackCaseAssertion::NotExists(name) if fs::symlink_metadata(path(name)).is_ok() => {
            Some(format!("{name} was created"))
        }
        AttackCaseAssertion::Unchanged(name) => {
            let now = fs::read(path(name)).unwrap_or_default();
            (now != b"as it was\n")
                .then(|| format!("{name} contains {:?}", String::from_utf8_lossy(&now)))
        }
        AttackCaseAssertion::Content(text) => {
            let now = fs::read(subject()).unwrap_or_default();
            (now != text.replace("\\n", "\n").as_bytes())
                .then(|| format!("the file contains {:?}", String::from_utf8_lossy(&now)))
        }
        AttackCaseAssertion::Bytes(bytes) => {
            let now = fs::read(subject()).unwrap_or_default();
            (now != *bytes).then(|| format!("the file contains {now:02x?}"))
        }
        AttackCaseAssertion::Mode(mode) => {
            let now = fs::metadata(subject()).map_or(0, |meta| meta.permissions().mode() & 0o7777);
            (now != *mode).then(|| format!("the mode is {now:04o}"))
        }
        AttackCaseAssertion::MaxRssMb(most) => {
            let growth = attempt.memory_growth_mib;
            (growth > *most).then(|| format!("the server grew by {growth} MiB, more than {most}"))
        }
        AttackCaseAssertion::WorkspaceUnchanged => match &attempt.workspace_before {
            None => Some("the harness has no snapshot of the workspace".to_owned()),
            Some(before) => match FolderSnapshot::take(&attempt.folders.ws) {
                Ok(now) => before.difference(&now).map(|changes| format!("workspace: {changes}")),
                Err(err) => Some(err.to_string()),
            },
        },
        // Lines that are no messages are failures as they arrive.
        _ => None,
    }
}

/// Checks an assertion about the result of one call. Returns the reason if it does not hold.
fn check_result(
    attempt: &AttackAttempt,
    assertion: &AttackCaseAssertion,
    result: &AttackCallResult,
) -> Option<String> {
    let response = &result.response;
    let shown = summary(response);
    let recorded = result.recorded_outcome.as_deref();
    match assertion {
        // This tool returns a failure as a result. It has to be that the schema was not fetched.
        AttackCaseAssertion::Error(reasons)
            if reasons.is_empty()
                && attempt.variant.tool == "assets.validate_asset"
                && contains(response, "schema_load_failed") =>
        {
            None
        }
        // A tool that must not exist may be refused for any reason.
        AttackCaseAssertion::Error(_) if is_absent_tool_case(&attempt.case.id) => {
            check_refusal(attempt, &[], result)
        }
        // Only a read can return too much. Other variants must be quick and small.
        AttackCaseAssertion::Error(reasons)
            if reasons.contains(&ExpectedRefusalReason::TooLarge)
                && !attempt.variant.label.is_empty() =>
        {
            None
        }
        AttackCaseAssertion::Error(reasons)
            if reasons.contains(&ExpectedRefusalReason::TooLarge) && !response.is_error =>
        {
            let is_bounded = is_truncated(response) && response.raw.len() < ANSWER_BYTES_MAX;
            (!is_bounded).then(|| format!("neither refused nor truncated: {shown}"))
        }
        // A search or a program that is stopped in time has a result.
        AttackCaseAssertion::Error(reasons)
            if reasons.contains(&ExpectedRefusalReason::Timeout) && has_timed_out(response) =>
        {
            None
        }
        AttackCaseAssertion::Error(reasons) => check_refusal(attempt, reasons, result),
        AttackCaseAssertion::OkOrError(reasons) => {
            response.is_error.then(|| check_refusal(attempt, reasons, result)).flatten()
        }
        AttackCaseAssertion::Ok => match recorded {
            _ if response.is_error => Some(format!("refused: {shown}")),
            None | Some("ok") => None,
            Some(outcome) => Some(format!("the record has {outcome}")),
        },
        AttackCaseAssertion::ErrorOrBytesPreserved => {
            let name = attempt.variant.input["path"].as_str().unwrap_or("f");
            let now = fs::read(attempt.folders.ws.join(name)).unwrap_or_default();
            let is_exact =
                now == b"\xff\xfe\x00y" || (response.is_error && now == b"\xff\xfe\x00x");
            (!is_exact).then(|| format!("the file contains {now:02x?}"))
        }
        AttackCaseAssertion::RpcError(codes) => {
            let code = response.code.parse::<i64>().ok();
            let fits = code.is_some_and(|code| codes.contains(&code))
                || (response.code == "INVALID_INPUT" && response.status == 400);
            (!fits).then(|| format!("answered with {shown}"))
        }
        // Mira's client ignores the body unless the status is 200, so its errors have that status.
        AttackCaseAssertion::Status(statuses)
            if attempt.route.dialect == AttackDialect::Mira
                && response.status == 200
                && !statuses.contains(&403)
                && response.text.contains("\"error\":{\"code\"") =>
        {
            None
        }
        // The envelope has one status for every body that it cannot read.
        AttackCaseAssertion::Status(_)
            if attempt.route.dialect == AttackDialect::Envelope
                && attempt.case.id == "H15"
                && response.status == 400
                && response.text.contains("content encoding") =>
        {
            None
        }
        AttackCaseAssertion::Status(statuses) => {
            let status = response.status;
            (!statuses.contains(&status)).then(|| format!("status {status}: {shown}"))
        }
        AttackCaseAssertion::MaxMs(most) => {
            let ms = result.elapsed.as_millis();
            (ms > *most).then(|| format!("{LATE} {ms} ms, more than {most}"))
        }
        AttackCaseAssertion::MaxBytes => {
            let bytes = response.raw.len();
            (bytes > ANSWER_BYTES_MAX).then(|| format!("the answer has {bytes} bytes"))
        }
        AttackCaseAssertion::Truncated => {
            let is_truncated = is_truncated(response) || response.data["diff_truncated"] == true;
            (!is_truncated && !response.is_error)
                .then(|| format!("the result is not marked as truncated: {shown}"))
        }
        AttackCaseAssertion::ExitNonzero => {
            let code = response.data["exit_code"].as_i64();
            let has_failed = response.is_error
                || code.is_some_and(|code| code != 0)
                || recorded == Some("program_failed");
            (!has_failed).then(|| format!("the program exited with 0: {shown}"))
        }
        AttackCaseAssertion::Invariant
        | AttackCaseAssertion::Finding(_)
        | AttackCaseAssertion::Exists(_)
        | AttackCaseAssertion::NotExists(_)
        | AttackCaseAssertion::Unchanged(_)
        | AttackCaseAssertion::Content(_)
        | AttackCaseAssertion::Bytes(_)
        | AttackCaseAssertion::Mode(_)
        | AttackCaseAssertion::MaxRssMb(_)
        | AttackCaseAssertion::RpcStreamValid
        | AttackCaseAssertion::WorkspaceUnchanged => None,
    }
}

/// Checks that a call was refused for one of `reasons`, or for any reason if the list is empty. The
/// response must be an error, and the audit record must have the reason. Returns the problem, if
/// there is one.
fn check_refusal(
    attempt: &AttackAttempt,
    reasons: &[ExpectedRefusalReason],
    result: &AttackCallResult,
) -> Option<String> {
    let response = &result.response;
    let shown = summary(response);
    if !response.is_error {
        return Some(format!("it succeeded: {shown}"));
    }
    let recorded = result.recorded_outcome.as_deref();
    // If a dialect refuses the result of a tool, the record has the tool's success.
    let has_succeeded = recorded == Some("ok");
    let outcome = recorded.filter(|_| !has_succeeded).unwrap_or_else(|| outcome_on_wire(response));
    if outcome == "unknown" && has_succeeded {
        return Some(format!("the record has ok, the response {shown}"));
    }
    if outcome == "failed" || outcome == "dropped" || outcome == "panicked" {
        return Some(format!("the record has {outcome}, the response {shown}"));
    }
    let is_resource = attempt.case.input["kind"] == "rpc";
    let fits = reasons.is_empty()
        || reasons.iter().any(|reason| outcomes(*reason, response, is_resource).contains(&outcome));
    (!fits).then(|| format!("refused as {outcome}, not {reasons:?}: {shown}"))
}

/// Returns the start of a response as one line of text.
pub(super) fn summary(response: &AttackResponse) -> String {
    let text = if response.text.trim().is_empty() {
        String::from_utf8_lossy(&response.raw).into_owned()
    } else {
        response.text.clone()
    };
    let text: String = text.replace('\n', " ").chars().take(160).collect();
    match (response.is_error, response.code.as_str()) {
        (true, code) if !code.is_empty() => format!("error {code} {text:?}"),
        (true, _) => format!("error {text:?}"),
        (false, _) => format!("{text:?}"),
    }
}
