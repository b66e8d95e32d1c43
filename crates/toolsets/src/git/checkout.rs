//! `git.checkout`: checks out a branch or a commit, or creates a branch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::Git;
use super::command::Printed;
use super::discovery::Repo;
use super::repository::Repository;
use crate::printable;

/// The `git.checkout` tool.
pub(super) struct Checkout(pub(super) Git);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// A folder of the repository, in the workspace; by default the workspace itself.
    #[serde(default)]
    repo: Repo,
    /// A branch to check out, or a commit or tag (detached). With `create`, the name of the new
    /// branch.
    #[serde(rename = "ref")]
    revision: String,
    /// Create the branch and check it out.
    #[serde(default)]
    create: bool,
    /// Branch, tag or commit at which the new branch starts; by default `HEAD`.
    #[serde(default)]
    from: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output {
    /// Branch that is checked out; null if detached.
    branch: Option<String>,
    /// True if a commit is checked out without a branch.
    detached: bool,
    /// Current commit; null before the first.
    commit: Option<String>,
    /// Output of git.
    message: String,
}

impl Tool for Checkout {
    const NAME: &'static str = "git.checkout";
    const TITLE: &'static str = "Git checkout";
    const ABOUT: &'static str = "Goes to a branch, tag or commit of a git repository, or with \
        `create` makes a branch and goes there. Changes that are not committed come along; where \
        they would be overwritten it is refused: commit them or put them away with git_stash.";
    const EFFECTS: Effects = Effects::Changes;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { repo, revision, create, from } = input;
        let repository = self.0.open(ctx, &repo).await?;
        if from.is_some() && !create {
            let message = "it says where a new branch begins; set `create` to make one";
            return Err(ToolError::invalid("/from", message));
        }
        let went = if create {
            repository.check_branch(ctx, &revision, "/ref").await?;
            let from = match from {
                Some(from) => Some(repository.commit(ctx, &from, "/from").await?),
                None => None,
            };
            let make = repository.change("checkout").args(["--no-track", "-b", &revision]);
            make.args(from).arg("--").run(ctx).await?
        } else {
            go(ctx, &repository, &revision).await?
        };
        // Git exits with 0 even if it could not write files. A later commit would record those as
        // deleted.
        if let Some(why) = went.stderr.lines().find(|line| left_undone(line)) {
            return Err(ToolError::failed(format!(
                "git went to `{revision}` and did not write all of it: {}; once no program runs, \
                 git_status shows what is missing and git_restore brings it",
                printable::line(why)
            )));
        }
        let head = repository.read("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.attempt(ctx).await?;
        let branch = (head.code == 0).then(|| head.text().trim_end().to_owned());
        let commit = repository.head(ctx).await?.map(|commit| commit.as_str().to_owned());
        let message = format!("{}{}", went.stderr, went.text());
        Ok(Output { detached: branch.is_none(), branch, commit, message })
    }

    fn text(output: &Output) -> Text {
        Text::body(printable::lines(&output.message))
    }
}

/// Returns true if `line` reports that git could not create or remove a part of the work tree.
fn left_undone(line: &str) -> bool {
    ["error: unable to ", "warning: unable to "].iter().any(|begins| line.starts_with(begins))
}

/// Checks out the branch or commit `name`.
async fn go(ctx: &Ctx, repository: &Repository<'_>, name: &str) -> Result<Printed, ToolError> {
    let commit = repository.commit_if_any(ctx, name, "/ref").await?;
    if repository.has_branch(ctx, name).await? {
        return repository.change("checkout").args(["--no-guess", name, "--"]).run(ctx).await;
    }
    if let Some(commit) = commit {
        let detach = repository.change("checkout").args(["--detach", "--no-guess"]);
        return detach.arg(commit).arg("--").run(ctx).await;
    }
    // For a branch that exists only on a remote, git creates a local branch that tracks it.
    repository.check_branch(ctx, name, "/ref").await?;
    let went = repository.change("checkout").args(["--guess", name, "--"]).attempt(ctx).await?;
    if went.code == 0 {
        return Ok(went);
    }
    let why = went.complaint();
    Err(ToolError::not_found(format!(
        "{why}; git_branches shows the branches there are, `create` makes one"
    )))
}
