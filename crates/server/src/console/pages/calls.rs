//! Calls: a table with filters, and one call in full.

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde_json::{Value, json};
use toolgate_contract::fold_name;
use toolgate_host::{AuditRecordFilter, CallStepTimes, ParsedAuditRecord};

use super::tools::ToolEffectWords;
use super::{encode, notice, policy};
use crate::console::WebConsole;
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::FormFields;
use crate::console::layout::{ConsolePage, HOST_NAME, field, outcome, scrolling_table, time};
use crate::telemetry::call_lines::duration_text;

/// Number of calls on a console page.
const PAGE_SIZE: usize = 100;
/// Periods that the filter of calls offers, in hours.
const PERIODS: [(&str, i64); 4] =
    [("the last hour", 1), ("24 hours", 24), ("7 days", 168), ("30 days", 720)];

/// Filter of the console's list of calls, as the address of the page contains it.
struct CallListFilter {
    records: AuditRecordFilter,
    /// Period before now, in hours.
    hours: Option<i64>,
    /// True to leave out calls of tools that only read.
    only_changes: bool,
}

impl CallListFilter {
    fn from_query(query: &FormFields) -> Self {
        let hours = query.get("hours").and_then(|hours| hours.parse::<i64>().ok());
        let hours = hours.filter(|hours| PERIODS.iter().any(|(_, one)| one == hours));
        let records = AuditRecordFilter {
            caller: query.get("caller").map(str::to_owned),
            tool: query.get("tool").map(str::to_owned),
            outcome: query.get("outcome").map(str::to_owned),
            failed: query.get("failed").is_some(),
            since: hours.map(|hours| Timestamp::now() - SignedDuration::from_hours(hours)),
            subject: query.get("subject").map(str::to_owned),
        };
        Self { records, hours, only_changes: query.get("changes").is_some() }
    }

    /// Returns the fields of the filter for the query of the page's address.
    fn address_fields(&self) -> Vec<(&'static str, String)> {
        let AuditRecordFilter { caller, tool, outcome, failed, since: _, subject } = &self.records;
        let texts =
            [("caller", caller), ("tool", tool), ("outcome", outcome), ("subject", subject)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
        let flags = [("failed", *failed), ("changes", self.only_changes)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set);
        let flags = flags.map(|(name, _)| (name, "1".to_owned()));
        let hours = self.hours.map(|hours| ("hours", hours.to_string()));
        texts.chain(flags).chain(hours).collect()
    }

    /// Returns the address of the page with the calls before `seq`, a number of an audit record.
    fn older(&self, seq: u64) -> String {
        let mut address = format!("/console/calls?before={seq}");
        for (name, value) in self.address_fields() {
            address.push_str(&format!("&{name}={}", encode(&value)));
        }
        address
    }
}

pub(super) async fn list(
    console: &WebConsole,
    session: &ConsoleSession,
    query: &FormFields,
) -> Option<ConsolePage<'static>> {
    let filter = CallListFilter::from_query(query);
    let effects = ToolEffectWords::for_session(console, session);
    let before: Option<u64> = query.get("before").and_then(|seq| seq.parse().ok());
    let wanted = filter.records.clone();
    let name = format!("calls before {before:?} {:?}", filter.address_fields());
    let found =
        console.audit.run(name, move |index| index.records(&wanted, before, PAGE_SIZE)).await;
    let is_shown = |record: &&ParsedAuditRecord| !filter.only_changes || effects.may_change(record);
    let content = html! {
        p { (format!("Calls at all servers of your user on {}, newest first.", *HOST_NAME)) }
        (filter_form(&filter))
        section data-part="calls" {
            @match &found {
                Err(why) => (notice(why)),
                Ok(found) => {
                    @match (found.records.iter().any(|record| is_shown(&record)), found.next) {
                        (false, None) => p { "No call matches." },
                        (false, Some(_)) => p { "No call matches among the searched calls." },
                        (true, _) => (table(found.records.iter().filter(is_shown), Some(&effects))),
                    }
                    @if let Some(seq) = found.next {
                        p { a href=(filter.older(seq)) { "Older calls" } }
                    }
                }
            }
        }
    };
    // An older page does not change.
    let live = if before.is_none() { "calls" } else { "" };
    Some(ConsolePage { title: "Calls".to_owned(), section: "/console/calls", live, content })
}

fn filter_form(filter: &CallListFilter) -> Markup {
    let CallListFilter { records, hours, only_changes } = filter;
    html! {
        form .filter method="get" action="/console/calls" {
            div {
                label for="caller" { "Caller" }
                input #caller name="caller" value=[records.caller.as_deref()];
            }
            div {
                label for="tool" { "Tool" }
                input #tool name="tool" value=[records.tool.as_deref()] placeholder="files.*";
            }
            div {
                label for="subject" { "File or other subject" }
                input #subject name="subject" value=[records.subject.as_deref()]
                    placeholder="src/main.rs";
            }
            div {
                label for="outcome" { "Outcome" }
                input #outcome name="outcome" value=[records.outcome.as_deref()];
            }
            div {
                label for="hours" { "Within" }
                select #hours name="hours" {
                    option value="" { "any time" }
                    @for (name, period) in PERIODS {
                        option value=(period) selected[*hours == Some(period)] { (name) }
                    }
                }
            }
            div {
                label for="failed" { "Only failed" }
                input #failed type="checkbox" name="failed" value="1" checked[records.failed];
            }
            div {
                label for="changes" { "Only tools that change something" }
                input #changes type="checkbox" name="changes" value="1" checked[*only_changes];
            }
            div { button { "Filter" } }
        }
    }
}

/// Returns an HTML table of the audit `records`, with the effects of the called tools if `effects`
/// is given.
pub(super) fn table<'r>(
    records: impl Iterator<Item = &'r ParsedAuditRecord>,
    effects: Option<&ToolEffectWords>,
) -> Markup {
    html! {
        (scrolling_table(&html! {
            th { "Time" } th { "Caller" } th { "Tool" }
            @if effects.is_some() { th { "Effects" } }
            th { "Subject" } th { "Outcome" } th .number { "Duration" }
        }, &html! {
            @for record in records {
                tr {
                    td { (time(record.ts)) }
                    td {
                        a href=(format!("/console/calls?caller={}", encode(&record.caller))) {
                            (record.caller)
                        }
                    }
                    td {
                        @match record.seq {
                            Some(seq) => a href=(format!("/console/calls/{seq}")) { (record.tool) },
                            None => (record.tool),
                        }
                    }
                    @if let Some(effects) = effects { td { (effects.word(record)) } }
                    td .text { (record.subject.as_deref().unwrap_or_default()) }
                    td .text {
                        (outcome(&record.outcome))
                        @if let Some(error) = &record.error { " " span .hint { (error) } }
                    }
                    td .number { (duration_text(record.duration_us)) }
                }
            }
        }))
    }
}

pub(super) async fn single(
    console: &WebConsole,
    session: &ConsoleSession,
    seq: &str,
) -> Option<ConsolePage<'static>> {
    let seq: u64 = seq.parse().ok()?;
    let found = console.audit.run(format!("call {seq}"), move |index| index.record(seq)).await;
    let content = match found {
        Ok(record) => {
            let record = (*record).as_ref()?;
            let refusal = match record.decision.as_deref() {
                Some("deny") => policy::refusal(&(console.sources.settings)(), record),
                Some(_) | None => Markup::default(),
            };
            details(record, recorded_input(console, session, record).as_ref(), &refusal)
        }
        Err(why) => notice(&why),
    };
    Some(ConsolePage { title: format!("Call {seq}"), section: "/console/calls", live: "", content })
}

/// Names of arguments whose value may be the subject of a call, the most frequent first.
const SUBJECT_NAMES: [&str; 8] =
    ["path", "file_path", "uri", "url", "repo", "project", "folder", "id"];

/// Returns the arguments of a call, as far as its record contains them.
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

fn details(record: &ParsedAuditRecord, input: Option<&Value>, refusal: &Markup) -> Markup {
    let mut explain =
        format!("/console/policy?caller={}&tool={}", encode(&record.caller), encode(&record.tool));
    if let Some(input) = input {
        explain.push_str(&format!("&input={}", encode(&input.to_string())));
    }
    let is_refused = record.decision.as_deref() == Some("deny");
    let arguments = record.arguments.as_ref().and_then(|it| serde_json::to_string_pretty(it).ok());
    html! {
        div .scroll {
            table {
                tbody {
                    tr { th scope="row" { "Time" } td { (time(record.ts)) } }
                    (field("Caller", Some(&record.caller)))
                    (field("Tool", Some(&record.tool)))
                    (field("Subject", record.subject.as_ref()))
                    (field("Related calls", record.subject.as_ref().map(|it| related(record, it))))
                    tr { th scope="row" { "Outcome" } td { (outcome(&record.outcome)) } }
                    (field("Error", record.error.as_ref()))
                    (field("Cause", record.cause.as_ref()))
                    (field("Duration", Some(duration_text(record.duration_us))))
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
                    @if let Some(job) = &record.job {
                        tr {
                            th scope="row" { "Job" }
                            td { a href=(format!("/console/jobs/{}", encode(job))) { (job) } }
                        }
                    }
                    (field("Hash of the input", record.input.as_ref()))
                    (field("Server", record.server.as_ref()))
                    (field("Audit seal", record.mac.as_ref()))
                }
            }
        }
        (refusal)
        p {
            a href=(explain) {
                @if is_refused { "Each rule that was considered, and how to allow the call" }
                @else { "Explain the policy decision about this call" }
            }
        }
        @if let Some(steps) = &record.steps_us {
            (step_table(steps))
        }
        @if let Some(arguments) = arguments {
            h2 { "Arguments" }
            pre { (arguments) }
        } @else {
            p .hint {
                "To see the arguments of later calls, such as the edits of a file, set "
                code { "audit.arguments = \"redacted\"" } "."
            }
        }
    }
}

/// Returns a link to the calls of the caller of `record` with the same `subject`.
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
