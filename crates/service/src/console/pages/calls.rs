//! Page of the console with a filtered table of calls.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use toolgate_contract::fold_name;
use toolgate_host::{AuditIndex, AuditRecordFilter, ParsedAuditRecord};

use super::call::{changed_lines_text, kept_log};
use super::tools::ToolEffectLabels;
use super::{encode, notice};
use crate::console::WebConsole;
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::FormFields;
use crate::console::layout::{ConsolePage, HOST_NAME, outcome, scrolling_table, time};
use crate::telemetry::call_lines::duration_text;

/// Value of the outcome filter that selects the calls which the policy refused.
const REFUSED: &str = "refused";
/// Number of calls on a console page.
const PAGE_SIZE: usize = 100;
/// Periods that the filter of calls offers: the label, and the length in hours.
const PERIODS: [(&str, i64); 4] =
    [("the last hour", 1), ("24 hours", 24), ("7 days", 168), ("30 days", 720)];

/// Filter of the console's list of calls, which the query of the page's URL contains.
struct CallListFilter {
    records: AuditRecordFilter,
    /// Length of the period before now that the list covers, in hours. `None` for all calls.
    hours: Option<i64>,
    /// True if the list leaves out calls of tools that only read.
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

    /// Returns the names and values of the query parameters that express this filter in a URL.
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

    /// Returns the URL of the page with the calls before the audit record with the number `seq`.
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
    let effects = ToolEffectLabels::for_session(console, session);
    let before: Option<u64> = query.get("before").and_then(|seq| seq.parse().ok());
    let outcomes = outcomes(console).await;
    let wanted = filter.records.clone();
    let name = format!("calls before {before:?} {:?}", filter.address_fields());
    let found =
        console.audit.run(name, move |index| index.records(&wanted, before, PAGE_SIZE)).await;
    let is_shown = |record: &&ParsedAuditRecord| !filter.only_changes || effects.may_change(record);
    let content = html! {
        p {
            (format!(
                "Calls at all servers of your user on {}, newest first. To see a call in full, choose \
                 its time.",
                *HOST_NAME
            ))
        }
        (filter_form(&filter, &outcomes))
        section data-part="calls" {
            (incomplete_notice(console))
            @match &found {
                Err(why) => (notice(why)),
                Ok(found) => {
                    @match (found.records.iter().any(|record| is_shown(&record)), found.next) {
                        (false, None) => p { "No call matches." },
                        (false, Some(_)) => p { "No call matches among the searched calls." },
                        (true, _) => {
                            (table(console, found.records.iter().filter(is_shown), Some(&effects)))
                        }
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

/// Returns a notice if the latest calls may be missing, because their audit records are still being
/// added to the index.
pub(super) fn incomplete_notice(console: &WebConsole) -> Markup {
    match console.audit.is_incomplete() {
        true => notice(
            "The latest calls may be missing: their records are still being added to the index of \
             the audit log.",
        ),
        false => html! {},
    }
}

/// Returns the distinct outcomes of the calls in the last seven days. The page suggests them for
/// the outcome filter.
async fn outcomes(console: &WebConsole) -> BTreeSet<String> {
    let since = Timestamp::now() - SignedDuration::from_hours(7 * 24);
    let query = move |index: &AuditIndex| index.outcomes(since);
    let found = console.audit.run("outcomes".to_owned(), query).await;
    let names = found.iter().flat_map(|found| found.iter().cloned());
    names.chain([REFUSED.to_owned()]).collect()
}

fn filter_form(filter: &CallListFilter, outcomes: &BTreeSet<String>) -> Markup {
    let CallListFilter { records, hours, only_changes } = filter;
    html! {
        form .filter method="get" action="/console/calls" {
            div {
                label for="caller" { "Caller" }
                input #caller name="caller" value=[records.caller.as_deref()];
            }
            div {
                label for="tool" { "Tool" }
                input #tool name="tool" value=[records.tool.as_deref()] placeholder="files_*";
            }
            div {
                label for="subject" { "File or other subject" }
                input #subject name="subject" value=[records.subject.as_deref()]
                    placeholder="src/main.rs";
            }
            div {
                label for="outcome" { "Outcome" }
                input #outcome name="outcome" list="outcomes" value=[records.outcome.as_deref()];
                datalist #outcomes { @for name in outcomes { option value=(name) {} } }
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
            div .check {
                input #failed type="checkbox" name="failed" value="1" checked[records.failed];
                label for="failed" { "Only failed" }
            }
            div .check {
                input #changes type="checkbox" name="changes" value="1" checked[*only_changes];
                label for="changes" { "Only tools that change something" }
            }
            div { button { "Filter" } }
        }
    }
}

/// Returns an HTML table of the audit `records`. If `effects` is given, the table also shows the
/// effects of the called tools.
pub(super) fn table<'r>(
    console: &WebConsole,
    records: impl Iterator<Item = &'r ParsedAuditRecord>,
    effects: Option<&ToolEffectLabels>,
) -> Markup {
    let log = kept_log(console);
    let changed_lines =
        |record: &ParsedAuditRecord| log.as_ref()?.recent_call(record)?.changed_lines;
    html! {
        (scrolling_table(&html! {
            th { "Time (UTC)" } th { "Caller" } th { "Tool" }
            @if effects.is_some() { th { "Effects" } }
            th { "Subject" } th { "Outcome" } th .number { "Duration" }
        }, &html! {
            @for record in records {
                tr {
                    td { (call_link(record, &time(record.ts))) }
                    td { (caller_link(&record.caller)) }
                    td { (tool_link(&record.tool)) }
                    @if let Some(effects) = effects { td { (effects.word(record)) } }
                    td .text { (record.subject.as_deref().unwrap_or_default()) }
                    td .text {
                        (outcome_cell(record))
                        @if let Some(error) = &record.error {
                            " " (call_link(record, &html! { (error) }))
                        }
                        @if let Some(counts) = changed_lines(record) {
                            " " (call_link(record, &html! { (changed_lines_text(counts)) }))
                        }
                    }
                    td .number { (duration_text(record.duration_us)) }
                }
            }
        }))
    }
}

/// Returns `content` in HTML as a link to the page of the call of `record`.
fn call_link(record: &ParsedAuditRecord, content: &Markup) -> Markup {
    html! {
        @match record.seq {
            Some(seq) => a href=(format!("/console/calls/{seq}")) { (content) },
            None => (content),
        }
    }
}

/// Returns the name of a caller in HTML, as a link to the calls of this caller.
pub(super) fn caller_link(caller: &str) -> Markup {
    html! { a href=(format!("/console/calls?caller={}", encode(caller))) { (caller) } }
}

/// Returns the name of `tool` in HTML as callers see it, as a link to the calls of this tool.
fn tool_link(tool: &str) -> Markup {
    let tool = fold_name(tool);
    html! { a href=(format!("/console/calls?tool={}", encode(&tool))) { (tool) } }
}

/// Returns true if the policy refused the call of `record`.
pub(super) fn is_refused(record: &ParsedAuditRecord) -> bool {
    record.decision.as_deref() == Some("deny")
}

/// Returns the outcome of the call of `record` in HTML. For a call that the policy refused, also
/// shows the error code that the caller got.
pub(super) fn outcome_cell(record: &ParsedAuditRecord) -> Markup {
    html! {
        @if is_refused(record) {
            (outcome(REFUSED)) " " span .hint { (record.outcome) }
        } @else {
            (outcome(&record.outcome))
        }
    }
}
