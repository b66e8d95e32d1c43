//! Errors in HTTP responses, and the detection of errors that mean an unknown session.

use http::StatusCode;

use crate::message::{self, UpstreamMessage, UpstreamRpcError};

/// A JSON-RPC error in a response.
#[derive(Debug)]
pub(super) struct ResponseError {
    pub(super) error: UpstreamRpcError,
    /// True if the error names none of toolgate's requests.
    pub(super) is_anonymous: bool,
}

impl ResponseError {
    /// Returns the first error in `body`, if there is one.
    pub(super) fn in_body(body: &[u8]) -> Option<Self> {
        let messages = message::parse_messages(body).ok()?;
        messages.into_iter().find_map(|message| match message {
            UpstreamMessage::Answer(id, Err(error)) => {
                Some(Self { error, is_anonymous: id.is_none() })
            }
            _ => None,
        })
    }
}

/// Returns true if a response means that the server does not know the session, and therefore did
/// nothing.
///
/// Servers should answer with 404. After a restart, some answer with 400 or 410, or with an error
/// that names no request, because they cannot read a request without its session.
pub(super) fn is_session_unknown(
    status: StatusCode,
    error: Option<&ResponseError>,
    body: &[u8],
) -> bool {
    let is_refusal = status.is_success() || status == StatusCode::BAD_REQUEST;
    match (status, error) {
        (StatusCode::NOT_FOUND | StatusCode::GONE, _) => true,
        (StatusCode::BAD_REQUEST, None) => {
            body.trim_ascii().is_empty() || names_session(&String::from_utf8_lossy(body))
        }
        (_, Some(ResponseError { error, is_anonymous: true })) if is_refusal => {
            !is_about_content(error.code) || names_session(&error.message)
        }
        (StatusCode::BAD_REQUEST, Some(ResponseError { error, is_anonymous: false })) => {
            matches!(error.code, -32000 | -32001 | -32600) && names_session(&error.message)
        }
        _ => false,
    }
}

/// Returns true if `text` mentions a session, or the request that begins a session.
pub(super) fn names_session(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("session") || text.contains("initiali")
}

/// Returns true if an error of this code concerns the content of a message: its JSON, its method or
/// its parameters.
fn is_about_content(code: i64) -> bool {
    matches!(code, -32700 | -32601 | -32602)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if a response of `status` with `body` means an unknown session.
    fn is_gone(status: u16, body: &str) -> bool {
        let status = StatusCode::from_u16(status).expect("a status");
        let body = body.as_bytes();
        is_session_unknown(status, ResponseError::in_body(body).as_ref(), body)
    }

    fn error(id: &str, code: i64, message: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#)
    }

    #[test]
    fn a_refusal_for_an_unknown_session_is_recognized() {
        for (status, body) in [
            (404, String::new()),
            (404, "Session not found".to_owned()),
            (404, error("3", -32001, "Session not found")),
            (410, String::new()),
            (400, String::new()),
            (400, "Invalid session ID".to_owned()),
            (400, r#"{"jsonRpcError":{"code":-32603,"message":"Session ID missing"}}"#.to_owned()),
            (400, error("null", -32000, "Bad Request: Server not initialized")),
            (400, error("null", -32000, "Bad Request: No valid session ID provided")),
            (400, error("\"server-error\"", -32600, "Bad Request: Missing session ID")),
            (400, error("3", -32600, "Session has been terminated")),
            (400, error("null", -32602, "unknown session")),
            (200, error("null", -32000, "not ready")),
            (200, r#"{"error":{"code":-32099,"message":"who are you?"}}"#.to_owned()),
        ] {
            assert!(is_gone(status, &body), "{status} {body}");
        }
    }

    #[test]
    fn another_refusal_is_not_about_the_session() {
        for (status, body) in [
            (400, "the header is too long".to_owned()),
            (400, error("3", -32602, "no such session variable")),
            (400, error("3", -32600, "no JSON")),
            (400, error("null", -32700, "Parse error")),
            (200, error("null", -32601, "Method not found")),
            (200, error("3", -32000, "the database session has expired")),
            (406, error("null", -32000, "Client must accept text/event-stream")),
            (429, error("null", -32000, "slow down")),
            (500, error("null", -32000, "No valid session ID provided")),
            (503, String::new()),
        ] {
            assert!(!is_gone(status, &body), "{status} {body}");
        }
    }
}
