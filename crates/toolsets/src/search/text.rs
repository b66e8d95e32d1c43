//! `search.text`: finds every occurrence of a text, grouped by file, most relevant first.

mod query;
mod rank;
mod count;
mod page;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::service::SearchService;
use crate::counted::counted;
use crate::grep::CaseSensitivity;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

const LIMIT_MAX: usize = 1000;
const CONTEXT_MAX: usize = 20;
const PER_FILE_DEFAULT: usize = 5;

/// The tool `search.text`.
pub struct SearchText {
    pub(super) service: Arc<SearchService>,
}

/// Input of `search.text`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchTextInput {
    /// Regular expression.
    query: String,
    /// Take `query` literally.
    #[serde(default)]
    literal: bool,
    /// Only whole words.
    #[serde(default)]
    word: bool,
    /// `smart` is case-sensitive only if `query` has a capital letter.
    #[serde(default)]
    case: CaseSensitivity,
    /// A match may span lines.
    #[serde(default)]
    multiline: bool,
    /// Namespace (a named folder from the settings) to search; default: the whole workspace.
    namespace: Option<String>,
    /// Directory or file to search.
    #[serde(default = "crate::input_defaults::here")]
    path: String,
    /// `*.rs`, or a path such as `src/**/*.ts`; a leading `!` excludes.
    #[serde(default)]
    glob: Vec<String>,
    /// Only files in one of these languages, e.g. `rust` or `python`.
    #[serde(default)]
    langs: Vec<String>,
    /// A language such as `rust`, or `code`, `docs`, `config`, `test`, `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Include skipped files.
    #[serde(default)]
    include_ignored: bool,
    /// Search names that begin with a dot (`.git` only by `path`).
    #[serde(default = "crate::input_defaults::yes")]
    hidden: bool,
    /// Lines around each match.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20))]
    context: usize,
    /// Maximum matches per file.
    #[schemars(range(min = 1, max = 1000))]
    per_file: Option<usize>,
    /// Only count.
    #[serde(default)]
    counts_only: bool,
    /// Maximum matches.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 1000))]
    limit: usize,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// Output of `search.text`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct SearchTextOutput {
    /// Files with matches: definitions first, then most matches; then tests and examples,
    /// documents, and vendored or generated files.
    files: Vec<MatchedTextFile>,
    /// The number of matching lines, or of matches with `multiline`.
    matches_total: u64,
    /// The number of files with matches.
    files_total: u64,
    /// The number of files searched.
    searched: u64,
    /// True if files or matches are left out. For more files, pass `cursor`. For more matches in
    /// these files, raise `per_file` or `limit`.
    truncated: bool,
    /// The `cursor` of the next page; null at the end.
    cursor: Option<String>,
    /// Files that could not be searched.
    skipped: SkippedFileCounts,
}

/// A file with matches.
#[derive(Debug, Serialize, JsonSchema)]
struct MatchedTextFile {
    /// The path, relative to the workspace or to the root of its namespace.
    path: String,
    /// The language, if known.
    lang: Option<&'static str>,
    /// Tags of the file.
    tags: Vec<&'static str>,
    /// The number of matches in the file.
    count: u64,
    /// The matches that are shown, in order.
    matches: Vec<TextMatch>,
}

/// A match.
#[derive(Debug, Serialize, JsonSchema)]
struct TextMatch {
    /// The line, from 1.
    line: u64,
    /// The last line of a match that spans several lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_end: Option<u64>,
    /// The start of the match in the line, in bytes from 1.
    column: u64,
    /// The line. A very long line is shortened to the part around the match, with `…` for the rest.
    text: String,
    /// True if the line seems to define the match.
    definition: bool,
    /// The enclosing definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<EnclosingSymbol>,
    /// Preceding lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
    /// Following lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
}

/// The function, type, section or key that contains a match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct EnclosingSymbol {
    /// The name of the symbol.
    name: String,
    /// The kind: `function`, `type`, `code`, `section` or `key`.
    kind: &'static str,
    /// The enclosing definitions, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    container: Vec<String>,
    /// The line at which the symbol is defined.
    line: u32,
}

/// Numbers of skipped files, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct SkippedFileCounts {
    /// Files that are not text.
    binary: u64,
    /// Files and directories that vanished or cannot be read.
    unreadable: u64,
    /// Files with a line that is too long, or that are too long for a multiline search.
    too_long: u64,
}

impl Tool for SearchText {
    const NAME: &'static str = "search.text";
    const TITLE: &'static str = "Search for text";
    const DESCRIPTION: &'static str = "Find and count every occurrence of a regular expression, \
        by file, with the function or type around it: definitions first. Skips what .gitignore \
        excludes, and files that hold passwords.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("pattern", "query"),
        ("regex", "query"),
        ("dir", "path"),
        ("directory", "path"),
        ("folder", "path"),
    ];
    const RARE_ARGUMENTS: &'static [&'static str] =
        &["case", "namespace", "langs", "hidden", "tags", "per_file", "word"];
    const IDEMPOTENT: bool = true;
    type Input = SearchTextInput;
    type Output = SearchTextOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        check_range("/limit", input.limit, 1, LIMIT_MAX)?;
        check_range("/per_file", input.per_file.unwrap_or(1), 1, LIMIT_MAX)?;
        check_range("/context", input.context, 0, CONTEXT_MAX)?;
        let (root, folder) = self.service.resolve_files(input.namespace.as_deref()).await?;
        let answer_bytes = self.service.answer_bytes();
        let work = move |root: &Root, watch: &DiskWorkMonitor| {
            page::search_text(root, &folder, &input, answer_bytes, watch)
        };
        root.run_blocking(ctx, work).await
    }

    fn result_text(output: &SearchTextOutput) -> ResultText {
        let SearchTextOutput {
            files, matches_total, files_total, searched, cursor, skipped, ..
        } = output;
        let mut body = String::new();
        for file in files {
            file.write(&mut body);
        }
        let mut note = match matches_total {
            0 => format!("no matches; {searched} searched"),
            count => format!(
                "{} in {}; {searched} searched",
                counted(*count, "match", "matches"),
                counted(*files_total, "file", "files")
            ),
        };
        let SkippedFileCounts { binary, unreadable, too_long } = *skipped;
        let reasons = [
            (binary, "not text"),
            (unreadable, "unreadable or deleted"),
            (too_long, "lines too long"),
        ];
        for (count, why) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            note += &format!("; {count} skipped ({why})");
        }
        let left: u64 = files.iter().map(MatchedTextFile::unshown_count).sum();
        if left > 0 {
            note += &format!("; {left} more in these files: raise `per_file` or `limit`");
        }
        if let Some(cursor) = cursor {
            note += &format!("; continue with cursor: {cursor}");
        }
        ResultText::from_body(body).with_note(note)
    }
}

impl MatchedTextFile {
    /// Returns the number of matches in the file that the answer leaves out, or 0 if the answer
    /// shows counts only.
    fn unshown_count(&self) -> u64 {
        let shown = self.matches.len() as u64;
        if shown == 0 { 0 } else { self.count.saturating_sub(shown) }
    }

    /// Appends the path of the file, the number of matches, and the shown matches to `body`.
    fn write(&self, body: &mut String) {
        let Self { path, count, matches, .. } = self;
        let path = escape_line(path);
        *body += &match (count, matches.len() as u64) {
            (count, 0) => format!("{path}: {count}\n"),
            (count, shown) if *count == shown => format!("{path}\n"),
            (count, shown) => format!("{path} ({shown} of {count})\n"),
        };
        let mut last: Option<&TextMatch> = None;
        let mut has_heading = false;
        for found in matches {
            let is_same = last.is_some_and(|last| last.symbol == found.symbol);
            match &found.symbol {
                // A definition names itself, but does not show that the definition above it has
                // ended.
                Some(symbol) if !is_same && (has_heading || !found.definition) => {
                    *body += &symbol.heading();
                    has_heading = true;
                }
                None if !is_same && has_heading => {
                    *body += " at the top level\n";
                    has_heading = false;
                }
                Some(_) | None => {}
            }
            let has_gap = last.is_some_and(|last| !found.follows(last));
            if has_gap && !(found.before.is_empty() && found.after.is_empty()) {
                *body += " --\n";
            }
            found.write(body);
            last = Some(found);
        }
    }
}

impl EnclosingSymbol {
    /// Returns the heading that names this definition, above the matches in it.
    fn heading(&self) -> String {
        let Self { name, kind, container, line } = self;
        let container: String = container.iter().map(|it| format!("{it}.")).collect();
        format!(" in {kind} {container}{name}, line {line}\n")
    }
}

impl TextMatch {
    fn last_line(&self) -> u64 {
        self.line_end.unwrap_or(self.line)
    }

    /// Returns true if no line lies between this match and the match `last`, both with their
    /// context lines.
    fn follows(&self, last: &Self) -> bool {
        self.line - self.before.len() as u64 <= last.last_line() + last.after.len() as u64 + 1
    }

    fn write(&self, body: &mut String) {
        let Self { line, text, before, after, .. } = self;
        for (number, text) in (line - before.len() as u64..).zip(before) {
            *body += &format!(" {number}-{text}\n");
        }
        for (number, text) in (*line..).zip(text.split('\n')) {
            *body += &format!(" {number}:{text}\n");
        }
        for (number, text) in (self.last_line() + 1..).zip(after) {
            *body += &format!(" {number}-{text}\n");
        }
    }
}

fn check_range(pointer: &str, value: usize, min: usize, max: usize) -> Result<(), ToolError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ToolError::invalid(pointer, format!("it must be from {min} to {max}")))
}

fn limit() -> usize {
    50
}
