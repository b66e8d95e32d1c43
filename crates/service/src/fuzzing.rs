//! Fuzz targets for settings, keys, tokens and event ids.

use crate::sessions::streams;
use crate::{config, identity};

/// Function that takes one fuzz input and panics if it finds a bug.
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

/// Fuzzes the parser of settings. The input is a settings file, followed by the byte 0x1f and
/// environment variables, one per line.
fn settings(bytes: &[u8]) {
    config::fuzz_settings(bytes);
}

/// Fuzzes key files: a parsed key file that is written and read again must stay the same.
fn key_file(bytes: &[u8]) {
    config::key_file::fuzz_key_file(bytes);
}

/// Fuzzes tokens: an unsigned or modified token must never be accepted.
fn tokens(bytes: &[u8]) {
    identity::fuzzing::tokens(bytes);
}

/// Fuzzes the key sets (JWKS) of issuers: no parsed key may accept an arbitrary signature.
fn key_sets(bytes: &[u8]) {
    identity::fuzzing::key_sets(bytes);
}

/// Fuzzes event ids: a parsed event id must format to the same text.
fn event_ids(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((stream, event)) = streams::parse_event_id(text) {
        assert_eq!(format!("{stream}-{event}"), text);
    }
}
