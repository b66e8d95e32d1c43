//! Fuzz targets of this crate, for code that reads input from untrusted sources.

use toolgate_contract::ToolError;

use crate::files::cursor;
use crate::{assets, commands, files, front_matter};

/// A function that tests code with one fuzz input, and panics if it finds a bug.
type ToolsetFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, ToolsetFuzzTarget)] = &[
    ("edits", edits),
    ("json_patch", json_patch),
    ("uris", uris),
    ("file_cursors", file_cursors),
    ("packs", packs),
    ("front_matter", front_matter),
];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes edits of a file: the edited text must equal the result of a simple model, and the diff
/// applied to the old text must give the edited text.
fn edits(bytes: &[u8]) {
    files::fuzz_edits(bytes);
}

/// Fuzzes JSON patches: the patch between two documents must turn the first document into the
/// second, in any order of its operations.
fn json_patch(bytes: &[u8]) {
    assets::fuzz_patch(bytes);
}

/// Fuzzes file URIs: no URI may lead out of the workspace folder, and each path must convert to a
/// URI and back to itself.
fn uris(bytes: &[u8]) {
    files::fuzz_uris(bytes);
}

/// Fuzzes the cursors of file listings: decoding an encoded cursor for the same list must give the
/// original entry.
fn file_cursors(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let (question, given) = text.split_once('\u{1f}').unwrap_or(("", text));
    if let Ok(last) = cursor::decode_cursor(question, given) {
        assert_eq!(cursor::encode_cursor(question, &last), given);
    }
    let written = cursor::encode_cursor(question, given.as_bytes());
    let read: Result<_, ToolError> = cursor::decode_cursor(question, &written);
    assert_eq!(read.ok().as_deref(), Some(given.as_bytes()));
}

/// Fuzzes command packs and calls of the commands that they declare: an error must name a line of
/// the file, and normalizing an input twice must give the same result as once.
fn packs(bytes: &[u8]) {
    commands::fuzz_packs(bytes);
}

/// Fuzzes the front matter of Markdown files: the body must be complete, and line numbers must be
/// those of the file.
fn front_matter(bytes: &[u8]) {
    front_matter::check_fuzz_input(bytes);
}
