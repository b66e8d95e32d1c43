//! `git.stash`: stashes changes and restores them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::command::Printed;
use super::diff::safe;
use super::discovery::Repo;
use super::repository::Repository;
use crate::printable;

const STASHES_MAX: usize = 100;
const PATCH_BYTES: usize = 256 << 10;

/// The `git.stash` tool.
pub(super) struct Stash(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// Action to take; `push` by default.
    #[serde(default)]
    action: Action,
    /// Stash for `show`, `apply`, `pop` and `drop`; 0, the newest, by default.
    #[serde(default)]
    index: u32,
    /// Message for `push`.
    #[serde(default)]
    message: Option<String>,
    /// Include untracked files in `push`.
    #[serde(default)]
    include_untracked: bool,
}

/// Stash action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
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
pub(super) struct Output {
    /// Action taken.
    action: Action,
    /// Output of git; for `show`, the patch.
    message: String,
    /// Stashes, newest first, at most 100.
    stashes: Vec<Entry>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entry {
    /// Number of the stash: 0 is the newest.
    index: usize,
    /// Commit of the stash.
    commit: String,
    /// Date of the stash (RFC 3339).
    date: String,
    /// Message of the stash.
    subject: String,
}

impl Tool for Stash {
    const NAME: &'static str = "git.stash";
    const TITLE: &'static str = "Git stash";
    const ABOUT: &'static str = "Puts changes of a git repository that are not committed away, \
        and takes them out again: `push`, `list`, `show`, `apply`, `pop` or `drop`. Tells what is \
        put away then.";
    const EFFECTS: Effects = Effects::Changes;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { repo, action, index, message, include_untracked } = input;
        let repository = self.0.open(ctx, &repo).await?;
        if message.as_ref().is_some_and(|message| message.contains(['\0', '\n'])) {
            let message = "the name has a line break or a NUL character in it";
            return Err(ToolError::invalid("/message", message));
        }
        let which = format!("stash@{{{index}}}");
        // `git stash` calls git itself with a pattern that means everything. Callers cannot pass
        // paths.
        let stash =
            |verb: &str| repository.change("stash").arg(verb).env("GIT_LITERAL_PATHSPECS", "0");
        let done = match action {
            Action::Push => {
                repository.refuse_filtered(ctx, &[".".to_owned()]).await?;
                stash("push")
                    .flag(include_untracked, "--include-untracked")
                    .args(message.map(|message| format!("--message={message}")))
                    .attempt(ctx)
                    .await?
            }
            Action::List => {
                Printed { code: 0, stdout: Vec::new(), total_bytes: 0, stderr: String::new() }
            }
            Action::Show => {
                let show = safe(stash("show").arg("--patch"));
                show.arg(which).bytes_max(PATCH_BYTES).attempt(ctx).await?
            }
            Action::Apply => stash("apply").arg(which).attempt(ctx).await?,
            Action::Pop => stash("pop").arg(which).attempt(ctx).await?,
            Action::Drop => stash("drop").arg(which).attempt(ctx).await?,
        };
        if done.code != 0 {
            let said = done.complaint();
            return Err(
                match said.contains("is not a valid reference") || said.contains("only has") {
                    true => {
                        ToolError::not_found(format!("{said}; `action: list` tells what there is"))
                    }
                    false => {
                        // Git prints conflicts on standard output.
                        let results = done.text();
                        let said = match said.contains(results.trim()) {
                            true => said,
                            false => format!("{said}\n{}", results.trim()),
                        };
                        ToolError::failed(format!("git says: {}", said.trim()))
                    }
                },
            );
        }
        let stashes = stashes(ctx, &repository).await?;
        let message = match action {
            Action::List => {
                let line =
                    |entry: &Entry| format!("stash@{{{}}}: {}\n", entry.index, entry.subject);
                stashes.iter().map(line).collect()
            }
            Action::Push | Action::Show | Action::Apply | Action::Pop | Action::Drop => done.text(),
        };
        Ok(Output { action, message, stashes })
    }

    fn text(output: &Output) -> Text {
        let text = Text::body(printable::lines(&output.message));
        match output.stashes.len() {
            0 => text.with_note("nothing is put away"),
            count => text.with_note(format!("{count} put away")),
        }
    }
}

/// Lists the stashes, newest first.
async fn stashes(ctx: &Ctx, repository: &Repository<'_>) -> Result<Vec<Entry>, ToolError> {
    let list = repository.read("stash").args(["list", "-z", "--no-show-signature", "--no-color"]);
    let list = list.arg("--format=%H%x00%cI%x00%gs").arg(format!("--max-count={STASHES_MAX}"));
    let fields = list.run(ctx).await?.fields();
    let entries = fields.chunks_exact(3).enumerate().map(|(index, fields)| Entry {
        index,
        commit: fields[0].clone(),
        date: fields[1].clone(),
        subject: printable::line(&fields[2]).into_owned(),
    });
    Ok(entries.collect())
}
