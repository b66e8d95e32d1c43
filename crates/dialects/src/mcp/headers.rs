//! HTTP headers of stateless requests that repeat parts of the body, and their comparison with the
//! body.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use toolgate_contract::FrameMetadata;

use super::message::{HEADER_MISMATCH, McpError, RequestId};
use crate::json::RpcParams;

/// Name of the HTTP header with the protocol revision.
pub(crate) const VERSION: &str = "mcp-protocol-version";
/// Name of the HTTP header with the session id.
pub(crate) const SESSION: &str = "mcp-session-id";

/// The HTTP header with the id of the last event that a client received before a stream was
/// interrupted.
pub(crate) const LAST_EVENT: &str = "last-event-id";
/// The prefix of HTTP headers that repeat an argument of a call.
const ARGUMENT: &str = "mcp-param-";

/// Returns the value of the HTTP header `name`, trimmed. Repeated or non-ASCII headers are an
/// error.
pub(crate) fn single_value<'h>(
    head: &'h FrameMetadata,
    name: &'static str,
) -> Result<Option<&'h str>, String> {
    let mut values = head.header(name);
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(format!("the header `{name}` is repeated"));
    }
    header_text(name, first).map(Some)
}

/// Returns the value of an HTTP header, trimmed. Non-ASCII values are an error.
fn header_text<'h>(name: &str, value: &'h [u8]) -> Result<&'h str, String> {
    let visible = value.iter().all(|b| matches!(b, b'\t' | b' '..=b'~'));
    match std::str::from_utf8(value) {
        Ok(text) if visible => Ok(text.trim_matches([' ', '\t'])),
        Ok(_) | Err(_) => Err(format!("the header `{name}` has invalid characters")),
    }
}

/// Checks that the headers `Mcp-Method` and `Mcp-Name` match the body of the request.
pub(crate) fn check_headers(
    head: &FrameMetadata,
    id: &RequestId,
    method: &str,
    params: &RpcParams,
) -> Result<(), McpError> {
    let mismatch = |why: String| McpError::new(Some(id.clone()), HEADER_MISMATCH, why);
    let value = single_value(head, "mcp-method").map_err(mismatch)?;
    check_same("Mcp-Method", value, method).map_err(mismatch)?;

    let name = match method {
        "tools/call" | "prompts/get" => params.get("name"),
        "resources/read" => params.get("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params.get("taskId"),
        _ => return Ok(()),
    };
    // A name that is not a string is reported later, as an error of the body.
    let Some(name) = name.and_then(Value::as_str) else { return Ok(()) };
    let value = single_value(head, "mcp-name").map_err(mismatch)?;
    let value = value.map(decode_value).transpose().map_err(mismatch)?;
    check_same("Mcp-Name", value.as_deref(), name).map_err(mismatch)
}

fn check_same(header: &str, value: Option<&str>, body: &str) -> Result<(), String> {
    match value {
        Some(value) if value == body => Ok(()),
        Some(value) => {
            Err(format!("the header `{header}` is `{value}`, but the body has `{body}`"))
        }
        None => Err(format!("the header `{header}` is missing; it must be `{body}`")),
    }
}

/// Returns the arguments that the headers of a call repeat, by header name without the prefix.
///
/// A malformed value is an error only if the tool declares that argument as a header. Unknown
/// arguments are ignored.
pub(crate) fn header_params(head: &FrameMetadata) -> Option<Vec<(String, Result<String, String>)>> {
    let FrameMetadata::Http { headers, .. } = head else { return None };
    let mut params = Vec::new();
    for (name, value) in headers {
        let Some(argument) = name.as_str().strip_prefix(ARGUMENT) else { continue };
        let text = header_text(name.as_str(), value.as_bytes()).and_then(decode_value);
        params.push((argument.to_owned(), text));
    }
    Some(params)
}

/// Decodes the header value `value` if it has MCP's marker for Base64.
fn decode_value(value: &str) -> Result<String, String> {
    let Some(inner) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="))
    else {
        return Ok(value.to_owned());
    };
    let bytes = STANDARD.decode(inner).map_err(|err| format!("`{value}` is not Base64: {err}"))?;
    String::from_utf8(bytes).map_err(|_| format!("`{value}` is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_marked_header_value_is_decoded() {
        assert_eq!(decode_value("=?base64?ZmlsZXM=?="), Ok("files".to_owned()));
        assert_eq!(decode_value("=?BASE64?ZmlsZXM=?="), Ok("=?BASE64?ZmlsZXM=?=".to_owned()));
        assert!(decode_value("=?base64?Zm*?=").is_err());
    }
}
