//! The Mira dialect: JSON-RPC over lines, HTTP and WebSockets, with one method per tool. The
//! contract defines schemas for four of the methods.
//!
//! Mira's client treats every HTTP status but 2xx as a connection failure and loses the error code.
//! Refusals over HTTP therefore have the status 200.

mod message;
mod methods;
mod schemas;
mod calls;
mod results;
mod listing;
mod refusals;
mod encoder;

#[cfg(any(fuzzing, test))]
pub(crate) use listing::check_cursor;

use std::sync::Arc;

use http::Method;
use serde_json::json;
use toolgate_contract::{Caller, FrameMetadata, MessageFrame, Reply};

use self::message::{MiraConnection, parse_id, read_message};
use self::refusals::{MiraErrorCode, MiraRequestError};
use crate::{
    ClientConversation, Dialect, FrameRefusal, InFlightRequestKey, ParsedFrame, ServerInfo,
    WebSocketPurpose,
};

/// The HTTP path of Mira's dialect on a listener that all dialects share.
const RPC_PATH: &str = "/rpc";
/// The HTTP path of Mira's dialect on its own listener, where Mira's client expects the endpoint.
const ROOT_PATH: &str = "/";
/// The paths of the WebSockets of Mira's dialect.
const SOCKET_PATHS: [&str; 2] = ["/ws/rpc", "/ws"];
/// The wait that a busy server suggests before a retry, in milliseconds.
const BUSY_MS: u64 = 1000;

/// The dialect of Mira's clients: JSON-RPC over lines, HTTP and WebSockets, with one method per
/// tool.
pub struct MiraDialect {
    pub(crate) facts: Arc<ServerInfo>,
}

impl Dialect for MiraDialect {
    fn name(&self) -> &'static str {
        "mira"
    }

    fn paths(&self) -> &'static [&'static str] {
        &[RPC_PATH, SOCKET_PATHS[0]]
    }

    fn own_paths(&self) -> &'static [&'static str] {
        &[ROOT_PATH, RPC_PATH, SOCKET_PATHS[0], SOCKET_PATHS[1]]
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(MiraConversation { facts: self.facts.clone() })
    }

    fn unknown_session(&self) -> Reply {
        let why = "the connection is closing and accepts no new requests";
        MiraRequestError::new(MiraErrorCode::ToolUnavailable, why).reply(None)
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        refusal(why).reply(None)
    }

    /// Returns a refusal that contains the id of the rejected request, because Mira's client
    /// matches answers by id.
    fn reject_frame(&self, frame: &MessageFrame, why: &FrameRefusal) -> ParsedFrame {
        ParsedFrame::Reply(refusal(why).reply(parse_id(&frame.body).as_ref()))
    }

    fn reject_unreadable(&self, _head: &FrameMetadata, why: &str) -> Option<ParsedFrame> {
        Some(ParsedFrame::Reply(
            MiraRequestError::new(MiraErrorCode::InvalidRequest, why).reply(None),
        ))
    }

    fn upgrade(&self, head: &FrameMetadata) -> Result<WebSocketPurpose, Reply> {
        if SOCKET_PATHS.contains(&head.path()) {
            return Ok(WebSocketPurpose::Converse);
        }
        let why = format!("this path has no WebSocket; use {}", SOCKET_PATHS[0]);
        Err(MiraRequestError::new(MiraErrorCode::InvalidRequest, why).reply(None).with_status(404))
    }
}

/// Converts the transport's refusal `why` to an error as Mira's contract defines it.
fn refusal(why: &FrameRefusal) -> MiraRequestError {
    match why {
        FrameRefusal::TooLarge { limit } => {
            let why = format!("the request is larger than {limit} bytes and was not read");
            MiraRequestError::new(MiraErrorCode::ContentTooLarge, why)
                .with_data("max_bytes", json!(limit))
        }
        FrameRefusal::Busy { message } => {
            MiraRequestError::new(MiraErrorCode::RateLimited, message.as_str())
                .with_data("retry_after_ms", json!(BUSY_MS))
        }
        FrameRefusal::Unauthorized { had_credential } => {
            let why = match had_credential {
                true => {
                    "the key or token is unknown, revoked or expired; the operator can list keys with \
                     `toolgate key list` and create one with `toolgate key new NAME`"
                }
                false => "a key is required; send it as `Authorization: Bearer KEY`",
            };
            MiraRequestError::new(MiraErrorCode::PermissionDenied, why)
        }
        FrameRefusal::SeveralCredentials => MiraRequestError::new(
            MiraErrorCode::PermissionDenied,
            "there is more than one key; send one",
        ),
        FrameRefusal::Throttled { retry_after } => {
            let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            let seconds = retry_after.as_secs().max(1);
            let why = format!(
                "too many failed authentication attempts from your address; try again in {seconds} s. A \
                 valid key works at once"
            );
            MiraRequestError::new(MiraErrorCode::RateLimited, why)
                .with_data("retry_after_ms", json!(ms))
        }
        // The id is left out, because it belongs to the request in flight.
        FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
            let why = format!("the request id {id} is already in use; this request was not run");
            MiraRequestError::new(MiraErrorCode::InvalidRequest, why)
        }
    }
}

/// The conversation of one Mira client, which has no state.
struct MiraConversation {
    facts: Arc<ServerInfo>,
}

impl ClientConversation for MiraConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        let connection = match &frame.head {
            FrameMetadata::Line => MiraConnection::Line,
            FrameMetadata::Http { path, .. } if ![ROOT_PATH, RPC_PATH].contains(&path.as_str()) => {
                let why = "this listener serves Mira at / and /rpc, and nothing at this path";
                let refusal = MiraRequestError::new(MiraErrorCode::InvalidRequest, why);
                let reply = refusal.reply(parse_id(&frame.body).as_ref());
                return ParsedFrame::Reply(reply.with_status(404));
            }
            FrameMetadata::Http { method, .. } if method != Method::POST => {
                let refusal =
                    MiraRequestError::new(MiraErrorCode::InvalidRequest, "requests must use POST");
                let reply = refusal.reply(None).with_status(405).with_header("allow", "POST");
                return ParsedFrame::Reply(reply);
            }
            FrameMetadata::Http { path, .. } => {
                MiraConnection::Http { endpoint: endpoint(&frame.head, path) }
            }
        };
        read_message(&self.facts, &connection, &frame.body)
    }
}

/// Returns the URL under which the client reaches `path` of this server.
fn endpoint(head: &FrameMetadata, path: &str) -> Option<String> {
    let host = head.header("host").next().and_then(|host| std::str::from_utf8(host).ok())?;
    let path = path.trim_end_matches('/');
    Some(format!("http://{host}{path}"))
}
