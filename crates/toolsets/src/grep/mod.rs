//! Text found in files by what it says: what `files.search` and `search.text` share.
//!
//! The expressions are ripgrep's own, and so is the search within one text. Which files there are
//! comes from the workspace, and what becomes of what is found is the tools' business.

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
