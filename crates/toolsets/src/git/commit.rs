//! `git.commit`: commits the staged changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::diff::{parse_numstat, without_programs};
use super::discovery::RepositoryFolder;
use super::repository::GitRepository;
use super::{GitContext, GitProgram};
use toolgate_contract::printable;
use toolgate_world::root::quoted_path;

const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The `git.commit` tool.
pub(super) struct GitCommit(pub(super) GitContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GitCommitInput {
    /// Repository folder.
    #[serde(default)]
    repo: RepositoryFolder,
    /// The commit message.
    message: String,
    /// Include unstaged changes.
    #[serde(default)]
    all: bool,
    /// Commit even if nothing changed.
    #[serde(default)]
    allow_empty: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitCommitOutput {
    /// Top folder of the repository, in the workspace.
    repository: String,
    /// Full hash of the commit.
    commit: String,
    /// Abbreviated hash.
    short: String,
    /// Branch of the commit; null if no branch is checked out.
    branch: Option<String>,
    /// First line of the message.
    subject: String,
    /// Output of git.
    summary: String,
    /// Number of files changed.
    files: usize,
    /// Number of lines added.
    insertions: u64,
    /// Number of lines removed.
    deletions: u64,
}

impl Tool for GitCommit {
    const NAME: &'static str = "git.commit";
    const TITLE: &'static str = "Git commit";
    const DESCRIPTION: &'static str =
        "Commit staged changes, or with `all` every change to tracked files.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["allow_empty"];
    const DEADLINE: Option<std::time::Duration> = super::DEADLINE;
    type Input = GitCommitInput;
    type Output = GitCommitOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GitCommitInput { repo, message, all, allow_empty } = input;
        check_message(&message)?;
        let repository = self.0.open(ctx, &repo).await?;
        if all {
            refuse_conflicts(ctx, &repository).await?;
            repository.refuse_filtered(ctx, &[".".to_owned()]).await?;
        } else if !allow_empty {
            refuse_empty(ctx, &repository).await?;
        }
        let committed = repository
            .change_command("commit")
            .args(["--file=-", "--cleanup=whitespace", "--no-gpg-sign", "--no-edit", "--no-status"])
            .arg_if(all, "--all")
            .arg_if(allow_empty, "--allow-empty")
            .arg_if(!self.0.settings.allows(GitProgram::Hooks), "--no-verify")
            .stdin(message.into_bytes())
            .run_unchecked(ctx)
            .await?;
        if committed.code != 0 {
            let printed = committed.text();
            let has_untracked = printed.contains("nothing added to commit");
            if has_untracked || printed.contains("nothing to commit") {
                return Err(nothing_to_commit(has_untracked));
            }
            return Err(committed.to_error());
        }
        let log =
            repository.read_command("log").args(["-z", "--max-count=1", "--no-show-signature"]);
        let log = log.args(["--no-color", "--no-patch", "--format=%H%x00%h%x00%s"]).run(ctx);
        let fields = log.await?.fields();
        let [commit, short, subject] = &fields[..] else {
            return Err(ToolError::failed("the commit was created, but git did not report it"));
        };
        let counted = without_programs(repository.read_command("show"))
            .args(["--format=", "--numstat", "-z", "--end-of-options", commit])
            .run(ctx)
            .await?;
        let files = parse_numstat(&counted);
        let head = repository.read_command("symbolic-ref").args(["--quiet", "--short", "HEAD"]);
        let head = head.run_unchecked(ctx).await?;
        Ok(GitCommitOutput {
            repository: repository.top_in_workspace(),
            commit: commit.clone(),
            short: short.clone(),
            branch: (head.code == 0).then(|| head.text().trim_end().to_owned()),
            subject: subject.clone(),
            summary: committed.text(),
            files: files.len(),
            insertions: files.iter().filter_map(|file| file.added).sum(),
            deletions: files.iter().filter_map(|file| file.removed).sum(),
        })
    }

    fn result_text(output: &GitCommitOutput) -> ResultText {
        let text = ResultText::from_body(printable::escape_lines(&output.summary));
        match &*output.repository {
            "." => text,
            repository => text.with_note(format!("in the repository {}", quoted_path(repository))),
        }
    }
}

/// Returns the error for a commit for which nothing is staged. If `has_untracked` is true, the
/// error mentions untracked files.
fn nothing_to_commit(has_untracked: bool) -> ToolError {
    let advice = if has_untracked {
        ": the only changes are untracked files, which `all` leaves out; stage them with git_add \
         first"
    } else {
        "; set `allow_empty` to commit anyway"
    };
    ToolError::failed(format!("no tracked file has changed{advice}"))
}

fn check_message(message: &str) -> Result<(), ToolError> {
    let reason = if message.trim().is_empty() {
        "the message is empty; describe the change".to_owned()
    } else if message.contains('\0') {
        "the message contains a NUL character".to_owned()
    } else if message.len() > MESSAGE_BYTES_MAX {
        format!("the message has {} bytes; the limit is {MESSAGE_BYTES_MAX}", message.len())
    } else {
        return Ok(());
    };
    Err(ToolError::invalid("/message", reason))
}

/// Refuses a commit of all changes if files are in conflict, because the commit would contain
/// conflict markers.
async fn refuse_conflicts(
    ctx: &ToolContext,
    repository: &GitRepository<'_>,
) -> Result<(), ToolError> {
    let files = repository.conflicting_files(ctx).await?;
    let Some(first) = files.first() else { return Ok(()) };
    let (more, are, them) = match files.len() - 1 {
        0 => (String::new(), "is", "it"),
        more => (format!(" and {more} more"), "are", "them"),
    };
    Err(ToolError::failed(format!(
        "{}{more} {are} in conflict, and `all` would commit the conflict markers; resolve {them}, \
         stage {them} with git_add and commit without `all`",
        quoted_path(first)
    )))
}

/// Refuses a commit if nothing is staged, unless a merge is in progress.
///
/// Git would also refuse such a commit, but would read submodules to explain the reason.
async fn refuse_empty(ctx: &ToolContext, repository: &GitRepository<'_>) -> Result<(), ToolError> {
    let merge = repository.read_command("rev-parse").args(["--verify", "--quiet", "MERGE_HEAD"]);
    let differs =
        repository.read_command("diff").args(["--cached", "--quiet", "--no-ext-diff", "--"]);
    if differs.run_unchecked(ctx).await?.code != 0 || merge.run_unchecked(ctx).await?.code == 0 {
        return Ok(());
    }
    Err(ToolError::failed(
        "nothing is staged; stage files with git_add first, or set `all` to commit every change \
         to tracked files",
    ))
}
