//! What fuzzing calls: settings, keys, tokens, and ids that clients send.

use crate::{config, identity, streams};

/// Takes one input, and panics if it finds a bug.
type Target = fn(&[u8]);

/// Every fuzz target of this crate, by the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("settings", settings),
    ("key_file", key_file),
    ("tokens", tokens),
    ("key_sets", key_sets),
    ("event_ids", event_ids),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Settings, and after the byte 0x1f variables of the environment, a line each.
fn settings(bytes: &[u8]) {
    config::fuzz_settings(bytes);
}

/// The file of keys.
fn key_file(bytes: &[u8]) {
    config::key_file::check(bytes);
}

/// Tokens: none is good that nobody signed.
fn tokens(bytes: &[u8]) {
    identity::fuzzing::tokens(bytes);
}

/// Sets of keys.
fn key_sets(bytes: &[u8]) {
    identity::fuzzing::key_sets(bytes);
}

/// Ids of events: one that is read is one that is written.
fn event_ids(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((stream, event)) = streams::numbers(text) {
        assert_eq!(format!("{stream}-{event}"), text);
    }
}
