//! Encodes the requests that toolgate sends to upstream MCP servers.

use serde_json::{Map, Value, json};
use toolgate_contract::{LogLevel, QuestionSupport, TraceContext};

use super::{McpRevision, RevisionQuestionSupport, SessionModel, TaskSupport};

const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The name of MCP's tasks extension.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Metadata of a request that toolgate sends to an upstream server.
#[derive(Default)]
pub struct UpstreamRequestMetadata<'a> {
    /// The kinds of question that the upstream may ask.
    pub questions: QuestionSupport,
    /// True if a task is accepted as the answer.
    pub accepts_tasks: bool,
    /// The token for progress notifications, if they are wanted.
    pub progress_token: Option<u64>,
    /// The lowest level of log lines that are wanted, in revisions that set the level per request.
    pub log_level: Option<LogLevel>,
    /// The trace that the request belongs to.
    pub trace: Option<&'a TraceContext>,
}

/// Returns toolgate's description of itself as a client of upstream servers.
fn client_info() -> Value {
    json!({ "name": "toolgate", "version": env!("CARGO_PKG_VERSION") })
}

/// Returns the capabilities that toolgate declares as a client: for the questions in `support`, and
/// for tasks as answers if `tasks` is true.
pub fn client_capabilities(support: QuestionSupport, tasks: bool, revision: &McpRevision) -> Value {
    let mut capabilities = Map::new();
    let forms = !matches!(revision.questions, RevisionQuestionSupport::Samples);
    let visits = matches!(
        revision.questions,
        RevisionQuestionSupport::NamedVisits | RevisionQuestionSupport::Visits
    );
    if support.form && forms {
        let mut modes = Map::new();
        if visits {
            modes.insert("form".into(), json!({}));
            if support.visit {
                modes.insert("url".into(), json!({}));
            }
        }
        capabilities.insert("elicitation".into(), Value::Object(modes));
    }
    if support.sample {
        let tools = support.tools && visits;
        capabilities
            .insert("sampling".into(), if tools { json!({ "tools": {} }) } else { json!({}) });
    }
    if support.roots {
        let roots = match revision.era {
            SessionModel::Session => json!({ "listChanged": false }),
            SessionModel::Stateless => json!({}),
        };
        capabilities.insert("roots".into(), roots);
    }
    if tasks && revision.tasks == TaskSupport::Extension {
        capabilities.insert("extensions".into(), json!({ TASKS_EXTENSION: {} }));
    }
    Value::Object(capabilities)
}

/// Returns the parameters of `initialize` that toolgate sends as a client which supports the
/// questions in `support`.
pub fn initialize_params(support: QuestionSupport, revision: &McpRevision) -> Value {
    json!({
        "protocolVersion": revision.name,
        "capabilities": client_capabilities(support, false, revision),
        "clientInfo": client_info(),
    })
}

/// Returns the parameters of `server/discover` for an upstream server.
pub fn discover_params(revision: &McpRevision) -> Value {
    request_params(Map::new(), &UpstreamRequestMetadata::default(), revision)
}

/// Returns `params` with the `_meta` member that the protocol revision `revision` requires.
/// `beside` is the metadata to send.
pub fn request_params(
    mut params: Map<String, Value>,
    beside: &UpstreamRequestMetadata<'_>,
    revision: &McpRevision,
) -> Value {
    let UpstreamRequestMetadata {
        questions: can,
        accepts_tasks: tasks,
        progress_token: progress,
        log_level: log,
        trace,
    } = beside;
    let mut meta = match params.remove("_meta") {
        Some(Value::Object(meta)) => meta,
        Some(_) | None => Map::new(),
    };
    if let Some(token) = progress {
        meta.insert("progressToken".into(), json!(token));
    }
    if let Some(trace) = trace {
        meta.insert("traceparent".into(), json!(trace.parent));
        if let Some(state) = &trace.state {
            meta.insert("tracestate".into(), json!(state));
        }
        // Baggage is not forwarded, because it may be confidential.
    }
    if revision.era == SessionModel::Stateless {
        meta.insert(PROTOCOL_VERSION.into(), json!(revision.name));
        meta.insert(CLIENT_CAPABILITIES.into(), client_capabilities(*can, *tasks, revision));
        meta.insert(CLIENT_INFO.into(), client_info());
        if let Some(level) = log {
            meta.insert(LOG_LEVEL.into(), json!(level));
        }
    }
    if !meta.is_empty() {
        params.insert("_meta".into(), Value::Object(meta));
    }
    Value::Object(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_context_is_sent_to_an_upstream_without_baggage() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = TraceContext::parse(parent, Some("a=b"), Some("user=ada")).expect("a trace");
        let metadata =
            UpstreamRequestMetadata { trace: Some(&trace), ..UpstreamRequestMetadata::default() };
        let params =
            request_params(Map::new(), &metadata, McpRevision::newest(SessionModel::Session));
        assert_eq!(params["_meta"], json!({ "traceparent": parent, "tracestate": "a=b" }));
    }
}
