//! The parsed input of a text search.

use std::path::{Path, PathBuf};

use grep_regex::RegexMatcher;
use toolgate_chunks::{Sort, is_secret};
use toolgate_contract::ToolError;

use super::Input;
use super::rank::Rank;
use crate::files::cursor;
use crate::grep::{Glob, Pattern, Reach};
use crate::search::service::{distinct_tags, known};

/// Largest number of globs.
const GLOBS_MAX: usize = 64;

/// A parsed text search.
pub(super) struct Query {
    pub(super) matcher: RegexMatcher,
    pub(super) reach: Reach,
    /// The folder or file to search, relative to the root.
    pub(super) start: PathBuf,
    /// The last file of the previous page.
    pub(super) after: Option<Rank>,
    globs: Vec<Glob>,
    langs: Vec<String>,
    tags: Vec<String>,
    /// True to search files that hold passwords and keys too.
    secrets: bool,
    question: String,
}

impl Query {
    /// Parses `input` for a search at `start` in the root at `root`.
    pub(super) fn of(input: &Input, root: &Path, start: PathBuf) -> Result<Self, ToolError> {
        let Input { text, literal, word, case, multiline, globs, langs, tags, .. } = input;
        if text.is_empty() {
            return Err(ToolError::invalid("/text", "it is empty; say what is looked for"));
        }
        if globs.len() > GLOBS_MAX {
            return Err(ToolError::invalid("/globs", format!("there are more than {GLOBS_MAX}")));
        }
        let question = input.question();
        let after = match &input.cursor {
            Some(given) => Some(Rank::read(&cursor::read(&question, given)?)),
            None => None,
        };
        let reach = if *multiline { Reach::Lines } else { Reach::Line };
        let literal = *literal;
        let word = *word;
        let case = *case;
        let matcher = Pattern { text, literal, word, case, reach }.matcher()?;
        let glob = |(at, glob): (usize, &String)| Glob::of(glob, root, &format!("/globs/{at}"));
        let globs = globs.iter().enumerate().map(glob).collect::<Result<_, _>>()?;
        let langs = distinct_tags(langs.clone(), "/langs")?;
        let langs = langs.iter().map(|it| known(it, false, "/langs")).collect::<Result<_, _>>()?;
        let tags = distinct_tags(tags.clone(), "/tags")?;
        let tags = tags.iter().map(|it| known(it, true, "/tags")).collect::<Result<_, _>>()?;
        let secrets = input.include_ignored || is_secret(&start.to_string_lossy());
        Ok(Self { matcher, reach, start, after, globs, langs, tags, secrets, question })
    }

    /// Returns true if this search covers the file at `path`.
    pub(super) fn means(&self, path: &Path) -> bool {
        if !self.secrets && is_secret(&path.to_string_lossy()) {
            return false;
        }
        let (outs, ins): (Vec<&Glob>, Vec<&Glob>) = self.globs.iter().partition(|glob| glob.not);
        let matches = |glob: &&Glob| glob.matches(path, &self.start);
        if !(ins.is_empty() || ins.iter().any(matches)) || outs.iter().any(matches) {
            return false;
        }
        if self.langs.is_empty() && self.tags.is_empty() {
            return true;
        }
        let sort = Sort::of(&path.to_string_lossy());
        let is = |lang: &String| sort.lang.is_some_and(|it| it.eq_ignore_ascii_case(lang));
        let has = |tag: &String| sort.tags().iter().any(|it| it.eq_ignore_ascii_case(tag));
        (self.langs.is_empty() || self.langs.iter().any(is)) && self.tags.iter().all(has)
    }

    /// Returns the cursor for the page after `last`.
    pub(super) fn cursor(&self, last: &Rank) -> String {
        cursor::after(&self.question, &last.bytes())
    }
}

impl Input {
    /// Returns all inputs that determine the found files and their order.
    fn question(&self) -> String {
        let Self {
            text, literal, word, case, multiline, namespace, path, globs, langs, tags, ..
        } = self;
        let Self { include_ignored, hidden, .. } = self;
        format!(
            "text {text:?} {literal} {word} {case:?} {multiline} {namespace:?} {path:?} {globs:?} \
             {langs:?} {tags:?} {include_ignored} {hidden}"
        )
    }
}
