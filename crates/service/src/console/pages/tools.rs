//! Page of the console with the catalog of tools and a form that calls one tool.

use std::borrow::Cow;
use std::collections::HashMap;

use maud::{Markup, html};
use toolgate_contract::{
    Effects, JobSupport, ToolOutput, ToolRunStatus, ToolSpec, fold_name, printable,
};
use toolgate_dialects::mcp::model_text;
use toolgate_host::{ParsedAuditRecord, estimate_tokens};

use super::encode;
use crate::console::WebConsole;
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::{FormFields, argument_fields};
use crate::console::layout::{ConsolePage, csrf_field, field, scrolling_table};

/// Path of the console's list of tools.
const SECTION: &str = "/console/tools";
/// Label of a tool whose effects are only reads.
const READS: &str = "reads";
/// Number of tools on a page of the console's list.
const PAGE_SIZE: usize = 100;
/// Maximum number of characters of a tool's description in the console's list.
const SUMMARY_CHARS_MAX: usize = 160;
/// Maximum size of a tool's result that the console shows, in bytes.
const RESULT_BYTES_MAX: usize = 256 << 10;

pub(super) fn list(
    console: &WebConsole,
    session: &ConsoleSession,
    query: &FormFields,
) -> Option<ConsolePage<'static>> {
    let words = query.get("q").unwrap_or_default().to_lowercase();
    let is_found = |spec: &ToolSpec| {
        let id = fold_name(spec.id.as_str());
        let text = format!("{} {}", spec.title, spec.description).to_lowercase();
        words.split_whitespace().all(|word| text.contains(word) || id.contains(&*fold_name(word)))
    };
    let tools = console.sources.host.tools(&session.caller).tools;
    let found: Vec<_> = tools.iter().map(|tool| tool.spec()).filter(|it| is_found(it)).collect();
    let skipped = query.get("skip").and_then(|skip| skip.parse().ok()).unwrap_or(0_usize);
    let next = skipped.saturating_add(PAGE_SIZE);
    let content = html! {
        form .filter method="get" action=(SECTION) {
            div { label for="q" { "Search" } input #q name="q" type="search" value=(words); }
            div { button { "Search" } }
        }
        p { (format!("{} of {} tools that you may use.", found.len(), tools.len())) }
        (scrolling_table(&html! {
            th { "Tool" } th .wide { "Description" } th { "Effects" } th .number { "Tokens" }
        }, &html! {
            @for spec in found.iter().skip(skipped).take(PAGE_SIZE) {
                tr {
                    td {
                        a href=(format!("{SECTION}/{}", encode(spec.id.as_str()))) {
                            (fold_name(spec.id.as_str()))
                        }
                    }
                    td .wide { (summary(&spec.description)) }
                    td { (effects(spec)) }
                    td .number { (tokens(spec)) }
                }
            }
        }))
        @if found.len() > next {
            p { a href=(format!("{SECTION}?skip={next}&q={}", encode(&words))) { "More tools" } }
        }
    };
    Some(ConsolePage { title: "Tools".to_owned(), section: SECTION, live: "", content })
}

pub(super) fn single(
    console: &WebConsole,
    session: &ConsoleSession,
    id: &str,
) -> Option<ConsolePage<'static>> {
    let tools = console.sources.host.tools(&session.caller).tools;
    let spec = tools.iter().map(|tool| tool.spec()).find(|spec| spec.id.as_str() == id)?;
    let schema = serde_json::to_string_pretty(&*spec.input_schema).unwrap_or_default();
    let calls = format!("/console/calls?tool={}", encode(&fold_name(id)));
    let content = html! {
        p { (spec.description) }
        div .scroll {
            table {
                tbody {
                    (field("Title", Some(&spec.title)))
                    (field("Id in the settings", Some(id)))
                    (field("Effects", Some(effects(spec))))
                    (field("Tokens of the definition", Some(tokens(spec))))
                    tr { th scope="row" { "Calls" } td { a href=(calls) { "Calls of this tool" } } }
                    tr {
                        th scope="row" { "Policy" }
                        td {
                            a href=(format!("/console/policy?tool={}", encode(id))) {
                                "Who may call this tool"
                            }
                        }
                    }
                }
            }
        }
        @if session.may_act() { (call_form(session, spec)) }
        details {
            summary { "Schema of the arguments" }
            pre tabindex="0" { (schema) }
        }
    };
    Some(ConsolePage { title: fold_name(id).into_owned(), section: SECTION, live: "", content })
}

fn call_form(session: &ConsoleSession, spec: &ToolSpec) -> Markup {
    html! {
        h2 { (format!("Call the tool as {}", session.caller.name)) }
        form method="post" action=(format!("{SECTION}/{}/call", encode(spec.id.as_str()))) {
            (csrf_field(session))
            (argument_fields(&spec.input_schema))
            @if spec.job != JobSupport::Never {
                div .field {
                    label for="as-job" { "Run as a job" }
                    input #as-job type="checkbox" name="as_job" value="1"
                        checked[spec.job == JobSupport::Required];
                }
            }
            button .primary { "Call" }
        }
    }
}

/// Returns the result of a tool call in HTML. HTML in the result is escaped.
pub(crate) fn result(output: &ToolOutput) -> Markup {
    let mut text = output.full_text();
    let is_cut = text.len() > RESULT_BYTES_MAX;
    if is_cut {
        let mut end = RESULT_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    html! {
        @if output.ending != ToolRunStatus::Done { p .notice { "The tool or its program failed." } }
        pre tabindex="0" { (text) }
        @if is_cut { p { "The rest is not shown." } }
        @if output.structured && !output.value.is_null() {
            details {
                summary { "Structured result" }
                pre tabindex="0" { (serde_json::to_string_pretty(&output.value).unwrap_or_default()) }
            }
        }
    }
}

fn effects(spec: &ToolSpec) -> &'static str {
    match spec.effects {
        Effects::Reads => READS,
        Effects::Adds => "adds",
        Effects::Changes => "changes",
        Effects::Runs => "runs programs",
    }
}

/// Labels of the effects of the tools that a person may call, by the tool's name in MCP spelling.
pub(super) struct ToolEffectLabels(HashMap<String, &'static str>);

impl ToolEffectLabels {
    pub(super) fn for_session(console: &WebConsole, session: &ConsoleSession) -> Self {
        let tools = console.sources.host.tools(&session.caller).tools;
        let word = |spec: &ToolSpec| (fold_name(spec.id.as_str()).into_owned(), effects(spec));
        Self(tools.iter().map(|tool| word(tool.spec())).collect())
    }

    /// Returns a label for the effects of the tool that `record` names. Empty if the person may not
    /// see the tool.
    pub(super) fn word(&self, record: &ParsedAuditRecord) -> &'static str {
        self.0.get(&record.folded_tool()).copied().unwrap_or_default()
    }

    /// Returns true if the tool that `record` names may change something, or is unknown.
    pub(super) fn may_change(&self, record: &ParsedAuditRecord) -> bool {
        self.word(record) != READS
    }
}

/// Returns the approximate number of tokens of the tool's definition, which each conversation of a
/// model contains.
fn tokens(spec: &ToolSpec) -> usize {
    estimate_tokens(model_text(spec).chars().count())
}

/// Returns the first line of a tool's description, shortened to [`SUMMARY_CHARS_MAX`] characters.
fn summary(description: &str) -> Cow<'_, str> {
    printable::shorten(description.lines().next().unwrap_or_default(), SUMMARY_CHARS_MAX)
}
