//! A search made ready: which names, which lines, and from where on.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use toolgate_contract::ToolError;

use super::{Case, Input};
use crate::files::cursor;

/// Past this a compiled expression is refused.
const REGEX_BYTES_MAX: usize = 32 << 20;
/// How much a thread may remember of the states it came by; past this it is slower instead.
const STATES_BYTES_MAX: usize = 4 << 20;

/// What to look for.
pub(super) struct Query {
    names: Option<Names>,
    pub(super) text: Option<RegexMatcher>,
    /// The last thing given before, to go on after.
    pub(super) after: Option<Last>,
    question: String,
}

/// The last match given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) path: PathBuf,
    /// Its line; 0 for an entry found by name.
    pub(super) line: u64,
}

struct Names {
    glob: GlobMatcher,
    /// The whole path is matched, not the name alone.
    whole: bool,
    /// What does not match is meant.
    not: bool,
}

impl Query {
    /// What `input` asks for in the root at `root`. An empty text or glob is none.
    pub(super) fn of(input: &Input, root: &Path) -> Result<Self, ToolError> {
        let Input { path, glob, text, literal, case, context, include_ignored, hidden, .. } = input;
        let glob = glob.as_deref().filter(|glob| !glob.is_empty());
        let text = text.as_deref().filter(|text| !text.is_empty());
        if glob.is_none() && text.is_none() {
            return Err(ToolError::invalid("", "neither text nor glob is given; give one or both"));
        }
        let question = format!(
            "search {path:?} {glob:?} {text:?} {literal} {case:?} {context} {include_ignored} {hidden}"
        );
        let after = match &input.cursor {
            Some(given) => Some(Last::read(&cursor::read(&question, given)?)),
            None => None,
        };
        let names = glob.map(|glob| Names::of(glob, root)).transpose()?;
        let text = text.map(|text| matcher(text, *literal, *case)).transpose()?;
        Ok(Self { names, text, after, question })
    }

    /// Whether an entry at `path` is meant, by its name or its path from the root or from `start`.
    pub(super) fn names(&self, path: &Path, start: &Path) -> bool {
        let Some(Names { glob, whole, not }) = &self.names else { return true };
        let is_match = if *whole {
            let inner = path.strip_prefix(start).unwrap_or(path);
            glob.is_match(path) || glob.is_match(inner)
        } else {
            path.file_name().is_some_and(|name| glob.is_match(name))
        };
        is_match != *not
    }

    /// The cursor that goes on after `last`.
    pub(super) fn cursor(&self, last: &Last) -> String {
        let mut bytes = last.line.to_le_bytes().to_vec();
        bytes.extend_from_slice(last.path.as_os_str().as_bytes());
        cursor::after(&self.question, &bytes)
    }
}

impl Last {
    fn read(bytes: &[u8]) -> Self {
        let (line, path) = bytes.split_first_chunk().unwrap_or((&[0; 8], b""));
        Self { line: u64::from_le_bytes(*line), path: OsStr::from_bytes(path).into() }
    }
}

impl Names {
    fn of(glob: &str, root: &Path) -> Result<Self, ToolError> {
        let (not, glob) = glob.strip_prefix('!').map_or((false, glob), |glob| (true, glob));
        let whole = glob.contains('/');
        let glob = root.to_str().map_or(glob, |root| beneath(glob, root));
        let glob = glob.strip_prefix("./").unwrap_or(glob);
        let glob = glob.strip_prefix('/').unwrap_or(glob);
        let glob = GlobBuilder::new(glob).literal_separator(true).build().map_err(|err| {
            ToolError::invalid("/glob", format!("it is not a glob: {}", err.kind()))
        })?;
        Ok(Self { glob: glob.compile_matcher(), whole, not })
    }
}

/// `glob` without the path of the root before it, which leaves a slash at its start.
fn beneath<'g>(glob: &'g str, root: &str) -> &'g str {
    let rest = glob.strip_prefix(root.trim_end_matches('/'));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(glob)
}

fn matcher(text: &str, literal: bool, case: Case) -> Result<RegexMatcher, ToolError> {
    let mut builder = RegexMatcherBuilder::new();
    builder.multi_line(true).crlf(true).fixed_strings(literal).size_limit(REGEX_BYTES_MAX);
    builder.dfa_size_limit(STATES_BYTES_MAX);
    match case {
        Case::Smart => builder.case_smart(true),
        Case::Sensitive => &mut builder,
        Case::Insensitive => builder.case_insensitive(true),
    };
    builder.build(text).map_err(|err| {
        // The crate draws the expression with a caret; the last line says it.
        let why = err.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
        let way_out = if literal {
            "a match is within one line"
        } else {
            "the syntax is that of Rust's regex crate; to search for the text as it is, set literal: true"
        };
        ToolError::invalid("/text", format!("it cannot be searched for: {why}; {way_out}"))
    })
}
