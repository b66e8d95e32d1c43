//! `git.add`: stages files.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::discovery::Repo;
use super::staged::Staged;

/// The `git.add` tool.
pub(super) struct Add(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// Files and folders, relative to the repository's top folder; `.` is all of it. Patterns are
    /// not supported.
    #[schemars(length(min = 1))]
    paths: Vec<String>,
}

impl Tool for Add {
    const NAME: &'static str = "git.add";
    const TITLE: &'static str = "Git add";
    const ABOUT: &'static str = "Stages files of a git repository for the next commit: new, \
        changed and deleted ones. Tells all that is staged then.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Staged;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Staged, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.paths(&input.paths, "/paths")?;
        repository.refuse_filtered(ctx, &paths).await?;
        repository.refuse_nested(ctx, &paths).await?;
        let add = repository.change("add").args(["--all", "--"]).args(&paths);
        let added = add.attempt(ctx).await?;
        if added.code != 0 {
            let err = added.refusal();
            return Err(match err.message.contains("did not match any files") {
                true => ToolError::not_found(err.message),
                false => err,
            });
        }
        repository.take_out_nested(ctx).await?;
        repository.staged(ctx).await
    }

    fn text(output: &Staged) -> Text {
        output.text()
    }
}
