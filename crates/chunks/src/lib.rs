//! Splits text into words, and into chunks that follow the structure of code. Uses neither disk nor
//! index.

mod chunk;
mod chunker;
mod cut;
mod join;
mod outline;
mod code;
mod memory;
mod grammars;
mod docs;
mod guess;
mod definitions;
mod sections;
mod config_outline;
mod lines;
mod symbols;
mod language;
mod origin;
pub mod words;

pub use chunk::{ChunkKind, TextChunk};
pub use chunker::chunks;
pub use language::{FileClass, FilePurpose, TAGS, find_language};
pub use origin::{is_generated, is_generated_text, is_secret, is_secret_text, is_vendored};
pub use symbols::{Symbol, SymbolPrecision, guess_names, list_symbols};
