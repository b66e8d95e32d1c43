//! Fuzz targets for the grammars, and for the messages of a process that parses code.

use crate::code;
use crate::grammars::LoadedGrammar;

/// A function that takes one fuzz input and panics if it finds a bug.
type ChunkFuzzTarget = fn(&[u8]);

/// Every fuzz target of this crate, with the name of its folder in `fuzz/corpus`.
pub const TARGETS: &[(&str, ChunkFuzzTarget)] =
    &[("parser_messages", parser_messages), ("grammars", grammars)];

/// Longest Ruby code with a here-document that is parsed. The scanner of that grammar aborts on a
/// word of more than 255 bytes after `<<`, which is why servers parse in processes of their own.
const RUBY_HEREDOC_BYTES_MAX: usize = 255;

#[cfg(test)]
#[path = "../../../fuzz/src/kept_inputs.rs"]
mod kept_inputs;

/// Fuzzes the decoding of requests to parse and of their answers. A crashed grammar may have
/// written anything into an answer. The first byte of the input is the length of the text before
/// the message.
fn parser_messages(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return };
    let Some((text, message)) = rest.split_at_checked(usize::from(*length)) else { return };
    let Ok(text) = str::from_utf8(text) else { return };
    code::check_message(text, message);
}

/// Fuzzes every grammar. The first byte of the input selects the grammar, and the rest is the code.
fn grammars(bytes: &[u8]) {
    let Some((number, code)) = bytes.split_first() else { return };
    let Ok(code) = str::from_utf8(code) else { return };
    let grammar = LoadedGrammar::for_number(*number);
    let is_known_crash =
        grammar.rules.lang == "ruby" && code.contains("<<") && code.len() > RUBY_HEREDOC_BYTES_MAX;
    if !is_known_crash {
        code::check_parse(grammar.rules.lang, code);
    }
}
