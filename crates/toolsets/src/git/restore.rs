//! `git.restore`: restores files from the index or a commit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::discovery::Repo;
use crate::printable;

/// The `git.restore` tool.
pub(super) struct Restore(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// Files and folders, relative to the repository's top folder; `.` is all of it.
    #[schemars(length(min = 1))]
    paths: Vec<String>,
    /// Branch, tag or commit to restore from; by default the staged state.
    #[serde(default, rename = "ref")]
    revision: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// Restored paths.
    restored: Vec<String>,
}

impl Tool for Restore {
    const NAME: &'static str = "git.restore";
    const TITLE: &'static str = "Git restore";
    const ABOUT: &'static str = "Puts files of a git repository back as they are staged, or with \
        `ref` as they were in a commit. What they held since is lost; what is staged stays so.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let paths = repository.paths(&input.paths, "/paths")?;
        let source = match &input.revision {
            Some(name) => Some(repository.commit(ctx, name, "/ref").await?),
            None => None,
        };
        let source = source.map(|commit| format!("--source={}", commit.as_str()));
        let restore = repository.change("restore").args(["--worktree", "--no-recurse-submodules"]);
        let restored = restore.args(source).arg("--").args(&paths).attempt(ctx).await?;
        if restored.code != 0 {
            let err = restored.refusal();
            return Err(match err.message.contains("did not match any file") {
                true => ToolError::not_found(err.message),
                false => err,
            });
        }
        Ok(Output { restored: paths })
    }

    fn text(output: &Output) -> Text {
        Text::body(format!("put back: {}\n", printable::line(&output.restored.join(", "))))
    }
}
