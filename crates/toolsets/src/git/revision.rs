//! Validates the names of commits and branches in calls, and resolves them before git uses them.

use std::ffi::OsString;

use toolgate_contract::{ToolContext, ToolError};

use super::repository::GitRepository;
use toolgate_world::root::quoted_path;

const NAME_BYTES_MAX: usize = 1000;

/// The full hash of a commit, as git printed it. Git can never mistake a hash for an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommitHash(String);

/// A git commit, or a range between two commits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GitRevisionRange {
    /// The single commit `a`.
    One(CommitHash),
    /// `a..b`: the commits of `b` that `a` does not contain.
    Between(CommitHash, CommitHash),
    /// `a...b`: the changes of `b` since the merge base of `a` and `b`.
    SinceMergeBase(CommitHash, CommitHash),
}

impl CommitHash {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<CommitHash> for OsString {
    fn from(commit: CommitHash) -> Self {
        commit.0.into()
    }
}

impl GitRevisionRange {
    /// Returns the range as a single argument for git.
    pub(super) fn to_argument(&self) -> String {
        match self {
            Self::One(one) => one.0.clone(),
            Self::Between(from, to) => format!("{}..{}", from.0, to.0),
            Self::SinceMergeBase(from, to) => format!("{}...{}", from.0, to.0),
        }
    }
}

impl GitRepository<'_> {
    /// Resolves `name` to a commit.
    ///
    /// # Errors
    /// Fails if `name` is malformed or no such commit exists. `pointer` is the JSON Pointer of
    /// `name` in the tool's input.
    pub(super) async fn resolve_commit(
        &self,
        ctx: &ToolContext,
        name: &str,
        pointer: &str,
    ) -> Result<CommitHash, ToolError> {
        if let Some(found) = self.find_commit(ctx, name, pointer).await? {
            return Ok(found);
        }
        let is_of_head = name == "@" || name.starts_with("HEAD");
        if is_of_head && self.head_commit(ctx).await?.is_none() {
            let message = "there is no commit yet; stage files with git_add and create the first \
                           with git_commit";
            return Err(ToolError::not_found(message));
        }
        Err(ToolError::not_found(format!(
            "there is no branch, tag or commit {}; git_branches and git_log list them",
            quoted_path(name)
        )))
    }

    /// Resolves `name` to a commit. Returns `None` if no such commit exists.
    ///
    /// # Errors
    /// Fails if `name` is malformed. `pointer` is the JSON Pointer of `name` in the tool's input.
    pub(super) async fn find_commit(
        &self,
        ctx: &ToolContext,
        name: &str,
        pointer: &str,
    ) -> Result<Option<CommitHash>, ToolError> {
        check_name(name, pointer)?;
        let verify =
            self.read_command("rev-parse").args(["--verify", "--quiet", "--end-of-options"]);
        let verified = verify.arg(format!("{name}^{{commit}}")).run_unchecked(ctx).await?;
        let hash = verified.text();
        let hash = hash.trim();
        let is_full = matches!(hash.len(), 40 | 64) && hash.bytes().all(|b| b.is_ascii_hexdigit());
        Ok((verified.code == 0 && is_full).then(|| CommitHash(hash.to_owned())))
    }

    /// Resolves `name` to a commit or a range such as `a..b`. An empty side of a range means
    /// `HEAD`. Errors refer to `pointer`, the JSON Pointer of `name` in the tool's input.
    pub(super) async fn resolve_range(
        &self,
        ctx: &ToolContext,
        name: &str,
        pointer: &str,
    ) -> Result<GitRevisionRange, ToolError> {
        check_name(name, pointer)?;
        let or_head =
            |name: &str| if name.is_empty() { "HEAD".to_owned() } else { name.to_owned() };
        let (from, to, make): (_, _, fn(CommitHash, CommitHash) -> GitRevisionRange) =
            if let Some((from, to)) = name.split_once("...") {
                (from, to, GitRevisionRange::SinceMergeBase)
            } else if let Some((from, to)) = name.split_once("..") {
                (from, to, GitRevisionRange::Between)
            } else {
                return self.resolve_commit(ctx, name, pointer).await.map(GitRevisionRange::One);
            };
        let from = self.resolve_commit(ctx, &or_head(from), pointer).await?;
        let to = self.resolve_commit(ctx, &or_head(to), pointer).await?;
        Ok(make(from, to))
    }

    /// Returns the commit to which `HEAD` points. Returns `None` if the repository has no commits.
    pub(super) async fn head_commit(
        &self,
        ctx: &ToolContext,
    ) -> Result<Option<CommitHash>, ToolError> {
        self.find_commit(ctx, "HEAD", "").await
    }

    /// Returns true if the local branch `name` exists.
    pub(super) async fn has_branch(
        &self,
        ctx: &ToolContext,
        name: &str,
    ) -> Result<bool, ToolError> {
        let verify = self.read_command("show-ref").args(["--verify", "--quiet", "--"]);
        Ok(verify.arg(format!("refs/heads/{name}")).run_unchecked(ctx).await?.code == 0)
    }

    /// Refuses `name` if it is not a valid name for a git branch. Errors refer to `pointer`, the
    /// JSON Pointer of `name` in the tool's input.
    pub(super) async fn check_branch_name(
        &self,
        ctx: &ToolContext,
        name: &str,
        pointer: &str,
    ) -> Result<(), ToolError> {
        check_name(name, pointer)?;
        let checked = self.read_command("check-ref-format").arg(format!("refs/heads/{name}"));
        if checked.run_unchecked(ctx).await?.code == 0 && name != "HEAD" {
            return Ok(());
        }
        let message = format!("{} is not a valid branch name", quoted_path(name));
        Err(ToolError::invalid(pointer, message))
    }
}

/// Refuses `name`, the name of a commit or branch, if it is malformed or git could interpret it as
/// an option.
fn check_name(name: &str, pointer: &str) -> Result<(), ToolError> {
    let reason = if name.trim().is_empty() {
        "is empty"
    } else if name.starts_with(['-', '^']) {
        "begins with `-` or `^`"
    } else if name.chars().any(char::is_control) {
        "contains a control character"
    } else if name.len() > NAME_BYTES_MAX {
        "is too long"
    } else {
        return Ok(());
    };
    let advice = "name a branch, a tag or a commit, e.g. `main`, `v1.0`, `HEAD~2`";
    Err(ToolError::invalid(pointer, format!("the name {reason}; {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_an_option_or_is_malformed_is_refused() {
        for name in ["", " ", "-x", "--help", "--upload-pack=x", "^HEAD", "a\0b", "a\nb", "a\tb"] {
            assert!(check_name(name, "/ref").is_err(), "{name:?}");
        }
        for name in ["main", "feat/x", "HEAD~2", "HEAD^{/fix the bug}", "main@{2 days ago}", "@"] {
            check_name(name, "/ref").unwrap();
        }
    }
}
