//! Parses the input of a search: name filter, text pattern and start position.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use grep_regex::RegexMatcher;
use toolgate_contract::ToolError;

use super::SearchFilesInput;
use crate::files::cursor;
use crate::grep::{FileGlob, MultilineMatching, TextPattern};

/// The parsed and validated input of a `files.search` call.
pub(super) struct FileSearchQuery {
    name_filter: Option<FileGlob>,
    pub(super) text: Option<RegexMatcher>,
    /// The last match of the previous page. The search continues after it.
    pub(super) after: Option<LastReturnedMatch>,
    cursor_key: String,
}

/// The last match of a page of results. The cursor for the next page contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastReturnedMatch {
    pub(super) path: PathBuf,
    /// The line number, from 1. 0 for an entry that was found by name.
    pub(super) line: u64,
}

impl FileSearchQuery {
    /// Parses `input` for the workspace at `root`. An empty `query` or `glob` counts as absent.
    ///
    /// # Errors
    /// Fails if `query` and `glob` are both absent, if one of them is malformed, or if the cursor
    /// belongs to a different search.
    pub(super) fn parse(input: &SearchFilesInput, root: &Path) -> Result<Self, ToolError> {
        let SearchFilesInput {
            path,
            glob,
            query,
            literal,
            case,
            context,
            include_ignored,
            hidden,
            ..
        } = input;
        let glob = glob.as_deref().filter(|glob| !glob.is_empty());
        let text = query.as_deref().filter(|text| !text.is_empty());
        if glob.is_none() && text.is_none() {
            return Err(ToolError::invalid(
                "",
                "neither query nor glob is given; give one or both",
            ));
        }
        let cursor_key = format!(
            "search {path:?} {glob:?} {text:?} {literal} {case:?} {context} {include_ignored} {hidden}"
        );
        let after = match cursor::given_cursor(input.cursor.as_deref()) {
            Some(given) => {
                Some(LastReturnedMatch::from_bytes(&cursor::decode_cursor(&cursor_key, given)?))
            }
            None => None,
        };
        let name_filter = glob.map(|glob| FileGlob::parse(glob, root, "/glob")).transpose()?;
        let literal = *literal;
        let case = *case;
        let span = MultilineMatching::SingleLine;
        let pattern = |text| TextPattern { text, literal, word: false, case, span };
        let text = text.map(|text| pattern(text).compile()).transpose()?;
        Ok(Self { name_filter, text, after, cursor_key })
    }

    /// Returns true if the search's glob matches the entry at `path`: its name, or its path
    /// relative to the workspace root or to `start`. Also returns true if the search has no glob.
    pub(super) fn matches_name(&self, path: &Path, start: &Path) -> bool {
        self.name_filter.as_ref().is_none_or(|names| names.selects(path, start))
    }

    /// Returns the cursor that continues the search after the match `last`.
    pub(super) fn cursor(&self, last: &LastReturnedMatch) -> String {
        let mut bytes = last.line.to_le_bytes().to_vec();
        bytes.extend_from_slice(last.path.as_os_str().as_bytes());
        cursor::encode_cursor(&self.cursor_key, &bytes)
    }
}

impl LastReturnedMatch {
    fn from_bytes(bytes: &[u8]) -> Self {
        let (line, path) = bytes.split_first_chunk().unwrap_or((&[0; 8], b""));
        Self { line: u64::from_le_bytes(*line), path: OsStr::from_bytes(path).into() }
    }
}
