//! The Model Context Protocol: five revisions of two eras, side by side on one endpoint.

mod revision;
mod message;
mod headers;
mod cursor;
mod ticket;
mod hearing;
mod tasks;

use std::sync::Arc;

use http::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};
use toolgate_contract::{Frame, Head, Level, Reply, Request, ToolId, fold};

pub use revision::{BadInput, Batches, Era, NEWEST_SESSION, REVISIONS, Revision, Shapes, Tasks};

use self::hearing::Hearing;
use self::message::{
    Failure, HEADER_MISMATCH, INTERNAL_ERROR, Id, METHOD_NOT_FOUND, Message, batch, cancelled_key,
    read_id, success,
};
use self::tasks::About;
use self::ticket::{Asked, McpTicket, Stamp, server_info};
use crate::json::parse;
use crate::{Accepts, Ask, Conversation, Dialect, Facts, Key, OnLeave, Reading, Refused};

/// How long a client may keep what `server/discover` says, in milliseconds.
const DISCOVER_TTL_MS: u64 = 3_600_000;
/// The most messages in one batch.
const BATCH_MAX: usize = 100;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// A tool id as MCP spells it: in `[A-Za-z0-9_-]`, which model APIs accept.
pub(crate) fn spell(id: &str) -> String {
    fold(id)
}

/// The dialect.
pub struct Mcp {
    facts: Arc<Facts>,
}

impl Mcp {
    /// MCP as spoken by the server that `facts` describe.
    pub fn new(facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

impl Dialect for Mcp {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/mcp"]
    }

    fn converse(&self) -> Box<dyn Conversation> {
        Box::new(McpConversation { facts: self.facts.clone(), session: None })
    }

    fn session<'h>(&self, head: &'h Head) -> Option<&'h str> {
        // The stateless era ignores a session id, whoever sent it.
        if stateless_header(head) {
            return None;
        }
        // What is no session id names a session nobody has.
        headers::single(head, headers::SESSION).unwrap_or(Some(""))
    }

    fn unknown_session(&self) -> Reply {
        let why = "no such session; it has ended or never was: send `initialize` to begin another";
        Failure::invalid_request(None, why).with_status(404).reply(true)
    }

    fn open_session(&self, reply: Reply, id: &str) -> Reply {
        reply.with_header(headers::SESSION, id)
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
            // Without the id: it belongs to the request that is still in flight.
            Refused::Repeated { key: Key(id) } => {
                let why = format!("the id {id} is in flight already; this request was not run");
                Failure::invalid_request(None, why).reply(true)
            }
        }
    }
}

/// One client's conversation: what `initialize` agreed, if it was ever sent.
struct McpConversation {
    facts: Arc<Facts>,
    session: Option<Session>,
}

/// What holds for a session of the older era.
#[derive(Clone, Copy)]
struct Session {
    revision: &'static Revision,
    log_level: Level,
}

impl Conversation for McpConversation {
    fn read(&mut self, frame: &Frame) -> Reading {
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
}

impl McpConversation {
    fn read_verb(&mut self, method: &Method, head: &Head) -> Reading {
        match (method, &self.session) {
            (&Method::DELETE, Some(_)) => match self.check_version_header(head, None) {
                Ok(()) => Reading::Closed(Reply::empty(204)),
                Err(failure) => self.fail(&failure),
            },
            _ => {
                let allow = if self.session.is_some() { "POST, DELETE" } else { "POST" };
                Reading::Reply(Reply::empty(405).with_header("allow", allow))
            }
        }
    }

    fn read_body(&mut self, frame: &Frame) -> Reading {
        let value = match parse(&frame.body) {
            Ok(value) => value,
            Err(why) => return self.fail(&Failure::not_json(why)),
        };
        match value {
            Value::Array(items) => self.read_batch(frame, items),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Object(_) => self.read_value(frame, value),
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
            if item.get("method").is_some_and(|method| method == "initialize") {
                let id = item.get("id").and_then(read_id);
                let why = "`initialize` must not be part of a batch";
                return self.fail(&Failure::invalid_request(id, why));
            }
            self.read_value(frame, item)
        };
        Reading::Batch(items.into_iter().map(read_item).collect())
    }

    fn read_value(&mut self, frame: &Frame, value: Value) -> Reading {
        let read = Message::read(value).and_then(|message| match message {
            Message::Request { id, method, params } => {
                self.read_request(frame, id, &method, params)
            }
            Message::Notification { method, params } => {
                self.check_version_header(&frame.head, None)?;
                Ok(self.read_notification(&frame.head, &method, &params))
            }
            // Nothing of ours asks the client anything yet, so no answer is awaited.
            Message::Response => {
                self.check_version_header(&frame.head, None)?;
                if stateless_header(&frame.head) {
                    let why = "a client sends requests and notifications in this revision";
                    return Err(Failure::invalid_request(None, why));
                }
                Ok(Reading::Reply(Reply::empty(202)))
            }
        });
        read.unwrap_or_else(|failure| self.fail(&failure))
    }

    fn read_notification(&self, head: &Head, method: &str, params: &Map<String, Value>) -> Reading {
        let reply = Reply::empty(202);
        // A POST without a session is alone in its conversation: it has nothing to cancel.
        let alone = matches!(head, Head::Http { .. }) && self.session.is_none();
        match (method, cancelled_key(params)) {
            ("notifications/cancelled", Some(key)) if !alone => Reading::Cancel { key, reply },
            // An unknown notification is taken and dropped: none is ever answered.
            _ => Reading::Reply(reply),
        }
    }

    /// The era decides first, the method second.
    fn read_request(
        &mut self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Map<String, Value>,
    ) -> Result<Reading, Failure> {
        let meta = params.get("_meta").and_then(Value::as_object);
        let stateless_body = meta.is_some_and(|meta| meta.contains_key(META_VERSION));
        if stateless_body || stateless_header(&frame.head) {
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
            // An error is an answer like another: some clients do not read the body of a 400.
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

    /// A request of the stateless era: everything it needs is in it.
    fn read_stateless(
        &self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Map<String, Value>,
    ) -> Result<Reading, Failure> {
        let revision = self.spoken(stateless_revision(&frame.head, &id, &params)?);
        if matches!(frame.head, Head::Http { .. }) {
            headers::agree(&frame.head, &id, method, &params)?;
        }
        let log_level = params
            .get("_meta")
            .and_then(|meta| meta.get(META_LOG_LEVEL))
            .map(|level| read_level(&id, level))
            .transpose()?;
        match (method, asked(method, revision)) {
            ("server/discover", _) => Ok(Reading::Reply(self.discover(&id, revision))),
            (_, Some(asked)) => self.ask(frame, id, asked, params, revision, log_level),
            (_, None) => Err(unknown_method(id, method).with_status(404)),
        }
    }

    /// A request of the older era, after `initialize`.
    fn read_in_session(
        &mut self,
        frame: &Frame,
        id: Id,
        method: &str,
        params: Map<String, Value>,
        session: Session,
    ) -> Result<Reading, Failure> {
        match (method, asked(method, session.revision)) {
            ("logging/setLevel", _) => {
                let level = params.get("level").unwrap_or(&Value::Null);
                let log_level = read_level(&id, level)?;
                self.session = Some(Session { log_level, ..session });
                Ok(Reading::Reply(success(&id, &json!({}))))
            }
            (_, Some(asked)) => {
                let level = Some(session.log_level);
                self.ask(frame, id, asked, params, session.revision, level)
            }
            (_, None) => Err(unknown_method(id, method)),
        }
    }

    /// The revision as this server speaks it.
    fn spoken(&self, revision: &'static Revision) -> &'static Revision {
        if self.facts.jobs { revision } else { revision.without_tasks() }
    }

    fn initialize(&mut self, id: &Id, params: &Map<String, Value>) -> Result<Reading, Failure> {
        let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Err(Failure::invalid_params(
                Some(id.clone()),
                "`params.protocolVersion` must be a string",
            ));
        };
        let revision =
            Revision::named(wanted, Era::Session).unwrap_or_else(|| Revision::newest(Era::Session));
        let revision = self.spoken(revision);
        self.session = Some(Session { revision, log_level: Level::Warning });
        let result = json!({
            "protocolVersion": revision.name,
            "capabilities": capabilities(revision),
            "serverInfo": server_info(revision, &self.facts),
            "instructions": self.facts.instructions,
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
            capabilities: capabilities(revision),
            instructions: &self.facts.instructions,
            stamp: Stamp::new(revision, &self.facts, Some(DISCOVER_TTL_MS)),
        };
        success(id, &result)
    }

    fn ask(
        &self,
        frame: &Frame,
        id: Id,
        asked: Asked,
        mut params: Map<String, Value>,
        revision: &'static Revision,
        log_level: Option<Level>,
    ) -> Result<Reading, Failure> {
        let facts = self.facts.clone();
        let hearing = Hearing::read(&id, &params, revision, facts.clone(), log_level)?;
        let (asked, request) = match asked {
            Asked::Tools => (asked, read_list(&id, &params)?),
            Asked::Call | Asked::Task => read_call(&id, revision, &mut params)?,
            Asked::About(about) => (asked, about.read(revision, &id, &params)?),
        };
        let on_leave = match (asked, revision.era) {
            // Who cancels a task need not stay to hear that it stops.
            (Asked::About(About::Cancel), _) => OnLeave::Continues,
            // Who waits for a task's end and leaves takes nothing from the task.
            (Asked::About(About::Result), _) => OnLeave::Cancels,
            (Asked::Tools | Asked::Call | Asked::Task | Asked::About(_), Era::Stateless) => {
                OnLeave::Cancels
            }
            (Asked::Tools | Asked::Call | Asked::Task | Asked::About(_), Era::Session) => {
                OnLeave::Continues
            }
        };
        let events = match asked {
            // Who asks how a task is asks again, and does not listen.
            Asked::About(About::Get) => Accepts::Message,
            Asked::Tools | Asked::Call | Asked::Task | Asked::About(_) => accepts(&frame.head),
        };
        Ok(Reading::Ask(Ask {
            key: id.key(),
            request,
            ticket: Arc::new(McpTicket { id, revision, facts, asked, hearing }),
            on_leave,
            events,
        }))
    }

    /// Whether the version header, where one came, names a revision.
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

/// Whether the version header names a revision of the stateless era.
fn stateless_header(head: &Head) -> bool {
    head.header(headers::VERSION).any(|value| {
        let name = std::str::from_utf8(value).unwrap_or_default().trim();
        Revision::named(name, Era::Stateless).is_some()
    })
}

/// The revision a stateless request says it speaks, checked in the order the conformance suite pins.
fn stateless_revision(
    head: &Head,
    id: &Id,
    params: &Map<String, Value>,
) -> Result<&'static Revision, Failure> {
    let mismatch = |why: String| Failure::new(Some(id.clone()), HEADER_MISMATCH, why);
    let invalid = |why: String| Failure::invalid_params(Some(id.clone()), why);

    let header = headers::single(head, headers::VERSION).map_err(mismatch)?;
    let Some(meta) = params.get("_meta").and_then(Value::as_object) else {
        return Err(invalid(format!("`params._meta` with `{META_VERSION}` is missing")));
    };
    let Some(name) = meta.get(META_VERSION).and_then(Value::as_str) else {
        return Err(invalid(format!("`params._meta[\"{META_VERSION}\"]` must be a string")));
    };
    match (head, header) {
        (Head::Http { .. }, None) => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` is missing; it must say `{name}`"
            )));
        }
        (Head::Http { .. }, Some(header)) if header != name => {
            return Err(mismatch(format!(
                "the header `MCP-Protocol-Version` says `{header}`, the body `{name}`"
            )));
        }
        (Head::Http { .. }, Some(_)) | (Head::Line, _) => {}
    }
    let Some(revision) = Revision::named(name, Era::Stateless) else {
        return Err(Failure::unsupported(Some(id.clone()), name, &Revision::names(Era::Stateless)));
    };
    if !meta.get(META_CAPABILITIES).is_some_and(Value::is_object) {
        return Err(invalid(format!("`params._meta[\"{META_CAPABILITIES}\"]` must be an object")));
    }
    Ok(revision)
}

fn capabilities(revision: &Revision) -> Value {
    let mut capabilities = json!({ "tools": {}, "logging": {} });
    tasks::declare(revision, &mut capabilities);
    capabilities
}

/// What `method` asks of the host, where the revision has it.
fn asked(method: &str, revision: &Revision) -> Option<Asked> {
    match method {
        "tools/list" => Some(Asked::Tools),
        "tools/call" => Some(Asked::Call),
        _ => About::named(method, revision).map(Asked::About),
    }
}

fn unknown_method(id: Id, method: &str) -> Failure {
    Failure::new(Some(id), METHOD_NOT_FOUND, format!("no method is named `{method}` here"))
}

fn read_level(id: &Id, level: &Value) -> Result<Level, Failure> {
    serde_json::from_value(level.clone()).map_err(|_| {
        Failure::invalid_params(
            Some(id.clone()),
            format!(
                "{level} is no log level; one of debug, info, notice, warning, error, critical, \
                 alert, emergency"
            ),
        )
    })
}

fn read_list(id: &Id, params: &Map<String, Value>) -> Result<Request, Failure> {
    Ok(Request::ListTools { after: cursor::of(id, params, ToolId::new)? })
}

/// A call, or a call that is to be a task.
fn read_call(
    id: &Id,
    revision: &Revision,
    params: &mut Map<String, Value>,
) -> Result<(Asked, Request), Failure> {
    let Some(Value::String(tool)) = params.remove("name") else {
        return Err(Failure::invalid_params(Some(id.clone()), "`params.name` must be a string"));
    };
    let input = match params.remove("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(input @ Value::Object(_)) => input,
        Some(_) => {
            let why = "`params.arguments` must be an object";
            return Err(Failure::invalid_params(Some(id.clone()), why));
        }
    };
    Ok(match tasks::terms(revision, id, params)? {
        None => (Asked::Call, Request::CallTool { tool, input }),
        Some(terms) => (Asked::Task, Request::StartJob { tool, input, terms }),
    })
}

/// Whether a client reads a stream: every line-based one does, an HTTP one if it says so.
fn accepts(head: &Head) -> Accepts {
    let takes = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        text.contains("text/event-stream")
    };
    match head {
        Head::Line => Accepts::Stream,
        Head::Http { .. } if head.header("accept").any(takes) => Accepts::Stream,
        Head::Http { .. } => Accepts::Message,
    }
}
