//! What fuzzing calls: edits, patches, paths, packs, and what else is written by others.

use toolgate_contract::ToolError;

use crate::files::cursor;
use crate::{assets, commands, files, front_matter, world};

/// Takes one input, and panics if it finds a bug.
type Target = fn(&[u8]);

/// Every fuzz target of this crate, by the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("edits", edits),
    ("json_patch", json_patch),
    ("uris", uris),
    ("file_cursors", file_cursors),
    ("packs", packs),
    ("front_matter", front_matter),
    ("protected", protected),
    ("paths", paths),
    ("plans", plans),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Edits of a file, and their diff.
fn edits(bytes: &[u8]) {
    files::fuzz_edits(bytes);
}

/// Patches between two documents.
fn json_patch(bytes: &[u8]) {
    assets::fuzz_patch(bytes);
}

/// URIs of files.
fn uris(bytes: &[u8]) {
    files::fuzz_uris(bytes);
}

/// Cursors of listings: one that is read is one that was written, for this question.
fn file_cursors(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (question, given) = text.split_once('\u{1f}').unwrap_or(("", text));
    if let Ok(last) = cursor::read(question, given) {
        assert_eq!(cursor::after(question, &last), given);
    }
    let written = cursor::after(question, given.as_bytes());
    let read: Result<_, ToolError> = cursor::read(question, &written);
    assert_eq!(read.ok().as_deref(), Some(given.as_bytes()));
}

/// Packs of commands, and calls of what they declare.
fn packs(bytes: &[u8]) {
    commands::fuzz_packs(bytes);
}

/// What stands before the text of a Markdown file.
fn front_matter(bytes: &[u8]) {
    front_matter::fuzz(bytes);
}

/// Protected names, however they are spelled.
fn protected(bytes: &[u8]) {
    world::root::fuzz_protected(bytes);
}

/// Paths as callers write them.
fn paths(bytes: &[u8]) {
    world::root::fuzz_paths(bytes);
}

/// What the sandbox's helper is told.
fn plans(bytes: &[u8]) {
    world::sandbox::fuzz_plans(bytes);
}
