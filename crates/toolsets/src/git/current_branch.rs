//! `git.current_branch`: returns the branch that is checked out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::discovery::Repo;
use crate::printable;

/// The `git.current_branch` tool.
pub(super) struct CurrentBranch(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// Branch name; `HEAD` if a commit is checked out without a branch.
    branch: String,
    /// True if no branch is checked out.
    detached: bool,
    /// Current commit; null before the first.
    commit: Option<String>,
}

impl Tool for CurrentBranch {
    const NAME: &'static str = "git.current_branch";
    const TITLE: &'static str = "Git current branch";
    const ABOUT: &'static str = "Tells the branch of a git repository that is checked out, or \
        `HEAD` where a commit is, and no branch.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        // Before the first commit, `rev-parse` fails and `symbolic-ref` does not.
        let head = repository.read("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.attempt(ctx).await?;
        let detached = head.code != 0;
        let branch = if detached { "HEAD".to_owned() } else { head.text().trim_end().to_owned() };
        let commit = repository.head(ctx).await?.map(|commit| commit.as_str().to_owned());
        Ok(Output { branch, detached, commit })
    }

    fn text(output: &Output) -> Text {
        let text = Text::body(printable::line(&output.branch));
        if output.commit.is_none() { text.with_note("it has no commit yet") } else { text }
    }
}
