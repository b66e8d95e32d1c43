//! Page of the console about callers and keys: usage, last calls and expiry.

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use toolgate_host::{AuditIndex, AuditRecordFilter, CallGrouping, CallStatistics};

use super::{encode, notice};
use crate::config::{ApiKey, key_file};
use crate::console::WebConsole;
use crate::console::layout::{ConsolePage, scrolling_table, time};
use crate::telemetry::call_lines::duration_text;

/// Maximum number of callers on the console page about callers.
const CALLERS_MAX: usize = 100;
/// Maximum number of API keys on the console page about callers.
const KEYS_MAX: usize = 100;

pub(super) async fn page(console: &WebConsole) -> Option<ConsolePage<'static>> {
    let since = Timestamp::now() - SignedDuration::from_hours(7 * 24);
    let found = console.audit.run("callers".to_owned(), move |index| callers(index, since)).await;
    let content = html! {
        h2 { "Callers of the last seven days" }
        section data-part="callers" {
            @match &found {
                Err(why) => (notice(why)),
                Ok(callers) => {
                    (scrolling_table(&html! {
                        th { "Caller" } th { "Last call (UTC)" } th .number { "Calls" }
                        th .number { "Failed" } th .number { "Mean" }
                    }, &html! {
                        @for (one, last) in &callers.busiest {
                            @let name = one.group.first().map_or("", String::as_str);
                            tr {
                                td {
                                    a href=(format!("/console/calls?caller={}", encode(name))) {
                                        (name)
                                    }
                                }
                                td { @if let Some(last) = last { (time(*last)) } }
                                td .number { (one.calls) }
                                td .number { (one.failed) }
                                td .number { (duration_text(one.mean_us())) }
                            }
                        }
                    }))
                    @if callers.others > 0 {
                        p {
                            (format!("And {} callers with fewer calls.", callers.others))
                            " This command prints all callers: "
                            code { "toolgate audit stats --by caller" }
                        }
                    }
                }
            }
        }
        h2 { "Keys" }
        (keys(console))
    };
    Some(ConsolePage {
        title: "Callers".to_owned(),
        section: "/console/callers",
        live: "calls",
        content,
    })
}

/// Statistics of the callers with the most calls, for the console.
struct MostActiveCallers {
    /// Callers with the most calls: the number of their calls, and the time of their last call.
    busiest: Vec<(CallStatistics, Option<Timestamp>)>,
    /// Number of further callers, which `busiest` does not contain.
    others: usize,
}

/// Returns the callers with the most calls since the time `since`. Fails if the index cannot be
/// read.
fn callers(index: &AuditIndex, since: Timestamp) -> anyhow::Result<MostActiveCallers> {
    let mut all = index.caller_totals(&[CallGrouping::Caller], since)?;
    let others = all.len().saturating_sub(CALLERS_MAX);
    all.truncate(CALLERS_MAX);
    let mut busiest = Vec::with_capacity(all.len());
    for one in all {
        let caller = one.group.first().cloned();
        let own = AuditRecordFilter { caller, ..AuditRecordFilter::default() };
        let last = index.records(&own, None, 1)?.records.pop().map(|record| record.ts);
        busiest.push((one, last));
    }
    Ok(MostActiveCallers { busiest, others })
}

fn keys(console: &WebConsole) -> Markup {
    let settings = (console.sources.settings)();
    let in_file = key_file::path(&settings.server)
        .and_then(|path| Ok(path.map(|path| key_file::list_keys(&path)).transpose()?.flatten()));
    let (in_file, why) = match in_file {
        Ok(keys) => (keys.unwrap_or_default(), None),
        Err(why) => (Vec::new(), Some(format!("{why:#}"))),
    };
    let all: Vec<ApiKey> = settings.keys.iter().cloned().chain(in_file).collect();
    let now = Timestamp::now();
    html! {
        @if let Some(why) = why { (notice(&why)) }
        @if all.is_empty() {
            p { "There are no keys. To create a key, run: " code { "toolgate key new NAME" } }
        } @else {
            (scrolling_table(&html! {
                th { "Name" } th { "Roles" } th { "Created (UTC)" } th { "Expires (UTC)" }
            }, &html! {
                @for key in all.iter().take(KEYS_MAX) {
                    tr {
                        td { (key.name) }
                        td { (key.roles.join(", ")) }
                        td { @if let Some(made) = key.made { (time(made)) } }
                        td {
                            @match key.expires {
                                None => "never",
                                Some(expires) => {
                                    (time(expires))
                                    @if expires <= now { " " span .state .bad { "expired" } }
                                }
                            }
                        }
                    }
                }
            }))
            @if all.len() > KEYS_MAX {
                p { "And " (all.len() - KEYS_MAX) " others, which " code { "toolgate key list" } " prints." }
            }
            p .hint { "To create, rotate or revoke keys, run: " code { "toolgate key" } }
        }
    }
}
