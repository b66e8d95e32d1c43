//! `git.restore`: restores files from the index or a commit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use super::write_failures::GitWriteFailures;
use toolgate_contract::printable;

/// The `git.restore` tool.
pub(super) struct GitRestore(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitRestoreInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Files and folders to restore.
    #[schemars(length(min = 1))]
    paths: Vec<String>,
    /// Commit to restore from.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitRestoreOutput {
    /// Restored paths.
    restored: Vec<String>,
}

impl Tool for GitRestore {
    const NAME: &'static str = "git.restore";
    const TITLE: &'static str = "Git restore";
    const DESCRIPTION: &'static str =
        "Restore files to their staged state, or with `ref` to a commit; their changes are lost.";
    const EFFECTS: Effects = Effects::Changes;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("path", "paths"), ("file", "paths")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitRestoreInput;
    type Output = GitRestoreOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.resolve_paths(&input.paths, "/paths")?;
        let source = match &input.revision {
            Some(name) => Some(repository.resolve_commit(ctx, name, "/ref").await?),
            None => None,
        };
        let source = source.map(|commit| format!("--source={}", commit.as_str()));
        let restore =
            repository.change_command("restore").args(["--worktree", "--no-recurse-submodules"]);
        let restored = restore.args(source).arg("--").args(&paths).run_unchecked(ctx).await?;
        if restored.code != 0 {
            repository.refuse_inner_paths(ctx, &paths).await?;
            let err = restored.to_error();
            let failures = GitWriteFailures::parse(&repository, &restored.stderr);
            if let Some(note) = failures.protected_note() {
                let other = match failures.other {
                    Some(failure) => format!("git could not write all files: {failure}"),
                    None => "all other files are restored".to_owned(),
                };
                return Err(ToolError::not_allowed(format!("{note}; {other}")));
            }
            return Err(match err.message.contains("did not match any file") {
                true => ToolError::not_found(err.message),
                false => err,
            });
        }
        Ok(GitRestoreOutput { restored: paths })
    }

    fn result_text(output: &GitRestoreOutput) -> ResultText {
        ResultText::from_body(format!(
            "restored: {}\n",
            printable::escape_line(&output.restored.join(", "))
        ))
    }
}
