//! Searches files for text, for the tools `files.search` and `search.text`.
//!
//! ripgrep's crates provide regular expressions and the search within one text. The workspace lists
//! the files, and each tool builds its own answer from the matches.

mod pattern;
mod globs;
mod scan;
mod lines;
mod sweep;
mod threads;

pub(crate) use globs::FileGlob;
pub(crate) use lines::{
    LINE_OVERHEAD_BYTES, MatchedLine, RemainingAnswerSpace, SearchedFileLines, clip, collect_lines,
};
pub(crate) use pattern::{CaseSensitivity, MultilineMatching, TextPattern, find_span};
pub(crate) use scan::{FileMatchOutcome, FileScanner};
pub(crate) use sweep::sweep;
pub(crate) use threads::ReservedSearchThreads;
