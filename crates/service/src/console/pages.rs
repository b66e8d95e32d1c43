//! The pages of the console, one module each.

mod overview;
mod calls;
mod call;
mod jobs;
pub(crate) mod tools;
mod upstreams;
mod policy;
mod callers;
mod search;
mod settings;
pub(crate) mod sign_in;

use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use toolgate_contract::Reply;

use super::console_sessions::ConsoleSession;
use super::forms::FormFields;
use super::layout::{self, ConsolePage};
use super::{WebConsole, problem};

/// Answers a request for the console page at `path` below `/console/`, or for `/` if `path` is
/// empty.
pub(crate) async fn answer(
    console: &WebConsole,
    session: &ConsoleSession,
    path: &str,
    query: &FormFields,
) -> Reply {
    let segments: Vec<&str> = path.split('/').collect();
    let page = match segments.as_slice() {
        [""] => overview::page(console, session).await,
        ["calls"] => calls::list(console, session, query).await,
        ["calls", seq] => call::page(console, session, seq).await,
        ["jobs"] => jobs::list(console, query).await,
        ["jobs", id] => jobs::single(console, session, &decode(id)).await,
        ["jobs", id, "files", name] => {
            return jobs::file(console, &decode(id), &decode(name)).await;
        }
        ["questions"] => return overview::questions_json(console, session),
        ["tools"] => tools::list(console, session, query),
        ["tools", tool] => tools::single(console, session, &decode(tool)),
        ["upstreams"] => upstreams::list(console, session, query).await,
        ["upstreams", name] => upstreams::single(console, session, &decode(name)).await,
        ["policy"] => policy::page(console, query),
        ["callers"] => callers::page(console).await,
        ["search"] => search::page(console, session, query).await,
        ["settings"] => settings::page(console).await,
        _ => None,
    };
    match page {
        Some(page) => layout::reply(200, page.render(session)),
        None => problem(404, "There is no such page."),
    }
}

/// Returns a reply with a console page that shows `content` and that the browser does not update.
pub(crate) fn page(
    session: &ConsoleSession,
    title: &str,
    section: &str,
    content: Markup,
    status: u16,
) -> Reply {
    let page = ConsolePage { title: title.to_owned(), section, live: "", content };
    layout::reply(status, page.render(session))
}

/// Decodes the percent-encoded `segment` of a URL path.
pub(crate) fn decode(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// Percent-encodes `text` as a segment of a URL path.
fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the path of the page that shows the outcome of the last reconnection of the upstream
/// `name`.
pub(crate) fn reconnection_path(name: &str) -> String {
    format!("{}?reconnected={}", upstreams::SECTION, encode(name))
}

/// Returns a notice in HTML with the reason `why` a part of a page is missing.
fn notice(why: &str) -> Markup {
    html! { p .notice { (why) } }
}
