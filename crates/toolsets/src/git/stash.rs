//! `git.stash`: stashes changes and restores them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::command::GitOutput;
use super::diff::without_programs;
use super::discovery::RepositoryFolder;
use super::repository::GitRepository;
use super::write_failures::GitWriteFailures;
use crate::counted::counted;
use toolgate_contract::printable;

const STASHES_MAX: usize = 100;
const PATCH_BYTES: usize = 256 << 10;

/// The `git.stash` tool.
pub(super) struct GitStash(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitStashInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Action to take.
    #[serde(default)]
    action: GitStashAction,
    /// Stash number; 0 is the newest.
    #[serde(default)]
    index: u32,
    /// Message for `push`.
    #[serde(default)]
    message: Option<String>,
    /// Include untracked files.
    #[serde(default)]
    include_untracked: bool,
}

/// Stash action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GitStashAction {
    /// Stash the changes.
    #[default]
    Push,
    /// List the stashes.
    List,
    /// Show the changes in a stash.
    Show,
    /// Apply a stash and keep it.
    Apply,
    /// Apply a stash and drop it.
    Pop,
    /// Drop a stash.
    Drop,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitStashOutput {
    /// Action taken.
    action: GitStashAction,
    /// Output of git; for `show`, the patch.
    message: String,
    /// Stashes, newest first, at most 100.
    stashes: Vec<GitStashEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitStashEntry {
    /// Number of the stash: 0 is the newest.
    index: usize,
    /// Commit of the stash.
    commit: String,
    /// Date of the stash (RFC 3339).
    date: String,
    /// Message of the stash.
    subject: String,
}

impl Tool for GitStash {
    const NAME: &'static str = "git.stash";
    const TITLE: &'static str = "Git stash";
    const DESCRIPTION: &'static str =
        "Stash uncommitted changes, or get them back. Returns all stashes.";
    const EFFECTS: Effects = Effects::Changes;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitStashInput;
    type Output = GitStashOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GitStashInput { repo, action, index, message, include_untracked } = input;
        let repository = self.0.open(ctx, &repo).await?;
        if message.as_ref().is_some_and(|message| message.contains(['\0', '\n'])) {
            let message = "the message contains a line break or a NUL character";
            return Err(ToolError::invalid("/message", message));
        }
        let entry = format!("stash@{{{index}}}");
        // `git stash` calls git itself with a pattern that means everything. Callers cannot pass
        // paths.
        let stash = |verb: &str| {
            repository.change_command("stash").arg(verb).env("GIT_LITERAL_PATHSPECS", "0")
        };
        let done = match action {
            GitStashAction::Push => {
                repository.refuse_filtered(ctx, &[".".to_owned()]).await?;
                stash("push")
                    .arg_if(include_untracked, "--include-untracked")
                    .args(message.map(|message| format!("--message={message}")))
                    .run_unchecked(ctx)
                    .await?
            }
            GitStashAction::List => {
                GitOutput { code: 0, stdout: Vec::new(), total_bytes: 0, stderr: String::new() }
            }
            GitStashAction::Show => {
                let show = without_programs(stash("show").arg("--patch"));
                show.arg(entry).bytes_max(PATCH_BYTES).run_unchecked(ctx).await?
            }
            GitStashAction::Apply => stash("apply").arg(entry).run_unchecked(ctx).await?,
            GitStashAction::Pop => stash("pop").arg(entry).run_unchecked(ctx).await?,
            GitStashAction::Drop => stash("drop").arg(entry).run_unchecked(ctx).await?,
        };
        if done.code != 0 {
            let error = done.error_text();
            return Err(
                match error.contains("is not a valid reference") || error.contains("only has") {
                    true => {
                        ToolError::not_found(format!("{error}; `action: list` lists the stashes"))
                    }
                    false => {
                        // Git prints conflicts on standard output.
                        let printed = done.text();
                        let error = match error.contains(printed.trim()) {
                            true => error,
                            false => format!("{error}\n{}", printed.trim()),
                        };
                        let note =
                            GitWriteFailures::parse(&repository, &done.stderr).protected_note();
                        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
                        ToolError::failed(format!("git failed: {}{note}", error.trim()))
                    }
                },
            );
        }
        let stashes = list_stashes(ctx, &repository).await?;
        let message = match action {
            GitStashAction::List => {
                let line = |entry: &GitStashEntry| {
                    format!("stash@{{{}}}: {}\n", entry.index, entry.subject)
                };
                stashes.iter().map(line).collect()
            }
            GitStashAction::Push
            | GitStashAction::Show
            | GitStashAction::Apply
            | GitStashAction::Pop
            | GitStashAction::Drop => done.text(),
        };
        Ok(GitStashOutput { action, message, stashes })
    }

    fn result_text(output: &GitStashOutput) -> ResultText {
        let text = ResultText::from_body(printable::escape_lines(&output.message));
        match output.stashes.len() {
            0 => text.with_note("no stashes"),
            count => text.with_note(counted(count as u64, "stash", "stashes")),
        }
    }
}

/// Lists the stashes of the repository, newest first.
async fn list_stashes(
    ctx: &ToolContext,
    repository: &GitRepository<'_>,
) -> Result<Vec<GitStashEntry>, ToolError> {
    let list =
        repository.read_command("stash").args(["list", "-z", "--no-show-signature", "--no-color"]);
    let list = list.arg("--format=%H%x00%cI%x00%gs").arg(format!("--max-count={STASHES_MAX}"));
    let fields = list.run(ctx).await?.fields();
    let entries = fields.chunks_exact(3).enumerate().map(|(index, fields)| GitStashEntry {
        index,
        commit: fields[0].clone(),
        date: fields[1].clone(),
        subject: printable::escape_line(&fields[2]).into_owned(),
    });
    Ok(entries.collect())
}
