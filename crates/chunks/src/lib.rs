//! Splits text into words, and into chunks that follow the structure of code. The crate does no I/O
//! and knows no search index.
//!
//! Grammars are C code, which hostile text can crash. A server therefore sets a
//! [`CodeParserProcess`]. Without one, this process parses by itself. A program that parses code
//! sets its grammars ([`set_grammars`]). Without grammars, definitions are guessed line by line.

mod chunk;
mod lines;
mod join;
mod outline;
mod docs;
mod cut;
mod memory;
mod grammars;
mod definitions;
mod guess;
mod code;
mod sections;
mod config_outline;
mod language;
mod chunker;
mod symbols;
mod origin;
pub mod words;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use chunk::{ChunkKind, TextChunk};
pub use chunker::chunks;
pub use code::{
    CodeParserProcess, PARSE_ANSWER_BYTES_MAX, PARSE_REQUEST_BYTES_MAX, answer_parse_request,
    set_parser_process,
};
pub use grammars::{GrammarLookup, has_grammars, set_grammars};
pub use language::{FileClassification, FilePurpose, TAGS, find_language};
pub use origin::{is_generated, is_generated_text, is_secret, is_secret_text, is_vendored};
pub use symbols::{CodeSymbol, SymbolDetectionMethod, guess_names, list_symbols};
