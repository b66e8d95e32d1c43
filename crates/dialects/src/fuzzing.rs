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
    CallError, CallEvent, Caller, FrameMetadata, HostAnswer, LogLevel, MessageFrame, Reply,
    ReplyBody, ResultText, ServerChange, ToolOutput, ToolPage, ToolResultFormat, ToolRunStatus,
};

use crate::{
    ClientConversation, Dialect, FrameRefusal, ParsedFrame, PendingHostRequest, ServerInfo, mcp,
    mira,
};

/// A function that processes one input, and panics if it finds a bug.
type DialectFuzzTarget = fn(&[u8]);

/// All fuzz targets of this crate, by the name of their folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, DialectFuzzTarget)] = &[
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

/// Fuzzes the parsing of MCP messages and the encoding of replies: whatever the bytes are, each
/// reply must be one line of valid JSON with valid HTTP headers.
fn frames_mcp(bytes: &[u8]) {
    check_frames("mcp", bytes);
}

/// Fuzzes the parsing of Zyra messages and the encoding of replies: whatever the bytes are, each
/// reply must be one line of valid JSON with valid HTTP headers.
fn frames_zyra(bytes: &[u8]) {
    check_frames("zyra", bytes);
}

/// Fuzzes the parsing of Mira messages and the encoding of replies: whatever the bytes are, each
/// reply must be one line of valid JSON with valid HTTP headers.
fn frames_mira(bytes: &[u8]) {
    check_frames("mira", bytes);
}

/// Fuzzes the parsing of Synesthetic messages and the encoding of replies: whatever the bytes are,
/// each reply must be one line of valid JSON with valid HTTP headers.
fn frames_synesthetic(bytes: &[u8]) {
    check_frames("synesthetic", bytes);
}

/// Fuzzes the parsing of ancplua messages and the encoding of replies: whatever the bytes are, each
/// reply must be one line of valid JSON with valid HTTP headers.
fn frames_workstation(bytes: &[u8]) {
    check_frames("workstation", bytes);
}

/// Fuzzes the parsing of RAGX messages and the encoding of replies: whatever the bytes are, each
/// reply must be one line of valid JSON with valid HTTP headers.
fn frames_envelope(bytes: &[u8]) {
    check_frames("envelope", bytes);
}

/// Checks that each cursor that can be parsed is encoded to the same text again.
fn cursors(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    mcp::check_cursor(text);
    mira::check_cursor(text);
}

/// Parses all frames in `bytes`, encodes sample replies to each request, and checks that each reply
/// is valid.
fn check_frames(name: &str, bytes: &[u8]) {
    let dialects = crate::all_dialects(&server_info());
    let dialect = dialects.iter().find(|dialect| dialect.name() == name).expect("a dialect");
    let mut conversation = dialect.start_conversation(&Caller::local());
    for bytes in bytes.split(|byte| *byte == 0x1f) {
        let frame = parse_frame(bytes);
        check_head(&**dialect, &frame);
        let reading = conversation.read(&frame);
        check_reading(&*conversation, reading);
    }
    if let Some(tidings) = conversation.notification_encoder() {
        let changes =
            [ServerChange::Tools, ServerChange::Prompts, ServerChange::Resource("a:b".into())];
        changes.iter().filter_map(|change| tidings.encode_change(change)).for_each(check_message);
    }
}

/// Calls all methods of a dialect that need only a frame's head.
fn check_head(dialect: &dyn Dialect, frame: &MessageFrame) {
    let head = &frame.head;
    let _ = (dialect.session(head), dialect.claims(head), dialect.credential(head));
    let _ = (dialect.is_public(head), dialect.duplex(head));
    if let Err(reply) = dialect.upgrade(head) {
        check_reply(reply);
    }
    if let Some(reading) = dialect.reject_unreadable(head, "it broke off") {
        check_single_reading(reading);
    }
    check_single_reading(dialect.reject_frame(frame, &FrameRefusal::TooLarge { limit: 7 }));
    check_single_reading(
        dialect.reject_frame(frame, &FrameRefusal::Unauthorized { had_credential: true }),
    );
}

fn check_single_reading(reading: ParsedFrame) {
    match reading {
        ParsedFrame::Reply(reply) => check_reply(reply),
        ParsedFrame::Request(ask) => sample_replies(&ask).into_iter().for_each(check_reply),
        _ => {}
    }
}

/// Checks that every reply to `reading` is valid.
fn check_reading(conversation: &dyn ClientConversation, reading: ParsedFrame) {
    match reading {
        ParsedFrame::Reply(reply)
        | ParsedFrame::OpenSession(reply)
        | ParsedFrame::CloseSession(reply) => check_reply(reply),
        ParsedFrame::Cancel { reply, .. }
        | ParsedFrame::Unwatch { reply, .. }
        | ParsedFrame::StateChange { reply, .. }
        | ParsedFrame::Response { reply, .. } => check_reply(reply),
        ParsedFrame::Replies(replies) => replies.into_iter().for_each(check_reply),
        ParsedFrame::Request(ask) => sample_replies(&ask).into_iter().for_each(check_reply),
        ParsedFrame::Batch(items) => {
            let first = |reading: &ParsedFrame| match reading {
                ParsedFrame::Reply(reply) | ParsedFrame::StateChange { reply, .. } => {
                    Some(reply.clone())
                }
                ParsedFrame::Request(ask) => sample_replies(ask).into_iter().next(),
                _ => None,
            };
            check_reply(conversation.join_replies(items.iter().filter_map(first).collect()));
            items.into_iter().for_each(|item| check_reading(conversation, item));
        }
        ParsedFrame::Watch(watching) => {
            let ticket = watching.encoder;
            let said = [
                ticket.encode_start(None),
                ticket.encode_snapshot(None),
                ticket.encode_keep_alive(),
            ];
            said.into_iter().flatten().for_each(check_message);
        }
        ParsedFrame::Subscribe(listening) => {
            let begun = listening.encoder.encode_start(&listening.filter);
            begun.into_iter().chain(listening.encoder.encode_end()).for_each(check_message);
        }
        ParsedFrame::OpenNotifications { .. } => {}
    }
}

/// Returns the replies to a few sample answers, whether they fit the request or not.
fn sample_replies(ask: &PendingHostRequest) -> Vec<Reply> {
    let odd = "a\nb\u{2028}\0";
    let output =
        ToolOutput::new(json!({ "a": odd }), ResultText::from_body(odd), ToolRunStatus::Done);
    let answers = [
        Ok(HostAnswer::Output(output)),
        Ok(HostAnswer::Tools(ToolPage { tools: Vec::new(), next: None, unchanged_for: None })),
        Err(CallError::UnknownTool { name: odd.to_owned(), nearest: None, unavailable: None }),
        Err(CallError::Limited { message: odd.to_owned(), retry_after: Duration::from_secs(1) }),
        Err(CallError::Failed { message: odd.to_owned(), cause: String::new() }),
    ];
    let progress = CallEvent::Progress { done: 0.5, total: None, message: Some(odd.to_owned()) };
    let line = CallEvent::log(LogLevel::Emergency, odd);
    let events = [progress, line, CallEvent::ReleaseConnection];
    events.iter().filter_map(|event| ask.encoder.encode_event(event)).for_each(check_message);
    answers.into_iter().filter_map(|answer| ask.encoder.encode_reply(answer)).collect()
}

/// Checks that a reply is JSON in one line, unless it declares another content type.
fn check_reply(reply: Reply) {
    let other = reply.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let is_other = other.is_some_and(|(_, kind)| !kind.contains("json"));
    if let ReplyBody::Json(bytes) = reply.body
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
fn parse_frame(bytes: &[u8]) -> MessageFrame {
    let head =
        bytes.first().filter(|byte| byte.is_ascii_uppercase()).and_then(|_| parse_head(bytes));
    match head {
        Some((head, body)) => MessageFrame { head, body: Bytes::copy_from_slice(body) },
        None => MessageFrame::from_line(bytes.to_vec()),
    }
}

fn parse_head(bytes: &[u8]) -> Option<(FrameMetadata, &[u8])> {
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
    Some((FrameMetadata::Http { method, path, query, headers }, body))
}

fn server_info() -> Arc<ServerInfo> {
    Arc::new(ServerInfo {
        name: "toolgate".to_owned(),
        title: "Toolgate".to_owned(),
        version: "1.0.0".to_owned(),
        description: "Serves tools.".to_owned(),
        instructions: "Call them.".into(),
        jobs: true,
        resources: true,
        prompts: true,
        skills: true,
        http_sse: true,
        card: None,
        zyra_body_bytes_max: Some(4096),
        requires_auth: true,
        tls: false,
        results: ToolResultFormat::Both,
    })
}
