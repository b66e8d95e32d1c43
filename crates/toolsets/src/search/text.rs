//! `search.text`: every occurrence of a text, by file, the places that matter most first.

mod query;
mod rank;
mod count;
mod page;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::service::Service;
use crate::grep::Case;
use crate::world::Root;
use crate::world::root::Watch;

const LIMIT_MAX: usize = 1000;
const CONTEXT_MAX: usize = 20;
const PER_FILE: usize = 5;

/// Searches for text.
pub struct InText {
    service: Arc<Service>,
}

/// What to look for, and where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What lines say: a regular expression (Rust syntax: no look-around, no backreferences).
    text: String,
    /// Take `text` as it is, not as a regular expression.
    #[serde(default)]
    literal: bool,
    /// Only whole words.
    #[serde(default)]
    word: bool,
    /// Whether case matters; `smart`: only if `text` has a capital letter.
    #[serde(default)]
    case: Case,
    /// Let a match go over several lines, e.g. `fn open\([^)]*\)`; `.` still matches within one,
    /// unless the expression begins with `(?s)`.
    #[serde(default)]
    multiline: bool,
    /// Which of the configured namespaces of files to search; without one, the whole workspace.
    namespace: Option<String>,
    /// The directory (or the one file) to search, relative to the workspace, or to the root of its
    /// namespace, where only the search tools read.
    #[serde(default = "here")]
    path: String,
    /// Only files whose name matches one of these, e.g. `*.rs`; with a `/`, whose path does, e.g.
    /// `src/**/*.ts`. Files that match one with a leading `!` are left out.
    #[serde(default)]
    globs: Vec<String>,
    /// Only files in one of these languages, e.g. `rust` or `python`.
    #[serde(default)]
    langs: Vec<String>,
    /// Only files that have all of these: a language, and `code`, `docs`, `config`, `test` or
    /// `example`.
    #[serde(default)]
    tags: Vec<String>,
    /// Search what .gitignore leaves out, and files known to hold passwords and keys, too.
    #[serde(default)]
    include_ignored: bool,
    /// Search names that begin with a dot (`.git` only ever by `path`).
    #[serde(default = "yes")]
    hidden: bool,
    /// Show this many lines around each match.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20))]
    context: usize,
    /// Show at most this many matches of a file, those that define something first; without it 5,
    /// or all where `path` is a file.
    #[schemars(range(min = 1, max = 1000))]
    per_file: Option<usize>,
    /// Say how many matches each file has, and show none.
    #[serde(default)]
    counts_only: bool,
    /// Give at most this many matches, or files where only those are counted.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 1000))]
    limit: usize,
    /// The `cursor` of an answer to the same search, to go on after it.
    cursor: Option<String>,
}

/// What was found.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Output {
    /// The files with matches: those that define what matches first, then those with the most;
    /// tests and examples after them, then documents, then what others or programs wrote.
    files: Vec<InFile>,
    /// How many lines match in all, or with `multiline` how many places.
    matches_total: u64,
    /// In how many files.
    files_total: u64,
    /// How many files were searched.
    searched: u64,
    /// Whether there is more than is shown: more files, which `cursor` leads to, or more matches in
    /// those that are, which a higher `per_file` or `limit` shows.
    truncated: bool,
    /// To be passed as `cursor` to go on; null at the end.
    cursor: Option<String>,
    /// What could not be searched.
    skipped: Skipped,
}

/// A file with matches.
#[derive(Debug, Serialize, JsonSchema)]
struct InFile {
    /// Where it is, relative to the workspace, or to the root of its namespace, where only the
    /// search tools read.
    path: String,
    /// The language, if it is one we know.
    lang: Option<&'static str>,
    /// What kind of file it is.
    tags: Vec<&'static str>,
    /// How many lines match in it.
    count: u64,
    /// Those that are shown, in order.
    matches: Vec<Match>,
}

/// A place that matches.
#[derive(Debug, Serialize, JsonSchema)]
struct Match {
    /// Its line, from 1.
    line: u64,
    /// The last line of a match over several.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_end: Option<u64>,
    /// Where in the line it begins, in bytes from 1.
    column: u64,
    /// The line; of a very long one the part around the match, with `…` for the rest.
    text: String,
    /// Whether the line seems to define what matches.
    definition: bool,
    /// What it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<Within>,
    /// The lines before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
    /// The lines after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
}

/// The function, type, section or key that a match is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct Within {
    /// What it is called.
    name: String,
    /// What it is: `function`, `type`, `code`, `section` or `key`.
    kind: &'static str,
    /// What it stands in, the outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    container: Vec<String>,
    /// The line its definition begins in.
    line: u32,
}

/// How much was passed over, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct Skipped {
    /// Files that are not text.
    binary: u64,
    /// Files and directories that vanished, or may not be read.
    unreadable: u64,
    /// Files with a line too long to search, or too long to be searched over lines.
    too_long: u64,
}

impl InText {
    /// The tool for the namespaces of `service`.
    pub fn new(service: &Arc<Service>) -> Self {
        Self { service: service.clone() }
    }
}

impl Tool for InText {
    const NAME: &'static str = "search.text";
    const TITLE: &'static str = "Search for text";
    const ABOUT: &'static str = "Finds every occurrence of a text or regular expression and counts \
        it, by file, with the function or type each match is in: definitions first, tests, \
        documents and generated files last. Leaves out .git, binary files, what .gitignore names and \
        files known to hold passwords and keys (unless `path` is one). For lines in order of path, or files by name, use files_search; for what code is \
        about, search_semantic.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        within("/limit", input.limit, 1, LIMIT_MAX)?;
        within("/per_file", input.per_file.unwrap_or(1), 1, LIMIT_MAX)?;
        within("/context", input.context, 0, CONTEXT_MAX)?;
        let (root, folder) = self.service.place(input.namespace.as_deref()).await?;
        let answer_bytes = self.service.answer_bytes();
        let work = move |root: &Root, watch: &Watch| {
            page::find(root, &folder, &input, answer_bytes, watch)
        };
        root.work(ctx, work).await
    }

    fn text(output: &Output) -> Text {
        let Output { files, matches_total, files_total, searched, cursor, skipped, .. } = output;
        let mut body = String::new();
        for file in files {
            file.write(&mut body);
        }
        let counted = |count: u64, one: &str, many: &str| {
            if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
        };
        let mut note = match matches_total {
            0 => format!("no matches; {searched} searched"),
            count => format!(
                "{} in {}; {searched} searched",
                counted(*count, "match", "matches"),
                counted(*files_total, "file", "files")
            ),
        };
        let Skipped { binary, unreadable, too_long } = *skipped;
        let reasons = [
            (binary, "not text"),
            (unreadable, "unreadable or gone"),
            (too_long, "lines too long"),
        ];
        for (count, why) in reasons.into_iter().filter(|(count, _)| *count > 0) {
            note += &format!("; {count} skipped ({why})");
        }
        let left: u64 = files.iter().map(InFile::left).sum();
        if left > 0 {
            note += &format!("; {left} more in these files: raise `per_file` or `limit`");
        }
        if let Some(cursor) = cursor {
            note += &format!("; go on with cursor: {cursor}");
        }
        Text::body(body).with_note(note)
    }
}

impl InFile {
    /// How many of its matches are not shown, where any is.
    fn left(&self) -> u64 {
        let shown = self.matches.len() as u64;
        if shown == 0 { 0 } else { self.count.saturating_sub(shown) }
    }

    /// The path, how many there are, and under it what is shown.
    fn write(&self, body: &mut String) {
        let Self { path, count, matches, .. } = self;
        *body += &match (count, matches.len() as u64) {
            (count, 0) => format!("{path}: {count}\n"),
            (count, shown) if *count == shown => format!("{path}\n"),
            (count, shown) => format!("{path} ({shown} of {count})\n"),
        };
        let mut last: Option<&Match> = None;
        let mut is_headed = false;
        for found in matches {
            let is_same = last.is_some_and(|last| last.symbol == found.symbol);
            match &found.symbol {
                // A definition says itself what it is, but not that what is above ends before it.
                Some(symbol) if !is_same && (is_headed || !found.definition) => {
                    *body += &symbol.head();
                    is_headed = true;
                }
                None if !is_same && is_headed => {
                    *body += " at the top level\n";
                    is_headed = false;
                }
                Some(_) | None => {}
            }
            let apart = last.is_some_and(|last| !found.follows(last));
            if apart && !(found.before.is_empty() && found.after.is_empty()) {
                *body += " --\n";
            }
            found.write(body);
            last = Some(found);
        }
    }
}

impl Within {
    /// Above what is in it.
    fn head(&self) -> String {
        let Self { name, kind, container, line } = self;
        let container: String = container.iter().map(|it| format!("{it}.")).collect();
        format!(" in {kind} {container}{name}, line {line}\n")
    }
}

impl Match {
    fn last_line(&self) -> u64 {
        self.line_end.unwrap_or(self.line)
    }

    /// Whether it begins, with the lines before it, where `last` ended.
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

fn within(pointer: &str, given: usize, least: usize, most: usize) -> Result<(), ToolError> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(ToolError::invalid(pointer, format!("it must be from {least} to {most}")))
}

fn here() -> String {
    ".".into()
}

fn yes() -> bool {
    true
}

fn limit() -> usize {
    50
}
