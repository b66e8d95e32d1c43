//! Ranks files by cheap signs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use toolgate_chunks::{Kind, Sort, defined, is_generated, is_vendored};

/// The number of matches in a line that are checked.
const SPANS_MAX: usize = 4;
/// The longest line that can be a definition, in bytes.
const LINE_BYTES_MAX: usize = 2 << 10;

/// The relation of a line to the match in it, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// The line defines the matched name.
    Defines,
    /// The line defines a name that overlaps the match.
    Names,
    /// The line mentions the match.
    Says,
}

/// The sort key of a file: the smallest is shown first. No two files have equal ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    shelf: Shelf,
    role: Role,
    /// True if the file name does not match.
    unnamed: bool,
    /// `u64::MAX` minus the number of matches, so that more matches sort first.
    fewer: u64,
    pub(super) path: PathBuf,
}

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shelf {
    Work,
    Tests,
    Docs,
    /// Vendored or generated.
    Foreign,
}

impl Rank {
    /// Creates the rank of the file at `path`, which has `count` matches with `role` as the best.
    pub(super) fn of(path: &Path, matcher: &RegexMatcher, role: Role, count: u64) -> Self {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let unnamed = !matcher.is_match(name).unwrap_or(false);
        let shelf = Shelf::of(&path.to_string_lossy());
        Self { shelf, role, unnamed, fewer: u64::MAX - count, path: path.to_owned() }
    }

    /// Returns the number of matches in the file.
    pub(super) fn count(&self) -> u64 {
        u64::MAX - self.fewer
    }

    /// Encodes the rank for a cursor.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self { shelf, role, unnamed, fewer, path } = self;
        let mut bytes = vec![*shelf as u8, *role as u8, u8::from(*unnamed)];
        bytes.extend_from_slice(&fewer.to_le_bytes());
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes
    }

    /// Decodes the output of [`Rank::bytes`].
    pub(super) fn read(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_first_chunk().unwrap_or((&[0; 3], b""));
        let (fewer, path) = rest.split_first_chunk().unwrap_or((&[0; 8], b""));
        let shelf = match head[0] {
            0 => Shelf::Work,
            1 => Shelf::Tests,
            2 => Shelf::Docs,
            _foreign => Shelf::Foreign,
        };
        let role = match head[1] {
            0 => Role::Defines,
            1 => Role::Names,
            _says => Role::Says,
        };
        let unnamed = head[2] != 0;
        let fewer = u64::from_le_bytes(*fewer);
        Self { shelf, role, unnamed, fewer, path: OsStr::from_bytes(path).into() }
    }
}

impl Shelf {
    fn of(path: &str) -> Self {
        let sort = Sort::of(path);
        if is_generated(path) || is_vendored(path) {
            return Self::Foreign;
        }
        match sort.kind {
            Kind::Code if sort.is_test || sort.is_example => Self::Tests,
            Kind::Code | Kind::Config | Kind::Other => Self::Work,
            Kind::Docs => Self::Docs,
        }
    }
}

/// Returns the role of the first line of `matched`, which is a match of whole lines.
pub(super) fn role(matcher: &RegexMatcher, matched: &[u8]) -> Role {
    let line = memchr::memchr(b'\n', matched).map_or(matched, |end| &matched[..end]);
    if line.len() > LINE_BYTES_MAX {
        return Role::Says;
    }
    let Ok(line) = std::str::from_utf8(line) else { return Role::Says };
    let names = defined(line);
    let mut best = Role::Says;
    if names.is_empty() {
        return best;
    }
    let mut left = SPANS_MAX;
    let _ = matcher.find_iter(matched, |found| {
        for name in &names {
            let Some(at) = line.find(name.as_str()) else { continue };
            let end = at + name.len();
            if found.start() <= at && end <= found.end() {
                best = best.min(Role::Defines);
            } else if found.start() < end && at < found.end() {
                best = best.min(Role::Names);
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
    use crate::grep::{Case, Pattern, Reach};

    fn matcher(text: &str) -> RegexMatcher {
        let case = Case::Smart;
        let reach = Reach::Line;
        Pattern { text, literal: false, word: false, case, reach }.matcher().unwrap()
    }

    #[test]
    fn a_line_that_defines_what_matches_is_told_from_one_that_says_it() {
        for (text, line, expected) in [
            ("open", "pub fn open(path: &Path) -> File {\n", Role::Defines),
            ("open", "    async def open_all(self):", Role::Names),
            ("open", "    let file = open(path);", Role::Says),
            ("File", "pub fn open(path: &Path) -> File {", Role::Says),
            ("File", "impl Read for File {", Role::Says),
            ("unsafe", "pub unsafe fn unsafe_thing() {", Role::Names),
            (r"fn \w+_all\(", "fn open_all() {", Role::Defines),
            ("open", "// fn open() {", Role::Says),
        ] {
            assert_eq!(role(&matcher(text), line.as_bytes()), expected, "{text} in {line}");
        }
    }

    #[test]
    fn work_comes_first_then_what_defines_then_what_has_most() {
        let rank =
            |path: &str, role, count| Rank::of(path.as_ref(), &matcher("cache"), role, count);
        let ranks = [
            rank("src/z.rs", Role::Defines, 1),
            rank("src/y.rs", Role::Names, 9),
            rank("src/cache.rs", Role::Says, 1),
            rank("src/b.rs", Role::Says, 7),
            rank("a.toml", Role::Says, 2),
            rank("src/a.rs", Role::Says, 2),
            rank("tests/a.rs", Role::Defines, 30),
            rank("README.md", Role::Says, 99),
            rank("vendor/a.rs", Role::Defines, 99),
        ];
        assert!(ranks.is_sorted(), "{ranks:#?}");
        for rank in &ranks {
            assert_eq!(Rank::read(&rank.bytes()), *rank);
        }
        assert_eq!(ranks[3].count(), 7);
    }
}
