//! Upstreams: state, last error, tools and pins.

use maud::{Markup, html};
use toolgate_contract::fold_name;
use toolgate_upstream::{UpstreamHealth, UpstreamState};

use super::{encode, notice};
use crate::console::Console;
use crate::console::console_sessions::ConsoleSession;
use crate::console::layout::{ConsolePage, csrf_field, time};

/// Path of the list.
const SECTION: &str = "/console/upstreams";

pub(super) fn list(console: &Console, session: &ConsoleSession) -> Option<ConsolePage<'static>> {
    let states = console.sources.upstreams.states();
    let health = console.sources.upstreams.health();
    let tools = console.sources.host.tools(&session.caller).tools;
    let settings = (console.sources.settings)();
    let count = |name: &String| {
        let prefix = settings.upstream.get(name).and_then(|one| one.prefix.clone());
        let start = format!("{}_", prefix.unwrap_or_else(|| name.clone()));
        tools.iter().filter(|it| fold_name(it.spec().id.as_str()).starts_with(&start)).count()
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
                                th .number { "Tools" } th { "Actions" }
                            }
                        }
                        tbody {
                            @for (name, state) in &states {
                                @let one = health.iter().find(|(it, _)| it == name).map(|(_, it)| it);
                                tr {
                                    td { a href=(format!("{SECTION}/{}", encode(name))) { (name) } }
                                    td { (state_word(*state, one)) }
                                    td { (since(one)) }
                                    td .text {
                                        (one.and_then(|one| one.last_error.as_deref()).unwrap_or_default())
                                    }
                                    td .number { (count(name)) }
                                    td { (restart_form(session, name)) }
                                }
                            }
                        }
                    }
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
    let review = (console.sources.review_pins)(name.to_owned(), false).await;
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
