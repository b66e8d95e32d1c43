//! Fuzz targets for messages of upstreams and authorization servers, and for the lock file of pins.

use serde_json::Value;
use toolgate_dialects::mcp::upstream::{
    completion, contents, icons, output, prompt_spec, prompt_text, question, resource, template,
};

use crate::message::{self, Message};
use crate::oauth::Challenge;
use crate::pins::{Accepted, Became, Definition, Lock, shown};
use crate::wires::events::Events;
use crate::{hearing, instructions, names};

/// A fuzz target. It takes one input and panics if it finds a bug.
type Target = fn(&[u8]);

/// Every fuzz target of this crate, by the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
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
    for message in message::read(bytes).unwrap_or_default() {
        match message {
            Message::Answer(_, Ok(result)) => {
                results(&serde_json::from_str(result.get()).expect("JSON that was read before"));
            }
            Message::Answer(_, Err(_)) => {}
            Message::Notification { method, params } => drop(hearing::event(&method, &params)),
            Message::Request { method, params, .. } => drop(question(&method, &params, "key")),
        }
    }
}

fn results(result: &Value) {
    drop((output(result), contents(result), prompt_text(result), completion(result)));
    let entries = result.as_object().into_iter().flat_map(|result| result.values());
    for entry in entries.filter_map(Value::as_array).flatten() {
        drop((resource(entry), template(entry), prompt_spec(entry), icons(entry)));
        let Some(definition) = Definition::of(entry) else { continue };
        let name = names::tool("it", &definition.name);
        assert!(name.to_string().len() <= 64 && name == names::tool("it", &definition.name));
        let instructions = entry["description"].as_str();
        let instructions = instructions.and_then(|said| instructions::kept("it", said));
        let accepted = Accepted { instructions, tools: [definition].map(named).into() };
        agreed(&Lock { upstreams: [("it".into(), accepted)].into() });
    }
}

fn named(definition: Definition) -> (String, Definition) {
    (definition.name.clone(), definition)
}

/// Checks that a written lock file reads back unchanged.
fn agreed(lock: &Lock) {
    let written = lock.write();
    assert_eq!(Lock::read(&written).as_ref(), Ok(lock), "{written}");
}

/// Checks that a lock file that can be read is written back unchanged.
fn lock(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Lock::read(text) {
        Ok(lock) => agreed(&lock),
        Err(why) => assert!(!why.contains('\n'), "{why:?}"),
    }
}

/// Compares two lock files, separated by the byte 0x1f, and checks the report of their differences.
fn pins(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (before, after) = text.split_once('\u{1f}').unwrap_or((text, ""));
    let (Ok(before), Ok(after)) = (Lock::read(before), Lock::read(after)) else { return };
    for (name, after) in &after.upstreams {
        let none = Accepted::default();
        let before = before.upstreams.get(name).unwrap_or(&none);
        let Some(became) = Became::of(before, after) else { continue };
        let told = shown("it", &became);
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told:?}");
    }
}

/// Reads a `WWW-Authenticate` header.
fn challenges(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let challenge = Challenge::read(text);
    assert!(challenge.scopes.iter().all(|scope| !scope.contains(char::is_whitespace)));
}

/// Checks that events of an upstream are the same for any split of their bytes.
fn upstream_events(bytes: &[u8]) {
    let read = |size: usize| {
        let mut events = Events::default();
        let pieces = bytes.chunks(size).flat_map(|piece| events.take(piece, 1 << 20));
        let read: Vec<_> = pieces.collect();
        format!("{read:?}")
    };
    let whole = read(bytes.len().max(1));
    for size in [1, 3] {
        assert_eq!(read(size), whole, "by {size}");
    }
}
