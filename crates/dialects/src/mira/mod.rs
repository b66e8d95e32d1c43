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
mod ticket;

#[cfg(any(fuzzing, test))]
pub(crate) use listing::check_cursor;

use std::sync::Arc;

use http::Method;
use serde_json::json;
use toolgate_contract::{Body, Caller, Frame, Head, Reply};

use self::message::{Over, id_of, read_message};
use self::refusals::{Code, Refusal};
use crate::{Conversation, Dialect, Facts, Key, Reading, Refused, Upgrade};

/// The HTTP path on a shared listener.
const CALLS: &str = "/rpc";
/// The HTTP path on the dialect's own listener. Mira's client expects the endpoint there.
const ROOT: &str = "/";
/// The paths of WebSockets.
const SOCKETS: [&str; 2] = ["/ws/rpc", "/ws"];
/// The suggested wait before a retry in milliseconds, if the server is busy.
const BUSY_MS: u64 = 1000;

/// The Mira dialect.
pub struct Mira {
    facts: Arc<Facts>,
}

impl Mira {
    /// Creates the dialect for the server that `facts` describe.
    pub fn new(facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

impl Dialect for Mira {
    fn name(&self) -> &'static str {
        "mira"
    }

    fn paths(&self) -> &'static [&'static str] {
        &[CALLS, SOCKETS[0]]
    }

    fn own_paths(&self) -> &'static [&'static str] {
        &[ROOT, CALLS, SOCKETS[0], SOCKETS[1]]
    }

    fn converse(&self, _caller: &Caller) -> Box<dyn Conversation> {
        Box::new(MiraConversation { facts: self.facts.clone() })
    }

    /// HTTP requests are independent, so there are no sessions.
    fn session<'h>(&self, _head: &'h Head) -> Option<&'h str> {
        None
    }

    fn unknown_session(&self) -> Reply {
        let why = "the connection is closing, and nothing more is begun on it";
        Refusal::new(Code::ToolUnavailable, why).reply(None)
    }

    fn open_session(&self, reply: Reply, _id: &str) -> Reply {
        reply
    }

    fn refuse(&self, why: &Refused) -> Reply {
        refused(why).reply(None)
    }

    /// The client matches answers by id, so the refusal has it.
    fn turn_away(&self, frame: &Frame, why: &Refused) -> Reading {
        Reading::Reply(refused(why).reply(id_of(&frame.body).as_ref()))
    }

    fn unreadable(&self, _head: &Head, why: &str) -> Option<Reading> {
        Some(Reading::Reply(Refusal::new(Code::InvalidRequest, why).reply(None)))
    }

    fn upgrade(&self, head: &Head) -> Result<Upgrade, Reply> {
        if SOCKETS.contains(&head.path()) {
            return Ok(Upgrade::Converse);
        }
        let why = format!("there is no WebSocket here; there is one at {}", SOCKETS[0]);
        Err(Refusal::new(Code::InvalidRequest, why).reply(None).with_status(404))
    }
}

/// Converts a transport-level refusal to the contract's form.
fn refused(why: &Refused) -> Refusal {
    match why {
        Refused::TooLarge { limit } => {
            let why = format!("the request is larger than {limit} bytes and was not read");
            Refusal::new(Code::ContentTooLarge, why).with("max_bytes", json!(limit))
        }
        Refused::Busy { message } => {
            Refusal::new(Code::RateLimited, message.as_str()).with("retry_after_ms", json!(BUSY_MS))
        }
        Refused::Unauthorized { said } => {
            let why = match said {
                true => "nobody is known by this key",
                false => "who asks must be known; send a key",
            };
            Refusal::new(Code::PermissionDenied, why)
        }
        Refused::Several => Refusal::new(Code::PermissionDenied, "there is more than one key"),
        Refused::Throttled { retry_after } => {
            let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            let why = format!("too many keys that nobody is known by; try again in {ms} ms");
            Refusal::new(Code::RateLimited, why).with("retry_after_ms", json!(ms))
        }
        // The id is left out, because it belongs to the request in flight.
        Refused::Repeated { key: Key(id) } => {
            let why = format!("the id {id} is in flight already; this request was not run");
            Refusal::new(Code::InvalidRequest, why)
        }
    }
}

/// The conversation of one client. It has no state.
struct MiraConversation {
    facts: Arc<Facts>,
}

impl Conversation for MiraConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
        let over = match &frame.head {
            Head::Line => Over::Line,
            Head::Http { path, .. } if ![ROOT, CALLS].contains(&path.as_str()) => {
                return Reading::Reply(Reply::empty(404));
            }
            Head::Http { method, .. } if method != Method::POST => {
                let refusal = Refusal::new(Code::InvalidRequest, "send a request by POST");
                let reply = refusal.reply(None).with_status(405).with_header("allow", "POST");
                return Reading::Reply(reply);
            }
            Head::Http { path, .. } => Over::Http { endpoint: endpoint(&frame.head, path) },
        };
        read_message(&self.facts, &over, &frame.body)
    }

    /// The dialect has no batches.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        let mut bodies = replies.into_iter().filter(|reply| !matches!(reply.body, Body::Empty));
        bodies.next().unwrap_or(Reply::empty(204))
    }
}

/// Returns the URL under which the client reached `path`.
fn endpoint(head: &Head, path: &str) -> Option<String> {
    let host = head.header("host").next().and_then(|host| std::str::from_utf8(host).ok())?;
    let path = path.trim_end_matches('/');
    Some(format!("http://{host}{path}"))
}
