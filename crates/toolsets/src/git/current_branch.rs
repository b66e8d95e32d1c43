//! `git.current_branch`: returns the branch that is checked out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use toolgate_contract::printable;

/// The `git.current_branch` tool.
pub(super) struct GitCurrentBranch(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitCurrentBranchInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitCurrentBranchOutput {
    /// Branch name; `HEAD` if a commit is checked out without a branch.
    branch: String,
    /// True if no branch is checked out.
    detached: bool,
    /// Current commit; null before the first.
    commit: Option<String>,
}

impl Tool for GitCurrentBranch {
    const NAME: &'static str = "git.current_branch";
    const TITLE: &'static str = "Git current branch";
    const DESCRIPTION: &'static str = "Return the branch of a git repository that is checked out, or \
        `HEAD` if a commit is checked out without a branch.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "repo")];
    const LISTED: bool = false;
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitCurrentBranchInput;
    type Output = GitCurrentBranchOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        // Before the first commit, `rev-parse` fails and `symbolic-ref` does not.
        let head = repository.read_command("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.run_unchecked(ctx).await?;
        let detached = head.code != 0;
        let branch = if detached { "HEAD".to_owned() } else { head.text().trim_end().to_owned() };
        let commit = repository.head_commit(ctx).await?.map(|commit| commit.as_str().to_owned());
        Ok(GitCurrentBranchOutput { branch, detached, commit })
    }

    fn result_text(output: &GitCurrentBranchOutput) -> ResultText {
        let text = ResultText::from_body(printable::escape_line(&output.branch));
        if output.commit.is_none() { text.with_note("it has no commits yet") } else { text }
    }
}
