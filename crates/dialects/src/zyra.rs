//! The Zyra dialect: JSON-RPC over HTTP and WebSockets. Jobs and their progress have their own
//! paths.

mod http_paths;
mod calls;
mod rest;
mod watch;
mod encoding;

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use toolgate_contract::{Caller, FrameMetadata, MessageFrame, Reply};

use self::calls::{ZyraTransport, read_message};
pub(crate) use self::http_paths::single_query_value;
use self::http_paths::{OWN_PATHS, PATHS, ZyraRoute, is_zyra_probe, parse_path};
pub(crate) use self::rest::{disposition, retry_seconds};
use crate::rpc::{INTERNAL_ERROR, RequestId, RpcError, skim_id};
use crate::{
    ClientConversation, Dialect, FrameRefusal, InFlightRequestKey, ParsedFrame, ServerInfo,
    WebSocketPurpose,
};

/// The name that the server reports to Zyra's clients.
const NAME: &str = "zyra";
/// The error code of a failed call in Zyra's dialect.
const FAILED: i32 = -32000;
/// The error code of an oversized request in Zyra's dialect.
const TOO_LARGE: i32 = -32001;

/// The WebSocket close code for a policy violation (RFC 6455).
const POLICY_VIOLATION: u16 = 1008;

/// The dialect of Zyra's clients: JSON-RPC over HTTP and WebSockets, with paths for jobs and their
/// progress.
pub struct ZyraDialect {
    pub(crate) facts: Arc<ServerInfo>,
}

impl Dialect for ZyraDialect {
    fn name(&self) -> &'static str {
        NAME
    }

    fn paths(&self) -> &'static [&'static str] {
        PATHS
    }

    fn own_paths(&self) -> &'static [&'static str] {
        OWN_PATHS
    }

    fn claims(&self, head: &FrameMetadata) -> bool {
        is_zyra_probe(head)
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(ZyraConversation { facts: self.facts.clone() })
    }

    fn unknown_session(&self) -> Reply {
        let why = "the connection is closing and accepts no new requests";
        Reply::json(RpcError::new(FAILED, why).to_json(None)).with_status(503)
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        match why {
            FrameRefusal::TooLarge { limit } => {
                let why = format!("the request is larger than {limit} bytes and was not read");
                Reply::json(RpcError::new(TOO_LARGE, why).to_json(None))
            }
            FrameRefusal::Busy { message } => busy_reply(message, None),
            FrameRefusal::Unauthorized { .. } | FrameRefusal::SeveralCredentials => {
                rest::error_reply(401, "Unauthorized: invalid API key")
            }
            FrameRefusal::Throttled { retry_after } => {
                rest::error_reply(429, "too many failed authentication attempts; try again later")
                    .with_header("retry-after", retry_seconds(*retry_after))
            }
            // The id is left out, because it belongs to the request in flight.
            FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
                let why =
                    format!("the request id {id} is already in use; this request was not run");
                Reply::json(RpcError::invalid_request(why).to_json(None))
            }
        }
    }

    /// Returns the refusal of a message. If the server is busy, the refusal contains the id of the
    /// message, because a client on a WebSocket waits for an answer with that id.
    fn reject_frame(&self, frame: &MessageFrame, why: &FrameRefusal) -> ParsedFrame {
        match why {
            FrameRefusal::Busy { message } => {
                ParsedFrame::Reply(busy_reply(message, parse_refused_id(&frame.body).as_ref()))
            }
            FrameRefusal::TooLarge { .. }
            | FrameRefusal::Unauthorized { .. }
            | FrameRefusal::SeveralCredentials
            | FrameRefusal::Throttled { .. }
            | FrameRefusal::DuplicateId { .. } => ParsedFrame::Reply(self.refuse(why)),
        }
    }

    /// Returns the API key in the query of a WebSocket request. A browser sends the key there,
    /// because it cannot add headers to a WebSocket request.
    fn credential(&self, head: &FrameMetadata) -> Option<String> {
        let FrameMetadata::Http { path, query, .. } = head else { return None };
        match parse_path(path)? {
            ZyraRoute::Talk | ZyraRoute::Watch(_) => {
                single_query_value(query, "api_key").ok().flatten()
            }
            ZyraRoute::Calls
            | ZyraRoute::Progress(_)
            | ZyraRoute::Job(_)
            | ZyraRoute::Download(_)
            | ZyraRoute::Manifest(_)
            | ZyraRoute::Health => None,
        }
    }

    fn is_public(&self, head: &FrameMetadata) -> bool {
        parse_path(head.path()) == Some(ZyraRoute::Health)
    }

    /// Refuses a WebSocket without an API key. With a wrong key, the WebSocket opens, reports the
    /// error and closes.
    fn reject_socket(
        &self,
        head: &FrameMetadata,
        why: &FrameRefusal,
    ) -> Result<WebSocketPurpose, Reply> {
        let socket = matches!(parse_path(head.path()), Some(ZyraRoute::Talk | ZyraRoute::Watch(_)));
        match why {
            FrameRefusal::Unauthorized { had_credential: true }
            | FrameRefusal::SeveralCredentials
                if socket =>
            {
                let message = Bytes::from_static(br#"{"error":"Unauthorized"}"#);
                Ok(WebSocketPurpose::Close(message, POLICY_VIOLATION))
            }
            FrameRefusal::Unauthorized { had_credential: false } if socket => {
                Err(rest::error_reply(403, "Unauthorized: no API key"))
            }
            FrameRefusal::Unauthorized { .. }
            | FrameRefusal::SeveralCredentials
            | FrameRefusal::Throttled { .. }
            | FrameRefusal::TooLarge { .. }
            | FrameRefusal::Busy { .. }
            | FrameRefusal::DuplicateId { .. } => Err(self.refuse(why)),
        }
    }

    fn upgrade(&self, head: &FrameMetadata) -> Result<WebSocketPurpose, Reply> {
        let FrameMetadata::Http { method, path, query, .. } = head else {
            return Err(Reply::empty(426));
        };
        let endpoint = parse_path(path);
        match (method, endpoint) {
            (&Method::GET, Some(ZyraRoute::Talk)) => Ok(WebSocketPurpose::Converse),
            (&Method::GET, Some(ZyraRoute::Watch(id))) => watch::websocket_upgrade(id, query),
            (_, Some(ZyraRoute::Talk | ZyraRoute::Watch(_))) => {
                Err(rest::method_not_allowed("GET"))
            }
            (
                _,
                Some(
                    ZyraRoute::Calls
                    | ZyraRoute::Progress(_)
                    | ZyraRoute::Job(_)
                    | ZyraRoute::Download(_)
                    | ZyraRoute::Manifest(_)
                    | ZyraRoute::Health,
                ),
            ) => {
                let why = "this path has no WebSocket; use /ws/mcp, or /ws/jobs/ID for the events \
                           of a job";
                Err(rest::error_reply(400, why))
            }
            (_, None) => Err(rest::path_not_found(path)),
        }
    }
}

/// Returns the id of a message that was refused, without storing the rest of the message.
fn parse_refused_id(body: &[u8]) -> Option<RequestId> {
    RequestId::parse(&skim_id(body)?)
}

/// Returns the refusal of the request `id` because the server is at a limit.
fn busy_reply(message: &str, id: Option<&RequestId>) -> Reply {
    Reply::json(RpcError::new(INTERNAL_ERROR, message).to_json(id))
        .with_status(503)
        .with_header("retry-after", "1")
}

/// The conversation of one Zyra client, which has no state.
struct ZyraConversation {
    facts: Arc<ServerInfo>,
}

impl ClientConversation for ZyraConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        match &frame.head {
            FrameMetadata::Line => read_message(&self.facts, ZyraTransport::WebSocket, &frame.body),
            FrameMetadata::Http { method, path, query, .. } => {
                let Some(endpoint) = parse_path(path) else {
                    return ParsedFrame::Reply(rest::path_not_found(path));
                };
                match (endpoint, method.as_str()) {
                    (ZyraRoute::Calls, "POST") => {
                        read_message(&self.facts, ZyraTransport::Http, &frame.body)
                    }
                    (endpoint, method) => rest::read(&self.facts, endpoint, method, query),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::ReplyBody;

    use super::*;

    #[test]
    fn a_busy_refusal_contains_the_id_of_the_message() {
        let id = parse_refused_id(br#"{"jsonrpc":"2.0","method":"ping","params":{},"id":"7"}"#);
        let ReplyBody::Json(body) = busy_reply("full", id.as_ref()).body else { panic!("no JSON") };
        let expected = r#"{"jsonrpc":"2.0","id":"7","error":{"code":-32603,"message":"full"}}"#;
        assert_eq!(body, expected);
    }
}
