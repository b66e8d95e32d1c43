//! Errors for unsupported methods, with hints at other revisions and spellings.

use super::META_LOG_LEVEL;
use super::message::{METHOD_NOT_FOUND, McpError, RequestId};
use super::requests::request_kind;
use super::revision::{McpRevision, REVISIONS, SessionModel};
use crate::ServerInfo;
use crate::json::RpcParams;

/// The MCP methods of all revisions.
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
/// The similarity (0 to 1) above which a known method is suggested for an unknown one.
const SIMILARITY_MIN: f64 = 0.75;

/// Creates the error for `method`, which the protocol revision `revision` does not have.
pub(crate) fn unknown_method(
    id: RequestId,
    method: &str,
    revision: &McpRevision,
    facts: &ServerInfo,
) -> McpError {
    let others: Vec<_> = REVISIONS.iter().filter(|other| is_served(method, other, facts)).collect();
    let why = match (others.first(), others.last()) {
        // The client wants a session, but the request declares a stateless revision.
        _ if method == "initialize" => format!(
            "`initialize` does not exist in this revision; to start a session in {}, send it \
             without `_meta` and without `MCP-Protocol-Version`",
            McpRevision::names(SessionModel::Session).join(", ")
        ),
        (Some(newest), Some(oldest)) => {
            let revisions = match newest == oldest {
                true => newest.name.to_owned(),
                false => format!("{} to {}", oldest.name, newest.name),
            };
            format!(
                "`{method}` exists in {revisions}, not in {}{}",
                revision.name,
                counterpart_hint(method, revision)
            )
        }
        _ => {
            let served = METHODS.into_iter().filter(|known| is_served(known, revision, facts));
            let similarity = |known: &str| {
                strsim::normalized_damerau_levenshtein(known, &method.to_ascii_lowercase())
            };
            let nearest = served.max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let nearest = nearest.filter(|known| similarity(known) > SIMILARITY_MIN);
            let hint = nearest.map(|known| format!("; did you mean `{known}`?"));
            format!("no method is named `{method}` here{}", hint.unwrap_or_default())
        }
    };
    McpError::new(Some(id), METHOD_NOT_FOUND, why)
}

/// Returns a hint for a request to Zyra's MCP adapter, which has its own path on this server. The
/// hint is empty for other requests.
pub(crate) fn zyra_hint(method: &str, params: &RpcParams) -> &'static str {
    let has = |field: &str| params.get(field).is_some();
    let is_zyra = matches!(method, "statusReport" | "status/report" | "listTools" | "callTool")
        || method == "tools/call" && (has("mode") || has("stage"));
    if is_zyra { "; a client of Zyra's adapter sends its requests to `/v1/mcp`" } else { "" }
}

/// Returns true if the server supports `method` in the protocol revision `revision`.
fn is_served(method: &str, revision: &McpRevision, facts: &ServerInfo) -> bool {
    let revision = if facts.jobs { revision } else { revision.without_tasks() };
    match (method, revision.era) {
        ("initialize" | "ping" | "logging/setLevel", SessionModel::Session)
        | ("server/discover" | "subscriptions/listen", SessionModel::Stateless) => true,
        ("resources/unsubscribe", SessionModel::Session) => facts.resources,
        _ => request_kind(method, revision, facts).is_some(),
    }
}

/// Returns a hint that names the method of `revision` that corresponds to `method` of a different
/// revision. The hint is empty if there is no such method.
fn counterpart_hint(method: &str, revision: &McpRevision) -> String {
    let hint = match (method, revision.era) {
        ("resources/subscribe" | "resources/unsubscribe", SessionModel::Stateless) => {
            "use `subscriptions/listen`"
        }
        ("ping", SessionModel::Stateless) => "use any request, such as `server/discover`",
        ("logging/setLevel", SessionModel::Stateless) => {
            return format!("; set `params._meta[\"{META_LOG_LEVEL}\"]` in each request");
        }
        ("tasks/result", SessionModel::Stateless) => {
            "`tasks/get` returns the result of an ended task"
        }
        ("tasks/list", SessionModel::Stateless) => "keep the task id from the answer to the call",
        ("subscriptions/listen", SessionModel::Session) => "use `resources/subscribe`",
        ("server/discover", SessionModel::Session) => "use `initialize`",
        ("tasks/update", SessionModel::Session) => {
            "in this revision, tasks send their questions as requests"
        }
        ("skills/list" | "skills/get" | "resources/directory/read", SessionModel::Session) => {
            "skills are resources below `skill://`"
        }
        _ => return String::new(),
    };
    format!("; {hint}")
}
