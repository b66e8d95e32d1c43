//! The workstation dialect: tools for a developer's machine, by JSON-RPC in lines and over HTTP.
//!
//! In the contract, the `content` of a result is a string. MCP clients cannot read a string there.
//! A client that uses MCP's handshake or headers therefore gets a list of blocks.

mod contract_tools;
mod calls;
mod encoding;

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{Caller, FrameMetadata, MessageFrame, Reply};

use self::calls::{ResultContentForm, read_message, summary_reading};
use self::encoding::failure;
use crate::rpc::{INTERNAL_ERROR, INVALID_REQUEST, to_json};
use crate::zyra::retry_seconds;
use crate::{
    ClientConversation, Dialect, FrameRefusal, InFlightRequestKey, ParsedFrame, ServerInfo,
};

/// The name of the workstation dialect.
const NAME: &str = "workstation";
/// The HTTP paths of the workstation dialect on a listener that all dialects share.
const PATHS: &[&str] = &["/workstation", "/mcp/tools", "/health"];
/// The HTTP paths of the workstation dialect on its own listener. Clients expect the endpoint at
/// `/` or `/mcp`.
const OWN_PATHS: &[&str] = &["/", "/mcp", "/workstation", "/mcp/tools", "/health"];
/// The HTTP header with the MCP session id.
const SESSION: &str = "mcp-session-id";
/// The HTTP header with the MCP protocol version.
const VERSION: &str = "mcp-protocol-version";

/// The dialect of ancplua's workstation contract: JSON-RPC in lines and over HTTP.
pub struct WorkstationDialect {
    pub(crate) facts: Arc<ServerInfo>,
}

/// The endpoint that a path of the workstation dialect names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkstationRoute {
    /// The endpoint for JSON-RPC messages.
    Calls,
    /// The short list of tools.
    Tools,
    /// The health check of the server.
    Health,
}

fn parse_path(path: &str) -> WorkstationRoute {
    match path {
        "/mcp/tools" => WorkstationRoute::Tools,
        "/health" => WorkstationRoute::Health,
        _ => WorkstationRoute::Calls,
    }
}

impl Dialect for WorkstationDialect {
    fn name(&self) -> &'static str {
        NAME
    }

    fn paths(&self) -> &'static [&'static str] {
        PATHS
    }

    fn own_paths(&self) -> &'static [&'static str] {
        OWN_PATHS
    }

    fn start_conversation(&self, _caller: &Caller) -> Box<dyn ClientConversation> {
        Box::new(WorkstationConversation { facts: self.facts.clone(), opened: false })
    }

    /// Returns the session id that an MCP client sent. Requests of other clients have no session id
    /// and are independent of each other.
    fn session<'h>(&self, head: &'h FrameMetadata) -> Option<&'h str> {
        if parse_path(head.path()) != WorkstationRoute::Calls {
            return None;
        }
        let mut values = head.header(SESSION);
        let first = values.next()?;
        // A malformed session id counts as an unknown session.
        let id = std::str::from_utf8(first).unwrap_or_default();
        Some(if values.next().is_some() { "" } else { id })
    }

    fn unknown_session(&self) -> Reply {
        let why = "unknown or expired session; send `initialize` to start a new one";
        Reply::json(failure(INVALID_REQUEST, "unknown_session", why).to_json(None)).with_status(404)
    }

    fn open_session(&self, reply: Reply, id: &str) -> Reply {
        reply.with_header(SESSION, id)
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        let error_reply = |code, reason: &str, detail: &str| {
            Reply::json(failure(code, reason, detail).to_json(None))
        };
        match why {
            FrameRefusal::TooLarge { limit } => {
                let why = format!("the message is larger than {limit} bytes and was not read");
                error_reply(INVALID_REQUEST, "too_large", &why).with_status(413)
            }
            FrameRefusal::Busy { message } => error_reply(INTERNAL_ERROR, "limited", message)
                .with_status(503)
                .with_header("retry-after", "1"),
            FrameRefusal::Unauthorized { had_credential: false } => {
                let why = "a key is required; send it as `Authorization: Bearer KEY`";
                error_reply(INTERNAL_ERROR, "unauthorized", why)
                    .with_status(401)
                    .with_header("www-authenticate", "Bearer")
            }
            FrameRefusal::Unauthorized { had_credential: true }
            | FrameRefusal::SeveralCredentials => {
                error_reply(INTERNAL_ERROR, "unauthorized", "unknown key")
                    .with_status(401)
                    .with_header("www-authenticate", "Bearer")
            }
            FrameRefusal::Throttled { retry_after } => {
                let wait = retry_seconds(*retry_after);
                let why = format!("too many failed authentication attempts; try again in {wait} s");
                error_reply(INTERNAL_ERROR, "limited", &why)
                    .with_status(429)
                    .with_header("retry-after", wait)
            }
            // The id is left out, because it belongs to the request in flight.
            FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
                let why =
                    format!("the request id {id} is already in use; this request was not run");
                error_reply(INVALID_REQUEST, "repeated_id", &why)
            }
        }
    }

    /// Returns true if the request is a health check, which monitoring sends without a key.
    fn is_public(&self, head: &FrameMetadata) -> bool {
        parse_path(head.path()) == WorkstationRoute::Health
    }
}

/// The conversation of one client of the workstation dialect.
struct WorkstationConversation {
    facts: Arc<ServerInfo>,
    /// True after the client has sent MCP's `initialize`.
    opened: bool,
}

impl WorkstationConversation {
    fn read_calls(&mut self, content_form: ResultContentForm, body: &[u8]) -> ParsedFrame {
        match read_message(&self.facts, content_form, body) {
            // A client may send `initialize` again.
            ParsedFrame::OpenSession(reply) if self.opened => ParsedFrame::Reply(reply),
            reading => {
                self.opened |= matches!(reading, ParsedFrame::OpenSession(_));
                reading
            }
        }
    }

    fn health(&self) -> Reply {
        Reply::json(to_json(&json!({ "status": "healthy", "server": self.facts.name })))
    }
}

impl ClientConversation for WorkstationConversation {
    fn read(&mut self, frame: &MessageFrame) -> ParsedFrame {
        let has_version = frame.head.header(VERSION).next().is_some();
        let content_form = if self.opened || has_version {
            ResultContentForm::Blocks
        } else {
            ResultContentForm::Literal
        };
        match &frame.head {
            FrameMetadata::Line => self.read_calls(content_form, &frame.body),
            FrameMetadata::Http { method, path, .. } => match (parse_path(path), method.as_str()) {
                (WorkstationRoute::Calls, "POST") => self.read_calls(content_form, &frame.body),
                (WorkstationRoute::Calls, "DELETE") if self.opened => {
                    ParsedFrame::CloseSession(Reply::empty(204))
                }
                (WorkstationRoute::Calls, _) => ParsedFrame::Reply(method_not_allowed("POST")),
                (WorkstationRoute::Tools, "GET" | "HEAD") => summary_reading(),
                (WorkstationRoute::Health, "GET" | "HEAD") => ParsedFrame::Reply(self.health()),
                (WorkstationRoute::Tools | WorkstationRoute::Health, _) => {
                    ParsedFrame::Reply(method_not_allowed("GET, HEAD"))
                }
            },
        }
    }

    /// Returns the first reply, because the workstation dialect has no batches.
    fn join_replies(&self, replies: Vec<Reply>) -> Reply {
        replies.into_iter().next().unwrap_or(Reply::empty(202))
    }
}

/// Creates the reply that refuses all HTTP methods but `allowed`.
fn method_not_allowed(allowed: &str) -> Reply {
    let why = format!("this path accepts only {allowed}");
    Reply::json(failure(INVALID_REQUEST, "method_not_allowed", &why).to_json(None))
        .with_status(405)
        .with_header("allow", allowed)
}
