//! Replays a transcript with a server that has no tools and takes the answers of its host from the
//! transcript.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use toolgate_contract::{
    Caller, ClientQuestion, EnvelopeRequestInfo, FrameMetadata, HostAnswer, HostRequest,
    MessageFrame, Reply, ToolResultFormat,
};
use toolgate_dialects::mcp::McpDialect;
use toolgate_dialects::{
    AnswerEncoder, ChangeNotificationEncoder, ChangeSubscription, ClientConversation,
    ClientQuestionResponse, Dialect, InFlightRequestKey, JobEventEncoder, JobWatchRequest,
    JobWatchSchedule, ParsedFrame, ServerInfo, WebSocketPurpose, all_dialects,
};

use crate::format::{build_envelope, format_filter, format_reply, format_request};
use crate::parse::{read_event, read_job, read_job_item, read_outcome, read_refusal};
use crate::parse_answers::{parse_json, read_change, read_filter};

/// Time limit of every tool in the answers of the host.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Returns the transcript `recorded` with the current output of the dialect `name`.
pub(crate) fn replay(recorded: &str, name: &str) -> String {
    let mut player = ReplayServer::new(&dialect(name));
    let mut abbreviations = Vec::new();
    let mut output = Vec::new();
    let mut lines = recorded.lines().peekable();
    while let Some(line) = lines.next() {
        match line.split_at_checked(1).unwrap_or_default() {
            ("?" | "<", _) => {}
            (">", first) => {
                let mut frame = vec![first];
                while parse_request_line(first).is_some()
                    && let Some(next) = lines.peek().and_then(|line| line.strip_prefix('>'))
                    && parse_request_line(next).is_none()
                {
                    frame.push(next);
                    lines.next();
                }
                output.extend(frame.iter().map(|line| format!(">{line}")));
                output.extend(player.read(&read_frame(&frame, &abbreviations)));
            }
            ("=", answer) => {
                output.push(line.to_owned());
                output.extend(player.apply_answer(answer.trim()));
            }
            ("~", comment) => {
                output.push(line.to_owned());
                assert!(player.open.is_empty(), "a request before `{line}` was left unanswered");
                let without = comment.trim().strip_prefix("a server without ").unwrap_or_default();
                player = ReplayServer::new(&dialect_of(name, &server_info(without)));
            }
            (":", definition) => {
                output.push(line.to_owned());
                let (name, text) = definition.trim().split_once(" is ").expect(": $NAME is TEXT");
                abbreviations.push((name.to_owned(), text.to_owned()));
            }
            ("#" | "", _) => output.push(line.to_owned()),
            _ => panic!("`{line}` does not start with one of # : ~ > ? = <"),
        }
    }
    assert!(player.open.is_empty(), "a request at the end was left unanswered");
    output.join("\n") + "\n"
}

/// Parses a frame of a transcript from its lines, which no longer begin with `>`. Expands the
/// abbreviations.
fn read_frame(lines: &[&str], abbreviations: &[(String, String)]) -> MessageFrame {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let line = line.strip_prefix(' ').unwrap_or(line).to_owned();
            abbreviations.iter().fold(line, |line, (name, text)| line.replace(name, text))
        })
        .collect();
    let Some((method, target)) = parse_request_line(&lines[0]) else {
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
    MessageFrame {
        head: FrameMetadata::Http { method, path, query, headers },
        body: read_body(&body),
    }
}

/// Parses the HTTP method and target at the start of a frame. Returns `None` for a frame that is
/// not HTTP.
fn parse_request_line(line: &str) -> Option<(Method, &str)> {
    let (word, target) = line.trim().split_once(' ').unwrap_or((line.trim(), "/mcp"));
    let is_method = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    (is_method && target.starts_with('/'))
        .then(|| (Method::from_str(word).expect("a method"), target))
}

/// Parses the body of a frame: its text, `bytes` and hexadecimal digits, or `repeat COUNT TEXT`.
fn read_body(text: &str) -> Bytes {
    if let Some(hex) = text.strip_prefix("bytes ") {
        let byte = |hex| u8::from_str_radix(hex, 16).expect("two hexadecimal digits");
        return hex.split(' ').map(byte).collect();
    }
    if let Some(rule) = text.strip_prefix("repeat ") {
        let (count, text) = rule.split_once(' ').expect("repeat COUNT TEXT");
        return text.repeat(count.parse().expect("a number")).into();
    }
    Bytes::copy_from_slice(text.as_bytes())
}

/// Server without tools, which takes the answers of its host from a transcript.
struct ReplayServer {
    dialect: Arc<dyn Dialect>,
    line: Box<dyn ClientConversation>,
    sessions: BTreeMap<String, Box<dyn ClientConversation>>,
    session_count: usize,
    open: Vec<UnansweredTranscriptFrame>,
    job_events: Option<Arc<dyn JobEventEncoder>>,
    changes: Option<Arc<dyn ChangeNotificationEncoder>>,
    questions: BTreeMap<String, (Arc<dyn AnswerEncoder>, ClientQuestion)>,
}

/// Frame of a transcript that the server has not answered completely.
struct UnansweredTranscriptFrame {
    transport: TranscriptFrameTransport,
    batch: bool,
    parts: Vec<TranscriptAnswer>,
}

/// Transport of a frame in a transcript.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TranscriptFrameTransport {
    Line,
    Http,
}

/// Answer to one message of a transcript: ready, or waiting for the host.
enum TranscriptAnswer {
    Ready(Option<Reply>),
    Pending(Arc<dyn AnswerEncoder>, Option<EnvelopeRequestInfo>),
}

impl ReplayServer {
    fn new(dialect: &Arc<dyn Dialect>) -> Self {
        let line = dialect.start_conversation(&Caller::local());
        let dialect = dialect.clone();
        Self {
            dialect,
            line,
            sessions: BTreeMap::new(),
            session_count: 0,
            open: Vec::new(),
            job_events: None,
            changes: None,
            questions: BTreeMap::new(),
        }
    }

    /// Passes `frame` to the dialect and returns the transcript lines that result.
    fn read(&mut self, frame: &MessageFrame) -> Vec<String> {
        if frame.head.header("upgrade").next().is_some() {
            return self.upgrade(&frame.head);
        }
        let transport = match &frame.head {
            FrameMetadata::Line => TranscriptFrameTransport::Line,
            FrameMetadata::Http { .. } => TranscriptFrameTransport::Http,
        };
        let session = self.dialect.session(&frame.head).map(str::to_owned);
        let mut fresh = self.dialect.start_conversation(&Caller::local());
        let conversation = match (&session, transport) {
            (Some(id), _) => match self.sessions.get_mut(id) {
                Some(conversation) => conversation,
                None => return format_reply(transport, Some(&self.dialect.unknown_session())),
            },
            (None, TranscriptFrameTransport::Line) => &mut self.line,
            (None, TranscriptFrameTransport::Http) => &mut fresh,
        };
        let mut lines = Vec::new();
        let (is_batch, parts) = match conversation.read(frame) {
            ParsedFrame::Batch(items) => {
                (true, items.into_iter().map(|item| take_part(item, &mut lines)).collect())
            }
            ParsedFrame::Watch(watching) => return vec![self.watch(watching)],
            ParsedFrame::Subscribe(ChangeSubscription {
                key: InFlightRequestKey(key),
                filter,
                encoder,
            }) => {
                self.changes = Some(encoder);
                return vec![format!("? subscribe to {}  [key {key}]", format_filter(&filter))];
            }
            ParsedFrame::OpenNotifications { after } => {
                let after = after.map(|after| format!(" after {after}")).unwrap_or_default();
                return vec![format!("? open the stream of notifications{after}")];
            }
            ParsedFrame::Replies(replies) => (
                false,
                replies.into_iter().map(|reply| TranscriptAnswer::Ready(Some(reply))).collect(),
            ),
            ParsedFrame::OpenSession(reply)
                if transport == TranscriptFrameTransport::Http && session.is_none() =>
            {
                self.session_count += 1;
                let id = format!("s{}", self.session_count);
                let reply = self.dialect.open_session(reply, &id);
                self.sessions.insert(id, fresh);
                (false, vec![take_part(ParsedFrame::OpenSession(reply), &mut lines)])
            }
            reading => {
                if let (ParsedFrame::CloseSession(_), Some(id)) = (&reading, &session) {
                    self.sessions.remove(id);
                }
                (false, vec![take_part(reading, &mut lines)])
            }
        };
        let lines = lines.into_iter().flat_map(|line| self.format_line(line)).collect::<Vec<_>>();
        self.open.push(UnansweredTranscriptFrame { transport, batch: is_batch, parts });
        lines.into_iter().chain(self.take_answers()).collect()
    }

    /// Formats a message to the host as transcript lines. A response of the client is followed by
    /// its parsed form.
    fn format_line(&mut self, line: TranscriptHostMessage) -> Vec<String> {
        match line {
            TranscriptHostMessage::Request(line) => vec![line],
            TranscriptHostMessage::Response { id, response } => {
                let line = match &response {
                    ClientQuestionResponse::Result(result) => format!("? response {id}: {result}"),
                    ClientQuestionResponse::Error(why) => format!("? response {id}: error {why:?}"),
                };
                let parsed = self.questions.get(&id).map(|(encoder, question)| {
                    match encoder.parse_answer(question, &response) {
                        Ok(answer) => {
                            let answer = serde_json::to_string(&answer).expect("JSON");
                            format!("? parsed as {answer}")
                        }
                        Err(why) => format!("? refused as an answer: {why}"),
                    }
                });
                [line].into_iter().chain(parsed).collect()
            }
        }
    }

    /// Returns the transcript lines for a client that opens a WebSocket.
    fn upgrade(&mut self, head: &FrameMetadata) -> Vec<String> {
        match self.dialect.upgrade(head) {
            Ok(WebSocketPurpose::Converse) => vec!["? open a WebSocket".to_owned()],
            Ok(WebSocketPurpose::Watch(watching)) => vec![self.watch(watching)],
            Ok(WebSocketPurpose::Close(message, code)) => {
                vec![format!("< {}, and closes with {code}", String::from_utf8_lossy(&message))]
            }
            Err(reply) => format_reply(TranscriptFrameTransport::Http, Some(&reply)),
        }
    }

    /// Starts to watch a job, and returns the transcript line that reports this.
    fn watch(&mut self, JobWatchRequest { id, schedule, encoder }: JobWatchRequest) -> String {
        self.job_events = Some(encoder);
        let schedule = match schedule {
            JobWatchSchedule::Events { quiet } => {
                format!("all events, a keep-alive after {} ms", quiet.as_millis())
            }
            JobWatchSchedule::Snapshots { every, at_most } => {
                format!("a snapshot every {} ms for {} ms", every.as_millis(), at_most.as_millis())
            }
        };
        format!("? watch the job {id}: {schedule}")
    }

    /// Applies a transcript line of the host: the answer to the oldest request, or an event.
    /// Returns the transcript lines that result.
    fn apply_answer(&mut self, line: &str) -> Vec<String> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "reject" {
            return self.reject(rest);
        }
        if kind == "refused" {
            return format_reply(
                TranscriptFrameTransport::Http,
                Some(&self.dialect.refuse(&read_refusal(rest))),
            );
        }
        if kind == "job_event" {
            let watch = self.job_events.as_ref().expect("a job that is watched");
            return format_reply(
                TranscriptFrameTransport::Line,
                watch.encode_item(&read_job_item(rest)).map(Reply::json).as_ref(),
            );
        }
        if matches!(kind, "start" | "snapshot" | "keep_alive") {
            let watch = self.job_events.as_ref().expect("a job that is watched");
            let job = (!matches!(rest, "" | "none")).then(|| read_job(rest));
            let bytes = match kind {
                "start" => watch.encode_start(job.as_ref()),
                "snapshot" => watch.encode_snapshot(job.as_ref()),
                _ => watch.encode_keep_alive(),
            };
            return format_reply(TranscriptFrameTransport::Line, bytes.map(Reply::json).as_ref());
        }
        if let Some(output) = self.apply_change(kind, rest) {
            return output;
        }
        let mut parts = self.open.iter_mut().flat_map(|open| &mut open.parts);
        let pending = parts.find_map(|part| match part {
            TranscriptAnswer::Pending(encoder, origin) => {
                Some((encoder.clone(), origin.clone(), part))
            }
            TranscriptAnswer::Ready(_) => None,
        });
        let (encoder, origin, part) =
            pending.unwrap_or_else(|| panic!("`= {line}` answers no request"));
        if kind == "question" {
            let (id, question) = rest.split_once(' ').expect("question ID QUESTION");
            let question: ClientQuestion = parse_json(question);
            let message = encoder.encode_question(id, "key", &question);
            self.questions.insert(id.to_owned(), (encoder, question));
            return format_reply(TranscriptFrameTransport::Line, message.map(Reply::json).as_ref());
        }
        if let Some(event) = read_event(kind, rest) {
            return format_reply(
                TranscriptFrameTransport::Line,
                encoder.encode_event(&event).map(Reply::json).as_ref(),
            );
        }
        let outcome = read_outcome(kind, rest);
        let followed = match &outcome {
            Ok(HostAnswer::Job(job)) => encoder.job_encoder(job).map(|watch| (watch, job.clone())),
            Ok(_) | Err(_) => None,
        };
        *part = TranscriptAnswer::Ready(match origin {
            None => encoder.encode_reply(outcome),
            Some(origin) => {
                let data = outcome.map(|answer| encoder.envelope_data(&answer, TIME_LIMIT));
                let data = data.map_err(|error| encoder.envelope_error(error));
                encoder.encode_envelope(&build_envelope(origin, data))
            }
        });
        let mut output = self.take_answers();
        if let Some((watch, job)) = followed {
            output.push("? follow the job".to_owned());
            let first = watch.encode_start(Some(&job)).map(Reply::json);
            output.extend(
                first
                    .iter()
                    .flat_map(|reply| format_reply(TranscriptFrameTransport::Line, Some(reply))),
            );
            self.job_events = Some(watch);
        }
        output
    }

    /// Rejects a frame that `line` describes as `METHOD PATH WHY` or `line WHY`. Returns the
    /// transcript lines of the reply.
    fn reject(&mut self, line: &str) -> Vec<String> {
        let (word, rest) = line.split_once(' ').expect("line, or a method");
        let (head, transport, why) = if word == "line" {
            (FrameMetadata::Line, TranscriptFrameTransport::Line, rest)
        } else {
            let (path, why) = rest.split_once(' ').expect("a path, and why");
            let method = Method::from_str(word).expect("a method");
            let path = path.to_owned();
            let query = String::new();
            (
                FrameMetadata::Http { method, path, query, headers: HeaderMap::new() },
                TranscriptFrameTransport::Http,
                why,
            )
        };
        let frame = MessageFrame { head, body: Bytes::new() };
        let mut lines = Vec::new();
        let reading = self.dialect.reject_frame(&frame, &read_refusal(why));
        let parts = vec![take_part(reading, &mut lines)];
        let lines = lines.into_iter().flat_map(|line| self.format_line(line)).collect::<Vec<_>>();
        self.open.push(UnansweredTranscriptFrame { transport, batch: false, parts });
        lines.into_iter().chain(self.take_answers()).collect()
    }

    /// Applies a transcript line about changes on the server. Returns the resulting lines, or
    /// `None` if `kind` is not about changes.
    fn apply_change(&mut self, kind: &str, rest: &str) -> Option<Vec<String>> {
        let (what, more) = rest.split_once(' ').unwrap_or((rest, ""));
        if kind == "notifications" {
            let conversation = match rest {
                "" => Some(&self.line),
                session => self.sessions.get(session),
            };
            self.changes = conversation.expect("a conversation").notification_encoder();
            let nothing = self.changes.is_none().then(|| "< nothing".to_owned());
            return Some(nothing.into_iter().collect());
        }
        let encoder = || self.changes.as_ref().expect("a subscription");
        let messages = match kind {
            "subscribed" => encoder().encode_start(&read_filter(rest)).into_iter().collect(),
            "changed" if what == "job" => {
                encoder().encode_job(&read_job(more)).into_iter().collect()
            }
            "changed" => encoder().encode_change(&read_change(rest)).into_iter().collect(),
            "end" => encoder().encode_end(),
            _ => return None,
        };
        if messages.is_empty() {
            return Some(vec!["< nothing".to_owned()]);
        }
        let replies = messages.into_iter().map(Reply::json);
        Some(
            replies
                .flat_map(|reply| format_reply(TranscriptFrameTransport::Line, Some(&reply)))
                .collect(),
        )
    }

    /// Removes each frame whose answer is complete, and returns the transcript lines of these
    /// answers.
    fn take_answers(&mut self) -> Vec<String> {
        let is_complete = |open: &mut UnansweredTranscriptFrame| {
            open.parts.iter().all(|p| matches!(p, TranscriptAnswer::Ready(_)))
        };
        let mut output = Vec::new();
        for UnansweredTranscriptFrame { transport, batch, parts } in
            self.open.extract_if(.., is_complete)
        {
            let mut replies = parts.into_iter().filter_map(|part| match part {
                TranscriptAnswer::Ready(reply) => reply,
                TranscriptAnswer::Pending(..) => None,
            });
            let reply = if batch {
                Some(self.line.join_replies(replies.by_ref().collect()))
            } else {
                replies.next()
            };
            output.extend(format_reply(transport, reply.as_ref()));
            output.extend(replies.flat_map(|more| format_reply(transport, Some(&more))));
        }
        output
    }
}

/// Returns the dialect `name` of a server with all features.
pub(crate) fn dialect(name: &str) -> Arc<dyn Dialect> {
    dialect_of(name, &server_info(""))
}

fn dialect_of(name: &str, info: &Arc<ServerInfo>) -> Arc<dyn Dialect> {
    let mut dialects = all_dialects(info).into_iter();
    dialects.find(|dialect| dialect.name() == name).expect("a dialect")
}

/// Returns MCP's dialect of a server with all features.
pub(crate) fn mcp() -> McpDialect {
    McpDialect::new(server_info(""))
}

/// Returns the description of a server with all features except those in the list `without`.
fn server_info(without: &str) -> Arc<ServerInfo> {
    let has = |feature| !without.split(", ").any(|missing| missing == feature);
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
            url: "https://tools.example/mcp".to_owned(),
        }),
        zyra_body_bytes_max: (!has("long requests")).then_some(100),
        requires_auth: !has("anonymous callers"),
        tls: false,
        results: ToolResultFormat::Both,
    })
}

/// Message of a frame to the host: a request as a transcript line, or a response of the client.
enum TranscriptHostMessage {
    Request(String),
    Response { id: String, response: ClientQuestionResponse },
}

/// Returns the answer to one parsed message of a frame. Appends the requests that the message sends
/// to the host to `lines`.
fn take_part(reading: ParsedFrame, lines: &mut Vec<TranscriptHostMessage>) -> TranscriptAnswer {
    let mut add = |line: String| lines.push(TranscriptHostMessage::Request(line));
    match reading {
        ParsedFrame::Reply(reply) | ParsedFrame::StateChange { reply, .. } => {
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::OpenSession(reply) => {
            add("? open a session".to_owned());
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::CloseSession(reply) => {
            add("? close the session".to_owned());
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::Cancel { key: InFlightRequestKey(key), reply } => {
            add(format!("? cancel {key}"));
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::Request(ask) => {
            add(format_request(&ask));
            match (&ask.request, &ask.origin) {
                // The host only refuses it.
                (HostRequest::Refuse(why) | HostRequest::RefuseCall { why, .. }, Some(origin)) => {
                    TranscriptAnswer::Ready(
                        ask.encoder
                            .encode_envelope(&build_envelope(*origin.clone(), Err(why.clone()))),
                    )
                }
                _ => TranscriptAnswer::Pending(ask.encoder, ask.origin.map(|origin| *origin)),
            }
        }
        ParsedFrame::Unwatch { uri, reply } => {
            add(format!("? stop watching the resource {uri}"));
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::Response { id, heard, reply } => {
            lines.push(TranscriptHostMessage::Response { id, response: heard });
            TranscriptAnswer::Ready(Some(reply))
        }
        ParsedFrame::Watch(_)
        | ParsedFrame::Subscribe(_)
        | ParsedFrame::OpenNotifications { .. }
        | ParsedFrame::Replies(_)
        | ParsedFrame::Batch(_) => panic!("within a batch there are only messages"),
    }
}
