//! The envelope dialect: tools and prompts over HTTP and JSON-RPC lines, with every answer in an
//! envelope.

mod asked;
mod http;
mod lines;
mod names;
mod said;

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{
    Beside, CallError, Caller, Canonical, Envelope, EnvelopeError, Frame, Head, Meta, Reply, Via,
};

use self::asked::Asked;
use self::said::{EnvelopeTicket, Over};
use crate::{Accepts, Ask, Asking, Conversation, Dialect, Key, OnLeave, Reading, Refused, Upgrade};

pub use names::{canonical_tool, catalog_name};

/// The envelope dialect.
#[derive(Debug, Default)]
pub struct EnvelopeWire;

impl Dialect for EnvelopeWire {
    fn name(&self) -> &'static str {
        "envelope"
    }

    fn paths(&self) -> &'static [&'static str] {
        http::PATHS
    }

    /// On its own listener the dialect answers every path with an envelope.
    fn own_paths(&self) -> &'static [&'static str] {
        &["/"]
    }

    fn converse(&self, _caller: &Caller) -> Box<dyn Conversation> {
        Box::new(EnvelopeConversation { read: 0 })
    }

    /// HTTP requests are independent, so there are no sessions.
    fn session<'h>(&self, _head: &'h Head) -> Option<&'h str> {
        None
    }

    fn unknown_session(&self) -> Reply {
        let message = "the server is stopping, and nothing more is begun".to_owned();
        unsealed(&CallError::Unavailable { message })
    }

    fn open_session(&self, reply: Reply, _id: &str) -> Reply {
        reply
    }

    fn refuse(&self, why: &Refused) -> Reply {
        unsealed(&refusal(why))
    }

    fn turn_away(&self, frame: &Frame, why: &Refused) -> Reading {
        self.turned_away(&frame.head, refusal(why))
    }

    fn unreadable(&self, head: &Head, why: &str) -> Option<Reading> {
        Some(self.turned_away(head, asked::invalid("", why)))
    }

    fn is_open(&self, head: &Head) -> bool {
        head.path() == http::HEALTH
    }

    fn upgrade(&self, _head: &Head) -> Result<Upgrade, Reply> {
        let message = "there is no WebSocket here; ask over HTTP".to_owned();
        let mut reply = unsealed(&CallError::NotFound { message });
        reply.status = Canonical::NotFound.http_status();
        Err(reply)
    }
}

impl EnvelopeWire {
    fn turned_away(&self, head: &Head, why: CallError) -> Reading {
        match head {
            Head::Line => lines::turned_away(why),
            Head::Http { method, path, .. } => http::turned_away(method, path, why),
        }
    }
}

/// The conversation of one client. It only counts the frames it has read.
struct EnvelopeConversation {
    read: u64,
}

impl Conversation for EnvelopeConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
        self.read += 1;
        match &frame.head {
            Head::Line => lines::read(&frame.body, self.read),
            Head::Http { method, path, query, .. } => {
                http::read(method, path, query, &frame.head, &frame.body)
            }
        }
    }

    /// The dialect has no batches.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        replies.into_iter().next().unwrap_or_else(|| Reply::empty(204))
    }
}

/// Creates the reading of a request that is answered over `over`.
fn ask(asked: Asked, over: Over, beside: Beside, key: String) -> Reading {
    let Asked { request, via } = asked;
    let ticket = EnvelopeTicket { over, tool: via.tool.clone(), prompt: via.prompt.clone() };
    Reading::Ask(Ask {
        // No request is cancelled by its id, so two requests may share one.
        key: Key(key),
        request,
        ticket: Arc::new(ticket),
        on_leave: OnLeave::Cancels,
        events: Accepts::Message,
        asking: Asking::Nobody,
        beside,
        within: None,
        via: Some(Box::new(via)),
    })
}

/// Converts a transport-level refusal to a call error.
fn refusal(why: &Refused) -> CallError {
    match why {
        Refused::TooLarge { limit } => CallError::TooLarge {
            message: format!("the request is larger than {limit} bytes and was not read"),
        },
        Refused::Busy { message } => CallError::Unavailable { message: message.clone() },
        Refused::Unauthorized { said: false } => CallError::NotAllowed {
            message: "a key is needed; send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
                .to_owned(),
        },
        Refused::Unauthorized { said: true } | Refused::Several => {
            CallError::NotAllowed { message: "the key is none that is known here".to_owned() }
        }
        Refused::Throttled { retry_after } => CallError::Limited {
            message: "too many keys were wrong".to_owned(),
            retry_after: *retry_after,
        },
        Refused::Repeated { key: Key(key) } => {
            asked::invalid("/id", &format!("the id {key} is in flight already"))
        }
    }
}

/// Creates a refusal with empty ids, for a line outside the host.
fn unsealed(why: &CallError) -> Reply {
    let Via { transport, route, method, payload, .. } =
        asked::unknown("stdio", "rpc", "unknown").via;
    let nil = "00000000-0000-0000-0000-000000000000";
    let error = EnvelopeError::of(why);
    let meta = Meta {
        request_id: nil.to_owned(),
        trace_id: nil.to_owned(),
        span_id: nil.to_owned(),
        schema_version: Envelope::VERSION.to_owned(),
        deterministic: false,
        transport: transport.to_owned(),
        route,
        method,
        duration_ms: 0.0,
        status: "error".to_owned(),
        attempt: 0,
        input_bytes: toolgate_contract::canonical_bytes(&payload),
        output_bytes: 0,
        tool_id: None,
        prompt_id: None,
    };
    let envelope = Envelope { ok: false, data: None, error: Some(error), meta };
    said::on_line(None, None, &envelope)
}

/// Creates the answer to a health check.
fn health() -> Reading {
    Reading::Reply(Reply::json(crate::rpc::written(&json!({ "status": "ok" }))))
}
