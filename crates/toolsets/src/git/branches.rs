//! `git.branches`: lists local branches, and remote branches as they were last fetched.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::GitContext;
use super::discovery::RepositoryFolder;
use toolgate_contract::printable;

const BRANCHES_MAX: usize = 1000;
const BYTES_MAX: usize = 256 << 10;
const FORMAT: &str = "--format=%(refname)%00%(HEAD)%00%(objectname)%00%(upstream:short)%00%(symref:short)%00%(contents:subject)%00";
const FIELDS: usize = 6;

/// The `git.branches` tool.
pub(super) struct GitBranches(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitBranchesInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// Include remote branches.
    #[serde(default = "crate::input_defaults::yes")]
    remote: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitBranchesOutput {
    /// Output of `git branch -a`.
    listing: String,
    /// Branch that is checked out; null if no branch is.
    current: Option<String>,
    /// Branches, at most 1000.
    branches: Vec<GitBranchEntry>,
    /// True if there are more branches.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitBranchEntry {
    /// Branch name, e.g. `main` or `origin/main`.
    name: String,
    /// True for a remote branch, as of the last fetch.
    remote: bool,
    /// True if the branch is checked out.
    current: bool,
    /// Latest commit of the branch.
    commit: String,
    /// Remote branch that this branch tracks.
    upstream: Option<String>,
    /// Branch to which this alias points.
    means: Option<String>,
    /// First line of the commit's message.
    subject: String,
}

impl Tool for GitBranches {
    const NAME: &'static str = "git.branches";
    const TITLE: &'static str = "Git branches";
    const DESCRIPTION: &'static str = "List branches. A star marks the current branch.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["remote"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("path", "repo")];
    const IDEMPOTENT: bool = true;
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitBranchesInput;
    type Output = GitBranchesOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let repository = self.0.open(ctx, &input.repo).await?;
        let listed = repository
            .read_command("branch")
            .args(["--no-color", "--no-column", "--list"])
            .arg_if(input.remote, "--all")
            .bytes_max(BYTES_MAX)
            .run(ctx)
            .await?;
        let refs = repository
            .read_command("for-each-ref")
            .arg(FORMAT)
            .arg(format!("--count={}", BRANCHES_MAX + 1))
            .arg("refs/heads")
            .arg_if(input.remote, "refs/remotes")
            .bytes_max(8 << 20)
            .run(ctx)
            .await?;
        let mut branches: Vec<GitBranchEntry> =
            refs.fields().chunks(FIELDS).filter_map(parse_branch).collect();
        let truncated = listed.is_truncated() || branches.len() > BRANCHES_MAX;
        branches.truncate(BRANCHES_MAX);
        let head = repository.read_command("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.run_unchecked(ctx).await?;
        let current = (head.code == 0).then(|| head.text().trim_end().to_owned());
        Ok(GitBranchesOutput {
            listing: printable::escape_lines(&listed.text()).into_owned(),
            current,
            branches,
            truncated,
        })
    }

    fn result_text(output: &GitBranchesOutput) -> ResultText {
        let text = ResultText::from_body(output.listing.clone());
        match (output.truncated, output.branches.is_empty()) {
            (true, _) => text.with_note("there are more branches"),
            (false, true) => text.with_note("no branches yet; the first commit creates one"),
            (false, false) => text,
        }
    }
}

/// Parses `fields`, git's output about one branch. Git ends each branch with a line break.
fn parse_branch(fields: &[String]) -> Option<GitBranchEntry> {
    let [name, head, commit, upstream, means, subject] = fields else { return None };
    let name = name.trim_start_matches('\n');
    let remote = name.strip_prefix("refs/remotes/");
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    Some(GitBranchEntry {
        name: remote.or(name.strip_prefix("refs/heads/"))?.to_owned(),
        remote: remote.is_some(),
        current: head == "*",
        commit: commit.clone(),
        upstream: some(upstream),
        means: some(means),
        subject: printable::escape_line(subject).into_owned(),
    })
}
