//! In which order files are shown, told by what costs next to nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use grep_matcher::Matcher;
use grep_regex::RegexMatcher;
use toolgate_chunks::{Kind, Sort, defined, is_generated, is_vendored};

/// How many matches of a line are looked at.
const SPANS_MAX: usize = 4;
/// A longer line defines nothing.
const LINE_BYTES_MAX: usize = 2 << 10;

/// What a line has to do with what matches in it, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// It defines something that is called so.
    Defines,
    /// It defines something in whose name this is.
    Names,
    /// It says it.
    Says,
}

/// Where a file stands among others: the least is shown first. No two files have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    shelf: Shelf,
    role: Role,
    /// Whether the file's own name does not match.
    unnamed: bool,
    /// How many matches it lacks of the most there can be.
    fewer: u64,
    pub(super) path: PathBuf,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shelf {
    Work,
    Tests,
    Docs,
    /// Others wrote it, or a program.
    Foreign,
}

impl Rank {
    /// That of the file at `path` with `count` matches, the best of which is a `role`.
    pub(super) fn of(path: &Path, matcher: &RegexMatcher, role: Role, count: u64) -> Self {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let unnamed = !matcher.is_match(name).unwrap_or(false);
        let shelf = Shelf::of(&path.to_string_lossy());
        Self { shelf, role, unnamed, fewer: u64::MAX - count, path: path.to_owned() }
    }

    /// How many matches the file has.
    pub(super) fn count(&self) -> u64 {
        u64::MAX - self.fewer
    }

    /// As a cursor has it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self { shelf, role, unnamed, fewer, path } = self;
        let mut bytes = vec![*shelf as u8, *role as u8, u8::from(*unnamed)];
        bytes.extend_from_slice(&fewer.to_le_bytes());
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes
    }

    /// What [`Rank::bytes`] wrote.
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
        let (unnamed, fewer) = (head[2] != 0, u64::from_le_bytes(*fewer));
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

/// What the first line of `matched`, whole lines that match, has to do with it.
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
        let (case, reach) = (Case::Smart, Reach::Line);
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
