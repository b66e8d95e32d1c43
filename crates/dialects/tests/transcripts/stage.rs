//! A server with nothing behind it: it reads a transcript and tells it again.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use toolgate_contract::{
    CallOrigin, Caller, ClientQuestion, FrameHead, HostAnswer, HostRequest, MessageFrame, Reply,
};
use toolgate_dialects::mcp::McpDialect;
use toolgate_dialects::{
    AnswerEncoder, ChangeEncoder, ChangeSubscription, ClientResponse, Conversation, Dialect,
    FrameReading, JobEventEncoder, JobWatchRequest, RequestKey, ServerInfo, SocketUpgrade,
    WatchPace, all_dialects,
};

use crate::shelf::{read, read_change, read_interest};
use crate::telling::{asked, interested, sealed, written};
use crate::words::{read_event, read_job, read_outcome, read_refused, read_watched};

/// The time limit of every tool.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The transcript with what the dialect says now in place of what it said.
pub(crate) fn retell(recorded: &str, name: &str) -> String {
    let mut stage = Stage::new(&dialect(name));
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
            ("~", who) => {
                told.push(line.to_owned());
                assert!(stage.open.is_empty(), "before `{line}` something was left unanswered");
                let without = who.trim().strip_prefix("a server without ").unwrap_or_default();
                stage = Stage::new(&dialect_of(name, &facts(without)));
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
fn read_frame(lines: &[&str], short: &[(String, String)]) -> MessageFrame {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let line = line.strip_prefix(' ').unwrap_or(line).to_owned();
            short.iter().fold(line, |line, (name, text)| line.replace(name, text))
        })
        .collect();
    let Some((method, target)) = verb(&lines[0]) else {
        return MessageFrame::from_line(read_body(&lines[0]));
    };
    let end = lines.iter().position(String::is_empty).unwrap_or(lines.len());
    let mut headers = HeaderMap::new();
    for line in &lines[1..end] {
        let (name, value) = line.split_once(": ").expect("a header is `Name: value`");
        let name = HeaderName::from_str(name).expect("a header's name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header's value"));
    }
    let body = lines.get(end + 1..).unwrap_or_default().join("\n");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.to_owned();
    let query = query.to_owned();
    MessageFrame { head: FrameHead::Http { method, path, query, headers }, body: read_body(&body) }
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
    open: Vec<Open>,
    watch: Option<Arc<dyn JobEventEncoder>>,
    listen: Option<Arc<dyn ChangeEncoder>>,
    questions: BTreeMap<String, (Arc<dyn AnswerEncoder>, ClientQuestion)>,
}

/// A frame whose answer is not whole yet.
struct Open {
    over: Over,
    batch: bool,
    parts: Vec<Part>,
}

/// How a frame came.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Over {
    Line,
    Http,
}

/// The answer to one message.
enum Part {
    Said(Option<Reply>),
    Owed(Arc<dyn AnswerEncoder>, Option<CallOrigin>),
}

impl Stage {
    fn new(dialect: &Arc<dyn Dialect>) -> Self {
        let line = dialect.start_conversation(&Caller::local());
        let dialect = dialect.clone();
        Self {
            dialect,
            line,
            sessions: BTreeMap::new(),
            opened: 0,
            open: Vec::new(),
            watch: None,
            listen: None,
            questions: BTreeMap::new(),
        }
    }

    /// Reads `frame` in the conversation it belongs to and says what comes of it.
    fn read(&mut self, frame: &MessageFrame) -> Vec<String> {
        if frame.head.header("upgrade").next().is_some() {
            return self.upgrade(&frame.head);
        }
        let over = match &frame.head {
            FrameHead::Line => Over::Line,
            FrameHead::Http { .. } => Over::Http,
        };
        let session = self.dialect.session(&frame.head).map(str::to_owned);
        let mut fresh = self.dialect.start_conversation(&Caller::local());
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
            FrameReading::Batch(items) => {
                (true, items.into_iter().map(|item| part(item, &mut told)).collect())
            }
            FrameReading::Watch(watching) => return vec![self.watch(watching)],
            FrameReading::Subscribe(ChangeSubscription {
                key: RequestKey(key),
                filter: interest,
                encoder: ticket,
            }) => {
                self.listen = Some(ticket);
                return vec![format!("? listen to {}  [key {key}]", interested(&interest))];
            }
            FrameReading::OpenNotifications { after } => {
                let after = after.map(|after| format!(" after {after}")).unwrap_or_default();
                return vec![format!("? the session's own stream{after}")];
            }
            FrameReading::Replies(replies) => {
                (false, replies.into_iter().map(|reply| Part::Said(Some(reply))).collect())
            }
            FrameReading::OpenSession(reply) if over == Over::Http && session.is_none() => {
                self.opened += 1;
                let id = format!("s{}", self.opened);
                let reply = self.dialect.open_session(reply, &id);
                self.sessions.insert(id, fresh);
                (false, vec![part(FrameReading::OpenSession(reply), &mut told)])
            }
            reading => {
                if let (FrameReading::CloseSession(_), Some(id)) = (&reading, &session) {
                    self.sessions.remove(id);
                }
                (false, vec![part(reading, &mut told)])
            }
        };
        let told = told.into_iter().flat_map(|line| self.meant(line)).collect::<Vec<_>>();
        self.open.push(Open { over, batch, parts });
        told.into_iter().chain(self.answers()).collect()
    }

    /// What is asked of the server, as a line; an answer with what it means.
    fn meant(&mut self, told: Saying) -> Vec<String> {
        match told {
            Saying::Line(line) => vec![line],
            Saying::Told { id, heard } => {
                let said = match &heard {
                    ClientResponse::Result(result) => format!("? {id} is answered with {result}"),
                    ClientResponse::Error(why) => {
                        format!("? {id} is answered with the error {why:?}")
                    }
                };
                let meant = self.questions.get(&id).map(|(ticket, question)| {
                    match ticket.parse_answer(question, &heard) {
                        Ok(told) => {
                            let told = serde_json::to_string(&told).expect("JSON");
                            format!("? which means {told}")
                        }
                        Err(why) => format!("? which is no answer: {why}"),
                    }
                });
                [said].into_iter().chain(meant).collect()
            }
        }
    }

    /// What a WebSocket is for that a client opens.
    fn upgrade(&mut self, head: &FrameHead) -> Vec<String> {
        match self.dialect.upgrade(head) {
            Ok(SocketUpgrade::Converse) => vec!["? talk over a WebSocket".to_owned()],
            Ok(SocketUpgrade::Watch(watching)) => vec![self.watch(watching)],
            Ok(SocketUpgrade::Close(said, code)) => {
                vec![format!("< {}, and closes with {code}", String::from_utf8_lossy(&said))]
            }
            Err(reply) => written(Over::Http, Some(&reply)),
        }
    }

    fn watch(&mut self, JobWatchRequest { id, pace, encoder: ticket }: JobWatchRequest) -> String {
        self.watch = Some(ticket);
        let pace = match pace {
            WatchPace::Events { quiet } => {
                format!("all that happens, a sign of life after {} ms", quiet.as_millis())
            }
            WatchPace::Snapshots { every, at_most } => {
                format!("how it is every {} ms for {} ms", every.as_millis(), at_most.as_millis())
            }
        };
        format!("? watch the job {id}: {pace}")
    }

    /// What the dialect makes of what the host says to the oldest ask.
    fn hear(&mut self, said: &str) -> Vec<String> {
        let (kind, rest) = said.split_once(' ').unwrap_or((said, ""));
        if kind == "turned_away" {
            return self.turn_away(rest);
        }
        if kind == "refused" {
            return written(Over::Http, Some(&self.dialect.refuse(&read_refused(rest))));
        }
        if kind == "told" {
            let watch = self.watch.as_ref().expect("a job that is watched");
            return written(
                Over::Line,
                watch.encode_item(&read_watched(rest)).map(Reply::json).as_ref(),
            );
        }
        if matches!(kind, "begin" | "snapshot" | "alive") {
            let watch = self.watch.as_ref().expect("a job that is watched");
            let job = (!matches!(rest, "" | "nobody")).then(|| read_job(rest));
            let bytes = match kind {
                "begin" => watch.encode_start(job.as_ref()),
                "snapshot" => watch.encode_snapshot(job.as_ref()),
                _ => watch.encode_keep_alive(),
            };
            return written(Over::Line, bytes.map(Reply::json).as_ref());
        }
        if let Some(told) = self.hear_changes(kind, rest) {
            return told;
        }
        let mut parts = self.open.iter_mut().flat_map(|open| &mut open.parts);
        let owed = parts.find_map(|part| match part {
            Part::Owed(ticket, via) => Some((ticket.clone(), via.clone(), part)),
            Part::Said(_) => None,
        });
        let (ticket, via, part) = owed.unwrap_or_else(|| panic!("`= {said}` answers nothing"));
        if kind == "question" {
            let (id, question) = rest.split_once(' ').expect("question ID QUESTION");
            let question: ClientQuestion = read(question);
            let said = ticket.encode_question(id, "key", &question);
            self.questions.insert(id.to_owned(), (ticket, question));
            return written(Over::Line, said.map(Reply::json).as_ref());
        }
        if let Some(event) = read_event(kind, rest) {
            return written(Over::Line, ticket.encode_event(&event).map(Reply::json).as_ref());
        }
        let outcome = read_outcome(kind, rest);
        let follows = match &outcome {
            Ok(HostAnswer::Job(job)) => ticket.job_encoder(job).map(|watch| (watch, job.clone())),
            Ok(_) | Err(_) => None,
        };
        *part = Part::Said(match via {
            None => ticket.encode_reply(outcome),
            Some(via) => {
                let came = outcome.map(|answer| ticket.envelope_data(&answer, TIME_LIMIT));
                let came = came.map_err(|error| ticket.envelope_error(error));
                ticket.encode_envelope(&sealed(via, came))
            }
        });
        let mut told = self.answers();
        if let Some((watch, job)) = follows {
            told.push("? follow the job".to_owned());
            let first = watch.encode_start(Some(&job)).map(Reply::json);
            told.extend(first.iter().flat_map(|reply| written(Over::Line, Some(reply))));
            self.watch = Some(watch);
        }
        told
    }

    /// What comes of a frame that is turned away: `METHOD PATH WHY`, or `line WHY`.
    fn turn_away(&mut self, said: &str) -> Vec<String> {
        let (word, rest) = said.split_once(' ').expect("line, or a method");
        let (head, over, why) = if word == "line" {
            (FrameHead::Line, Over::Line, rest)
        } else {
            let (path, why) = rest.split_once(' ').expect("a path, and why");
            let method = Method::from_str(word).expect("a method");
            let path = path.to_owned();
            let query = String::new();
            (FrameHead::Http { method, path, query, headers: HeaderMap::new() }, Over::Http, why)
        };
        let frame = MessageFrame { head, body: Bytes::new() };
        let mut told = Vec::new();
        let parts = vec![part(self.dialect.reject_frame(&frame, &read_refused(why)), &mut told)];
        let told = told.into_iter().flat_map(|line| self.meant(line)).collect::<Vec<_>>();
        self.open.push(Open { over, batch: false, parts });
        told.into_iter().chain(self.answers()).collect()
    }

    /// What the dialect tells of changes to whoever listens.
    fn hear_changes(&mut self, kind: &str, rest: &str) -> Option<Vec<String>> {
        let (what, more) = rest.split_once(' ').unwrap_or((rest, ""));
        if kind == "tidings" {
            let conversation = match rest {
                "" => Some(&self.line),
                session => self.sessions.get(session),
            };
            self.listen = conversation.expect("a conversation").notification_encoder();
            let nothing = self.listen.is_none().then(|| "< nothing".to_owned());
            return Some(nothing.into_iter().collect());
        }
        let listen = || self.listen.as_ref().expect("somebody who listens");
        let told = match kind {
            "heard" => listen().encode_start(&read_interest(rest)).into_iter().collect(),
            "changed" if what == "job" => {
                listen().encode_job(&read_job(more)).into_iter().collect()
            }
            "changed" => listen().encode_change(&read_change(rest)).into_iter().collect(),
            "ends" => listen().encode_end(),
            _ => return None,
        };
        if told.is_empty() {
            return Some(vec!["< nothing".to_owned()]);
        }
        Some(told.into_iter().flat_map(|it| written(Over::Line, Some(&Reply::json(it)))).collect())
    }

    /// The answers that have become whole.
    fn answers(&mut self) -> Vec<String> {
        let whole = |open: &mut Open| open.parts.iter().all(|p| matches!(p, Part::Said(_)));
        let mut told = Vec::new();
        for Open { over, batch, parts } in self.open.extract_if(.., whole) {
            let mut replies = parts.into_iter().filter_map(|part| match part {
                Part::Said(reply) => reply,
                Part::Owed(..) => None,
            });
            let reply = if batch {
                Some(self.line.join_replies(replies.by_ref().collect()))
            } else {
                replies.next()
            };
            told.extend(written(over, reply.as_ref()));
            told.extend(replies.flat_map(|more| written(over, Some(&more))));
        }
        told
    }
}

/// The dialect called `name`, of a server that has all there is.
pub(crate) fn dialect(name: &str) -> Arc<dyn Dialect> {
    dialect_of(name, &facts(""))
}

fn dialect_of(name: &str, facts: &Arc<ServerInfo>) -> Arc<dyn Dialect> {
    let mut dialects = all_dialects(facts).into_iter();
    dialects.find(|dialect| dialect.name() == name).expect("a dialect")
}

pub(crate) fn mcp() -> McpDialect {
    McpDialect::new(facts(""))
}

/// What a server says of itself that has all there is but what `without` names.
fn facts(without: &str) -> Arc<ServerInfo> {
    let has = |what| !without.split(", ").any(|one| one == what);
    Arc::new(ServerInfo {
        name: "toolgate".into(),
        title: "Toolgate".into(),
        version: "1.0.0".into(),
        description: "Serves a workspace's files and commands to agents.".into(),
        instructions: "Paths are relative to the root.".into(),
        jobs: has("jobs"),
        resources: has("resources"),
        prompts: has("prompts"),
        skills: has("skills"),
        http_sse: has("http_sse"),
        card: has("card").then(|| toolgate_dialects::ServerCard {
            name: "com.example/tools".to_owned(),
            url: None,
        }),
        zyra_body_bytes_max: (!has("long requests")).then_some(100),
        requires_auth: !has("anonymous callers"),
        tls: false,
    })
}

/// What a message asks of the server.
enum Saying {
    Line(String),
    Told { id: String, heard: ClientResponse },
}

/// One message as it was read: what it asks of the server goes to `told`.
fn part(reading: FrameReading, told: &mut Vec<Saying>) -> Part {
    let mut line = |line: String| told.push(Saying::Line(line));
    match reading {
        FrameReading::Reply(reply) => Part::Said(Some(reply)),
        FrameReading::OpenSession(reply) => {
            line("? open a session".to_owned());
            Part::Said(Some(reply))
        }
        FrameReading::CloseSession(reply) => {
            line("? close the session".to_owned());
            Part::Said(Some(reply))
        }
        FrameReading::Cancel { key: RequestKey(key), reply } => {
            line(format!("? cancel {key}"));
            Part::Said(Some(reply))
        }
        FrameReading::Request(ask) => {
            line(asked(&ask));
            match (&ask.request, &ask.origin) {
                // The host has nothing else to say to it.
                (HostRequest::Refuse(why) | HostRequest::RefuseCall { why, .. }, Some(via)) => {
                    Part::Said(ask.encoder.encode_envelope(&sealed(*via.clone(), Err(why.clone()))))
                }
                _ => Part::Owed(ask.encoder, ask.origin.map(|via| *via)),
            }
        }
        FrameReading::Unwatch { uri, reply } => {
            line(format!("? watch the resource {uri} no more"));
            Part::Said(Some(reply))
        }
        FrameReading::Response { id, heard, reply } => {
            told.push(Saying::Told { id, heard });
            Part::Said(Some(reply))
        }
        FrameReading::Watch(_)
        | FrameReading::Subscribe(_)
        | FrameReading::OpenNotifications { .. }
        | FrameReading::Replies(_)
        | FrameReading::Batch(_) => panic!("within a batch there are only messages"),
    }
}
