//! `git.unstage`: removes files from the staged changes.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::discovery::Repo;
use super::staged::Staged;

/// The `git.unstage` tool.
pub(super) struct Unstage(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// Files and folders, relative to the repository's top folder; all by default.
    #[serde(default)]
    paths: Vec<String>,
}

impl Tool for Unstage {
    const NAME: &'static str = "git.unstage";
    const TITLE: &'static str = "Git unstage";
    const ABOUT: &'static str = "Takes files of a git repository back out of what is staged; the \
        files themselves stay as they are. Tells all that is still staged.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Staged;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Staged, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.paths(&input.paths, "/paths")?;
        repository.refuse_unknown(ctx, &paths).await?;
        repository.change("reset").args(["--quiet", "--"]).args(&paths).run(ctx).await?;
        repository.staged(ctx).await
    }

    fn text(output: &Staged) -> Text {
        output.text()
    }
}
