//! Layout of a console page, HTTP headers, and HTML that several pages share.

use std::sync::LazyLock;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};
use toolgate_contract::Reply;

use crate::console::console_sessions::ConsoleSession;

/// Content security policy of the console's pages: they load content only from this server, have no
/// inline scripts or styles, and cannot be shown in a frame.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                              img-src 'self'; connect-src 'self'; form-action 'self'; \
                              frame-ancestors 'none'; base-uri 'none'";

/// Titles of the pages in the console's navigation, each with its path.
const PAGES: [(&str, &str); 9] = [
    ("Overview", "/"),
    ("Calls", "/console/calls"),
    ("Jobs", "/console/jobs"),
    ("Tools", "/console/tools"),
    ("Upstreams", "/console/upstreams"),
    ("Policy", "/console/policy"),
    ("Callers", "/console/callers"),
    ("Search", "/console/search"),
    ("Settings", "/console/settings"),
];

/// Name of this machine. The console shows the name, because a fleet has several servers.
pub(crate) static HOST_NAME: LazyLock<String> = LazyLock::new(host_name);

#[allow(clippy::disallowed_methods, reason = "a file of the kernel")]
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "this machine".to_owned(),
        name => name.to_owned(),
    }
}

/// A page of the console.
pub(crate) struct ConsolePage<'a> {
    pub(crate) title: String,
    /// Path of the navigation entry that the page highlights.
    pub(crate) section: &'a str,
    /// Events after which the browser updates the page: `calls`, `jobs`, `calls jobs`, or an empty
    /// text.
    pub(crate) live: &'a str,
    pub(crate) content: Markup,
}

impl ConsolePage<'_> {
    /// Returns the complete HTML of the page for the person of `session`.
    pub(crate) fn render(&self, session: &ConsoleSession) -> Markup {
        let Self { title, section, live, content } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(title))
                body {
                    a .skip href="#main" { "Skip to the content" }
                    header {
                        nav aria-label="Console" {
                            ul {
                                @for (name, path) in PAGES {
                                    li {
                                        @if path == *section {
                                            a href=(path) aria-current="page" { (name) }
                                        } @else {
                                            a href=(path) { (name) }
                                        }
                                    }
                                }
                            }
                        }
                        form method="post" action="/console/sign-out" .inline {
                            (csrf_field(session))
                            span .who { (session.caller.name) @if !session.may_act() { " (read only)" } }
                            button { "Sign out" }
                        }
                    }
                    main #main data-live=(live) {
                        h1 { (title) }
                        (content)
                    }
                    footer {
                        p {
                            "toolgate " (env!("CARGO_PKG_VERSION")) ", server process "
                            (std::process::id()) " on " (*HOST_NAME) ". Times are UTC. "
                            span #live role="status" {}
                        }
                    }
                }
            }
        }
    }
}

/// Returns the HTML head of a console page.
pub(crate) fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · toolgate" }
            link rel="icon" href="/console/icon.svg" type="image/svg+xml";
            link rel="stylesheet" href="/console/style.css";
            script src="/console/script.js" defer {}
        }
    }
}

/// Returns the hidden field that every form of a session contains.
pub(crate) fn csrf_field(session: &ConsoleSession) -> Markup {
    html! { input type="hidden" name="csrf" value=(session.csrf); }
}

/// Returns the time `at` in HTML without a time zone, for tables whose heading says that times are
/// in UTC.
pub(crate) fn time(at: Timestamp) -> Markup {
    html! { time datetime=(at) { (at.strftime("%Y-%m-%d %H:%M:%S")) } }
}

/// Returns the time `at` in HTML with its time zone.
pub(crate) fn moment(at: Timestamp) -> Markup {
    html! { time datetime=(at) { (at.strftime("%Y-%m-%d %H:%M:%S")) " UTC" } }
}

/// Returns the time from `at` to `now` as text, such as `4 minutes ago`.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    let minutes = now.duration_since(at).as_secs().max(0) / 60;
    let (count, unit) = match minutes {
        0 => return "less than a minute ago".to_owned(),
        1..60 => (minutes, "minute"),
        60..2880 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

/// Returns `word`, the outcome of a call, as a colored word in HTML.
pub(crate) fn outcome(word: &str) -> Markup {
    let class = if word == "ok" { "good" } else { "bad" };
    html! { span .state .(class) { (word) } }
}

/// Returns an HTML table with the cells `headings` above `rows`, which scrolls if it is too wide.
pub(crate) fn scrolling_table(headings: &Markup, rows: &Markup) -> Markup {
    html! {
        div .scroll { table { thead { tr { (headings) } } tbody { (rows) } } }
    }
}

/// Returns a row of an HTML table with a name and a value, or nothing if the value is absent.
pub(crate) fn field(name: &str, value: Option<impl maud::Render>) -> Markup {
    html! {
        @if let Some(value) = value {
            tr { th scope="row" { (name) } td { (value) } }
        }
    }
}

/// Returns a reply with the HTML `markup`, the HTTP `status` and the console's security headers.
pub(crate) fn reply(status: u16, markup: Markup) -> Reply {
    with_headers(status, "text/html; charset=utf-8", markup.into_string().into_bytes())
        .with_header("cache-control", "no-store")
}

/// Returns a reply with the JSON `value` and the console's security headers.
pub(crate) fn json(value: &serde_json::Value) -> Reply {
    with_headers(200, "application/json", value.to_string().into_bytes())
        .with_header("cache-control", "no-store")
}

/// Returns a reply with the file `content`, such as a style sheet, which browsers cache for an
/// hour.
pub(crate) fn asset(media_type: &str, content: &'static str) -> Reply {
    with_headers(200, media_type, content.as_bytes().to_vec())
        .with_header("cache-control", "private, max-age=3600")
}

/// Returns a redirect to `path` of this server.
pub(crate) fn redirect(path: &str) -> Reply {
    with_headers(303, "text/plain", Vec::new())
        .with_header("location", path)
        .with_header("cache-control", "no-store")
}

fn with_headers(status: u16, media_type: &str, body: Vec<u8>) -> Reply {
    Reply::json(body)
        .with_status(status)
        .with_header("content-type", media_type)
        .with_header("content-security-policy", CONTENT_POLICY)
        .with_header("x-content-type-options", "nosniff")
        .with_header("x-frame-options", "DENY")
        .with_header("referrer-policy", "same-origin")
        .with_header("cross-origin-opener-policy", "same-origin")
        .with_header("cross-origin-resource-policy", "same-origin")
}

/// Returns the HTML of a console page without navigation, such as the page for signing in.
pub(crate) fn bare_page(title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body .bare {
                main #main {
                    h1 { (title) }
                    (content)
                }
            }
        }
    }
}
