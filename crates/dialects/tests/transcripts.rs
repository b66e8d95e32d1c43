//! Tells every transcript again to the real dialect and compares what it says.
//!
//! `transcripts/README.md` says how one is written. `UPDATE_TRANSCRIPTS=1` writes down what the
//! dialect says now; read the difference before you accept it.

#![allow(clippy::disallowed_methods, reason = "a test reads and writes its own transcripts")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, AnyTool, Body, BoxFuture, CallError, Ctx, Effects, Ending, Event, Frame, Head, Level,
    Output, Problem, Reply, Request, Stream, Text, ToolError, ToolId, ToolPage, ToolSpec,
};
use toolgate_dialects::mcp::Mcp;
use toolgate_dialects::{
    Accepts, Ask, Conversation, Dialect, Facts, Key, OnLeave, Reading, Refused, Ticket,
};

#[test]
fn a_session_of_2024_11_05_has_only_names_and_texts() {
    check("mcp/2024-11-05.txt");
}

#[test]
fn a_session_of_2025_03_26_has_annotations_and_batches() {
    check("mcp/2025-03-26.txt");
}

#[test]
fn a_session_of_2025_06_18_has_structured_results() {
    check("mcp/2025-06-18.txt");
}

#[test]
fn a_session_of_2025_11_25_tells_the_model_what_is_wrong_with_its_arguments() {
    check("mcp/2025-11-25.txt");
}

#[test]
fn a_request_of_2026_07_28_carries_all_it_needs() {
    check("mcp/2026-07-28.txt");
}

#[test]
fn stateless_http_answers_each_post_on_its_own() {
    check("mcp/http-stateless.txt");
}

#[test]
fn sessions_over_http_are_named_by_a_header() {
    check("mcp/http-sessions.txt");
}

#[test]
fn what_a_request_carries_decides_its_era() {
    check("mcp/eras.txt");
}

#[test]
fn headers_that_differ_from_the_body_are_refused() {
    check("mcp/headers.txt");
}

#[test]
fn a_cursor_names_a_place_in_the_list() {
    check("mcp/cursors.txt");
}

#[test]
fn a_tool_is_listed_as_far_as_the_revision_has_words_for_it() {
    check("mcp/schemas.txt");
}

#[test]
fn every_refusal_is_spelled_in_every_revision() {
    check("mcp/refusals.txt");
}

#[test]
fn parameters_of_the_wrong_shape_are_refused_by_name() {
    check("mcp/parameters.txt");
}

#[test]
fn progress_only_grows() {
    check("mcp/progress.txt");
}

#[test]
fn log_lines_are_sent_from_the_level_that_was_asked_for() {
    check("mcp/logging.txt");
}

#[test]
fn a_cancelled_request_is_not_answered() {
    check("mcp/cancellation.txt");
}

#[test]
fn only_2025_03_26_takes_batches() {
    check("mcp/batches.txt");
}

#[test]
fn an_id_comes_back_as_it_was_sent() {
    check("mcp/ids.txt");
}

#[test]
fn malformed_frames_are_refused_and_notifications_never_answered() {
    check("mcp/malformed.txt");
}

#[test]
fn what_the_server_turns_away_is_told_in_json_rpc() {
    check("mcp/turned-away.txt");
}

#[test]
fn no_transcript_is_forgotten() {
    let tests = include_str!("transcripts.rs");
    for entry in fs::read_dir(folder().join("mcp")).expect("the folder of transcripts") {
        let name = entry.expect("an entry").file_name();
        let call = format!("check(\"mcp/{}\")", name.to_string_lossy());
        assert!(tests.contains(&call), "no test tells {name:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        surroundings in surroundings(),
    ) {
        tell(surroundings, bytes)?;
    }

    #[test]
    fn no_json_makes_a_reader_panic(value in json_value(), surroundings in surroundings()) {
        tell(surroundings, value.to_string().into_bytes())?;
    }

    #[test]
    fn no_message_makes_a_reader_panic(message in message(), surroundings in surroundings()) {
        tell(surroundings, message.to_string().into_bytes())?;
    }
}

/// Checks that the dialect still says what the transcript `file` records.
fn check(file: &str) {
    let path = folder().join(file);
    let recorded = fs::read_to_string(&path).expect("a transcript");
    let told = retell(&recorded);
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        fs::write(&path, told).expect("the transcript is writable");
    } else if let Some(difference) = difference(&recorded, &told) {
        panic!("{file}:{difference}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

/// Where two texts first differ.
fn difference(recorded: &str, told: &str) -> Option<String> {
    let (mut was, mut is) = (recorded.lines(), told.lines());
    for number in 1.. {
        match (was.next(), is.next()) {
            (None, None) => return None,
            (was, is) if was == is => {}
            (was, is) => {
                let [was, is] = [was, is].map(|line| line.unwrap_or("the end"));
                let same = was.chars().zip(is.chars()).take_while(|(a, b)| a == b).count();
                let near = |line: &str| {
                    line.chars().skip(same.saturating_sub(60)).take(200).collect::<String>()
                };
                return Some(format!("{number}\nrecorded: {}\n     now: {}", near(was), near(is)));
            }
        }
    }
    None
}

/// The transcript with what the dialect says now in place of what it said.
fn retell(recorded: &str) -> String {
    let mut stage = Stage::new();
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
                stage = Stage::new();
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
    let Some(method) = verb(&lines[0]) else { return Frame::line(read_body(&lines[0])) };
    let end = lines.iter().position(String::is_empty).unwrap_or(lines.len());
    let mut headers = HeaderMap::new();
    for line in &lines[1..end] {
        let (name, value) = line.split_once(": ").expect("a header is `Name: value`");
        let name = HeaderName::from_str(name).expect("a header's name");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a header's value"));
    }
    let body = lines.get(end + 1..).unwrap_or_default().join("\n");
    Frame { head: Head::Http { method, headers }, body: read_body(&body) }
}

/// The method of a frame that comes over HTTP, if `line` begins one.
fn verb(line: &str) -> Option<Method> {
    let word = line.trim();
    let sound = !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    sound.then(|| Method::from_str(word).expect("a method"))
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
    mcp: Mcp,
    line: Box<dyn Conversation>,
    sessions: BTreeMap<String, Box<dyn Conversation>>,
    opened: usize,
    open: Vec<Heard>,
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
    fn new() -> Self {
        let mcp = mcp();
        let line = mcp.converse();
        Self { mcp, line, sessions: BTreeMap::new(), opened: 0, open: Vec::new() }
    }

    /// Reads `frame` in the conversation it belongs to and says what comes of it.
    fn read(&mut self, frame: &Frame) -> Vec<String> {
        let over = match &frame.head {
            Head::Line => Over::Line,
            Head::Http { .. } => Over::Http,
        };
        let session = self.mcp.session(&frame.head).map(str::to_owned);
        let mut fresh = self.mcp.converse();
        let conversation = match (&session, over) {
            (Some(id), _) => match self.sessions.get_mut(id) {
                Some(conversation) => conversation,
                None => return written(over, Some(&self.mcp.unknown_session())),
            },
            (None, Over::Line) => &mut self.line,
            (None, Over::Http) => &mut fresh,
        };
        let mut told = Vec::new();
        let (batch, parts) = match conversation.read(frame) {
            Reading::Batch(items) => {
                (true, items.into_iter().map(|item| part(item, &mut told)).collect())
            }
            Reading::Opened(reply) if over == Over::Http && session.is_none() => {
                self.opened += 1;
                let id = format!("s{}", self.opened);
                let reply = self.mcp.open_session(reply, &id);
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

    /// What the dialect makes of what the host says to the oldest ask.
    fn hear(&mut self, said: &str) -> Vec<String> {
        let (kind, rest) = said.split_once(' ').unwrap_or((said, ""));
        if kind == "refused" {
            return written(Over::Http, Some(&self.mcp.refuse(&read_refused(rest))));
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
        *part = Part::Said(ticket.reply(read_outcome(kind, rest)));
        self.answers()
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
            let reply =
                if batch { Some(self.line.join(replies.collect())) } else { replies.next() };
            told.extend(written(over, reply.as_ref()));
        }
        told
    }
}

fn mcp() -> Mcp {
    Mcp::new(Arc::new(Facts {
        name: "toolgate".into(),
        title: "Toolgate".into(),
        version: "1.0.0".into(),
        about: "Serves a workspace's files and commands to agents.".into(),
        instructions: "Paths are relative to the root.".into(),
    }))
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
        Reading::Batch(_) => panic!("a batch within a batch"),
    }
}

fn asked(ask: &Ask) -> String {
    let Ask { key: Key(key), request, ticket, on_leave, events } = ask;
    let request = match request {
        Request::ListTools { after: None } => "list the tools".to_owned(),
        Request::ListTools { after: Some(tool) } => format!("list the tools after {tool}"),
        Request::CallTool { tool, input } => format!("call {tool} {input}"),
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
        Body::Empty if told.is_empty() => told.push("< nothing".to_owned()),
        Body::Empty => {}
    }
    told
}

/// `progress DONE [of TOTAL] [TEXT]`, `log LEVEL TEXT` or `chunk STREAM TEXT`.
fn read_event(kind: &str, rest: &str) -> Option<Event> {
    let (first, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(match kind {
        "progress" => {
            let (total, message) = match rest.strip_prefix("of ") {
                Some(rest) => {
                    let (total, message) = rest.split_once(' ').unwrap_or((rest, ""));
                    (Some(total.parse().expect("a total")), message)
                }
                None => (None, rest),
            };
            let message = (!message.is_empty()).then(|| read_text(message));
            Event::Progress { done: first.parse().expect("how much is done"), total, message }
        }
        "log" => Event::Log {
            level: serde_json::from_value(first.into()).expect("a level"),
            message: read_text(rest),
        },
        "chunk" => {
            let stream = if first == "stderr" { Stream::Stderr } else { Stream::Stdout };
            Event::Chunk { stream, text: read_text(rest) }
        }
        _ => return None,
    })
}

/// `tools ID… [then more]`, `output VALUE TEXT [NOTE]`, `failed VALUE TEXT` or `error REASON FIELDS`.
fn read_outcome(kind: &str, rest: &str) -> Result<Answer, CallError> {
    match kind {
        "tools" => Ok(Answer::Tools(read_page(rest))),
        "output" => Ok(Answer::Output(read_output(rest, Ending::Done))),
        "failed" => Ok(Answer::Output(read_output(rest, Ending::ProgramFailed))),
        "error" => Err(read_error(rest)),
        _ => panic!("a host does not say `{kind}`"),
    }
}

fn read_output(text: &str, ending: Ending) -> Output {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let mut next = || values.next().map(|value: Result<Value, _>| value.expect("JSON"));
    let value = next().expect("a value");
    let body = next().and_then(|text| text.as_str().map(str::to_owned)).expect("a text");
    let note = next().and_then(|text| text.as_str().map(str::to_owned));
    Output { value, text: Text { body, note }, ending }
}

fn read_page(text: &str) -> ToolPage {
    let (names, more) = match text.strip_suffix(" then more") {
        Some(names) => (names, true),
        None => (text, false),
    };
    let tools: Vec<_> = names.split_whitespace().map(tool).collect();
    let next = tools.last().filter(|_| more).map(|tool| tool.spec().id.clone());
    ToolPage { tools, next }
}

fn read_error(text: &str) -> CallError {
    let (reason, fields) = text.split_once(' ').unwrap_or((text, "{}"));
    let fields: Value = serde_json::from_str(fields).expect("an error's fields");
    let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
    let ms = |name: &str| Duration::from_millis(fields[name].as_u64().unwrap_or_default());
    let message = text("message");
    let problems = || {
        let mut problems = Vec::new();
        for (pointer, message) in fields.as_object().expect("pointers and messages") {
            let message = message.as_str().expect("a message").to_owned();
            problems.push(Problem { pointer: pointer.clone(), message });
        }
        problems
    };
    match reason {
        "unknown_tool" => {
            let nearest = fields["nearest"].as_str().map(str::to_owned);
            CallError::UnknownTool { name: text("name"), nearest }
        }
        "invalid_input" => CallError::InvalidInput { problems: problems() },
        "not_allowed" => CallError::NotAllowed { message },
        "limited" => CallError::Limited { message, retry_after: ms("retry_after_ms") },
        "not_found" => CallError::NotFound { message },
        "conflict" => CallError::Conflict { message, details: fields["details"].clone() },
        "too_large" => CallError::TooLarge { message },
        "unavailable" => CallError::Unavailable { message },
        "timed_out" => CallError::TimedOut { after: ms("after_ms") },
        "canceled" => CallError::Canceled,
        "failed" => CallError::Failed { message, cause: text("cause") },
        "invalid_output" => CallError::InvalidOutput { problems: problems() },
        _ => panic!("no error is named `{reason}`"),
    }
}

/// `too_large BYTES`, `busy TEXT` or `repeated KEY`.
fn read_refused(text: &str) -> Refused {
    match text.split_once(' ').expect("why, and what") {
        ("too_large", limit) => Refused::TooLarge { limit: limit.parse().expect("bytes") },
        ("busy", message) => Refused::Busy { message: read_text(message) },
        ("repeated", key) => Refused::Repeated { key: Key(key.to_owned()) },
        (why, _) => panic!("a server does not refuse because `{why}`"),
    }
}

fn read_text(text: &str) -> String {
    serde_json::from_str(text).expect("a JSON string")
}

/// A tool that is only listed.
struct Listed(ToolSpec);

impl AnyTool for Listed {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a Ctx, _: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async { Err(ToolError::not_allowed("it is only listed")) })
    }
}

/// The tools that transcripts name.
fn tool(id: &str) -> Arc<dyn AnyTool> {
    let path = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let text = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] });
    let (title, effects, idempotent, input_schema, output_schema) = match id {
        "files.read" => ("Read file", Effects::Reads, true, path, Some(text)),
        "files.mkdir" => {
            ("Make folder", Effects::Adds, true, path, Some(json!({ "type": "object" })))
        }
        "files.delete" => {
            ("Delete file", Effects::Changes, false, path, Some(json!({ "type": "object" })))
        }
        "exec.run" => {
            ("Run program", Effects::Runs, false, json!({ "type": "object" }), Some(text))
        }
        // Another server's, which promises no structure.
        "docs.search.recent" => {
            ("Search docs", Effects::Reads, false, json!({ "type": "object" }), None)
        }
        // Its result is a list.
        "files.names" => (
            "Names",
            Effects::Reads,
            true,
            json!({ "type": "object", "additionalProperties": false }),
            Some(json!({ "type": "array", "items": { "type": "string" } })),
        ),
        // One of its arguments may be anything.
        "assets.check" => (
            "Check asset",
            Effects::Reads,
            true,
            json!({ "type": "object", "properties": { "asset": true, "strict": { "type": "boolean" } } }),
            Some(json!({ "type": "object", "properties": { "found": true } })),
        ),
        _ => panic!("no tool of these transcripts is named `{id}`"),
    };
    Arc::new(Listed(ToolSpec {
        id: ToolId::new(id).expect("an id"),
        title: title.into(),
        about: format!("About {id}."),
        effects,
        idempotent,
        deadline: None,
        input_schema,
        output_schema,
    }))
}

/// Reads `body` in a conversation and answers whatever it asks.
fn tell((session, headers): Surroundings, body: Vec<u8>) -> Result<(), TestCaseError> {
    let mcp = mcp();
    let mut conversation = mcp.converse();
    if let Some(revision) = session {
        let params = json!({ "protocolVersion": revision });
        let open = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        conversation.read(&Frame::line(open.to_string()));
    }
    let head = match headers {
        Some(headers) => Head::Http { method: Method::POST, headers },
        None => Head::Line,
    };
    let reading = conversation.read(&Frame { head, body: body.into() });
    sound(reading)
}

/// Whether everything that can come of `reading` is one line of JSON.
fn sound(reading: Reading) -> Result<(), TestCaseError> {
    let replies = match reading {
        Reading::Batch(items) => return items.into_iter().try_for_each(sound),
        Reading::Reply(reply) | Reading::Opened(reply) | Reading::Closed(reply) => vec![reply],
        Reading::Cancel { reply, .. } => vec![reply],
        Reading::Ask(ask) => {
            let odd = "a\nb\u{2028}\0\u{1f600}";
            let output =
                Output { value: json!([odd]), text: Text::body(odd), ending: Ending::Done };
            let progress = Event::Progress { done: 0.5, total: None, message: Some(odd.into()) };
            let line = Event::Log { level: Level::Emergency, message: odd.into() };
            let lost = CallError::NotFound { message: odd.into() };
            let outcomes =
                [Ok(Answer::Output(output)), Ok(Answer::Tools(read_page("files.read"))), Err(lost)];
            let events = [progress, line].into_iter().filter_map(|event| ask.ticket.event(&event));
            let answers = outcomes.into_iter().filter_map(|outcome| ask.ticket.reply(outcome));
            events.map(Reply::json).chain(answers).collect()
        }
    };
    for reply in replies {
        if let Body::Json(bytes) = reply.body {
            prop_assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r'));
            let value: Value = serde_json::from_slice(&bytes)
                .map_err(|err| TestCaseError::fail(format!("{bytes:?} is not JSON: {err}")))?;
            prop_assert_eq!(&value["jsonrpc"], "2.0");
        }
    }
    Ok(())
}

/// The revision agreed before, if any, and the headers beside, if any.
type Surroundings = (Option<&'static str>, Option<HeaderMap>);

fn surroundings() -> impl Strategy<Value = Surroundings> {
    let session = prop_oneof![
        Just(None),
        Just(Some("2024-11-05")),
        Just(Some("2025-03-26")),
        Just(Some("2025-06-18")),
        Just(Some("2025-11-25")),
    ];
    let name = prop_oneof![
        Just("mcp-protocol-version"),
        Just("mcp-method"),
        Just("mcp-name"),
        Just("accept"),
    ];
    let value = prop_oneof![
        Just(b"2026-07-28".to_vec()),
        Just(b"tools/call".to_vec()),
        Just(b"=?base64?YQ==?=".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    let headers = proptest::collection::vec((name, value), 0..5).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        headers
    });
    (session, proptest::option::of(headers))
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|entries| entries.into_iter().collect()),
        ]
    })
}

/// Something that has much of a message of MCP.
fn message() -> impl Strategy<Value = Value> {
    let method = prop_oneof![
        Just(json!("initialize")),
        Just(json!("ping")),
        Just(json!("tools/list")),
        Just(json!("tools/call")),
        Just(json!("server/discover")),
        Just(json!("logging/setLevel")),
        Just(json!("notifications/cancelled")),
        json_value(),
    ];
    let meta = proptest::option::of(json_value()).prop_map(|odd| {
        odd.unwrap_or_else(|| {
            json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/logLevel": "debug",
                "progressToken": "p",
            })
        })
    });
    let params = (meta, json_value(), json_value(), json_value()).prop_map(|(meta, a, b, c)| {
        json!({ "_meta": meta, "name": a, "arguments": b, "cursor": c, "level": a, "requestId": c })
    });
    let params = prop_oneof![4 => params, 1 => json_value()];
    let id = prop_oneof![4 => any::<i32>().prop_map(Value::from), 1 => json_value()];
    (id, method, params, any::<bool>()).prop_map(|(id, method, params, batch)| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if batch { json!([message, message]) } else { message }
    })
}
