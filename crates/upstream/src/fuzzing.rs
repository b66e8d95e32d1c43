//! Fuzz targets for messages of upstreams and authorization servers, and for the lock file of pins.

use serde_json::Value;
use toolgate_dialects::mcp::upstream::{
    parse_completion, parse_contents, parse_icons, parse_output, parse_prompt_spec,
    parse_prompt_text, parse_question, parse_resource, parse_template,
};
use toolgate_net::SseParser;

use crate::message::{self, UpstreamMessage};
use crate::oauth::BearerChallenge;
use crate::pins::{PinLock, ToolDefinition, UpstreamChanges, UpstreamPins, render_changes};
use crate::{instructions, names, server_requests};

/// A fuzz target: a function that takes one input and panics if it finds a bug.
type UpstreamFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, by the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, UpstreamFuzzTarget)] = &[
    ("upstream_messages", upstream_messages),
    ("lock", lock),
    ("pins", pins),
    ("challenges", challenges),
    ("upstream_events", upstream_events),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Reads messages of an upstream and converts each of them.
fn upstream_messages(bytes: &[u8]) {
    for message in message::parse_messages(bytes).unwrap_or_default() {
        match message {
            UpstreamMessage::Answer(_, Ok(result)) => {
                results(&serde_json::from_str(result.get()).expect("JSON that was read before"));
            }
            UpstreamMessage::Answer(_, Err(_)) => {}
            UpstreamMessage::Notification { method, params } => {
                drop(server_requests::event_from_notification(&method, &params));
            }
            UpstreamMessage::Request { method, params, .. } => {
                drop(parse_question(&method, &params, "key"));
            }
        }
    }
}

fn results(result: &Value) {
    drop((
        parse_output(result),
        parse_contents(result),
        parse_prompt_text(result),
        parse_completion(result),
    ));
    let entries = result.as_object().into_iter().flat_map(|result| result.values());
    for entry in entries.filter_map(Value::as_array).flatten() {
        drop((
            parse_resource(entry),
            parse_template(entry),
            parse_prompt_spec(entry),
            parse_icons(entry),
        ));
        let Some(definition) = ToolDefinition::from_entry(entry) else { continue };
        let name = names::tool_id("it", &definition.name);
        assert!(name.to_string().len() <= 64 && name == names::tool_id("it", &definition.name));
        let instructions = entry["description"].as_str();
        let instructions =
            instructions.and_then(|text| instructions::truncate_instructions("it", text));
        let accepted = UpstreamPins { instructions, tools: [definition].map(keyed_by_name).into() };
        check_lock_round_trip(&PinLock { upstreams: [("it".into(), accepted)].into() });
    }
}

fn keyed_by_name(definition: ToolDefinition) -> (String, ToolDefinition) {
    (definition.name.clone(), definition)
}

/// Checks that a written lock file reads back unchanged.
fn check_lock_round_trip(lock: &PinLock) {
    let written = lock.to_text();
    assert_eq!(PinLock::parse(&written).as_ref(), Ok(lock), "{written}");
}

/// Checks that a lock file that can be read is written back unchanged.
fn lock(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match PinLock::parse(text) {
        Ok(lock) => check_lock_round_trip(&lock),
        Err(why) => assert!(!why.contains('\n'), "{why:?}"),
    }
}

/// Compares two lock files, separated by the byte 0x1f, and checks the report of their differences.
fn pins(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (before, after) = text.split_once('\u{1f}').unwrap_or((text, ""));
    let (Ok(before), Ok(after)) = (PinLock::parse(before), PinLock::parse(after)) else { return };
    for (name, after) in &after.upstreams {
        let none = UpstreamPins::default();
        let before = before.upstreams.get(name).unwrap_or(&none);
        let Some(changes) = UpstreamChanges::between(before, after) else { continue };
        let rendered = render_changes("it", &changes);
        assert!(!rendered.contains(['\u{1b}', '\u{202e}']), "{rendered:?}");
    }
}

/// Fuzzes the parsing of `WWW-Authenticate` headers: no parsed scope may contain white space.
fn challenges(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let challenge = BearerChallenge::parse(text);
    assert!(challenge.scopes.iter().all(|scope| !scope.contains(char::is_whitespace)));
}

/// Checks that the events of an upstream are the same, however their bytes are split.
fn upstream_events(bytes: &[u8]) {
    let read = |size: usize| {
        let mut events = SseParser::new(1 << 20);
        let pieces = bytes.chunks(size).flat_map(|piece| events.parse(piece));
        let read: Vec<_> = pieces.collect();
        format!("{read:?}")
    };
    let whole = read(bytes.len().max(1));
    for size in [1, 3] {
        assert_eq!(read(size), whole, "by {size}");
    }
}
