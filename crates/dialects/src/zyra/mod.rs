//! The Zyra dialect: JSON-RPC over HTTP and WebSockets, with jobs and their progress by path.

mod places;
mod calls;
mod rest;
mod watch;
mod words;

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use toolgate_contract::{Body, Caller, Frame, Head, Reply};

use self::calls::{Over, read_message};
use self::places::{OWN_PATHS, PATHS, Place, place, probes, single};
use crate::rpc::{Failure, INTERNAL_ERROR};
use crate::{Conversation, Dialect, Facts, Key, Reading, Refused, Upgrade};

/// The name that the server reports in this dialect.
const NAME: &str = "zyra";
/// The error code of a failed call.
const FAILED: i32 = -32000;
/// The error code of an oversized request.
const TOO_LARGE: i32 = -32001;

/// The WebSocket close code for a policy violation (RFC 6455).
const POLICY_VIOLATION: u16 = 1008;

/// The Zyra dialect.
pub struct Zyra {
    facts: Arc<Facts>,
}

impl Zyra {
    /// Creates the dialect for the server that `facts` describe.
    pub fn new(facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

impl Dialect for Zyra {
    fn name(&self) -> &'static str {
        NAME
    }

    fn paths(&self) -> &'static [&'static str] {
        PATHS
    }

    fn own_paths(&self) -> &'static [&'static str] {
        OWN_PATHS
    }

    fn claims(&self, head: &Head) -> bool {
        probes(head)
    }

    fn converse(&self, _caller: &Caller) -> Box<dyn Conversation> {
        Box::new(ZyraConversation { facts: self.facts.clone() })
    }

    /// HTTP requests are independent, so there are no sessions.
    fn session<'h>(&self, _head: &'h Head) -> Option<&'h str> {
        None
    }

    fn unknown_session(&self) -> Reply {
        let why = "the connection is closing, and nothing more is begun on it";
        Reply::json(Failure::new(FAILED, why).written(None)).with_status(503)
    }

    fn open_session(&self, reply: Reply, _id: &str) -> Reply {
        reply
    }

    fn refuse(&self, why: &Refused) -> Reply {
        match why {
            Refused::TooLarge { limit } => {
                let why = format!("the request is larger than {limit} bytes and was not read");
                Reply::json(Failure::new(TOO_LARGE, why).written(None))
            }
            Refused::Busy { message } => {
                Reply::json(Failure::new(INTERNAL_ERROR, message.as_str()).written(None))
                    .with_status(503)
                    .with_header("retry-after", "1")
            }
            Refused::Unauthorized { .. } | Refused::Several => {
                rest::detail(401, "Unauthorized: invalid API key")
            }
            Refused::Throttled { retry_after } => {
                rest::detail(429, "Too many failed attempts; wait")
                    .with_header("retry-after", rest::seconds(*retry_after))
            }
            // The id is left out, because it belongs to the request in flight.
            Refused::Repeated { key: Key(id) } => {
                let why = format!("the id {id} is in flight already; this request was not run");
                Reply::json(Failure::invalid_request(why).written(None))
            }
        }
    }

    /// A browser cannot add headers to a WebSocket request, so the key is in the query.
    fn credential(&self, head: &Head) -> Option<String> {
        let Head::Http { path, query, .. } = head else { return None };
        match place(path)? {
            Place::Talk | Place::Watch(_) => single(query, "api_key").ok().flatten(),
            Place::Calls
            | Place::Progress(_)
            | Place::Job(_)
            | Place::Download(_)
            | Place::Manifest(_)
            | Place::Health => None,
        }
    }

    fn is_open(&self, head: &Head) -> bool {
        place(head.path()) == Some(Place::Health)
    }

    /// Without a key, the WebSocket is refused. With a wrong key, it opens, reports the error and
    /// closes.
    fn turn_away_socket(&self, head: &Head, why: &Refused) -> Result<Upgrade, Reply> {
        let socket = matches!(place(head.path()), Some(Place::Talk | Place::Watch(_)));
        match why {
            Refused::Unauthorized { said: true } | Refused::Several if socket => {
                let told = Bytes::from_static(br#"{"error":"Unauthorized"}"#);
                Ok(Upgrade::Close(told, POLICY_VIOLATION))
            }
            Refused::Unauthorized { said: false } if socket => {
                Err(rest::detail(403, "Unauthorized: no API key"))
            }
            Refused::Unauthorized { .. }
            | Refused::Several
            | Refused::Throttled { .. }
            | Refused::TooLarge { .. }
            | Refused::Busy { .. }
            | Refused::Repeated { .. } => Err(self.refuse(why)),
        }
    }

    fn upgrade(&self, head: &Head) -> Result<Upgrade, Reply> {
        let Head::Http { method, path, query, .. } = head else { return Err(Reply::empty(426)) };
        let place = place(path);
        match (method, place) {
            (&Method::GET, Some(Place::Talk)) => Ok(Upgrade::Converse),
            (&Method::GET, Some(Place::Watch(id))) => watch::over_websocket(id, query),
            (_, Some(Place::Talk | Place::Watch(_))) => Err(rest::only("GET")),
            (
                _,
                Some(
                    Place::Calls
                    | Place::Progress(_)
                    | Place::Job(_)
                    | Place::Download(_)
                    | Place::Manifest(_)
                    | Place::Health,
                ),
            ) => Err(rest::detail(400, "there is no WebSocket here")),
            (_, None) => Err(rest::nothing_here(path)),
        }
    }
}

/// The conversation of one client. It has no state.
struct ZyraConversation {
    facts: Arc<Facts>,
}

impl Conversation for ZyraConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
        match &frame.head {
            Head::Line => read_message(&self.facts, Over::WebSocket, &frame.body),
            Head::Http { method, path, query, .. } => {
                let Some(place) = place(path) else {
                    return Reading::Reply(rest::nothing_here(path));
                };
                match (place, method.as_str()) {
                    (Place::Calls, "POST") => read_message(&self.facts, Over::Http, &frame.body),
                    (place, method) => rest::read(&self.facts, place, method, query),
                }
            }
        }
    }

    /// The dialect has no batches.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        let mut bodies = replies.into_iter().filter(|reply| !matches!(reply.body, Body::Empty));
        bodies.next().unwrap_or(Reply::empty(204))
    }
}
