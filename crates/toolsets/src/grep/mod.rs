//! Searches files for text, for `files.search` and `search.text`.
//!
//! Regular expressions and the search within one text are ripgrep's crates. The workspace lists the
//! files, and each tool builds its own answer from the matches.

mod pattern;
mod globs;
mod scan;
mod lines;
mod sweep;
mod crew;

pub(crate) use crew::Crew;
pub(crate) use globs::Glob;
pub(crate) use lines::{Gathered, LINE_BYTES, Line, Room, clip, gather};
pub(crate) use pattern::{Case, Pattern, Reach, span};
pub(crate) use scan::{Outcome, Scanner};
pub(crate) use sweep::sweep;
