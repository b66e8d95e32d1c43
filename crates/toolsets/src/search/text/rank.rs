//! Ranks files with matches by properties that are fast to compute.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use toolgate_chunks::{FileClassification, FilePurpose, guess_names, is_generated, is_vendored};

/// The maximum number of matches in a line that are compared with the name that the line defines.
const SPANS_MAX: usize = 4;
/// The longest line that is checked for a definition, in bytes.
const LINE_BYTES_MAX: usize = 2 << 10;

/// The role of the line that contains a match, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatchLineRole {
    /// The line defines the matched name.
    Defines,
    /// The line defines a name that overlaps the match but differs from it.
    OverlapsName,
    /// The line does not define the match.
    Mentions,
}

/// The sort key of a file with matches: the file with the smallest key is shown first. Two files
/// never have equal keys, because the key contains the path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MatchedFileSortKey {
    category: FileRankCategory,
    role: MatchLineRole,
    /// True if the name of the file does not match the search. Files with a matching name sort
    /// first.
    name_differs: bool,
    /// `u64::MAX` minus the number of matches, so that more matches sort first.
    inverse_count: u64,
    pub(super) path: PathBuf,
}

/// The category of a file in the ranking. Files of an earlier variant are shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileRankCategory {
    Source,
    Tests,
    Docs,
    /// Vendored or generated code.
    Foreign,
}

impl MatchedFileSortKey {
    /// Creates the sort key of the file at `path`, which has `count` matches. `role` is the best
    /// role among the lines with a match. `matcher` is compared with the file's name.
    pub(super) fn new(
        path: &Path,
        matcher: &RegexMatcher,
        role: MatchLineRole,
        count: u64,
    ) -> Self {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let name_differs = !matcher.is_match(name).unwrap_or(false);
        let category = FileRankCategory::from_path(&path.to_string_lossy());
        Self {
            category,
            role,
            name_differs,
            inverse_count: u64::MAX - count,
            path: path.to_owned(),
        }
    }

    /// Returns the number of matches in the file.
    pub(super) fn count(&self) -> u64 {
        u64::MAX - self.inverse_count
    }

    /// Encodes the sort key of a file for a cursor.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { category, role, name_differs, inverse_count, path } = self;
        let mut bytes = vec![*category as u8, *role as u8, u8::from(*name_differs)];
        bytes.extend_from_slice(&inverse_count.to_le_bytes());
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes
    }

    /// Decodes the output of [`MatchedFileSortKey::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_first_chunk().unwrap_or((&[0; 3], b""));
        let (inverse_count, path) = rest.split_first_chunk().unwrap_or((&[0; 8], b""));
        let category = match head[0] {
            0 => FileRankCategory::Source,
            1 => FileRankCategory::Tests,
            2 => FileRankCategory::Docs,
            _foreign => FileRankCategory::Foreign,
        };
        let role = match head[1] {
            0 => MatchLineRole::Defines,
            1 => MatchLineRole::OverlapsName,
            _mentions => MatchLineRole::Mentions,
        };
        let name_differs = head[2] != 0;
        let inverse_count = u64::from_le_bytes(*inverse_count);
        Self { category, role, name_differs, inverse_count, path: OsStr::from_bytes(path).into() }
    }
}

impl FileRankCategory {
    fn from_path(path: &str) -> Self {
        let class = FileClassification::for_path(path);
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

/// Returns the role of the first line of `matched`. `matched` consists of complete lines.
pub(super) fn line_role(matcher: &RegexMatcher, matched: &[u8]) -> MatchLineRole {
    let line = memchr::memchr(b'\n', matched).map_or(matched, |end| &matched[..end]);
    if line.len() > LINE_BYTES_MAX {
        return MatchLineRole::Mentions;
    }
    let Ok(line) = std::str::from_utf8(line) else { return MatchLineRole::Mentions };
    let names = guess_names(line);
    let mut best = MatchLineRole::Mentions;
    if names.is_empty() {
        return best;
    }
    let mut left = SPANS_MAX;
    let _ = matcher.find_iter(matched, |found| {
        for name in &names {
            let Some(at) = line.find(name.as_str()) else { continue };
            let end = at + name.len();
            if found.start() <= at && end <= found.end() {
                best = best.min(MatchLineRole::Defines);
            } else if found.start() < end && at < found.end() {
                best = best.min(MatchLineRole::OverlapsName);
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
    use crate::grep::{CaseSensitivity, MultilineMatching, TextPattern};

    fn matcher(text: &str) -> RegexMatcher {
        let case = CaseSensitivity::Smart;
        let span = MultilineMatching::SingleLine;
        TextPattern { text, literal: false, word: false, case, span }.compile().unwrap()
    }

    #[test]
    fn a_line_that_defines_a_match_differs_from_one_that_mentions_it() {
        for (text, line, expected) in [
            ("open", "pub fn open(path: &Path) -> File {\n", MatchLineRole::Defines),
            ("open", "    async def open_all(self):", MatchLineRole::OverlapsName),
            ("open", "    let file = open(path);", MatchLineRole::Mentions),
            ("File", "pub fn open(path: &Path) -> File {", MatchLineRole::Mentions),
            ("File", "impl Read for File {", MatchLineRole::Mentions),
            ("unsafe", "pub unsafe fn unsafe_thing() {", MatchLineRole::OverlapsName),
            (r"fn \w+_all\(", "fn open_all() {", MatchLineRole::Defines),
            ("open", "// fn open() {", MatchLineRole::Mentions),
        ] {
            assert_eq!(line_role(&matcher(text), line.as_bytes()), expected, "{text} in {line}");
        }
    }

    #[test]
    fn files_are_ranked_by_category_then_role_then_count() {
        let rank = |path: &str, role, count| {
            MatchedFileSortKey::new(path.as_ref(), &matcher("cache"), role, count)
        };
        let ranks = [
            rank("src/z.rs", MatchLineRole::Defines, 1),
            rank("src/y.rs", MatchLineRole::OverlapsName, 9),
            rank("src/cache.rs", MatchLineRole::Mentions, 1),
            rank("src/b.rs", MatchLineRole::Mentions, 7),
            rank("a.toml", MatchLineRole::Mentions, 2),
            rank("src/a.rs", MatchLineRole::Mentions, 2),
            rank("tests/a.rs", MatchLineRole::Defines, 30),
            rank("README.md", MatchLineRole::Mentions, 99),
            rank("vendor/a.rs", MatchLineRole::Defines, 99),
        ];
        assert!(ranks.is_sorted(), "{ranks:#?}");
        for rank in &ranks {
            assert_eq!(MatchedFileSortKey::decode(&rank.encode()), *rank);
        }
        assert_eq!(ranks[3].count(), 7);
    }
}
