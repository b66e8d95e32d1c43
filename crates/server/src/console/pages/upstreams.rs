//! Upstreams: state, last error, tools, durations of calls and pins.

use jiff::Timestamp;
use maud::{Markup, html};
use toolgate_contract::fold_name;
use toolgate_host::{CallGroup, CallStatistics, RecordFilter};
use toolgate_upstream::{UpstreamHealth, UpstreamState};

use super::{encode, notice};
use crate::console::console_sessions::ConsoleSession;
use crate::console::layout::{ConsolePage, csrf_field, time};
use crate::console::{Console, changes_digest};
use crate::telemetry::call_lines::duration_text;

/// Path of the list.
const SECTION: &str = "/console/upstreams";

/// Numbers of the recent calls of one upstream's tools.
#[derive(Default)]
struct UpstreamCalls {
    calls: u64,
    total_us: u64,
    longest_us: u64,
}

impl UpstreamCalls {
    /// Adds up the numbers of the tools whose names begin with `start`.
    fn of_tools(tools: &[CallStatistics], start: &str) -> Self {
        let is_own = |one: &&CallStatistics| {
            one.group.first().is_some_and(|tool| fold_name(tool).starts_with(start))
        };
        tools.iter().filter(is_own).fold(Self::default(), |sum, one| Self {
            calls: sum.calls + one.calls,
            total_us: sum.total_us.saturating_add(one.mean_us.saturating_mul(one.calls)),
            longest_us: sum.longest_us.max(one.longest_us),
        })
    }

    /// Returns the mean duration, if there was a call.
    fn mean_us(&self) -> Option<u64> {
        self.total_us.checked_div(self.calls)
    }
}

pub(super) async fn list(
    console: &Console,
    session: &ConsoleSession,
) -> Option<ConsolePage<'static>> {
    // Statistics are counted by the hour.
    let hour = Timestamp::now().as_second().div_euclid(3600) - 1;
    let counted_from = Timestamp::from_second(hour * 3600).ok();
    let filter = RecordFilter { since: counted_from, ..RecordFilter::default() };
    let called =
        console.audit.run(move |index| index.statistics(&[CallGroup::Tool], &filter)).await;
    // Without an audit log, calls are not counted.
    let counted_from = counted_from.filter(|_| called.is_ok());
    let called = called.unwrap_or_default();
    let states = console.sources.upstreams.states();
    let health = console.sources.upstreams.health();
    let tools = console.sources.host.tools(&session.caller).tools;
    let settings = (console.sources.settings)();
    let start_of = |name: &String| {
        let prefix = settings.upstream.get(name).and_then(|one| one.prefix.clone());
        format!("{}_", prefix.unwrap_or_else(|| name.clone()))
    };
    let count = |start: &str| {
        tools.iter().filter(|it| fold_name(it.spec().id.as_str()).starts_with(start)).count()
    };
    let content = html! {
        section data-part="upstreams" {
            @if states.is_empty() {
                p { "No upstream is configured." }
            } @else {
                div .scroll {
                    table {
                        thead {
                            tr {
                                th { "Upstream" } th { "State" } th { "Since" } th { "Last error" }
                                th .number { "Tools" } th .number { "Calls" }
                                th .number { "Mean time" } th .number { "Longest time" }
                                th { "Actions" }
                            }
                        }
                        tbody {
                            @for (name, state) in &states {
                                @let one = health.iter().find(|(it, _)| it == name).map(|(_, it)| it);
                                @let start = start_of(name);
                                @let calls = UpstreamCalls::of_tools(&called, &start);
                                tr {
                                    td { a href=(format!("{SECTION}/{}", encode(name))) { (name) } }
                                    td { (state_word(*state, one)) }
                                    td { (since(one)) }
                                    td .text {
                                        (one.and_then(|one| one.last_error.as_deref()).unwrap_or_default())
                                    }
                                    td .number { (count(&start)) }
                                    td .number { (calls.calls) }
                                    td .number { (calls.mean_us().map_or_else(String::new, duration_text)) }
                                    td .number {
                                        @if calls.calls > 0 { (duration_text(calls.longest_us)) }
                                    }
                                    td { (restart_form(session, name)) }
                                }
                            }
                        }
                    }
                }
                @match counted_from {
                    Some(at) => p .hint { "Calls and times since " (time(at)) "." },
                    None => p .hint { "Without an audit log (audit.to), calls are not counted." },
                }
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

fn state_word(state: UpstreamState, health: Option<&UpstreamHealth>) -> Markup {
    let is_failing = health.is_some_and(|health| health.is_failing == Some(true));
    let (class, word) = match state {
        _ if is_failing => ("bad", "unavailable"),
        UpstreamState::Connected => ("good", "connected"),
        UpstreamState::Failing => ("bad", "unavailable"),
        UpstreamState::Idle => ("muted", "idle"),
    };
    html! { span .state .(class) { (word) } }
}

fn since(health: Option<&UpstreamHealth>) -> Markup {
    let since = health.and_then(|health| health.since);
    html! { @if let Some(since) = since { (time(since)) } }
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
    console: &Console,
    session: &ConsoleSession,
    name: &str,
) -> Option<ConsolePage<'static>> {
    let states = console.sources.upstreams.states();
    states.iter().find(|(one, _)| one == name)?;
    let review = (console.sources.review_pins)(name.to_owned(), None).await;
    let content = html! {
        h2 { "Changes since the approval" }
        @match &review {
            Err(why) => (notice(&format!("{why:#}"))),
            Ok(text) if text.is_empty() => p { "Its tools are as you approved them." },
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
    Some(ConsolePage { title: format!("Upstream {name}"), section: SECTION, live: "", content })
}
