//! Mira: JSON-RPC over lines, HTTP and WebSockets, a method a tool, four of them with schemas of
//! the contract's own.
//!
//! Mira's client takes any status but 2xx for a failure of the connection and loses the error's
//! code, so what is refused over HTTP is refused with status 200.

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

/// Where messages are posted when other dialects are served beside it.
const CALLS: &str = "/rpc";
/// Where messages are posted on a listener of its own: what Mira's client takes an endpoint for.
const ROOT: &str = "/";
/// Where there are WebSockets.
const SOCKETS: [&str; 2] = ["/ws/rpc", "/ws"];
/// How long to wait before a server that has too much to do is asked again.
const BUSY_MS: u64 = 1000;

/// The dialect.
pub struct Mira {
    facts: Arc<Facts>,
}

impl Mira {
    /// Mira's wire as spoken by the server that `facts` describe.
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

    /// Over HTTP each request is alone.
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

    /// The client looks for its answer by the request's id.
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

/// Why a frame was not taken in.
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
        // Told without the id: it belongs to the request that is still in flight.
        Refused::Repeated { key: Key(id) } => {
            let why = format!("the id {id} is in flight already; this request was not run");
            Refusal::new(Code::InvalidRequest, why)
        }
    }
}

/// One client's conversation, which has nothing to remember.
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

    /// There are no batches on this wire.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        let mut bodies = replies.into_iter().filter(|reply| !matches!(reply.body, Body::Empty));
        bodies.next().unwrap_or(Reply::empty(204))
    }
}

/// Where a request that was posted to `path` found this server, as its client knows it.
fn endpoint(head: &Head, path: &str) -> Option<String> {
    let host = head.header("host").next().and_then(|host| std::str::from_utf8(host).ok())?;
    let path = path.trim_end_matches('/');
    Some(format!("http://{host}{path}"))
}
