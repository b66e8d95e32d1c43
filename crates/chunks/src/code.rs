//! Outlines code by its grammar, usually in another process.

use crate::grammars::LoadedGrammar;
use crate::lines::LineIndexedText;
use crate::outline::TextOutline;
use parsed_code::ParsedDefinitions;

pub use parser_process::{
    CodeParserProcess, PARSE_ANSWER_BYTES_MAX, PARSE_REQUEST_BYTES_MAX, answer_parse_request,
    set_parser_process,
};
#[cfg(any(fuzzing, test))]
pub(crate) use parser_process::{check_message, check_parse};

mod parsed_code;
mod parser_process;
mod syntax_walk;

/// Longest code that is parsed, in bytes. The outline of longer code is guessed line by line.
const BYTES_MAX: usize = 1 << 20;

/// Outlines the code in `lines`, the content of the file at `path`, by the grammar of the language
/// `lang`. Returns `None` if the code is too long or too complex, if the parser process failed, or
/// if there is neither a parser process nor a grammar in this program.
pub(crate) fn outline(path: &str, lines: &LineIndexedText<'_>, lang: &str) -> Option<TextOutline> {
    if lines.text.len() > BYTES_MAX {
        return None;
    }
    let parsed = match parser_process::parser_process() {
        Some(process) => parser_process::parse_in(&*process, path, lines, lang),
        None => parse_here(lines, lang),
    };
    Some(parsed?.into_outline())
}

/// Parses the code in `lines` in this process, by the grammar of the language `lang`. Returns `None`
/// if there is no such grammar, or if the code is too complex.
fn parse_here(lines: &LineIndexedText<'_>, lang: &str) -> Option<ParsedDefinitions> {
    let grammar = LoadedGrammar::for_language(lang)?;
    syntax_walk::parse_code(lines, grammar)
}
