//! `git.blame`: finds the commit that last changed each line of a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, ToolErrorKind};

use super::GitContext;
use super::discovery::RepositoryFolder;
use toolgate_contract::printable;
use toolgate_world::root::quoted_path;

/// The maximum number of lines in one answer of `git.blame`.
const LINES_MAX: u32 = 500;
/// The maximum size of a work tree file that `git.blame` annotates, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The `git.blame` tool.
pub(super) struct GitBlame(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitBlameInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// The file.
    path: String,
    /// Commit to read the file from.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// First line.
    #[serde(default)]
    #[schemars(range(min = 1))]
    start_line: Option<u32>,
    /// Last line.
    #[serde(default)]
    #[schemars(range(min = 1))]
    end_line: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitBlameOutput {
    /// Path of the file.
    path: String,
    /// Lines of the file.
    lines: Vec<GitBlameLine>,
    /// Line to continue at; null at the end.
    next_line: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitBlameLine {
    /// Line number.
    line: u32,
    /// Commit that last changed the line; null if not committed.
    commit: Option<String>,
    /// Author of the commit.
    author: String,
    /// Date of the commit (RFC 3339).
    date: String,
    /// Text of the line.
    text: String,
}

impl Tool for GitBlame {
    const NAME: &'static str = "git.blame";
    const TITLE: &'static str = "Git blame";
    const DESCRIPTION: &'static str = "Show the commit that each line of a file comes from.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("paths", "path")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitBlameInput;
    type Output = GitBlameOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GitBlameInput { repo, path, revision, start_line, end_line } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let path = repository.resolve_path(&path, "/path")?;
        let from = start_line.unwrap_or(1).max(1);
        let to = end_line.unwrap_or(u32::MAX).min(from.saturating_add(LINES_MAX - 1));
        if to < from {
            let message = format!("the last line is before the first line, {from}");
            return Err(ToolError::invalid("/end_line", message));
        }
        let blame = repository
            .read_command("blame")
            .args(["--line-porcelain", "--no-textconv", "--no-ext-diff", "--ignore-revs-file="])
            // One extra line shows if there are more.
            .arg(format!("-L{from},{}", to.saturating_add(1)));
        let blame = match revision {
            Some(revision) => {
                let commit = repository.resolve_commit(ctx, &revision, "/ref").await?;
                blame.arg(commit)
            }
            None => {
                // Given a path, git would follow symlinks out of the workspace.
                let inside = repository.top_path.strip_prefix(self.0.programs.root.path());
                let inside = inside.map_err(|err| {
                    ToolError::with_cause("the repository is no longer in the workspace", err)
                })?;
                let whole = inside.join(&path).to_string_lossy().into_owned();
                let content = self.0.programs.root.run_blocking(ctx, move |root, watch| {
                    let file = root.open_file(&whole)?;
                    if file.meta().size() > FILE_BYTES_MAX {
                        let size = file.meta().size();
                        return Err(ToolError::new(
                            ToolErrorKind::TooLarge,
                            format!(
                                "{} has {size} bytes; the limit is {FILE_BYTES_MAX}",
                                quoted_path(&whole)
                            ),
                        ));
                    }
                    file.read(0, u64::MAX, watch)
                });
                blame.args(["--contents", "-"]).stdin(content.await?)
            }
        };
        let printed = blame.arg("--").arg(&path).bytes_max(8 << 20).run_unchecked(ctx).await?;
        if printed.code != 0 {
            let named = std::slice::from_ref(&path);
            repository.refuse_inner_paths_without_history(ctx, named).await?;
            let error = printed.error_text();
            return Err(match error.contains("has only") {
                true => ToolError::invalid("/start_line", error),
                false if error.contains("no such path") => ToolError::not_found(error),
                false => printed.to_error(),
            });
        }
        let mut lines = parse_blame(&printed.text());
        let next_line = (lines.last().is_some_and(|last| last.line > to)).then_some(to + 1);
        lines.retain(|line| line.line <= to);
        let next_line = if end_line == Some(to) { None } else { next_line };
        Ok(GitBlameOutput { path, lines, next_line })
    }

    fn result_text(output: &GitBlameOutput) -> ResultText {
        let line = |GitBlameLine { line, commit, author, date, text }: &GitBlameLine| {
            let commit = commit.as_deref().map_or("--------", |commit| &commit[..8]);
            let day = date.get(..10).unwrap_or_default();
            format!("{commit} ({author} {day}) {line}: {text}\n")
        };
        let text = ResultText::from_body(output.lines.iter().map(line).collect::<String>());
        match output.next_line {
            Some(next) => text.with_note(format!("continue with `start_line: {next}`")),
            None => text,
        }
    }
}

/// Parses the output of `git blame --line-porcelain` into one entry for each line of the file.
fn parse_blame(printed: &str) -> Vec<GitBlameLine> {
    let mut lines = Vec::new();
    let mut head: HashMap<&str, &str> = HashMap::new();
    let mut commit = "";
    let mut number = 0;
    for text in printed.split_inclusive('\n') {
        let text = text.strip_suffix('\n').unwrap_or(text);
        if let Some(text) = text.strip_prefix('\t') {
            let field = |name: &str| head.get(name).copied().unwrap_or_default();
            let is_committed = commit.bytes().any(|byte| byte != b'0') && commit.len() >= 40;
            lines.push(GitBlameLine {
                line: number,
                commit: is_committed.then(|| commit.to_owned()),
                author: printable::escape_line(field("author")).into_owned(),
                date: format_date(field("author-time"), field("author-tz")),
                text: text.to_owned(),
            });
            head.clear();
            commit = "";
        } else if commit.is_empty() {
            let mut words = text.split(' ');
            commit = words.next().unwrap_or_default();
            number = words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
        } else {
            let (name, value) = text.split_once(' ').unwrap_or((text, ""));
            head.insert(name, value);
        }
    }
    lines
}

/// Formats a commit's date as RFC 3339, from seconds since 1970 and a time zone such as `+0130`.
fn format_date(seconds: &str, zone: &str) -> String {
    let moment = seconds.parse().ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    let Some(moment) = moment else { return String::new() };
    let offset = zone.parse::<i32>().ok().map(|zone| (zone / 100 * 60 + zone % 100) * 60);
    let offset = offset.and_then(|seconds| jiff::tz::Offset::from_seconds(seconds).ok());
    let offset = offset.unwrap_or(jiff::tz::Offset::UTC);
    moment.display_with_offset(offset).to_string()
}
