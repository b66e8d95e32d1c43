//! The Model Context Protocol: five revisions of two eras on one endpoint.

mod revision;
mod unread;
mod message;
mod places;
mod headers;
mod stateless;
mod requests;
mod methods;
mod cursor;
mod ticket;
mod spelling;
mod content;
mod listed;
mod library;
mod hearing;
mod tasks;
mod asking;
mod listening;
pub mod upstream;

#[cfg(any(fuzzing, test))]
pub(crate) use cursor::check as check_cursor;

use std::sync::Arc;

use http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use toolgate_contract::{Askable, Caller, Frame, Head, Level, Reply, Request};

pub use revision::{
    Asks, BadInput, Batches, Era, NEWEST_SESSION, REVISIONS, Revision, Shapes, Shows, Tasks,
};

use self::hearing::Hearing;
use self::listening::Tidings;
use self::message::{
    Failure, INTERNAL_ERROR, Id, Message, batch, cancelled_key, not_a, read_id, success,
};
use self::requests::{accepts, asked, read_level};
use self::tasks::About;
use self::ticket::{Asked, McpTicket, Stamp, server_info};
use crate::json::{Members, Params, parse_members};
use crate::{
    Accepts, Ask, Asking, Conversation, Dialect, Duplex, Facts, Heard, Key, ListenTicket, OnLeave,
    Reading, Refused,
};

/// The cache time of `server/discover` in milliseconds.
const DISCOVER_TTL_MS: u64 = 300_000;
/// The most messages in one batch.
const BATCH_MAX: usize = 100;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Converts a tool id to MCP's form in `[A-Za-z0-9_-]`, which model APIs accept.
pub(crate) fn spell(id: &str) -> String {
    id.replace('.', "_")
}

/// The MCP dialect.
pub struct Mcp {
    facts: Arc<Facts>,
}

impl Mcp {
    /// Creates the dialect for the server that `facts` describe.
    pub fn new(facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

impl Dialect for Mcp {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn paths(&self) -> &'static [&'static str] {
        places::paths(&self.facts)
    }

    fn converse(&self, caller: &Caller) -> Box<dyn Conversation> {
        let facts = self.facts.clone();
        let caller = caller.clone();
        Box::new(McpConversation { facts, caller, session: None })
    }

    fn session<'h>(&self, head: &'h Head) -> Option<&'h str> {
        // Stateless revisions ignore the session id.
        if stateless::says_header(head) {
            return None;
        }
        // A malformed session id counts as an unknown session.
        headers::single(head, headers::SESSION).unwrap_or(Some(""))
    }

    fn unknown_session(&self) -> Reply {
        let why = "no such session; it has ended or never was: send `initialize` to begin another";
        Failure::invalid_request(None, why).with_status(404).reply(true)
    }

    fn open_session(&self, reply: Reply, id: &str) -> Reply {
        reply.with_header(headers::SESSION, id)
    }

    fn duplex(&self, head: &Head) -> Option<Duplex> {
        places::duplex(head)
    }

    fn duplex_endpoint(&self, id: &str) -> String {
        places::endpoint(id)
    }

    fn unknown_duplex(&self) -> Reply {
        let why = "no such conversation; `GET /sse` begins one";
        Failure::invalid_request(None, why).with_status(404).reply(true)
    }

    fn unknown_event(&self, id: &str) -> Reply {
        let id: String = id.chars().take(60).collect();
        let why = format!(
            "no stream of this session has an event `{id}` any more; open another without \
             `Last-Event-ID`"
        );
        Failure::invalid_request(None, why).reply(true)
    }

    fn refuse(&self, why: &Refused) -> Reply {
        match why {
            Refused::TooLarge { limit } => {
                let why = format!("the message is larger than {limit} bytes and was not read");
                Failure::invalid_request(None, why).with_status(413).reply(true)
            }
            Refused::Busy { message } => Failure::new(None, INTERNAL_ERROR, message.as_str())
                .with_status(503)
                .reply(true)
                .with_header("retry-after", "1"),
            Refused::Unauthorized { said } => {
                let (why, challenge) = if *said {
                    ("nobody is known by this key or token", "Bearer error=\"invalid_token\"")
                } else {
                    ("send your key as `Authorization: Bearer KEY` or `X-API-Key: KEY`", "Bearer")
                };
                Failure::invalid_request(None, why)
                    .with_status(401)
                    .reply(true)
                    .with_header("www-authenticate", challenge)
            }
            Refused::Several => {
                let why = "there is more than one key or token in one place; send one";
                Failure::invalid_request(None, why)
                    .with_status(400)
                    .reply(true)
                    .with_header("www-authenticate", "Bearer error=\"invalid_request\"")
            }
            Refused::Throttled { retry_after } => {
                let why = "too many wrong keys came from where you are; wait";
                let wait = retry_after.as_millis().div_ceil(1000).max(1).to_string();
                Failure::invalid_request(None, why)
                    .with_status(429)
                    .reply(true)
                    .with_header("retry-after", wait)
            }
            // The id is left out, because it belongs to the request in flight.
            Refused::Repeated { key: Key(id) } => {
                let why = format!("the id {id} is in flight already; this request was not run");
                Failure::invalid_request(None, why).reply(true)
            }
        }
    }
}

/// The conversation of one client, with the session that `initialize` opened.
struct McpConversation {
    facts: Arc<Facts>,
    caller: Caller,
    session: Option<Session>,
}

/// The settings of a session, or of one stateless request.
#[derive(Clone, Copy)]
struct Session {
    revision: &'static Revision,
    /// The lowest level of log lines that the client wants; `None` for no log lines.
    log_level: Option<Level>,
    /// The kinds of question that the client declared in `initialize`.
    can: Askable,
}

impl Conversation for McpConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
        if let Some(page) = places::page(&self.facts, &frame.head) {
            return Reading::Reply(page);
        }
        match &frame.head {
            Head::Http { method, .. } if *method != Method::POST => {
                self.read_verb(method, &frame.head)
            }
            Head::Line | Head::Http { .. } => self.read_body(frame),
        }
    }

    fn join(&self, replies: Vec<Reply>) -> Reply {
        batch(replies)
    }

    fn tidings(&self) -> Option<Arc<dyn ListenTicket>> {
        let Session { revision, .. } = self.session?;
        Some(Arc::new(Tidings::new(revision, self.facts.clone())))
    }
}

impl McpConversation {
    /// Reads an HTTP request without a message.
    fn read_verb(&mut self, method: &Method, head: &Head) -> Reading {
        let Some(Session { revision, .. }) = self.session else {
            if let Some(greeting) = places::greeting(&self.facts, head) {
                return Reading::Reply(greeting);
            }
            let why = match *method {
                _ if stateless::says_header(head) => {
                    "in this revision all is sent by POST; a stream is the answer to \
                     `subscriptions/listen`"
                }
                Method::GET | Method::DELETE => {
                    "this needs `Mcp-Session-Id`, which `initialize` gives; messages are sent by POST"
                }
                _ => "messages are sent by POST",
            };
            let failure = Failure::invalid_request(None, why).with_status(405);
            return Reading::Reply(failure.reply(true).with_header("allow", "POST"));
        };
        let streams = accepts(head, revision) != Accepts::Message;
        let read = match *method {
            Method::DELETE => {
                self.check_version_header(head, None).map(|()| Reading::Closed(Reply::empty(204)))
            }
            Method::GET if streams => self
                .check_version_header(head, None)
                .and_then(|()| last_event(head, revision))
                .map(|after| Reading::Tidings { after }),
            Method::GET => {
                let why = "send `Accept: text/event-stream`: what there is to get is a stream";
                Err(Failure::invalid_request(None, why).with_status(406))
            }
            _ => {
                let reply = Reply::empty(405).with_header("allow", "GET, POST, DELETE");
                Ok(Reading::Reply(reply))
            }
        };
        read.unwrap_or_else(|failure| self.fail(&failure))
    }

    fn read_body(&mut self, frame: &Frame) -> Reading {
        match parse_members(&frame.body) {
            Ok(Ok(members)) => self.read_message(frame, members),
            Ok(Err(Value::Array(items))) => self.read_batch(frame, items),
            Ok(Err(other)) => self.read_value(frame, other),
            Err(why) => self.fail(&Failure::not_json(why, unread::id(&frame.body))),
        }
    }

    fn read_batch(&mut self, frame: &Frame, items: Vec<Value>) -> Reading {
        match self.session.map(|session| session.revision.batches) {
            Some(Batches::Taken) => {}
            Some(Batches::Refused) | None => {
                let why = "one message at a time: this revision has no batches";
                return self.fail(&Failure::invalid_request(None, why));
            }
        }
        if items.is_empty() || items.len() > BATCH_MAX {
            let why = format!("a batch holds 1 to {BATCH_MAX} messages, this one {}", items.len());
            return self.fail(&Failure::invalid_request(None, why));
        }
        let read_item = |item: Value| {
            let id = item.get("id").and_then(read_id);
            let alone = |method: &str| {
                let why = format!("`{method}` must not be part of a batch");
                Failure::invalid_request(id.clone(), why)
            };
            if item.get("method").is_some_and(|method| method == "initialize") {
                return self.fail(&alone("initialize"));
            }
            // The answers to a batch are one array, which has no place for streams and questions.
            match self.read_value(frame, item) {
                Reading::Listen(_) => self.fail(&alone("subscriptions/listen")),
                Reading::Ask(ask @ Ask { asking: Asking::Now(_), .. }) => {
                    Reading::Ask(Ask { asking: Asking::Nobody, ..ask })
                }
                reading => reading,
            }
        };
        Reading::Batch(items.into_iter().map(read_item).collect())
    }

    fn read_value(&mut self, frame: &Frame, value: Value) -> Reading {
        match value {
            Value::Object(map) => self.read_message(frame, map.into()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => {
                self.fail(&Failure::invalid_request(None, "a message is a JSON object"))
            }
        }
    }

    fn read_message(&mut self, frame: &Frame, members: Members) -> Reading {
        let read = Message::read(members).and_then(|message| match message {
            Message::Request { id, method, params } => {
                self.read_request(frame, id, &method, params)
            }
            Message::Notification { method, params } => {
                self.check_version_header(&frame.head, None)?;
                Ok(self.read_notification(&frame.head, &method, &params))
            }
            Message::Response { id, heard } => {
                self.check_version_header(&frame.head, None)?;
                if stateless::says_header(&frame.head) {
                    let why = "a client sends requests and notifications in this revision";
                    return Err(Failure::invalid_request(None, why));
                }
                Ok(self.read_response(id, heard))
            }
        });
        read.unwrap_or_else(|failure| self.fail(&failure))
    }

    fn read_notification(&self, head: &Head, method: &str, params: &Params) -> Reading {
        let reply = Reply::empty(202);
        // A POST without a session is a conversation of its own, with no other request to cancel.
        let alone = matches!(head, Head::Http { .. }) && self.session.is_none();
        match (method, cancelled_key(params)) {
            ("notifications/cancelled", Some(key)) if !alone => Reading::Cancel { key, reply },
            // Unknown notifications are accepted and ignored.
            _ => Reading::Reply(reply),
        }
    }

    fn read_response(&self, id: Option<String>, heard: Heard) -> Reading {
        let reply = Reply::empty(202);
        match (self.session, id) {
            (Some(_), Some(id)) => Reading::Told { id, heard, reply },
            // The response matches no question. It is ignored, because responses are never
            // answered.
            (None, _) | (_, None) => Reading::Reply(reply),
        }
    }

    /// Reads a request. The era is determined first, then the method.
    fn read_request(
        &mut self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Params,
    ) -> Result<Reading, Failure> {
        let meta = params.get("_meta").and_then(Value::as_object);
        let stateless_body = meta.is_some_and(|meta| meta.contains_key(META_VERSION));
        if stateless_body || stateless::says_header(&frame.head) {
            return self.read_stateless(frame, id, method, params);
        }
        self.check_version_header(&frame.head, Some(&id))?;
        match (method, self.session) {
            // A second id for the same session would outlive the end of the first.
            ("initialize", Some(_)) if matches!(frame.head, Head::Http { .. }) => {
                let why =
                    "this session is open already; send `initialize` without its id for another";
                Err(Failure::invalid_request(Some(id), why))
            }
            ("initialize", _) => self.initialize(&id, &params),
            ("ping", Some(_)) => Ok(Reading::Reply(success(&id, &json!({})))),
            ("ping", None) if matches!(frame.head, Head::Line) => {
                Ok(Reading::Reply(success(&id, &json!({}))))
            }
            // Some clients do not read the body of a 400, so errors get the status 200.
            (_, Some(session)) => self
                .read_in_session(frame, id, method, params, session)
                .map_err(|failure| failure.with_status(200)),
            (_, None) => Err(Failure::invalid_params(
                Some(id),
                format!(
                    "the request names no protocol revision: send `initialize` first, or \
                     `params._meta` with `{META_VERSION}` and `{META_CAPABILITIES}`"
                ),
            )),
        }
    }

    /// Reads a stateless request, which carries all its settings.
    fn read_stateless(
        &self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Params,
    ) -> Result<Reading, Failure> {
        let revision = self.spoken(stateless::revision_of(&frame.head, &id, &params)?);
        if matches!(frame.head, Head::Http { .. }) {
            headers::agree(&frame.head, &id, method, &params)?;
        }
        let log_level = params
            .get("_meta")
            .and_then(|meta| meta.get(META_LOG_LEVEL))
            .map(|level| read_level(&id, level))
            .transpose()?;
        match (method, asked(method, revision, &self.facts)) {
            ("server/discover", _) => Ok(Reading::Reply(self.discover(&id, revision))),
            ("subscriptions/listen", _) => self.listen(frame, &id, &params, revision),
            (_, Some(asked)) => {
                let session = Session { revision, log_level, can: Askable::default() };
                self.ask(frame, id, asked, params, session)
            }
            (_, None) => Err(methods::unknown(id, method, revision, &self.facts).with_status(404)),
        }
    }

    /// Reads a request after `initialize`.
    fn read_in_session(
        &mut self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Params,
        session: Session,
    ) -> Result<Reading, Failure> {
        match (method, asked(method, session.revision, &self.facts)) {
            ("logging/setLevel", _) => {
                let level = params.get("level");
                let level = level.ok_or_else(|| not_a("a string", &id, "params.level", None))?;
                let log_level = Some(read_level(&id, level)?);
                self.session = Some(Session { log_level, ..session });
                Ok(Reading::Reply(success(&id, &json!({}))))
            }
            ("resources/unsubscribe", _) if self.facts.resources => {
                let uri = library::uri_of(&id, &params)?;
                Ok(Reading::Unwatch { uri, reply: success(&id, &json!({})) })
            }
            (_, Some(asked)) => self.ask(frame, id, asked, params, session),
            (_, None) => Err(methods::unknown(id, method, session.revision, &self.facts)),
        }
    }

    /// Returns the revision without features that this server lacks.
    fn spoken(&self, revision: &'static Revision) -> &'static Revision {
        if self.facts.jobs { revision } else { revision.without_tasks() }
    }

    fn initialize(&mut self, id: &Id, params: &Params) -> Result<Reading, Failure> {
        let wanted = match params.get("protocolVersion") {
            Some(Value::String(wanted)) => wanted.as_str(),
            other => return Err(not_a("a string", id, "params.protocolVersion", other)),
        };
        let revision =
            Revision::named(wanted, Era::Session).unwrap_or_else(|| Revision::newest(Era::Session));
        let revision = self.spoken(revision);
        let clients = params.get("capabilities").unwrap_or(&Value::Null);
        let can = asking::askable(clients, revision);
        self.session = Some(Session { revision, log_level: Some(Level::Warning), can });
        let result = json!({
            "protocolVersion": revision.name,
            "capabilities": capabilities(revision, &self.facts),
            "serverInfo": server_info(revision, &self.facts),
            "instructions": self.facts.instructions.told_to(&self.caller),
        });
        Ok(Reading::Opened(success(id, &result)))
    }

    fn discover(&self, id: &Id, revision: &Revision) -> Reply {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Discovered<'a> {
            supported_versions: Vec<&'static str>,
            capabilities: Value,
            instructions: &'a str,
            #[serde(flatten)]
            stamp: Stamp<'a>,
        }
        let result = Discovered {
            supported_versions: Revision::names(Era::Stateless),
            capabilities: capabilities(revision, &self.facts),
            instructions: &self.facts.instructions.told_to(&self.caller),
            stamp: Stamp::new(revision, &self.facts, Some(DISCOVER_TTL_MS)),
        };
        success(id, &result)
    }

    fn listen(
        &self,
        frame: &Frame,
        id: &Id,
        params: &Params,
        revision: &'static Revision,
    ) -> Result<Reading, Failure> {
        if accepts(&frame.head, revision) == Accepts::Message {
            let why = "the answer is a stream: send `Accept: text/event-stream`";
            return Err(Failure::invalid_request(Some(id.clone()), why).with_status(406));
        }
        let line = matches!(frame.head, Head::Line);
        listening::read(id, params, revision, self.facts.clone(), line).map(Reading::Listen)
    }

    fn ask(
        &self,
        frame: &Frame,
        id: Id,
        asked: Asked,
        mut params: Params,
        session: Session,
    ) -> Result<Reading, Failure> {
        let Session { revision, log_level, can } = session;
        let facts = self.facts.clone();
        let hearing = Hearing::read(&id, &params, revision, facts.clone(), log_level)?;
        let (asked, request) = requests::read(&id, asked, revision, &mut params)?;
        let hearing = match &request {
            // The client that waits for a task also gets its questions.
            Request::AwaitJob { id: task } => match task.parse() {
                Ok(task) => hearing.of_task(task),
                Err(_) => hearing,
            },
            _ => hearing,
        };
        let beside = requests::beside(&frame.head, &asked, revision, &params);
        let on_leave = match (&asked, revision.era) {
            // A client that cancels a task need not wait for its end.
            (Asked::About(About::Cancel), _) => OnLeave::Continues,
            // The task continues if a client stops waiting for it.
            (Asked::About(About::Result), _) => OnLeave::Cancels,
            (_, Era::Stateless) => OnLeave::Cancels,
            (_, Era::Session) => OnLeave::Continues,
        };
        let events = match asked {
            // A status request is answered at once, so a stream is useless.
            Asked::About(About::Get) => Accepts::Message,
            Asked::Tools | Asked::Call | Asked::Task | Asked::About(_) | Asked::Library { .. } => {
                accepts(&frame.head, revision)
            }
        };
        let asking = match (revision.era, events) {
            _ if !requests::asks(&asked, revision.era) => Asking::Nobody,
            (Era::Stateless, _) => asking::again(&id, &params, revision)?,
            (Era::Session, Accepts::Stream | Accepts::Resumable) => Asking::Now(can),
            // A question needs a stream.
            (Era::Session, Accepts::Message) => Asking::Nobody,
        };
        Ok(Reading::Ask(Ask {
            key: id.key(),
            request,
            ticket: Arc::new(McpTicket { id, revision, facts, asked, hearing }),
            on_leave,
            events,
            asking,
            beside,
            within: None,
            via: None,
        }))
    }

    /// Checks that the version header, if sent, names a known revision.
    fn check_version_header(&self, head: &Head, id: Option<&Id>) -> Result<(), Failure> {
        let all = REVISIONS.each_ref().map(|row| row.name);
        let invalid = |why| Failure::invalid_request(id.cloned(), why);
        match headers::single(head, headers::VERSION).map_err(invalid)? {
            Some(name) if !all.contains(&name) => {
                Err(Failure::unsupported(id.cloned(), name, &all))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn fail(&self, failure: &Failure) -> Reading {
        let anonymous = self.session.is_none_or(|session| session.revision.anonymous_errors);
        Reading::Reply(failure.reply(anonymous))
    }
}

/// Returns the server's capabilities in `revision`.
fn capabilities(revision: &Revision, facts: &Facts) -> Value {
    let mut capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
    tasks::declare(revision, &mut capabilities);
    library::declare(revision, facts, &mut capabilities);
    capabilities
}

/// Returns the last event that a resuming client received, if it resumes a stream.
fn last_event(head: &Head, revision: &Revision) -> Result<Option<String>, Failure> {
    let last = headers::single(head, headers::LAST_EVENT)
        .map_err(|why| Failure::invalid_request(None, why))?;
    Ok(last.filter(|id| revision.resumes && !id.is_empty()).map(str::to_owned))
}
