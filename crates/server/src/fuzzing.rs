//! Fuzz targets for settings, keys, tokens and event ids.

use crate::sessions::streams;
use crate::{config, identity};

/// Function that takes one input and panics if it finds a bug.
type ServerFuzzTarget = fn(&[u8]);

/// All fuzz targets of this crate, by the name of their folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, ServerFuzzTarget)] = &[
    ("settings", settings),
    ("key_file", key_file),
    ("tokens", tokens),
    ("key_sets", key_sets),
    ("event_ids", event_ids),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Parses settings, followed by the byte 0x1f and environment variables, one per line.
fn settings(bytes: &[u8]) {
    config::fuzz_settings(bytes);
}

/// Parses a key file.
fn key_file(bytes: &[u8]) {
    config::key_file::fuzz_key_file(bytes);
}

/// Checks that an unsigned token is never accepted.
fn tokens(bytes: &[u8]) {
    identity::fuzzing::tokens(bytes);
}

/// Parses key sets.
fn key_sets(bytes: &[u8]) {
    identity::fuzzing::key_sets(bytes);
}

/// Checks that a parsed event id formats to the same text.
fn event_ids(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((stream, event)) = streams::parse_event_id(text) {
        assert_eq!(format!("{stream}-{event}"), text);
    }
}
