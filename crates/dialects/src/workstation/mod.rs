//! The workstation dialect: tools of a developer's machine, by JSON-RPC in lines and over HTTP.
//!
//! In the contract, the `content` of a result is a string. MCP clients cannot read that. A client
//! that uses MCP's handshake or headers therefore gets a list of blocks.

mod contracted;
mod calls;
mod words;

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{Caller, Frame, Head, Reply};

use self::calls::{Shown, ask_summary, read_message, seconds};
use self::words::failure;
use crate::rpc::{INTERNAL_ERROR, INVALID_REQUEST, written};
use crate::{Conversation, Dialect, Facts, Key, Reading, Refused};

/// The dialect's name.
const NAME: &str = "workstation";
/// The HTTP paths on a shared listener.
const PATHS: &[&str] = &["/workstation", "/mcp/tools", "/health"];
/// The HTTP paths on the dialect's own listener. Clients expect the endpoint at `/` or `/mcp`.
const OWN_PATHS: &[&str] = &["/", "/mcp", "/workstation", "/mcp/tools", "/health"];
/// The header with the MCP session id.
const SESSION: &str = "mcp-session-id";
/// The header with the MCP protocol version.
const VERSION: &str = "mcp-protocol-version";

/// The workstation dialect.
pub struct Workstation {
    facts: Arc<Facts>,
}

impl Workstation {
    /// Creates the dialect for the server that `facts` describe.
    pub fn new(facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

/// The meaning of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// JSON-RPC.
    Calls,
    /// The short tool list.
    Tools,
    /// The health check.
    Health,
}

fn place(path: &str) -> Place {
    match path {
        "/mcp/tools" => Place::Tools,
        "/health" => Place::Health,
        _ => Place::Calls,
    }
}

impl Dialect for Workstation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn paths(&self) -> &'static [&'static str] {
        PATHS
    }

    fn own_paths(&self) -> &'static [&'static str] {
        OWN_PATHS
    }

    fn converse(&self, _caller: &Caller) -> Box<dyn Conversation> {
        Box::new(WorkstationConversation { facts: self.facts.clone(), opened: false })
    }

    /// Only MCP clients have sessions. Other requests are independent.
    fn session<'h>(&self, head: &'h Head) -> Option<&'h str> {
        if place(head.path()) != Place::Calls {
            return None;
        }
        let mut values = head.header(SESSION);
        let first = values.next()?;
        // A malformed session id counts as an unknown session.
        let id = std::str::from_utf8(first).unwrap_or_default();
        Some(if values.next().is_some() { "" } else { id })
    }

    fn unknown_session(&self) -> Reply {
        let why = "no such session; it has ended or never was: send `initialize` to begin another";
        Reply::json(failure(INVALID_REQUEST, "unknown_session", why).written(None)).with_status(404)
    }

    fn open_session(&self, reply: Reply, id: &str) -> Reply {
        reply.with_header(SESSION, id)
    }

    fn refuse(&self, why: &Refused) -> Reply {
        let told = |code, reason: &str, detail: &str| {
            Reply::json(failure(code, reason, detail).written(None))
        };
        match why {
            Refused::TooLarge { limit } => {
                let why = format!("the message is larger than {limit} bytes and was not read");
                told(INVALID_REQUEST, "too_large", &why).with_status(413)
            }
            Refused::Busy { message } => told(INTERNAL_ERROR, "limited", message)
                .with_status(503)
                .with_header("retry-after", "1"),
            Refused::Unauthorized { said: false } => {
                let why = "it is not said who asks; send a key as `Authorization: Bearer KEY`";
                told(INTERNAL_ERROR, "unauthorized", why)
                    .with_status(401)
                    .with_header("www-authenticate", "Bearer")
            }
            Refused::Unauthorized { said: true } | Refused::Several => {
                told(INTERNAL_ERROR, "unauthorized", "nobody is known by this key")
                    .with_status(401)
                    .with_header("www-authenticate", "Bearer")
            }
            Refused::Throttled { retry_after } => {
                let wait = seconds(*retry_after);
                let why = format!("too many wrong keys came from there; wait {wait} s");
                told(INTERNAL_ERROR, "limited", &why)
                    .with_status(429)
                    .with_header("retry-after", wait)
            }
            // The id is left out, because it belongs to the request in flight.
            Refused::Repeated { key: Key(id) } => {
                let why = format!("the id {id} is in flight already; this request was not run");
                told(INVALID_REQUEST, "repeated_id", &why)
            }
        }
    }

    /// Monitoring calls the health check without a key.
    fn is_open(&self, head: &Head) -> bool {
        place(head.path()) == Place::Health
    }
}

/// The conversation of one client.
struct WorkstationConversation {
    facts: Arc<Facts>,
    /// True after MCP's `initialize`.
    opened: bool,
}

impl WorkstationConversation {
    fn calls(&mut self, shown: Shown, body: &[u8]) -> Reading {
        match read_message(&self.facts, shown, body) {
            // A client may send `initialize` again.
            Reading::Opened(reply) if self.opened => Reading::Reply(reply),
            reading => {
                self.opened |= matches!(reading, Reading::Opened(_));
                reading
            }
        }
    }

    fn health(&self) -> Reply {
        Reply::json(written(&json!({ "status": "healthy", "server": self.facts.name })))
    }
}

impl Conversation for WorkstationConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
        let says = frame.head.header(VERSION).next().is_some();
        let shown = if self.opened || says { Shown::Blocks } else { Shown::Literal };
        match &frame.head {
            Head::Line => self.calls(shown, &frame.body),
            Head::Http { method, path, .. } => match (place(path), method.as_str()) {
                (Place::Calls, "POST") => self.calls(shown, &frame.body),
                (Place::Calls, "DELETE") if self.opened => Reading::Closed(Reply::empty(204)),
                (Place::Calls, _) => Reading::Reply(only("POST")),
                (Place::Tools, "GET" | "HEAD") => ask_summary(),
                (Place::Health, "GET" | "HEAD") => Reading::Reply(self.health()),
                (Place::Tools | Place::Health, _) => Reading::Reply(only("GET, HEAD")),
            },
        }
    }

    /// The dialect has no batches.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        replies.into_iter().next().unwrap_or(Reply::empty(202))
    }
}

/// Creates the refusal of all HTTP methods but `allowed`.
fn only(allowed: &str) -> Reply {
    let why = format!("this path takes {allowed}");
    Reply::json(failure(INVALID_REQUEST, "method_not_allowed", &why).written(None))
        .with_status(405)
        .with_header("allow", allowed)
}
