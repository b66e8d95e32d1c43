//! `files.search`: finds files by name, and lines by their text.

mod query;
mod search_run;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::FileSettings;
use crate::grep::CaseSensitivity;
use toolgate_world::Root;
use toolgate_world::root::EntryKind;

const LIMIT_MAX: usize = 10_000;
const CONTEXT_MAX: usize = 50;

/// The `files.search` tool.
pub struct SearchFiles {
    pub(super) root: Root,
    pub(super) settings: Arc<FileSettings>,
}

/// Input of `files.search`: names or text to find, and the place to search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchFilesInput {
    /// Directory or file to search.
    #[serde(default = "crate::input_defaults::here")]
    path: String,
    /// `*.rs`, or a path such as `src/**/*.ts`; a leading `!` negates.
    glob: Option<String>,
    /// Regular expression.
    query: Option<String>,
    /// Take `query` literally.
    #[serde(default)]
    literal: bool,
    /// `smart` is case-sensitive only if `query` has a capital letter.
    #[serde(default)]
    case: CaseSensitivity,
    /// Lines around each match.
    #[serde(default)]
    #[schemars(range(min = 0, max = 50))]
    context: usize,
    /// Include ignored files.
    #[serde(default)]
    include_ignored: bool,
    /// Search names that begin with a dot (`.git` only if `path` names it).
    #[serde(default = "crate::input_defaults::yes")]
    hidden: bool,
    /// Maximum matches.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 10_000))]
    limit: usize,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// The entries or lines that a search found.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct SearchFilesOutput {
    /// Lines that match `query`, ordered by path and line.
    matches: Vec<FileLineMatch>,
    /// Entries that match `glob`, ordered by path, if `query` was not given.
    files: Vec<EntryNameMatch>,
    /// Number of searched files; without `query`, number of searched entries.
    searched: u64,
    /// True if there are more matches.
    truncated: bool,
    /// Cursor to continue with; null at the end.
    cursor: Option<String>,
    /// Files that could not be searched.
    skipped: SkippedEntryCounts,
}

/// A line that matches the query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct FileLineMatch {
    /// The file, relative to the workspace root.
    path: String,
    /// Line number, from 1.
    line: u64,
    /// Position of the match in the line, in bytes from 1.
    column: u64,
    /// The matching line. A very long line is shortened to the part around the match, with `…` for
    /// the rest.
    text: String,
    /// Preceding lines.
    before: Vec<String>,
    /// Following lines.
    after: Vec<String>,
}

/// An entry whose name matches the glob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct EntryNameMatch {
    /// Path relative to the workspace root.
    path: String,
    /// Kind of entry; symlinks are not followed.
    kind: EntryKind,
}

/// Numbers of entries skipped, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct SkippedEntryCounts {
    /// Files that are not text.
    binary: u64,
    /// Files and directories that vanished or cannot be read.
    unreadable: u64,
    /// Files with a line too long to search.
    long_lines: u64,
    /// Entries that .gitignore excludes, counted only if nothing was searched.
    ignored: u64,
}

impl Tool for SearchFiles {
    const NAME: &'static str = "files.search";
    const TITLE: &'static str = "Search files";
    const DESCRIPTION: &'static str = "Find files by name (`glob`), lines by regular expression \
        (`query`), or both, ordered by path. Skips binary files and what .gitignore excludes.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["case", "hidden", "literal"];
    const IDEMPOTENT: bool = true;
    type Input = SearchFilesInput;
    type Output = SearchFilesOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        if input.limit == 0 || input.limit > LIMIT_MAX {
            return Err(ToolError::invalid("/limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        if input.context > CONTEXT_MAX {
            return Err(ToolError::invalid(
                "/context",
                format!("it must be at most {CONTEXT_MAX}"),
            ));
        }
        let answer_bytes = self.settings.limits.answer_bytes;
        self.root
            .run_blocking(ctx, move |root, watch| {
                search_run::run_search(root, &input, answer_bytes, watch)
            })
            .await
    }

    fn result_text(output: &SearchFilesOutput) -> ResultText {
        let SearchFilesOutput { matches, files, searched, cursor, skipped, .. } = output;
        let mut body = String::new();
        for EntryNameMatch { path, kind } in files {
            let path = escape_line(path);
            body += &format!("{path}{}\n", if *kind == EntryKind::Dir { "/" } else { "" });
        }
        let context =
            matches.iter().any(|found| !(found.before.is_empty() && found.after.is_empty()));
        for (at, found) in matches.iter().enumerate() {
            if context && at > 0 && !found.is_adjacent_to(&matches[at - 1]) {
                body += "--\n";
            }
            found.append_to(&mut body);
        }
        let found = matches.len() + files.len();
        let mut note = match (found, cursor) {
            (0, _) => format!("no matches; {searched} searched"),
            (1, None) => format!("1 match; {searched} searched"),
            (1, Some(cursor)) => format!("1 match and more; continue with cursor: {cursor}"),
            (found, None) => format!("{found} matches; {searched} searched"),
            (found, Some(cursor)) => {
                format!("{found} matches and more; continue with cursor: {cursor}")
            }
        };
        let SkippedEntryCounts { binary, unreadable, long_lines, ignored } = *skipped;
        let reasons = [
            (binary, "not text"),
            (unreadable, "unreadable or deleted"),
            (long_lines, "lines too long"),
        ];
        for (count, why) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            note += &format!("; {count} skipped ({why})");
        }
        if ignored > 0 {
            note += &format!("; {ignored} excluded by .gitignore, pass include_ignored: true");
        }
        ResultText::from_body(body).with_note(note)
    }
}

impl FileLineMatch {
    /// Returns true if the context lines of this match begin on the line after the context lines of
    /// the match `last`.
    fn is_adjacent_to(&self, last: &Self) -> bool {
        let first = self.line - self.before.len() as u64;
        self.path == last.path && first == last.line + last.after.len() as u64 + 1
    }

    /// Appends the match and its context lines to `body` in ripgrep's format.
    fn append_to(&self, body: &mut String) {
        let Self { path, line, text, before, after, .. } = self;
        let path = escape_line(path);
        for (number, text) in (line - before.len() as u64..).zip(before) {
            *body += &format!("{path}-{number}-{text}\n");
        }
        *body += &format!("{path}:{line}:{text}\n");
        for (number, text) in (line + 1..).zip(after) {
            *body += &format!("{path}-{number}-{text}\n");
        }
    }
}

fn limit() -> usize {
    200
}
