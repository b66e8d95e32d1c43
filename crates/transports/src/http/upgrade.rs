//! WebSocket handshake (RFC 6455).

use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use toolgate_contract::Reply;

use super::response_body::{ResponseBody, reply_response, text_response};

/// Valid HTTP request for a WebSocket.
#[derive(Debug)]
pub(super) struct WebSocketRequest {
    accept: HeaderValue,
}

/// Error that makes the WebSocket request of a client invalid.
#[derive(Debug)]
pub(super) enum WebSocketHandshakeError {
    /// Unsupported version of the WebSocket protocol.
    Version,
    /// Missing or malformed `Sec-WebSocket-Key`.
    Key,
}

impl WebSocketRequest {
    /// Parses the WebSocket handshake of `request`. Returns `None` if `request` does not ask for a
    /// WebSocket.
    pub(super) fn from_request<B>(
        request: &Request<B>,
    ) -> Result<Option<Self>, WebSocketHandshakeError> {
        let headers = request.headers();
        let is_upgrade = request.method() == Method::GET
            && request.version() == Version::HTTP_11
            && header_lists(headers, CONNECTION, "upgrade")
            && header_lists(headers, UPGRADE, "websocket");
        if !is_upgrade {
            return Ok(None);
        }
        if single_header(headers, SEC_WEBSOCKET_VERSION) != Some(b"13") {
            return Err(WebSocketHandshakeError::Version);
        }
        let key = single_header(headers, SEC_WEBSOCKET_KEY).filter(|key| is_key(key));
        let accept = key.and_then(|key| HeaderValue::from_str(&derive_accept_key(key)).ok());
        accept.map(|accept| Some(Self { accept })).ok_or(WebSocketHandshakeError::Key)
    }
}

impl WebSocketHandshakeError {
    /// Returns the HTTP status and the text of the error response.
    pub(super) fn status_and_text(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Version => (StatusCode::UPGRADE_REQUIRED, "the WebSocket version must be 13\n"),
            Self::Key => {
                let why = "a WebSocket request needs one `Sec-WebSocket-Key` of 16 bytes\n";
                (StatusCode::BAD_REQUEST, why)
            }
        }
    }

    /// Returns the error response to the invalid WebSocket request.
    pub(super) fn refusal(&self) -> Response<ResponseBody> {
        let (status, text) = self.status_and_text();
        let mut refusal = text_response(status, text);
        match self {
            Self::Version => {
                let headers = refusal.headers_mut();
                headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            }
            Self::Key => {}
        }
        refusal
    }
}

/// Returns the response that switches the connection to the WebSocket protocol.
pub(super) fn switching_response(websocket: &WebSocketRequest) -> Response<ResponseBody> {
    let mut response = reply_response(Reply::empty(101));
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, websocket.accept.clone());
    response
}

/// Returns true if the header `name`, a list of words, contains `word`.
fn header_lists(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let lists = headers.get_all(name).into_iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|entry| entry.trim().eq_ignore_ascii_case(word))
}

/// Returns the value of the header `name` if it occurs exactly once.
fn single_header(headers: &HeaderMap, name: HeaderName) -> Option<&[u8]> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.as_bytes().trim_ascii()),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// Returns true if `key`, the value of `Sec-WebSocket-Key`, is the base64 encoding of 16 bytes.
fn is_key(key: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.len() == 24 && key.ends_with(b"==") && key[..22].iter().all(digit)
}
