//! `git.checkout`: checks out a branch or a commit, or creates a branch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::command::GitOutput;
use super::discovery::RepositoryFolder;
use super::repository::GitRepository;
use super::write_failures::GitWriteFailures;
use toolgate_contract::printable;

/// The `git.checkout` tool.
pub(super) struct GitCheckout(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitCheckoutInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Branch, tag or commit.
    #[serde(rename = "ref")]
    revision: String,
    /// Create the branch.
    #[serde(default)]
    create: bool,
    /// Start of the new branch.
    #[serde(default)]
    from: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitCheckoutOutput {
    /// Branch that is checked out; null if detached.
    branch: Option<String>,
    /// True if a commit is checked out without a branch.
    detached: bool,
    /// Current commit; null before the first.
    commit: Option<String>,
    /// Output of git.
    message: String,
}

impl Tool for GitCheckout {
    const NAME: &'static str = "git.checkout";
    const TITLE: &'static str = "Git checkout";
    const DESCRIPTION: &'static str =
        "Check out a branch, tag or commit; with `create`, a new branch.";
    const EFFECTS: Effects = Effects::Changes;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitCheckoutInput;
    type Output = GitCheckoutOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GitCheckoutInput { repo, revision, create, from } = input;
        let repository = self.0.open(ctx, &repo).await?;
        if from.is_some() && !create {
            let message = "`from` is for a new branch; set `create`, or leave `from` out";
            return Err(ToolError::invalid("/from", message));
        }
        let checkout = if create {
            repository.check_branch_name(ctx, &revision, "/ref").await?;
            let from = match from {
                Some(from) => Some(repository.resolve_commit(ctx, &from, "/from").await?),
                None => None,
            };
            let make = repository.change_command("checkout").args(["--no-track", "-b", &revision]);
            make.args(from).arg("--").run(ctx).await?
        } else {
            check_out(ctx, &repository, &revision).await?
        };
        // Git exits with 0 even if it could not write files. A later commit would record those as
        // deleted.
        let failures = GitWriteFailures::parse(&repository, &checkout.stderr);
        if let Some(error) = incomplete_checkout(&revision, &failures) {
            return Err(error);
        }
        let head = repository.read_command("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.run_unchecked(ctx).await?;
        let branch = (head.code == 0).then(|| head.text().trim_end().to_owned());
        let commit = repository.head_commit(ctx).await?.map(|commit| commit.as_str().to_owned());
        let message = format!("{}{}", checkout.stderr, checkout.text());
        Ok(GitCheckoutOutput { detached: branch.is_none(), branch, commit, message })
    }

    fn result_text(output: &GitCheckoutOutput) -> ResultText {
        ResultText::from_body(printable::escape_lines(&output.message))
    }
}

/// Returns the error for a checkout of `revision` after which some files are not updated. Returns
/// `None` if git wrote all files.
fn incomplete_checkout(revision: &str, failures: &GitWriteFailures) -> Option<ToolError> {
    let note = failures.protected_note();
    let reason = match (&failures.other, note) {
        (None, None) => return None,
        (None, Some(note)) => note,
        (Some(failure), note) => {
            let note = note.map(|note| format!("; {note}")).unwrap_or_default();
            format!(
                "git could not write all files: {failure}; wait until no program runs, then find \
                 missing files with git_status and get them with git_restore{note}"
            )
        }
    };
    let revision = printable::escape_line(revision);
    Some(ToolError::failed(format!(
        "git checked out `{revision}`, and HEAD points to it now, but {reason}"
    )))
}

/// Checks out the branch or commit `name`. If only a remote branch has this name, creates a local
/// branch that tracks it.
async fn check_out(
    ctx: &ToolContext,
    repository: &GitRepository<'_>,
    name: &str,
) -> Result<GitOutput, ToolError> {
    let commit = repository.find_commit(ctx, name, "/ref").await?;
    if repository.has_branch(ctx, name).await? {
        return repository
            .change_command("checkout")
            .args(["--no-guess", name, "--"])
            .run(ctx)
            .await;
    }
    if let Some(commit) = commit {
        let detach = repository.change_command("checkout").args(["--detach", "--no-guess"]);
        return detach.arg(commit).arg("--").run(ctx).await;
    }
    // For a branch that exists only on a remote, git creates a local branch that tracks it.
    repository.check_branch_name(ctx, name, "/ref").await?;
    let checkout = repository
        .change_command("checkout")
        .args(["--guess", name, "--"])
        .run_unchecked(ctx)
        .await?;
    if checkout.code == 0 {
        return Ok(checkout);
    }
    let error = checkout.error_text();
    Err(ToolError::not_found(format!(
        "{error}; git_branches lists the branches, and `create` creates one"
    )))
}
