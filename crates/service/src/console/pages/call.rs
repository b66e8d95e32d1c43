//! Page of the console about one call: the reason of a failure, the changes or the output, and the
//! audit record.

use std::sync::Arc;

use maud::{Markup, html};
use serde_json::{Value, json};
use toolgate_contract::fold_name;
use toolgate_host::{
    AuditLog, CallStepTimes, ChangedLineCounts, ParsedAuditRecord, RecentCallDetails,
};

use super::calls::{caller_link, is_refused, outcome_cell};
use super::overview::ASKS;
use super::{encode, notice, policy};
use crate::console::console_sessions::ConsoleSession;
use crate::console::layout::{ConsolePage, field, moment, scrolling_table};
use crate::console::{WebConsole, keeps_recent_calls};
use crate::telemetry::call_lines::duration_text;

/// Names of arguments whose value may be the subject of a call, such as a path. The most frequent
/// names are first.
const SUBJECT_NAMES: [&str; 8] =
    ["path", "file_path", "uri", "url", "repo", "project", "folder", "id"];

pub(super) async fn page(
    console: &WebConsole,
    session: &ConsoleSession,
    seq: &str,
) -> Option<ConsolePage<'static>> {
    let seq: u64 = seq.parse().ok()?;
    let found = console.audit.run(format!("call {seq}"), move |index| index.record(seq)).await;
    let (title, content) = match found {
        Ok(record) => {
            let record = (*record).as_ref()?;
            let title = format!("Call {seq}: {}", fold_name(&record.tool));
            (title, details(console, session, record))
        }
        Err(why) => (format!("Call {seq}"), notice(&why)),
    };
    Some(ConsolePage { title, section: "/console/calls", live: "", content })
}

fn details(console: &WebConsole, session: &ConsoleSession, record: &ParsedAuditRecord) -> Markup {
    let recent = recent_call(console, record);
    html! {
        (reason(console, record))
        (summary_table(record))
        (work(console, record, recent.as_deref()))
        p { (explanation_link(console, session, record)) }
        @if let Some(steps) = &record.steps_us { (step_table(steps)) }
        (record_table(record))
    }
}

/// Returns the arguments and the result of the call of `record`, if the server still has them in
/// memory and the settings in force allow keeping them.
fn recent_call(console: &WebConsole, record: &ParsedAuditRecord) -> Option<Arc<RecentCallDetails>> {
    kept_log(console)?.recent_call(record)
}

/// Returns the audit log, which keeps recent calls in memory, or `None` if the settings in force
/// forbid keeping them.
pub(super) fn kept_log(console: &WebConsole) -> Option<Arc<AuditLog>> {
    let is_kept = keeps_recent_calls(&(console.sources.settings)());
    is_kept.then(|| console.sources.host.audit())
}

/// Returns the numbers of added and removed lines as text, such as `+1 −2 lines`.
pub(super) fn changed_lines_text(counts: ChangedLineCounts) -> String {
    let ChangedLineCounts { added, removed } = counts;
    format!("+{added} −{removed} lines")
}

/// Returns the reason in HTML why the call was refused or failed. Empty if the call succeeded.
fn reason(console: &WebConsole, record: &ParsedAuditRecord) -> Markup {
    if is_refused(record) {
        return policy::refusal(console, record);
    }
    let error = record.error.as_ref().or(record.cause.as_ref());
    let cause = record.cause.as_ref().filter(|cause| Some(*cause) != error);
    html! {
        @if record.outcome == ASKS {
            p .notice { "The call asked its client, which repeats the call with the answer." }
        } @else if !record.is_ok() {
            div .notice {
                p { strong { "The call failed: " } (error.unwrap_or(&record.outcome)) }
                @if let Some(cause) = cause { p { "Cause: " (cause) } }
            }
        }
    }
}

fn summary_table(record: &ParsedAuditRecord) -> Markup {
    let tool = fold_name(&record.tool);
    let tool_calls = format!("/console/calls?tool={}", encode(&tool));
    html! {
        div .scroll {
            table {
                tbody {
                    tr { th scope="row" { "Time" } td { (moment(record.ts)) } }
                    tr { th scope="row" { "Caller" } td { (caller_link(&record.caller)) } }
                    tr {
                        th scope="row" { "Tool" }
                        td {
                            a href=(tool_calls) { (tool) }
                            @if *tool != record.tool {
                                " " span .hint { "called as " (record.tool) }
                            }
                        }
                    }
                    (field("Subject", record.subject.as_ref()))
                    (field("Related calls", record.subject.as_ref().map(|it| related(record, it))))
                    tr { th scope="row" { "Outcome" } td { (outcome_cell(record)) } }
                    (field("Duration", Some(duration_text(record.duration_us))))
                    @if let Some(job) = &record.job {
                        tr {
                            th scope="row" { "Job" }
                            td { a href=(format!("/console/jobs/{}", encode(job))) { (job) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the effects of the call in HTML: its changes or its output, and its arguments.
fn work(
    console: &WebConsole,
    record: &ParsedAuditRecord,
    recent: Option<&RecentCallDetails>,
) -> Markup {
    let result = recent.and_then(|recent| recent.result.as_ref());
    let counts = recent.and_then(|recent| recent.changed_lines);
    let kept = recent.and_then(|recent| recent.arguments.as_deref()).map(arguments_from_text);
    let recorded = || record.arguments.as_ref().map(|it| pre("Arguments", &pretty(it)));
    let arguments = kept.or_else(recorded);
    html! {
        @match (result, counts) {
            (Some(result), Some(counts)) => {
                h2 { "Changes: " (changed_lines_text(counts)) }
                (pre("Changes", result))
            }
            (Some(result), None) if record.is_ok() => {
                h2 { "Result" }
                (pre("Result", result))
            }
            (Some(result), None) => {
                h2 { "Output or error" }
                (pre("Output or error", result))
            }
            (None, _) => {}
        }
        @if let Some(arguments) = &arguments { h2 { "Arguments" } (arguments) }
        @if recent.is_none() { (not_kept(console, record, arguments.is_some())) }
    }
}

/// Returns a sentence in HTML about the reason why the page does not show the arguments and the
/// result of the call.
fn not_kept(console: &WebConsole, record: &ParsedAuditRecord, has_arguments: bool) -> Markup {
    let is_own = console.sources.host.audit().has_written(record);
    let missing =
        if has_arguments { "The result is not kept" } else { "Arguments and result are not kept" };
    let why = if !keeps_recent_calls(&(console.sources.settings)()) {
        "because `audit.arguments` is `none`"
    } else if !is_own {
        "because another server process ran the call, and only that process had them in memory"
    } else {
        "because this server process keeps only its last 500 calls that changed something or failed"
    };
    html! {
        p .hint {
            (format!("{missing}, {why}. "))
            @if !has_arguments {
                "To record the arguments of later calls, with secrets replaced, set: "
                code { "audit.arguments = \"redacted\"" }
            }
        }
    }
}

/// Returns the arguments in the JSON `text` as HTML, each with its name. A shortened text, which is
/// no longer JSON, is shown as it is.
fn arguments_from_text(text: &str) -> Markup {
    let Ok(Value::Object(arguments)) = serde_json::from_str(text) else {
        return pre("Arguments", text);
    };
    html! {
        @if arguments.is_empty() { p { "The call has no arguments." } }
        div .scroll {
            table {
                tbody {
                    @for (name, value) in &arguments {
                        tr {
                            th scope="row" { (name) }
                            td .text {
                                @match value {
                                    Value::String(text) => (pre(name, text)),
                                    other => (pre(name, &pretty(other))),
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Returns `text` as preformatted HTML with the accessible label `name`.
fn pre(name: &str, text: &str) -> Markup {
    html! { pre tabindex="0" role="group" aria-label=(name) { (text) } }
}

/// Returns an HTML link to the console page that explains the policy decision about the call of
/// `record`.
fn explanation_link(
    console: &WebConsole,
    session: &ConsoleSession,
    record: &ParsedAuditRecord,
) -> Markup {
    let mut address =
        format!("/console/policy?caller={}&tool={}", encode(&record.caller), encode(&record.tool));
    if let Some(input) = recorded_input(console, session, record) {
        address.push_str(&format!("&input={}", encode(&input.to_string())));
    }
    html! {
        a href=(address) { "Explain the policy decision about this call" }
    }
}

/// Returns the arguments of the call of `record` that the audit log contains, or `None` if it
/// contains no arguments.
fn recorded_input(
    console: &WebConsole,
    session: &ConsoleSession,
    record: &ParsedAuditRecord,
) -> Option<Value> {
    if let Some(arguments) = &record.arguments {
        return Some(arguments.clone());
    }
    let subject = record.subject.as_ref()?;
    let tools = console.sources.host.tools(&session.caller).tools;
    let folded = record.folded_tool();
    let tool = tools.iter().find(|tool| fold_name(tool.spec().id.as_str()) == folded)?;
    let properties = tool.spec().input_schema.get("properties")?.as_object()?;
    let name = SUBJECT_NAMES.into_iter().find(|name| properties.contains_key(*name))?;
    Some(json!({ name: subject }))
}

/// Returns an HTML link to the list of calls by the same caller as `record` with the given
/// `subject`, such as a path.
fn related(record: &ParsedAuditRecord, subject: &str) -> Markup {
    let address = format!(
        "/console/calls?caller={}&subject={}",
        encode(&record.caller),
        encode(subject.trim_end_matches('…'))
    );
    html! { a href=(address) { (format!("All calls of {} with this subject", record.caller)) } }
}

/// Returns an HTML table of the time that a call spent in each step, such as validation,
/// confirmation and run.
fn step_table(steps: &CallStepTimes) -> Markup {
    html! {
        h2 { "Time of each step" }
        (scrolling_table(&html! {
            th { "Step" } th .number { "Milliseconds" }
        }, &html! {
            @for (name, us) in steps.each() {
                tr {
                    th scope="row" { (name) }
                    td .number { (format!("{}.{:03}", us / 1000, us % 1000)) }
                }
            }
        }))
    }
}

/// Returns an HTML table of the fields of `record` that the page does not show elsewhere, with the
/// hashes last.
fn record_table(record: &ParsedAuditRecord) -> Markup {
    html! {
        h2 { "Record" }
        div .scroll {
            table {
                tbody {
                    (field("Decision", record.decision.as_ref()))
                    (field("Rule", record.rule.as_ref()))
                    (field("Dialect", Some(&record.dialect)))
                    (field("Session", record.session.as_ref()))
                    (field("Sandbox", record.sandbox.as_ref()))
                    @for host in &record.refused_hosts {
                        (field("Refused host", Some(host)))
                    }
                    (field("Bytes of the input", record.bytes_in))
                    (field("Bytes of the output", record.bytes_out))
                    (field("Trace", record.trace.as_ref()))
                    (field("Server", record.server.as_ref()))
                    (field("Hash of the input", record.input.as_ref()))
                    (field("Audit seal", record.mac.as_ref()))
                }
            }
        }
    }
}
