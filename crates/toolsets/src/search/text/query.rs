//! The parsed input of a text search.

use std::path::{Path, PathBuf};

use grep_regex::RegexMatcher;
use toolgate_chunks::{FileClassification, is_secret};
use toolgate_contract::ToolError;
use toolgate_world::root::path_text;

use super::SearchTextInput;
use super::rank::MatchedFileSortKey;
use crate::files::cursor;
use crate::grep::{FileGlob, MultilineMatching, TextPattern};
use crate::search::service::{distinct_tags, resolve_tag};

/// Largest number of globs in one search.
const GLOBS_MAX: usize = 64;

/// Input of `search.text`, parsed and validated.
pub(super) struct TextSearchQuery {
    pub(super) matcher: RegexMatcher,
    pub(super) span: MultilineMatching,
    /// The folder or file to search, relative to the root of the namespace.
    pub(super) start: PathBuf,
    /// The last file on the previous page.
    pub(super) after: Option<MatchedFileSortKey>,
    globs: Vec<FileGlob>,
    langs: Vec<String>,
    tags: Vec<String>,
    /// True to also search files that may contain passwords and keys.
    include_secrets: bool,
    cursor_key: String,
}

impl TextSearchQuery {
    /// Parses `input` for a search that starts at the path `start` in the folder `root`. Fails if
    /// the input is invalid.
    pub(super) fn parse(
        input: &SearchTextInput,
        root: &Path,
        start: PathBuf,
    ) -> Result<Self, ToolError> {
        let SearchTextInput {
            query: text, literal, word, case, multiline, glob, langs, tags, ..
        } = input;
        if text.is_empty() {
            return Err(ToolError::invalid("/query", "it is empty; pass the text to search for"));
        }
        if glob.len() > GLOBS_MAX {
            let message = format!("there are more than {GLOBS_MAX}; pass fewer");
            return Err(ToolError::invalid("/glob", message));
        }
        let cursor_key = input.cursor_key();
        let after = match cursor::given_cursor(input.cursor.as_deref()) {
            Some(given) => {
                Some(MatchedFileSortKey::decode(&cursor::decode_cursor(&cursor_key, given)?))
            }
            None => None,
        };
        let span =
            if *multiline { MultilineMatching::MultiLine } else { MultilineMatching::SingleLine };
        let literal = *literal;
        let word = *word;
        let case = *case;
        let matcher = TextPattern { text, literal, word, case, span }.compile()?;
        let parse =
            |(at, glob): (usize, &String)| FileGlob::parse(glob, root, &format!("/glob/{at}"));
        let globs = glob.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let langs = distinct_tags(langs.clone(), "/langs")?;
        let langs =
            langs.iter().map(|it| resolve_tag(it, false, "/langs")).collect::<Result<_, _>>()?;
        let tags = distinct_tags(tags.clone(), "/tags")?;
        let tags =
            tags.iter().map(|it| resolve_tag(it, true, "/tags")).collect::<Result<_, _>>()?;
        let include_secrets = input.include_ignored || is_secret(&start.to_string_lossy());
        Ok(Self { matcher, span, start, after, globs, langs, tags, include_secrets, cursor_key })
    }

    /// Returns true if this search covers the file at `path`.
    pub(super) fn covers(&self, path: &Path) -> bool {
        let text = path_text(path);
        if !self.include_secrets && is_secret(&text) {
            return false;
        }
        let (excluding, including): (Vec<&FileGlob>, Vec<&FileGlob>) =
            self.globs.iter().partition(|glob| glob.negated);
        let matches = |glob: &&FileGlob| glob.matches(path, &self.start);
        let is_included = including.is_empty() || including.iter().any(matches);
        if !is_included || excluding.iter().any(matches) {
            return false;
        }
        if self.langs.is_empty() && self.tags.is_empty() {
            return true;
        }
        let class = FileClassification::for_path(&text);
        let is_in = |lang: &String| class.lang.is_some_and(|it| it.eq_ignore_ascii_case(lang));
        let has_tag = |tag: &String| class.tags().iter().any(|it| it.eq_ignore_ascii_case(tag));
        (self.langs.is_empty() || self.langs.iter().any(is_in)) && self.tags.iter().all(has_tag)
    }

    /// Returns the cursor for the page after the file `last`.
    pub(super) fn cursor(&self, last: &MatchedFileSortKey) -> String {
        cursor::encode_cursor(&self.cursor_key, &last.encode())
    }
}

impl SearchTextInput {
    /// Returns a text with all inputs that determine the found files and their order.
    fn cursor_key(&self) -> String {
        let Self {
            query, literal, word, case, multiline, namespace, path, glob, langs, tags, ..
        } = self;
        let Self { include_ignored, hidden, .. } = self;
        format!(
            "text {query:?} {literal} {word} {case:?} {multiline} {namespace:?} {path:?} {glob:?} \
             {langs:?} {tags:?} {include_ignored} {hidden}"
        )
    }
}
