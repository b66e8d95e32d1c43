//! `git.add`: stages files.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use super::staged::StagedFiles;

/// The `git.add` tool.
pub(super) struct GitAdd(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitAddInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Paths in the repository; `.` is everything.
    #[schemars(length(min = 1))]
    paths: Vec<String>,
}

impl Tool for GitAdd {
    const NAME: &'static str = "git.add";
    const TITLE: &'static str = "Git add";
    const DESCRIPTION: &'static str = "Stage files for the next commit.";
    const EFFECTS: Effects = Effects::Changes;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("path", "paths"), ("file", "paths")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitAddInput;
    type Output = StagedFiles;

    async fn run(&self, ctx: &ToolContext, input: GitAddInput) -> Result<StagedFiles, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.resolve_paths(&input.paths, "/paths")?;
        repository.refuse_inner_paths(ctx, &paths).await?;
        repository.refuse_filtered(ctx, &paths).await?;
        repository.refuse_nested(ctx, &paths).await?;
        let add = repository.change_command("add").args(["--all", "--"]).args(&paths);
        let added = add.run_unchecked(ctx).await?;
        if added.code != 0 {
            let err = added.to_error();
            return Err(match err.message.contains("did not match any files") {
                true => ToolError::not_found(err.message),
                false => err,
            });
        }
        repository.unstage_nested(ctx).await?;
        repository.list_staged(ctx).await
    }

    fn result_text(output: &StagedFiles) -> ResultText {
        output.text()
    }
}
