//! Pages of the console about upstreams: state, last error, tools, durations of calls and pins.

use std::collections::HashMap;

use jiff::Timestamp;
use maud::{Markup, html};
use toolgate_host::CallStatistics;
use toolgate_upstream::UpstreamState;

use super::{encode, notice};
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::FormFields;
use crate::console::layout::{ConsolePage, csrf_field, moment, scrolling_table, time};
use crate::console::reconnections::ReconnectionState;
use crate::console::upstream_calls::{self, UpstreamCallReport, UpstreamCallStatistics};
use crate::console::{WebConsole, changes_digest};
use crate::telemetry::call_lines::duration_text;

/// Path of the console's list of upstreams.
pub(super) const SECTION: &str = "/console/upstreams";

/// Text for an upstream to which the server has not sent a request yet.
const NOT_TRIED: &str = "toolgate has sent no request, because no caller has needed this upstream \
                         since the server started. Reconnect sends a request.";

/// Maximum number of upstreams on the console page.
const SHOWN_MAX: usize = 100;

pub(super) async fn list(
    console: &WebConsole,
    session: &ConsoleSession,
    query: &FormFields,
) -> Option<ConsolePage<'static>> {
    let report = upstream_calls::report(console).await;
    let tools = console.sources.host.tools(&session.caller).tools;
    let mut counts: HashMap<&String, usize> = HashMap::new();
    for tool in &tools {
        if let Some(owner) = report.owners.find(tool.spec().id.as_str()) {
            *counts.entry(owner).or_default() += 1;
        }
    }
    let others = report.upstreams.len().saturating_sub(SHOWN_MAX);
    let content = html! {
        section data-part="reconnection" {
            @if let Some(name) = query.get("reconnected") { (reconnection(console, name)) }
        }
        section data-part="upstreams" {
            @if report.upstreams.is_empty() {
                p { "No upstream is configured." }
            } @else {
                (scrolling_table(&html! {
                    th { "Upstream" } th { "State" } th { "Since (UTC)" } th { "Last error" }
                    th .number { "Tools" } (call_headings())
                    th { "Actions" }
                }, &html! {
                    @for one in report.upstreams.iter().take(SHOWN_MAX) {
                        tr {
                            (state_cells(one))
                            td .number { (counts.get(&one.name).copied().unwrap_or_default()) }
                            (call_cells(&one.calls))
                            td { (restart_form(session, &one.name)) }
                        }
                    }
                }))
                @if others > 0 {
                    p {
                        "And " (others) " others, which " code { "toolgate doctor upstreams" }
                        " prints."
                    }
                }
                (counted_since(report.counted_from))
            }
        }
    };
    Some(ConsolePage {
        title: "Upstreams".to_owned(),
        section: SECTION,
        live: "calls jobs",
        content,
    })
}

/// Returns an HTML table of the first `count` upstreams in `report`, for the console's overview.
pub(super) fn short_table(report: &UpstreamCallReport, count: usize) -> Markup {
    html! {
        (scrolling_table(&html! {
            th { "Upstream" } th { "State" } th { "Since (UTC)" } th { "Last error" }
            (call_headings())
        }, &html! {
            @for one in report.upstreams.iter().take(count) {
                tr { (state_cells(one)) (call_cells(&one.calls)) }
            }
        }))
        @if report.upstreams.len() > count { p { a href=(SECTION) { "All upstreams" } } }
        (counted_since(report.counted_from))
    }
}

fn call_headings() -> Markup {
    html! {
        th .number { "Calls" } th .number { "Failed" } th .number { "Median" }
        th .number { "99th percentile" }
    }
}

fn call_cells(calls: &CallStatistics) -> Markup {
    html! {
        td .number { (calls.calls) }
        td .number .bad[calls.failed > 0] { (calls.failed) }
        @for percent in [50, 99] {
            td .number { @if calls.calls > 0 { (duration_text(calls.percentile_us(percent))) } }
        }
    }
}

fn state_cells(one: &UpstreamCallStatistics) -> Markup {
    let (class, word) = match one.state {
        _ if one.is_down() => ("bad", "unavailable"),
        UpstreamState::Connected => ("good", "connected"),
        _ if one.health.is_failing.is_none() => ("muted", "not tried"),
        UpstreamState::Failing | UpstreamState::Idle => ("muted", "idle"),
    };
    html! {
        td { a href=(format!("{SECTION}/{}", encode(&one.name))) { (one.name) } }
        td { span .state .(class) { (word) } }
        td { @if let Some(since) = one.health.since { (time(since)) } }
        td .text {
            @match &one.health.last_error {
                Some(why) => (why),
                None if one.health.is_failing.is_none() => span .hint { (NOT_TRIED) },
                None => {}
            }
        }
    }
}

fn counted_since(since: Option<Timestamp>) -> Markup {
    html! {
        @match since {
            Some(at) => p .hint { "Calls and times since " (moment(at)) "." },
            None => p .hint { "Without an audit log (audit.to), calls are not counted." },
        }
    }
}

/// Returns the outcome of the last reconnection of the upstream `name` in HTML. `toolgate console`
/// reads its text and the attribute `data-outcome`.
fn reconnection(console: &WebConsole, name: &str) -> Markup {
    let (outcome, text) = match console.reconnections.state(name) {
        None => return Markup::default(),
        Some(ReconnectionState::Connecting) => {
            ("connecting", format!("Connecting to `{name}`. The outcome will appear here."))
        }
        Some(ReconnectionState::Connected(tools)) => {
            ("connected", format!("The upstream `{name}` is connected again. Its tools: {tools}."))
        }
        Some(ReconnectionState::Failed(why)) => {
            ("failed", format!("Reconnecting `{name}` failed: {why}"))
        }
    };
    html! { p .notice role="status" data-outcome=(outcome) { (text) } }
}

fn restart_form(session: &ConsoleSession, name: &str) -> Markup {
    html! {
        @if session.may_act() {
            form .inline method="post" action=(format!("{SECTION}/{}/restart", encode(name))) {
                (csrf_field(session))
                button { "Reconnect" }
            }
        }
    }
}

pub(super) async fn single(
    console: &WebConsole,
    session: &ConsoleSession,
    name: &str,
) -> Option<ConsolePage<'static>> {
    let report = upstream_calls::report(console).await;
    let figures = report.upstreams.iter().find(|one| one.name == name)?;
    let review = (console.sources.review_pins)(name.to_owned(), None).await;
    let content = html! {
        section data-part="state" {
            (scrolling_table(&html! {
                th { "Upstream" } th { "State" } th { "Since (UTC)" } th { "Last error" }
                (call_headings())
            }, &html! {
                tr { (state_cells(figures)) (call_cells(&figures.calls)) }
            }))
            (counted_since(report.counted_from))
        }
        p { a href=(failed_calls(console, name)) { "Failed calls in the last hour" } }
        (restart_form(session, name))
        h2 { "Changes since the approval" }
        @match &review {
            Err(why) => (notice(&format!("The tools cannot be compared: {why:#}"))),
            Ok(text) if text.is_empty() => p { "The tools are unchanged since the approval." },
            Ok(text) => {
                pre tabindex="0" { (text) }
                @if session.may_act() {
                    form method="post" action=(format!("{SECTION}/{}/approve", encode(name))) {
                        (csrf_field(session))
                        input type="hidden" name="changes" value=(changes_digest(text));
                        button .primary { "Approve the current tools" }
                    }
                    p .hint {
                        "Read the changes first: a description can contain instructions for the agent."
                    }
                }
            }
        }
        p { a href=(format!("/console/tools?q={}", encode(name))) { "Tools of this upstream" } }
    };
    let title = format!("Upstream {name}");
    Some(ConsolePage { title, section: SECTION, live: "calls jobs", content })
}

/// Returns the URL of the page with the failed calls of the upstream `name` in the last hour.
fn failed_calls(console: &WebConsole, name: &str) -> String {
    let settings = (console.sources.settings)();
    let prefix = settings.upstream.get(name).and_then(|one| one.prefix.clone());
    let tools = match prefix.as_deref().unwrap_or(name) {
        "" => String::new(),
        prefix => encode(&format!("{prefix}_*")),
    };
    format!("/console/calls?failed=1&hours=1&tool={tools}")
}
