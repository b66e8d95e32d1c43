//! `git.unstage`: removes files from the staged changes.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use super::staged::StagedFiles;

/// The `git.unstage` tool.
pub(super) struct GitUnstage(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitUnstageInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Files and folders; all by default.
    #[serde(default)]
    paths: Vec<String>,
}

impl Tool for GitUnstage {
    const NAME: &'static str = "git.unstage";
    const TITLE: &'static str = "Git unstage";
    const DESCRIPTION: &'static str = "Unstage files; the files do not change.";
    const EFFECTS: Effects = Effects::Changes;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("path", "paths"), ("file", "paths")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitUnstageInput;
    type Output = StagedFiles;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.resolve_paths(&input.paths, "/paths")?;
        repository.refuse_unknown_paths(ctx, &paths).await?;
        repository.change_command("reset").args(["--quiet", "--"]).args(&paths).run(ctx).await?;
        repository.list_staged(ctx).await
    }

    fn result_text(output: &StagedFiles) -> ResultText {
        output.text()
    }
}
