//! Parsing of MCP requests into host requests and call metadata.

use serde_json::{Value, json};
use toolgate_contract::{
    CallMetadata, FrameMetadata, HostRequest, LogLevel, ToolId, ToolResultFormat, TraceContext,
};

use super::encoder::McpRequestKind;
use super::library::{self, LibraryRequestKind};
use super::message::{McpError, RequestId, wrong_type};
use super::revision::{McpRevision, SessionModel};
use super::tasks::{self, TaskRequest};
use super::{cursor, headers};
use crate::json::RpcParams;
use crate::{AcceptedResponseMode, ServerInfo};

/// The member of `_meta` in which a request names the format of its result.
pub const META_RESULTS: &str = "io.toolgate/results";

/// Returns the kind of request that `method` makes, if the revision and the server support it.
pub(crate) fn request_kind(
    method: &str,
    revision: &McpRevision,
    facts: &ServerInfo,
) -> Option<McpRequestKind> {
    match method {
        "tools/list" => Some(McpRequestKind::Tools),
        "tools/call" => Some(McpRequestKind::Call),
        _ => {
            let about = TaskRequest::from_method(method, revision).map(McpRequestKind::TaskRequest);
            let library = || LibraryRequestKind::from_method(method, revision, facts);
            about.or_else(|| library().map(|want| McpRequestKind::Library { want, uri: None }))
        }
    }
}

/// Parses `params`, the parameters of an MCP request of the kind `asked`, into a host request. Also
/// returns the kind of the request, with details from the parameters.
pub(crate) fn parse_request(
    id: &RequestId,
    asked: McpRequestKind,
    revision: &McpRevision,
    params: &mut RpcParams,
) -> Result<(McpRequestKind, HostRequest), McpError> {
    Ok(match asked {
        McpRequestKind::Tools => {
            let after = cursor::parse_after(id, params, "tool", ToolId::foreign)?;
            (asked, HostRequest::ListTools { after })
        }
        McpRequestKind::Call | McpRequestKind::Task => read_call(id, revision, params)?,
        McpRequestKind::TaskRequest(about) => (asked, about.parse(revision, id, params)?),
        McpRequestKind::Library { want, .. } => {
            let request = want.parse(id, params)?;
            let uri = library::request_uri(&request).map(str::to_owned);
            (McpRequestKind::Library { want, uri }, request)
        }
    })
}

/// Parses the parameters of a tool call, which may become a task.
fn read_call(
    id: &RequestId,
    revision: &McpRevision,
    params: &mut RpcParams,
) -> Result<(McpRequestKind, HostRequest), McpError> {
    let tool = match params.remove("name") {
        Some(Value::String(tool)) => tool,
        other => return Err(wrong_type("a string", id, "params.name", other.as_ref())),
    };
    let input = match params.remove("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input,
        Some(_) => {
            let why = "`params.arguments` must be an object";
            return Err(McpError::invalid_params(Some(id.clone()), why));
        }
    };
    Ok(match tasks::parse_job_options(revision, id, params)? {
        None => (McpRequestKind::Call, HostRequest::CallTool { tool, input }),
        Some(terms) => (McpRequestKind::Task, HostRequest::StartJob { tool, input, terms }),
    })
}

/// Returns true if an MCP request may lead to questions to the client.
pub(crate) fn may_ask(asked: &McpRequestKind, era: SessionModel) -> bool {
    match (asked, era) {
        (McpRequestKind::Call | McpRequestKind::Task, _)
        | (
            McpRequestKind::Library {
                want: LibraryRequestKind::Contents | LibraryRequestKind::Prompt,
                ..
            },
            _,
        )
        | (McpRequestKind::TaskRequest(TaskRequest::Result), SessionModel::Session) => true,
        (
            McpRequestKind::Tools | McpRequestKind::TaskRequest(_) | McpRequestKind::Library { .. },
            _,
        ) => false,
    }
}

/// Collects the metadata that a client sent with a request: repeated arguments and trace context.
pub(crate) fn call_metadata(
    head: &FrameMetadata,
    kind: &McpRequestKind,
    revision: &McpRevision,
    params: &RpcParams,
) -> CallMetadata {
    let header_params = match (kind, revision.era) {
        (McpRequestKind::Call | McpRequestKind::Task, SessionModel::Stateless) => {
            headers::header_params(head)
        }
        (McpRequestKind::Call | McpRequestKind::Task, SessionModel::Session)
        | (
            McpRequestKind::Tools | McpRequestKind::TaskRequest(_) | McpRequestKind::Library { .. },
            _,
        ) => None,
    };
    let meta = |name| params.get("_meta").and_then(|meta| meta.get(name)).and_then(Value::as_str);
    let trace = meta("traceparent")
        .and_then(|parent| TraceContext::parse(parent, meta("tracestate"), meta("baggage")));
    CallMetadata { header_params, trace, ..CallMetadata::default() }
}

/// Returns the format of results that the request names in `_meta`, or `None` if it names none.
/// Fails if the format is unknown.
pub(crate) fn result_form(
    id: &RequestId,
    params: &RpcParams,
) -> Result<Option<ToolResultFormat>, McpError> {
    let Some(named) = params.get("_meta").and_then(|meta| meta.get(META_RESULTS)) else {
        return Ok(None);
    };
    let form = named.as_str().and_then(ToolResultFormat::from_name);
    form.map(Some).ok_or_else(|| {
        let why = format!("`{META_RESULTS}` must be `text`, `structured` or `both`, not {named}");
        McpError::invalid_params(Some(id.clone()), why)
    })
}

pub(crate) fn read_level(id: &RequestId, level: &Value) -> Result<LogLevel, McpError> {
    serde_json::from_value(level.clone()).map_err(|_| {
        McpError::invalid_params(
            Some(id.clone()),
            format!(
                "{level} is not a log level; levels are debug, info, notice, warning, error, \
                 critical, alert, emergency"
            ),
        )
    })
}

/// Returns true if `range`, an entry of the header `Accept`, names event streams with a nonzero
/// weight.
fn is_stream(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let none = |weight: &str| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0);
    kind == "text/event-stream" && !parts.any(|part| part.strip_prefix("q=").is_some_and(none))
}

/// Returns the response mode that the client accepts. A client on lines accepts streams. An HTTP
/// client accepts streams if its `Accept` header names them, and can resume them if the revision
/// supports that.
pub(crate) fn answer_form(head: &FrameMetadata, revision: &McpRevision) -> AcceptedResponseMode {
    let takes = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        text.split(',').any(is_stream)
    };
    match (head, revision.era) {
        (FrameMetadata::Line, _) => AcceptedResponseMode::Stream,
        (FrameMetadata::Http { .. }, era) if head.header("accept").any(takes) => match era {
            SessionModel::Session if revision.resumes => AcceptedResponseMode::Resumable,
            SessionModel::Session | SessionModel::Stateless => AcceptedResponseMode::Stream,
        },
        (FrameMetadata::Http { .. }, _) => AcceptedResponseMode::Message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_accepted_if_listed_with_a_weight_above_zero() {
        for (range, wanted) in [
            ("text/event-stream", true),
            (" text/event-stream ;q=0.5", true),
            ("text/event-stream;charset=utf-8; q=1", true),
            ("text/event-stream;q=0", false),
            ("text/event-stream; q=0.000", false),
            ("text/event-stream-ish", false),
            ("*/*", false),
        ] {
            assert_eq!(is_stream(range.trim()), wanted, "{range}");
        }
    }
}
