//! The protocol revision of a stateless request.

use serde_json::Value;
use toolgate_contract::FrameMetadata;

use super::message::{HEADER_MISMATCH, McpError, RequestId, wrong_type};
use super::revision::{McpRevision, SessionModel};
use super::{META_CAPABILITIES, META_VERSION, headers};
use crate::json::RpcParams;

/// Returns true if the header with the protocol version names a stateless revision.
pub(crate) fn has_stateless_header(head: &FrameMetadata) -> bool {
    head.header(headers::VERSION).any(|value| {
        let name = std::str::from_utf8(value).unwrap_or_default().trim();
        McpRevision::find(name, SessionModel::Stateless).is_some()
    })
}

/// Returns the protocol revision of a stateless request. The conformance suite fixes the order of
/// the checks.
pub(crate) fn parse_revision(
    head: &FrameMetadata,
    id: &RequestId,
    params: &RpcParams,
) -> Result<&'static McpRevision, McpError> {
    let mismatch = |why: String| McpError::new(Some(id.clone()), HEADER_MISMATCH, why);
    let at = |name: &str| format!("params._meta[\"{name}\"]");

    let header = headers::single_value(head, headers::VERSION).map_err(mismatch)?;
    let Some(meta) = params.get("_meta").and_then(Value::as_object) else {
        let why = format!("`params._meta` with `{META_VERSION}` is missing");
        return Err(McpError::invalid_params(Some(id.clone()), why));
    };
    let name = match meta.get(META_VERSION) {
        Some(Value::String(name)) => name.as_str(),
        other => return Err(wrong_type("a string", id, &at(META_VERSION), other)),
    };
    match (head, header) {
        (FrameMetadata::Http { .. }, None) => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` is missing; it must be `{name}`"
            )));
        }
        (FrameMetadata::Http { .. }, Some(header)) if header != name => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` is `{header}`, but the body has `{name}`"
            )));
        }
        (FrameMetadata::Http { .. }, Some(_)) | (FrameMetadata::Line, _) => {}
    }
    let Some(revision) = McpRevision::find(name, SessionModel::Stateless) else {
        return Err(McpError::unsupported(
            Some(id.clone()),
            name,
            &McpRevision::names(SessionModel::Stateless),
        ));
    };
    match meta.get(META_CAPABILITIES) {
        Some(Value::Object(_)) => Ok(revision),
        other => Err(wrong_type("an object", id, &at(META_CAPABILITIES), other)),
    }
}
