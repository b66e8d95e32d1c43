//! Errors for unsupported methods, with hints at other revisions and spellings.

use super::META_LOG_LEVEL;
use super::message::{Failure, Id, METHOD_NOT_FOUND};
use super::requests::asked;
use super::revision::{Era, REVISIONS, Revision};
use crate::Facts;

/// The methods of all revisions.
const METHODS: [&str; 23] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "server/discover",
    "subscriptions/listen",
    "tools/list",
    "tools/call",
    "tasks/get",
    "tasks/result",
    "tasks/update",
    "tasks/cancel",
    "tasks/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/directory/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "skills/list",
    "skills/get",
];
/// The similarity, from 0 to 1, above which a method is suggested.
const ALIKE: f64 = 0.75;

/// Creates the error for `method`, which `revision` does not have.
pub(crate) fn unknown(id: Id, method: &str, revision: &Revision, facts: &Facts) -> Failure {
    let others: Vec<_> = REVISIONS.iter().filter(|other| is_served(method, other, facts)).collect();
    let why = match (others.first(), others.last()) {
        // The client wants a session, but the request declares a stateless revision.
        _ if method == "initialize" => format!(
            "`initialize` is not of this revision, in which each request carries all it needs; to \
             begin a session in {}, send it without `_meta` and without `MCP-Protocol-Version`",
            Revision::names(Era::Session).join(", ")
        ),
        (Some(newest), Some(oldest)) => {
            let of = match newest == oldest {
                true => newest.name.to_owned(),
                false => format!("{} to {}", oldest.name, newest.name),
            };
            format!("`{method}` is of {of}, not of {}{}", revision.name, instead(method, revision))
        }
        _ => {
            let served = METHODS.into_iter().filter(|known| is_served(known, revision, facts));
            let like = |known: &str| {
                strsim::normalized_damerau_levenshtein(known, &method.to_ascii_lowercase())
            };
            let nearest = served.max_by(|a, b| like(a).total_cmp(&like(b)));
            let nearest = nearest.filter(|known| like(known) > ALIKE);
            let hint = nearest.map(|known| format!("; did you mean `{known}`?"));
            format!("no method is named `{method}` here{}", hint.unwrap_or_default())
        }
    };
    Failure::new(Some(id), METHOD_NOT_FOUND, why)
}

/// Returns true if the server supports `method` in `revision`.
fn is_served(method: &str, revision: &Revision, facts: &Facts) -> bool {
    let revision = if facts.jobs { revision } else { revision.without_tasks() };
    match (method, revision.era) {
        ("initialize" | "ping" | "logging/setLevel", Era::Session)
        | ("server/discover" | "subscriptions/listen", Era::Stateless) => true,
        ("resources/unsubscribe", Era::Session) => facts.resources,
        _ => asked(method, revision, facts).is_some(),
    }
}

/// Returns a hint at the counterpart of `method` in `revision`.
fn instead(method: &str, revision: &Revision) -> String {
    let instead = match (method, revision.era) {
        ("resources/subscribe" | "resources/unsubscribe", Era::Stateless) => {
            "where it is `subscriptions/listen`"
        }
        ("ping", Era::Stateless) => "where any request does, such as `server/discover`",
        ("logging/setLevel", Era::Stateless) => {
            return format!(
                ", where each request says it for itself, in `params._meta[\"{META_LOG_LEVEL}\"]`"
            );
        }
        ("tasks/result", Era::Stateless) => "where `tasks/get` has the result of what has ended",
        ("tasks/list", Era::Stateless) => "where a task is known by the id that its call answered",
        ("subscriptions/listen", Era::Session) => "where it is `resources/subscribe`",
        ("server/discover", Era::Session) => "where `initialize` answers that",
        ("tasks/update", Era::Session) => "where what a task asks is asked as a request",
        ("skills/list" | "skills/get" | "resources/directory/read", Era::Session) => {
            "where skills are resources, below `skill://`"
        }
        _ => return String::new(),
    };
    format!(", {instead}")
}
