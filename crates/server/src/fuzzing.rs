//! What fuzzing calls: settings, keys, tokens, and ids that clients send.

use crate::{config, identity, streams};

/// Settings, and after the byte 0x1f variables of the environment, a line each.
pub fn settings(bytes: &[u8]) {
    config::fuzz_settings(bytes);
}

/// The file of keys.
pub fn key_file(bytes: &[u8]) {
    config::key_file::check(bytes);
}

/// Tokens: none is good that nobody signed.
pub fn tokens(bytes: &[u8]) {
    identity::fuzzing::tokens(bytes);
}

/// Sets of keys.
pub fn key_sets(bytes: &[u8]) {
    identity::fuzzing::key_sets(bytes);
}

/// Ids of events: one that is read is one that is written.
pub fn event_ids(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((stream, event)) = streams::numbers(text) {
        assert_eq!(format!("{stream}-{event}"), text);
    }
}
