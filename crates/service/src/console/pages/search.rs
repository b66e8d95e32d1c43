//! Page of the console that runs a search query, and shows the state of the search index.

use maud::{Markup, html};
use serde_json::json;
use toolgate_contract::{HostAnswer, HostRequest};
use toolgate_host::IncomingRequest;

use super::{notice, tools};
use crate::console::WebConsole;
use crate::console::console_sessions::ConsoleSession;
use crate::console::forms::FormFields;
use crate::console::layout::ConsolePage;

/// Tool that the console's search page calls to search.
const SEARCH: &str = "search.semantic";
/// Tool that the console's search page calls for the state of the index.
const STATUS: &str = "search.index_status";

pub(super) async fn page(
    console: &WebConsole,
    session: &ConsoleSession,
    query: &FormFields,
) -> Option<ConsolePage<'static>> {
    let words = query.get("q").unwrap_or_default();
    let content = html! {
        form .filter method="get" action="/console/search" {
            div { label for="q" { "Query" } input #q name="q" type="search" value=(words); }
            div { button .primary { "Search" } }
        }
        // A search and a look at the index are calls, which the person makes.
        @if !session.may_act() {
            (notice("A search is a call, so you need the role `admin`."))
        } @else if words.is_empty() {
            h2 { "Index" }
            (call(console, session, STATUS, json!({})).await)
        } @else {
            h2 { "Results" }
            (call(console, session, SEARCH, json!({ "query": words })).await)
        }
    };
    Some(ConsolePage { title: "Search".to_owned(), section: "/console/search", live: "", content })
}

/// Calls `tool` as the signed-in person, and returns the result in HTML.
async fn call(
    console: &WebConsole,
    session: &ConsoleSession,
    tool: &str,
    input: serde_json::Value,
) -> Markup {
    let request = HostRequest::CallTool { tool: tool.to_owned(), input };
    let incoming = IncomingRequest::without_client(request, session.caller.clone(), "console");
    match console.sources.host.answer(incoming).await {
        Ok(HostAnswer::Output(output)) => tools::result(&output),
        Ok(_) => notice("The tool returned no result."),
        Err(why) => notice(&why.to_string()),
    }
}
