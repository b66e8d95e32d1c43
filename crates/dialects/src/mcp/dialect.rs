//! MCP as a dialect: paths, sessions and refusals.

use std::sync::Arc;

use toolgate_contract::{Caller, FrameMetadata, Reply};

use super::message::{INTERNAL_ERROR, McpError};
use super::{McpConversation, headers, http_paths, stateless};
use crate::{
    ClientConversation, Dialect, FrameRefusal, HttpSseRequestKind, InFlightRequestKey, ServerInfo,
};

/// The dialect of MCP clients, in all supported protocol revisions.
pub struct McpDialect {
    facts: Arc<ServerInfo>,
}

impl McpDialect {
    /// Creates the MCP dialect for the server that `facts` describe.
    pub fn new(facts: Arc<ServerInfo>) -> Self {
        Self { facts }
    }
}

impl Dialect for McpDialect {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn paths(&self) -> &'static [&'static str] {
        http_paths::paths(&self.facts)
    }

    fn start_conversation(&self, caller: &Caller) -> Box<dyn ClientConversation> {
        let facts = self.facts.clone();
        let caller = caller.clone();
        Box::new(McpConversation { facts, caller, session: None })
    }

    fn session<'h>(&self, head: &'h FrameMetadata) -> Option<&'h str> {
        // Stateless revisions ignore the session id.
        if stateless::has_stateless_header(head) {
            return None;
        }
        // A malformed session id counts as an unknown session.
        headers::single_value(head, headers::SESSION).unwrap_or(Some(""))
    }

    fn unknown_session(&self) -> Reply {
        let why = "unknown or expired session; send `initialize` to start a new one";
        McpError::invalid_request(None, why).with_status(404).reply(true)
    }

    fn open_session(&self, reply: Reply, id: &str) -> Reply {
        reply.with_header(headers::SESSION, id)
    }

    fn duplex(&self, head: &FrameMetadata) -> Option<HttpSseRequestKind> {
        http_paths::duplex(head)
    }

    fn duplex_endpoint(&self, id: &str) -> String {
        http_paths::endpoint(id)
    }

    fn unknown_duplex(&self) -> Reply {
        let why = "unknown conversation; start one with `GET /sse`";
        McpError::invalid_request(None, why).with_status(404).reply(true)
    }

    fn unknown_event(&self, id: &str) -> Reply {
        let id: String = id.chars().take(60).collect();
        let why =
            format!("unknown or expired event `{id}`; to open a new stream, omit `Last-Event-ID`");
        McpError::invalid_request(None, why).reply(true)
    }

    fn refuse(&self, why: &FrameRefusal) -> Reply {
        match why {
            FrameRefusal::TooLarge { limit } => {
                let why = format!("the message is larger than {limit} bytes and was not read");
                McpError::invalid_request(None, why).with_status(413).reply(true)
            }
            FrameRefusal::Busy { message } => McpError::new(None, INTERNAL_ERROR, message.as_str())
                .with_status(503)
                .reply(true)
                .with_header("retry-after", "1"),
            FrameRefusal::Unauthorized { had_credential: said } => {
                let (why, challenge) = if *said {
                    ("unknown key or token", "Bearer error=\"invalid_token\"")
                } else {
                    ("send your key as `Authorization: Bearer KEY` or `X-API-Key: KEY`", "Bearer")
                };
                McpError::invalid_request(None, why)
                    .with_status(401)
                    .reply(true)
                    .with_header("www-authenticate", challenge)
            }
            FrameRefusal::SeveralCredentials => {
                let why = "the request has more than one key or token; send one";
                McpError::invalid_request(None, why)
                    .with_status(400)
                    .reply(true)
                    .with_header("www-authenticate", "Bearer error=\"invalid_request\"")
            }
            FrameRefusal::Throttled { retry_after } => {
                let why = "too many failed authentication attempts; try again later";
                let wait = retry_after.as_millis().div_ceil(1000).max(1).to_string();
                McpError::invalid_request(None, why)
                    .with_status(429)
                    .reply(true)
                    .with_header("retry-after", wait)
            }
            // The id is left out, because it belongs to the request in flight.
            FrameRefusal::DuplicateId { key: InFlightRequestKey(id) } => {
                let why =
                    format!("the request id {id} is already in use; this request was not run");
                McpError::invalid_request(None, why).reply(true)
            }
        }
    }
}
