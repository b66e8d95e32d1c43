//! Fuzz targets: bytes as frames of one conversation, and as cursors.
//!
//! The byte 0x1f separates frames. A frame that begins with a capital letter is an HTTP request. It
//! has a line with method, path and query, then headers, an empty line and the body. Any other
//! frame is a line.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use toolgate_contract::{
    Answer, Body, CallError, Caller, Change, Ending, Event, Frame, Head, Level, Output, Reply,
    Text, ToolPage,
};

use crate::{Ask, Conversation, Dialect, Facts, Reading, Refused, mcp, mira};

/// Processes one input, and panics if it finds a bug.
type Target = fn(&[u8]);

/// All fuzz targets of this crate, by the name of their folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("frames_mcp", frames_mcp),
    ("frames_zyra", frames_zyra),
    ("frames_mira", frames_mira),
    ("frames_synesthetic", frames_synesthetic),
    ("frames_workstation", frames_workstation),
    ("frames_envelope", frames_envelope),
    ("cursors", cursors),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Reads MCP frames.
fn frames_mcp(bytes: &[u8]) {
    frames("mcp", bytes);
}

/// Reads Zyra frames.
fn frames_zyra(bytes: &[u8]) {
    frames("zyra", bytes);
}

/// Reads Mira frames.
fn frames_mira(bytes: &[u8]) {
    frames("mira", bytes);
}

/// Reads Synesthetic frames.
fn frames_synesthetic(bytes: &[u8]) {
    frames("synesthetic", bytes);
}

/// Reads workstation frames.
fn frames_workstation(bytes: &[u8]) {
    frames("workstation", bytes);
}

/// Reads envelope frames.
fn frames_envelope(bytes: &[u8]) {
    frames("envelope", bytes);
}

/// Checks that a cursor that can be read can be written back.
fn cursors(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    mcp::check_cursor(text);
    mira::check_cursor(text);
}

/// Reads all frames in `bytes` and answers each request.
fn frames(name: &str, bytes: &[u8]) {
    let dialects = crate::all(&facts());
    let dialect = dialects.iter().find(|dialect| dialect.name() == name).expect("a dialect");
    let mut conversation = dialect.converse(&Caller::local());
    for bytes in bytes.split(|byte| *byte == 0x1f) {
        let frame = frame(bytes);
        ask_the_head(&**dialect, &frame);
        let reading = conversation.read(&frame);
        look(&*conversation, reading);
    }
    if let Some(tidings) = conversation.tidings() {
        let changes = [Change::Tools, Change::Prompts, Change::Resource("a:b".into())];
        changes.iter().filter_map(|change| tidings.changed(change)).for_each(check_message);
    }
}

/// Calls all methods of a dialect that need only a frame's head.
fn ask_the_head(dialect: &dyn Dialect, frame: &Frame) {
    let head = &frame.head;
    let _ = (dialect.session(head), dialect.claims(head), dialect.credential(head));
    let _ = (dialect.is_open(head), dialect.duplex(head));
    if let Err(reply) = dialect.upgrade(head) {
        check(reply);
    }
    if let Some(reading) = dialect.unreadable(head, "it broke off") {
        look_alone(reading);
    }
    look_alone(dialect.turn_away(frame, &Refused::TooLarge { limit: 7 }));
    look_alone(dialect.turn_away(frame, &Refused::Unauthorized { said: true }));
}

fn look_alone(reading: Reading) {
    match reading {
        Reading::Reply(reply) => check(reply),
        Reading::Ask(ask) => replies(&ask).into_iter().for_each(check),
        _ => {}
    }
}

/// Checks that every reply to `reading` is valid.
fn look(conversation: &dyn Conversation, reading: Reading) {
    match reading {
        Reading::Reply(reply) | Reading::Opened(reply) | Reading::Closed(reply) => check(reply),
        Reading::Cancel { reply, .. }
        | Reading::Unwatch { reply, .. }
        | Reading::Told { reply, .. } => check(reply),
        Reading::Replies(replies) => replies.into_iter().for_each(check),
        Reading::Ask(ask) => replies(&ask).into_iter().for_each(check),
        Reading::Batch(items) => {
            let first = |reading: &Reading| match reading {
                Reading::Reply(reply) => Some(reply.clone()),
                Reading::Ask(ask) => replies(ask).into_iter().next(),
                _ => None,
            };
            check(conversation.join(items.iter().filter_map(first).collect()));
            items.into_iter().for_each(|item| look(conversation, item));
        }
        Reading::Watch(watching) => {
            let ticket = watching.ticket;
            let said = [ticket.begin(None), ticket.snapshot(None), ticket.alive()];
            said.into_iter().flatten().for_each(check_message);
        }
        Reading::Listen(listening) => {
            let begun = listening.ticket.begin(&listening.interest);
            begun.into_iter().chain(listening.ticket.end()).for_each(check_message);
        }
        Reading::Tidings { .. } => {}
    }
}

/// Returns the replies to a few sample answers, whether they fit the request or not.
fn replies(ask: &Ask) -> Vec<Reply> {
    let odd = "a\nb\u{2028}\0";
    let output = Output::new(json!({ "a": odd }), Text::body(odd), Ending::Done);
    let answers = [
        Ok(Answer::Output(output)),
        Ok(Answer::Tools(ToolPage { tools: Vec::new(), next: None })),
        Err(CallError::UnknownTool { name: odd.to_owned(), nearest: None }),
        Err(CallError::Limited { message: odd.to_owned(), retry_after: Duration::from_secs(1) }),
        Err(CallError::Failed { message: odd.to_owned(), cause: String::new() }),
    ];
    let progress = Event::Progress { done: 0.5, total: None, message: Some(odd.to_owned()) };
    let line = Event::log(Level::Emergency, odd);
    let events = [progress, line, Event::LetGo];
    events.iter().filter_map(|event| ask.ticket.event(event)).for_each(check_message);
    answers.into_iter().filter_map(|answer| ask.ticket.reply(answer)).collect()
}

/// Checks that a reply is JSON in one line, unless it declares another content type.
fn check(reply: Reply) {
    let other = reply.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let is_other = other.is_some_and(|(_, kind)| !kind.contains("json"));
    if let Body::Json(bytes) = reply.body
        && !is_other
    {
        check_message(bytes);
    }
    for (name, value) in reply.headers {
        assert!(HeaderValue::from_str(&value).is_ok(), "`{name}` cannot be {value:?}");
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is what iterators of messages hand over")]
fn check_message(bytes: Bytes) {
    assert!(!bytes.contains(&b'\n') && !bytes.contains(&b'\r'), "{bytes:?} is several lines");
    if let Err(err) = serde_json::from_slice::<Value>(&bytes) {
        panic!("{bytes:?} is not JSON: {err}");
    }
}

/// Converts `bytes` to a frame.
fn frame(bytes: &[u8]) -> Frame {
    let head = bytes.first().filter(|byte| byte.is_ascii_uppercase()).and_then(|_| head(bytes));
    match head {
        Some((head, body)) => Frame { head, body: Bytes::copy_from_slice(body) },
        None => Frame::line(bytes.to_vec()),
    }
}

fn head(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let mut lines = str::from_utf8(&bytes[..end]).ok()?.split('\n');
    let (method, target) = lines.next()?.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    // The transport only passes on paths like this.
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = path.to_owned();
    let query = query.to_owned();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_str(value.trim()).ok()?);
    }
    let body = bytes.get(end + 2..).unwrap_or_default();
    Some((Head::Http { method, path, query, headers }, body))
}

fn facts() -> Arc<Facts> {
    Arc::new(Facts {
        name: "toolgate".to_owned(),
        title: "Toolgate".to_owned(),
        version: "1.0.0".to_owned(),
        about: "Serves tools.".to_owned(),
        instructions: "Call them.".into(),
        jobs: true,
        resources: true,
        prompts: true,
        skills: true,
        http_sse: true,
        card: None,
        zyra_body_bytes_max: Some(4096),
        keys: true,
        tls: false,
    })
}
