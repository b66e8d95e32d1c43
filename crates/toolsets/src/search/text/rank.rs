//! Ranks files by signs that are fast to compute.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use toolgate_chunks::{FileClass, FilePurpose, guess_names, is_generated, is_vendored};

/// The maximum number of matches in a line that are checked for the name that the line defines.
const SPANS_MAX: usize = 4;
/// The longest line that is checked for a definition, in bytes.
const LINE_BYTES_MAX: usize = 2 << 10;

/// The relation of a line to the match in it, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineRole {
    /// The line defines the matched name.
    Defines,
    /// The line defines a name that overlaps the match.
    OverlapsName,
    /// The line only mentions the match.
    Mentions,
}

/// The sort key of a file with matches: the smallest is shown first. No two files have equal ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileRank {
    category: FileCategory,
    role: LineRole,
    /// True if the search does not match the name of the file.
    name_differs: bool,
    /// `u64::MAX` minus the number of matches, so that more matches sort first.
    inverse_count: u64,
    pub(super) path: PathBuf,
}

/// The purpose of a file, in the order in which files are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileCategory {
    Source,
    Tests,
    Docs,
    /// Vendored or generated code.
    Foreign,
}

impl FileRank {
    /// Creates the rank of the file at `path`, which has `count` matches with `role` as the best.
    pub(super) fn new(path: &Path, matcher: &RegexMatcher, role: LineRole, count: u64) -> Self {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let name_differs = !matcher.is_match(name).unwrap_or(false);
        let category = FileCategory::from_path(&path.to_string_lossy());
        Self {
            category,
            role,
            name_differs,
            inverse_count: u64::MAX - count,
            path: path.to_owned(),
        }
    }

    /// Returns the number of matches in the ranked file.
    pub(super) fn count(&self) -> u64 {
        u64::MAX - self.inverse_count
    }

    /// Encodes the rank of a file for a cursor.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { category, role, name_differs, inverse_count, path } = self;
        let mut bytes = vec![*category as u8, *role as u8, u8::from(*name_differs)];
        bytes.extend_from_slice(&inverse_count.to_le_bytes());
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes
    }

    /// Decodes the output of [`FileRank::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_first_chunk().unwrap_or((&[0; 3], b""));
        let (inverse_count, path) = rest.split_first_chunk().unwrap_or((&[0; 8], b""));
        let category = match head[0] {
            0 => FileCategory::Source,
            1 => FileCategory::Tests,
            2 => FileCategory::Docs,
            _foreign => FileCategory::Foreign,
        };
        let role = match head[1] {
            0 => LineRole::Defines,
            1 => LineRole::OverlapsName,
            _mentions => LineRole::Mentions,
        };
        let name_differs = head[2] != 0;
        let inverse_count = u64::from_le_bytes(*inverse_count);
        Self { category, role, name_differs, inverse_count, path: OsStr::from_bytes(path).into() }
    }
}

impl FileCategory {
    fn from_path(path: &str) -> Self {
        let class = FileClass::for_path(path);
        if is_generated(path) || is_vendored(path) {
            return Self::Foreign;
        }
        match class.kind {
            FilePurpose::Code if class.is_test || class.is_example => Self::Tests,
            FilePurpose::Code | FilePurpose::Config | FilePurpose::Other => Self::Source,
            FilePurpose::Docs => Self::Docs,
        }
    }
}

/// Returns the role of the first line of `matched`, which is a match of whole lines.
pub(super) fn line_role(matcher: &RegexMatcher, matched: &[u8]) -> LineRole {
    let line = memchr::memchr(b'\n', matched).map_or(matched, |end| &matched[..end]);
    if line.len() > LINE_BYTES_MAX {
        return LineRole::Mentions;
    }
    let Ok(line) = std::str::from_utf8(line) else { return LineRole::Mentions };
    let names = guess_names(line);
    let mut best = LineRole::Mentions;
    if names.is_empty() {
        return best;
    }
    let mut left = SPANS_MAX;
    let _ = matcher.find_iter(matched, |found| {
        for name in &names {
            let Some(at) = line.find(name.as_str()) else { continue };
            let end = at + name.len();
            if found.start() <= at && end <= found.end() {
                best = best.min(LineRole::Defines);
            } else if found.start() < end && at < found.end() {
                best = best.min(LineRole::OverlapsName);
            }
        }
        left -= 1;
        left > 0
    });
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grep::{CaseSensitivity, MatchSpan, TextPattern};

    fn matcher(text: &str) -> RegexMatcher {
        let case = CaseSensitivity::Smart;
        let span = MatchSpan::SingleLine;
        TextPattern { text, literal: false, word: false, case, span }.compile().unwrap()
    }

    #[test]
    fn a_line_that_defines_a_match_differs_from_one_that_mentions_it() {
        for (text, line, expected) in [
            ("open", "pub fn open(path: &Path) -> File {\n", LineRole::Defines),
            ("open", "    async def open_all(self):", LineRole::OverlapsName),
            ("open", "    let file = open(path);", LineRole::Mentions),
            ("File", "pub fn open(path: &Path) -> File {", LineRole::Mentions),
            ("File", "impl Read for File {", LineRole::Mentions),
            ("unsafe", "pub unsafe fn unsafe_thing() {", LineRole::OverlapsName),
            (r"fn \w+_all\(", "fn open_all() {", LineRole::Defines),
            ("open", "// fn open() {", LineRole::Mentions),
        ] {
            assert_eq!(line_role(&matcher(text), line.as_bytes()), expected, "{text} in {line}");
        }
    }

    #[test]
    fn files_are_ranked_by_category_then_role_then_count() {
        let rank =
            |path: &str, role, count| FileRank::new(path.as_ref(), &matcher("cache"), role, count);
        let ranks = [
            rank("src/z.rs", LineRole::Defines, 1),
            rank("src/y.rs", LineRole::OverlapsName, 9),
            rank("src/cache.rs", LineRole::Mentions, 1),
            rank("src/b.rs", LineRole::Mentions, 7),
            rank("a.toml", LineRole::Mentions, 2),
            rank("src/a.rs", LineRole::Mentions, 2),
            rank("tests/a.rs", LineRole::Defines, 30),
            rank("README.md", LineRole::Mentions, 99),
            rank("vendor/a.rs", LineRole::Defines, 99),
        ];
        assert!(ranks.is_sorted(), "{ranks:#?}");
        for rank in &ranks {
            assert_eq!(FileRank::decode(&rank.encode()), *rank);
        }
        assert_eq!(ranks[3].count(), 7);
    }
}
