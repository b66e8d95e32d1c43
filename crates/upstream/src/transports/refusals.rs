//! Errors in HTTP responses, and the detection of errors that mean an unknown session.

use http::StatusCode;

use crate::message::{self, UpstreamMessage, UpstreamRpcError};

/// Words in the body of an HTTP response that add nothing to the status 400.
const STATUS_WORDS: [&str; 10] = [
    "400",
    "bad",
    "request",
    "invalid",
    "error",
    "status",
    "statuscode",
    "code",
    "message",
    "null",
];
/// Beginnings of error messages for a request outside a session. The last beginning is from the
/// Python SDK.
const LOSS_BEGINNINGS: [&str; 11] = [
    "session not found",
    "session expired",
    "session has expired",
    "session terminated",
    "session has been terminated",
    "session does not exist",
    "session not initialized",
    "server not initialized",
    "invalid session",
    "unknown session",
    "received request before initialization",
];
/// Words in error messages that say that a session is unknown.
const LOSS_WORDS: [&str; 9] = [
    "not found",
    "not exist",
    "no valid",
    "no longer",
    "unknown",
    "invalid",
    "expired",
    "terminated",
    "missing",
];

/// A JSON-RPC error in an HTTP response.
#[derive(Debug)]
pub(super) struct RpcResponseError {
    pub(super) error: UpstreamRpcError,
    /// True if the error names none of the requests that toolgate sent.
    pub(super) is_anonymous: bool,
}

impl RpcResponseError {
    /// Returns the first JSON-RPC error in the response `body`, if there is one.
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
/// that names no request, because they cannot read a request without its session. Others answer
/// with an error whose message says that the session is unknown.
pub(super) fn is_session_unknown(
    status: StatusCode,
    error: Option<&RpcResponseError>,
    body: &[u8],
) -> bool {
    let is_refusal = status.is_success() || status == StatusCode::BAD_REQUEST;
    let text = || String::from_utf8_lossy(body);
    match (status, error) {
        (StatusCode::NOT_FOUND | StatusCode::GONE, _) => true,
        (StatusCode::BAD_REQUEST, None) => is_only_status(&text()) || names_session(&text()),
        (_, Some(RpcResponseError { error, is_anonymous: true })) if is_refusal => {
            !is_about_content(error.code) || names_session(&error.message)
        }
        (StatusCode::BAD_REQUEST, Some(RpcResponseError { error, is_anonymous: false })) => {
            let is_common = matches!(error.code, -32000 | -32001 | -32600);
            (is_common && names_session(&error.message)) || begins_with_loss(&error.message)
        }
        // The tool itself could have failed with this message, so its code must be one of a server.
        (StatusCode::OK, Some(RpcResponseError { error, is_anonymous: false })) => {
            is_code_of_server(error.code) && begins_with_loss(&error.message)
        }
        // The TypeScript SDK sends this before it reads the message.
        (StatusCode::INTERNAL_SERVER_ERROR, None) => {
            text().trim().eq_ignore_ascii_case("SSE connection not established")
        }
        (StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY, None) => names_loss(&text()),
        (StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY, Some(refusal)) => {
            names_loss(&refusal.error.message)
        }
        _ => false,
    }
}

/// Returns true if the response `body` has no words besides those of the status 400, such as an
/// HTML page of a proxy.
fn is_only_status(body: &str) -> bool {
    let text = without_tags(body).to_ascii_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty());
    words.all(|word| STATUS_WORDS.contains(&word))
}

/// Returns `text` with each HTML tag replaced by a space.
fn without_tags(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut is_tag = false;
    for c in text.chars() {
        match c {
            '<' => is_tag = true,
            '>' if is_tag => {
                is_tag = false;
                plain.push(' ');
            }
            c if !is_tag => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// Returns true if the error `message` begins like an error for a request outside a session.
fn begins_with_loss(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    let message = message.strip_prefix("bad request: ").unwrap_or(&message);
    LOSS_BEGINNINGS.iter().any(|beginning| message.starts_with(beginning))
}

/// Returns true if the error message `text` says that a session is unknown.
fn names_loss(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("session") && LOSS_WORDS.iter().any(|words| text.contains(words))
}

/// Returns true if the error message `text` mentions a session, or the request that begins a
/// session.
pub(super) fn names_session(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("session") || text.contains("initiali")
}

/// Returns true if an error of this JSON-RPC code comes from the server, and not from a tool that
/// ran. An exception in a tool becomes an internal error, or has a code of its own.
fn is_code_of_server(code: i64) -> bool {
    (-32768..=-32000).contains(&code) && code != -32603
}

/// Returns true if an error of this JSON-RPC code concerns the content of a message: its JSON, its
/// method or its parameters.
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
        is_session_unknown(status, RpcResponseError::in_body(body).as_ref(), body)
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
            (400, "Bad Request".to_owned()),
            (400, "<html><title>400 Bad Request</title><h1>Bad Request</h1></html>".to_owned()),
            (400, r#"{"statusCode":400,"error":"Bad Request"}"#.to_owned()),
            (400, "null".to_owned()),
            (400, error("3", -32603, "Session not found")),
            (400, error("3", -32602, "Bad Request: Invalid session id")),
            (200, error("3", -32001, "Session not found")),
            (200, error("3", -32000, "Server not initialized")),
            (200, error("3", -32602, "Received request before initialization was complete")),
            (409, error("null", -32000, "Session terminated")),
            (500, "SSE connection not established".to_owned()),
            (422, r#"{"detail":"unknown session"}"#.to_owned()),
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
            (200, error("3", -32603, "Session terminated")),
            (200, error("3", 0, "Session not found")),
            (200, error("3", -32000, "no session was found in the database")),
            (400, "<html><h1>Bad Request</h1><p>The URL is too long</p></html>".to_owned()),
            (406, error("null", -32000, "Client must accept text/event-stream")),
            (409, "the file changed meanwhile".to_owned()),
            (422, "the session has too many members".to_owned()),
            (429, error("null", -32000, "slow down")),
            (500, error("null", -32000, "No valid session ID provided")),
            (503, String::new()),
        ] {
            assert!(!is_gone(status, &body), "{status} {body}");
        }
    }
}
