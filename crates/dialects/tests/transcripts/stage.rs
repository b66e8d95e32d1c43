//! A server with nothing behind it: it reads a transcript and tells it again.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use toolgate_contract::{Answer, Body, Frame, Head, JobTerms, Reply, Request, Which};
use toolgate_dialects::mcp::Mcp;
use toolgate_dialects::{
    Accepts, Ask, Conversation, Dialect, Facts, Key, OnLeave, Pace, Reading, Ticket, Upgrade,
    WatchTicket, Watching, all,
};

use crate::words::{read_event, read_job, read_outcome, read_refused, read_watched};

/// The transcript with what the dialect says now in place of what it said.
pub(crate) fn retell(recorded: &str, dialect: &Arc<dyn Dialect>) -> String {
    let mut stage = Stage::new(dialect);
    let mut short = Vec::new();
    let mut told = Vec::new();
    let mut lines = recorded.lines().peekable();
    while let Some(line) = lines.next() {
        match line.split_at_checked(1).unwrap_or_default() {
            ("?" | "<", _) => {}
            (">", first) => {
                let mut frame = vec![first];
                while verb(first).is_some()
                    && let Some(more) = lines.peek().and_then(|line| line.strip_prefix('>'))
                    && verb(more).is_none()
                {
                    frame.push(more);
                    lines.next();
                }
                told.extend(frame.iter().map(|line| format!(">{line}")));
                told.extend(stage.read(&read_frame(&frame, &short)));
            }
            ("=", said) => {
                told.push(line.to_owned());
                told.extend(stage.hear(said.trim()));
            }
            ("~", _) => {
                told.push(line.to_owned());
                assert!(stage.open.is_empty(), "before `{line}` something was left unanswered");
                stage = Stage::new(dialect);
            }
            (":", rule) => {
                told.push(line.to_owned());
                let (name, text) = rule.trim().split_once(" is ").expect(": $NAME is TEXT");
                short.push((name.to_owned(), text.to_owned()));
            }
            ("#" | "", _) => told.push(line.to_owned()),
            _ => panic!("`{line}` begins with none of # : ~ > ? = <"),
        }
    }
    assert!(stage.open.is_empty(), "at the end something was left unanswered");
    told.join("\n") + "\n"
}

/// A frame as the lines after `>` write it.
fn read_frame(lines: &[&str], short: &[(String, String)]) -> Frame {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let line = line.strip_prefix(' ').unwrap_or(line).to_owned();
            short.iter().fold(line, |line, (name, text)| line.replace(name, text))
        })
        .collect();
    let Some((method, target)) = verb(&lines[0]) else { return Frame::line(read_body(&lines[0])) };
    let end = lines.iter().position(String::is_empty).unwrap_or(lines.len());
    let mut headers = HeaderMap::new();
    for line in &lines[1..end] {
        let (name, value) = line.split_once(": ").expect("a header is `Name: value`");
        let name = HeaderName::from_str(name).expect("a header's name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header's value"));
    }
    let body = lines.get(end + 1..).unwrap_or_default().join("\n");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    Frame { head: Head::Http { method, path, query, headers }, body: read_body(&body) }
}

/// The method and the target of a frame that comes over HTTP, if `line` begins one.
fn verb(line: &str) -> Option<(Method, &str)> {
    let (word, target) = line.trim().split_once(' ').unwrap_or((line.trim(), "/mcp"));
    let sound = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    (sound && target.starts_with('/')).then(|| (Method::from_str(word).expect("a method"), target))
}

/// A body as written, or `bytes` in hexadecimal, or `repeat` so many times.
fn read_body(text: &str) -> Bytes {
    if let Some(hex) = text.strip_prefix("bytes ") {
        let byte = |hex| u8::from_str_radix(hex, 16).expect("two hexadecimal digits");
        return hex.split(' ').map(byte).collect();
    }
    if let Some(rule) = text.strip_prefix("repeat ") {
        let (times, what) = rule.split_once(' ').expect("repeat TIMES TEXT");
        return what.repeat(times.parse().expect("a number")).into();
    }
    Bytes::copy_from_slice(text.as_bytes())
}

/// A server with nothing behind it: what its host answers is read from the transcript.
struct Stage {
    dialect: Arc<dyn Dialect>,
    line: Box<dyn Conversation>,
    sessions: BTreeMap<String, Box<dyn Conversation>>,
    opened: usize,
    open: Vec<Heard>,
    watch: Option<Arc<dyn WatchTicket>>,
}

/// A frame whose answer is not whole yet.
struct Heard {
    over: Over,
    batch: bool,
    parts: Vec<Part>,
}

/// How a frame came.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Line,
    Http,
}

/// The answer to one message.
enum Part {
    Said(Option<Reply>),
    Owed(Arc<dyn Ticket>),
}

impl Stage {
    fn new(dialect: &Arc<dyn Dialect>) -> Self {
        let (dialect, line) = (dialect.clone(), dialect.converse());
        Self { dialect, line, sessions: BTreeMap::new(), opened: 0, open: Vec::new(), watch: None }
    }

    /// Reads `frame` in the conversation it belongs to and says what comes of it.
    fn read(&mut self, frame: &Frame) -> Vec<String> {
        if frame.head.header("upgrade").next().is_some() {
            return self.upgrade(&frame.head);
        }
        let over = match &frame.head {
            Head::Line => Over::Line,
            Head::Http { .. } => Over::Http,
        };
        let session = self.dialect.session(&frame.head).map(str::to_owned);
        let mut fresh = self.dialect.converse();
        let conversation = match (&session, over) {
            (Some(id), _) => match self.sessions.get_mut(id) {
                Some(conversation) => conversation,
                None => return written(over, Some(&self.dialect.unknown_session())),
            },
            (None, Over::Line) => &mut self.line,
            (None, Over::Http) => &mut fresh,
        };
        let mut told = Vec::new();
        let (batch, parts) = match conversation.read(frame) {
            Reading::Batch(items) => {
                (true, items.into_iter().map(|item| part(item, &mut told)).collect())
            }
            Reading::Watch(watching) => return vec![self.watch(watching)],
            Reading::Replies(replies) => {
                (false, replies.into_iter().map(|reply| Part::Said(Some(reply))).collect())
            }
            Reading::Opened(reply) if over == Over::Http && session.is_none() => {
                self.opened += 1;
                let id = format!("s{}", self.opened);
                let reply = self.dialect.open_session(reply, &id);
                self.sessions.insert(id, fresh);
                (false, vec![part(Reading::Opened(reply), &mut told)])
            }
            reading => {
                if let (Reading::Closed(_), Some(id)) = (&reading, &session) {
                    self.sessions.remove(id);
                }
                (false, vec![part(reading, &mut told)])
            }
        };
        self.open.push(Heard { over, batch, parts });
        told.extend(self.answers());
        told
    }

    /// What a WebSocket is for that a client opens.
    fn upgrade(&mut self, head: &Head) -> Vec<String> {
        match self.dialect.upgrade(head) {
            Ok(Upgrade::Converse) => vec!["? talk over a WebSocket".to_owned()],
            Ok(Upgrade::Watch(watching)) => vec![self.watch(watching)],
            Err(reply) => written(Over::Http, Some(&reply)),
        }
    }

    fn watch(&mut self, Watching { id, pace, ticket }: Watching) -> String {
        self.watch = Some(ticket);
        let pace = match pace {
            Pace::Events { quiet } => {
                format!("all that happens, a sign of life after {} ms", quiet.as_millis())
            }
            Pace::Snapshots { every, at_most } => {
                format!("how it is every {} ms for {} ms", every.as_millis(), at_most.as_millis())
            }
        };
        format!("? watch the job {id}: {pace}")
    }

    /// What the dialect makes of what the host says to the oldest ask.
    fn hear(&mut self, said: &str) -> Vec<String> {
        let (kind, rest) = said.split_once(' ').unwrap_or((said, ""));
        if kind == "refused" {
            return written(Over::Http, Some(&self.dialect.refuse(&read_refused(rest))));
        }
        if kind == "told" {
            let watch = self.watch.as_ref().expect("a job that is watched");
            return written(Over::Line, watch.told(&read_watched(rest)).map(Reply::json).as_ref());
        }
        if matches!(kind, "begin" | "snapshot" | "alive") {
            let watch = self.watch.as_ref().expect("a job that is watched");
            let job = (!matches!(rest, "" | "nobody")).then(|| read_job(rest));
            let bytes = match kind {
                "begin" => watch.begin(job.as_ref()),
                "snapshot" => watch.snapshot(job.as_ref()),
                _ => watch.alive(),
            };
            return written(Over::Line, bytes.map(Reply::json).as_ref());
        }
        let mut parts = self.open.iter_mut().flat_map(|heard| &mut heard.parts);
        let owed = parts.find_map(|part| match part {
            Part::Owed(ticket) => Some((ticket.clone(), part)),
            Part::Said(_) => None,
        });
        let (ticket, part) = owed.unwrap_or_else(|| panic!("`= {said}` answers nothing"));
        if let Some(event) = read_event(kind, rest) {
            return written(Over::Line, ticket.event(&event).map(Reply::json).as_ref());
        }
        let outcome = read_outcome(kind, rest);
        let follows = match &outcome {
            Ok(Answer::Job(job)) => ticket.follow(job).map(|watch| (watch, job.clone())),
            Ok(_) | Err(_) => None,
        };
        *part = Part::Said(ticket.reply(outcome));
        let mut told = self.answers();
        if let Some((watch, job)) = follows {
            told.push("? follow the job".to_owned());
            let first = watch.begin(Some(&job)).map(Reply::json);
            told.extend(first.iter().flat_map(|reply| written(Over::Line, Some(reply))));
            self.watch = Some(watch);
        }
        told
    }

    /// The answers that have become whole.
    fn answers(&mut self) -> Vec<String> {
        let whole = |heard: &mut Heard| heard.parts.iter().all(|p| matches!(p, Part::Said(_)));
        let mut told = Vec::new();
        for Heard { over, batch, parts } in self.open.extract_if(.., whole) {
            let mut replies = parts.into_iter().filter_map(|part| match part {
                Part::Said(reply) => reply,
                Part::Owed(_) => None,
            });
            let reply = if batch {
                Some(self.line.join(replies.by_ref().collect()))
            } else {
                replies.next()
            };
            told.extend(written(over, reply.as_ref()));
            told.extend(replies.flat_map(|more| written(over, Some(&more))));
        }
        told
    }
}

/// The dialect called `name`.
pub(crate) fn dialect(name: &str) -> Arc<dyn Dialect> {
    let mut dialects = all(&facts()).into_iter();
    dialects.find(|dialect| dialect.name() == name).expect("a dialect")
}

pub(crate) fn mcp() -> Mcp {
    Mcp::new(facts())
}

fn facts() -> Arc<Facts> {
    Arc::new(Facts {
        name: "toolgate".into(),
        title: "Toolgate".into(),
        version: "1.0.0".into(),
        about: "Serves a workspace's files and commands to agents.".into(),
        instructions: "Paths are relative to the root.".into(),
        jobs: true,
    })
}

/// One message as it was read: what it asks of the server goes to `told`.
fn part(reading: Reading, told: &mut Vec<String>) -> Part {
    match reading {
        Reading::Reply(reply) => Part::Said(Some(reply)),
        Reading::Opened(reply) => {
            told.push("? open a session".to_owned());
            Part::Said(Some(reply))
        }
        Reading::Closed(reply) => {
            told.push("? close the session".to_owned());
            Part::Said(Some(reply))
        }
        Reading::Cancel { key: Key(key), reply } => {
            told.push(format!("? cancel {key}"));
            Part::Said(Some(reply))
        }
        Reading::Ask(ask) => {
            told.push(asked(&ask));
            Part::Owed(ask.ticket)
        }
        Reading::Watch(_) | Reading::Replies(_) | Reading::Batch(_) => {
            panic!("within a batch there are only messages")
        }
    }
}

fn asked(ask: &Ask) -> String {
    let Ask { key: Key(key), request, ticket, on_leave, events } = ask;
    let request = match request {
        Request::ListTools { after: None } => "list the tools".to_owned(),
        Request::ListTools { after: Some(tool) } => format!("list the tools after {tool}"),
        Request::CallTool { tool, input } => format!("call {tool} {input}"),
        Request::StartJob { tool, input, terms } => {
            format!("start {tool} {input}{}", on_terms(terms))
        }
        Request::GetJob { id } => format!("get the job {id}"),
        Request::AwaitJob { id } => format!("await the job {id}"),
        Request::ListJobs { after: None } => "list the jobs".to_owned(),
        Request::ListJobs { after: Some(id) } => format!("list the jobs after {id}"),
        Request::CancelJob { id } => format!("cancel the job {id}"),
        Request::OpenArtefact { id, which: Which::Main } => {
            format!("open the file of the job {id}")
        }
        Request::OpenArtefact { id, which: Which::Named(name) } => {
            format!("open the file {name} of the job {id}")
        }
        Request::OpenArtefact { id, which: Which::All } => {
            format!("open all files of the job {id}")
        }
    };
    let leaving = match on_leave {
        OnLeave::Cancels => "leaving cancels it",
        OnLeave::Continues => "leaving does not end it",
    };
    let takes = match events {
        Accepts::Message => "one message",
        Accepts::Stream => "a stream",
    };
    let hears = if ticket.listens() { "hears events" } else { "hears no events" };
    format!("? {request}  [key {key}, {leaving}, takes {takes}, {hears}]")
}

fn on_terms(JobTerms { keep, answer_within }: &JobTerms) -> String {
    let keep = keep.map(|keep| format!(" kept {} ms", keep.as_millis()));
    let within = answer_within.map(|within| format!(" answered within {} ms", within.as_millis()));
    keep.unwrap_or_default() + &within.unwrap_or_default()
}

/// A reply as it goes out: over HTTP with its status and headers, on a line alone.
fn written(over: Over, reply: Option<&Reply>) -> Vec<String> {
    let Some(Reply { status, headers, body }) = reply else {
        return vec!["< nothing".to_owned()];
    };
    let mut told = Vec::new();
    if over == Over::Http {
        told.push(format!("< {}", StatusCode::from_u16(*status).expect("a status")));
        told.extend(headers.iter().map(|(name, value)| format!("< {name}: {value}")));
    }
    match body {
        Body::Json(bytes) => told.push(format!("< {}", std::str::from_utf8(bytes).expect("UTF-8"))),
        Body::File(file) => {
            told.push(format!("< a file of {} bytes, {}", file.bytes, file.media_type));
        }
        Body::Empty if told.is_empty() => told.push("< nothing".to_owned()),
        Body::Empty => {}
    }
    told
}
