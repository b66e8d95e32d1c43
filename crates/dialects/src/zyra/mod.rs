//! Zyra: JSON-RPC over HTTP and WebSocket, jobs by their paths, and their progress as it comes.

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

/// What the wire calls whoever serves it.
const NAME: &str = "zyra";
/// The code of what failed while it ran.
const FAILED: i32 = -32000;
/// The code of a request that was too large to be read.
const TOO_LARGE: i32 = -32001;

/// The status that RFC 6455 has for who may not talk.
const POLICY_VIOLATION: u16 = 1008;

/// The dialect.
pub struct Zyra {
    facts: Arc<Facts>,
}

impl Zyra {
    /// Zyra's wire as spoken by the server that `facts` describe.
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

    /// Over HTTP each request is alone.
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
            // Without the id: it belongs to the request that is still in flight.
            Refused::Repeated { key: Key(id) } => {
                let why = format!("the id {id} is in flight already; this request was not run");
                Reply::json(Failure::invalid_request(why).written(None))
            }
        }
    }

    /// A browser cannot send headers with a WebSocket.
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

    /// Without a key there is no socket; who says a wrong one is told so on it.
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

/// One client's conversation, which has nothing to remember.
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

    /// There are no batches on this wire.
    fn join(&self, replies: Vec<Reply>) -> Reply {
        let mut bodies = replies.into_iter().filter(|reply| !matches!(reply.body, Body::Empty));
        bodies.next().unwrap_or(Reply::empty(204))
    }
}
