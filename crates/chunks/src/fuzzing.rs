//! Fuzz targets for the messages of a process that parses code.

use crate::code;

/// A function that takes one fuzz input and panics if it finds a bug.
type ChunkFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, ChunkFuzzTarget)] = &[("parser_messages", parser_messages)];

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes requests to parse a text, and their answers. A crashed grammar may have written anything
/// into an answer. The first byte of the input is the length of the text before the message.
fn parser_messages(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return };
    let Some((text, message)) = rest.split_at_checked(usize::from(*length)) else { return };
    let Ok(text) = str::from_utf8(text) else { return };
    code::check_message(text, message);
}
