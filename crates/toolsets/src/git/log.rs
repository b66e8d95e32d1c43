//! `git.log`: lists commits, newest first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::commits::{COMMIT_FIELDS, COMMIT_FORMAT, GitCommitEntry};
use super::discovery::RepositoryFolder;
use super::times;
use crate::counted::counted;

const COUNT_MAX: u32 = 1000;
/// The maximum number of bytes of git's output that one call reads. The next call continues with
/// the remaining commits.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// The `git.log` tool.
pub(super) struct GitLog(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitLogInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Maximum commits.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = COUNT_MAX))]
    limit: u32,
    /// Commits to skip.
    #[serde(default)]
    cursor: u32,
    /// First commit, or a range: `main..feature`.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
    /// Path whose changes to list.
    #[serde(default)]
    path: Option<String>,
    /// Name or email of the author.
    #[serde(default)]
    author: Option<String>,
    /// Time, e.g. `2 weeks ago`.
    #[serde(default)]
    since: Option<String>,
    /// Time.
    #[serde(default)]
    until: Option<String>,
    /// Text in the commit message.
    #[serde(default)]
    grep: Option<String>,
}

fn ten() -> u32 {
    10
}

/// If the output of git was cut inside the last commit, fills that commit's missing fields with a
/// placeholder.
fn complete_last_commit(fields: &mut Vec<String>) {
    let known = fields.len() % COMMIT_FIELDS;
    if known > 0 {
        let missing = COMMIT_FIELDS - known;
        fields.extend(std::iter::repeat_n("(too long)".to_owned(), missing));
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitLogOutput {
    /// Output of `git log --oneline`.
    oneline: String,
    /// The commits, newest first.
    commits: Vec<GitCommitEntry>,
    /// True if there are more commits: continue with `cursor`.
    more: bool,
}

impl Tool for GitLog {
    const NAME: &'static str = "git.log";
    const TITLE: &'static str = "Git log";
    const DESCRIPTION: &'static str = "List commits, newest first.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("paths", "path")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitLogInput;
    type Output = GitLogOutput;

    async fn run(&self, ctx: &ToolContext, input: GitLogInput) -> Result<GitLogOutput, ToolError> {
        let GitLogInput { repo, limit, cursor, revision, path, author, since, until, grep } = input;
        let repository = self.0.open(ctx, &repo).await?;
        let revision = revision.as_deref().unwrap_or("HEAD");
        let range = repository.resolve_range(ctx, revision, "/ref").await?;
        let path = path.map(|path| repository.resolve_path(&path, "/path")).transpose()?;
        let mut command = repository
            .read_command("log")
            .args(["-z", "--no-color", "--no-show-signature", "--decorate=short", "--no-patch"])
            .args(["--fixed-strings", "--regexp-ignore-case", COMMIT_FORMAT])
            .arg(format!("--max-count={}", limit.min(COUNT_MAX) + 1))
            .arg(format!("--skip={cursor}"));
        let filters = [("author", author), ("since", since), ("until", until), ("grep", grep)];
        for (name, value) in filters {
            let Some(value) = value else { continue };
            if value.contains('\0') {
                let message = "the text contains a NUL character";
                return Err(ToolError::invalid(format!("/{name}"), message));
            }
            if matches!(name, "since" | "until") && !times::is_time(&value) {
                return Err(ToolError::invalid(
                    format!("/{name}"),
                    times::invalid_time_message(&value),
                ));
            }
            command = command.arg(format!("--{name}={value}"));
        }
        let command = command.arg("--end-of-options").arg(range.to_argument()).arg("--");
        let shown = path.clone().or_else(|| repository.visible_paths());
        let printed = command.args(shown).bytes_max(OUTPUT_BYTES_MAX).run(ctx).await?;
        let mut fields = printed.fields();
        let is_cut = printed.is_truncated();
        if is_cut {
            complete_last_commit(&mut fields);
        }
        if fields.is_empty()
            && let Some(path) = path
        {
            repository.refuse_unknown_paths(ctx, &[path]).await?;
        }
        let mut commits: Vec<GitCommitEntry> =
            fields.chunks(COMMIT_FIELDS).filter_map(GitCommitEntry::parse).collect();
        let count = limit.min(COUNT_MAX) as usize;
        let more = is_cut || commits.len() > count;
        commits.truncate(count);
        let line = |entry: &GitCommitEntry| format!("{} {}\n", entry.short, entry.subject);
        Ok(GitLogOutput { oneline: commits.iter().map(line).collect(), commits, more })
    }

    fn result_text(output: &GitLogOutput) -> ResultText {
        let text = ResultText::from_body(output.oneline.clone());
        match (output.commits.len(), output.more) {
            (0, _) => text.with_note("no commits"),
            (count, true) => {
                let count = counted(count as u64, "commit", "commits");
                text.with_note(format!("{count}; there are more, continue with `cursor`"))
            }
            (_, false) => text,
        }
    }
}
