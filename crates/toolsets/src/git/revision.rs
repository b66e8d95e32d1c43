//! Commits and branches that callers name: validated and resolved before git sees them.

use std::ffi::OsString;

use toolgate_contract::{Ctx, ToolError};

use super::repository::Repository;
use crate::world::root::shown;

const NAME_BYTES_MAX: usize = 1000;

/// Full hash of a commit as git printed it. It can never be mistaken for an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit(String);

/// One commit or a range between two.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// `a`: one commit.
    One(Commit),
    /// `a..b`: commits of `b` that `a` lacks.
    Between(Commit, Commit),
    /// `a...b`: changes since the merge base of both.
    Parted(Commit, Commit),
}

impl Commit {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Commit> for OsString {
    fn from(commit: Commit) -> Self {
        commit.0.into()
    }
}

impl Range {
    /// Returns the range as one argument for git.
    pub(super) fn argument(&self) -> String {
        match self {
            Self::One(one) => one.0.clone(),
            Self::Between(from, to) => format!("{}..{}", from.0, to.0),
            Self::Parted(from, to) => format!("{}...{}", from.0, to.0),
        }
    }
}

impl Repository<'_> {
    /// Resolves `name` to a commit.
    ///
    /// # Errors
    ///
    /// Fails if the name is malformed or no such commit exists. `pointer` locates it in the input.
    pub(super) async fn commit(
        &self,
        ctx: &Ctx,
        name: &str,
        pointer: &str,
    ) -> Result<Commit, ToolError> {
        if let Some(found) = self.commit_if_any(ctx, name, pointer).await? {
            return Ok(found);
        }
        let is_of_head = name == "@" || name.starts_with("HEAD");
        if is_of_head && self.head(ctx).await?.is_none() {
            let message = "there is no commit yet; stage files with git_add and make the first \
                           with git_commit";
            return Err(ToolError::not_found(message));
        }
        let wish = "name a branch, a tag or a commit; git_branches and git_log show them";
        Err(ToolError::not_found(format!("no commit is called {}; {wish}", shown(name))))
    }

    /// Resolves `name` to a commit, or to `None` if there is none.
    pub(super) async fn commit_if_any(
        &self,
        ctx: &Ctx,
        name: &str,
        pointer: &str,
    ) -> Result<Option<Commit>, ToolError> {
        check(name, pointer)?;
        let verify = self.read("rev-parse").args(["--verify", "--quiet", "--end-of-options"]);
        let verified = verify.arg(format!("{name}^{{commit}}")).attempt(ctx).await?;
        let told = verified.text();
        let told = told.trim();
        let is_whole = matches!(told.len(), 40 | 64) && told.bytes().all(|b| b.is_ascii_hexdigit());
        Ok((verified.code == 0 && is_whole).then(|| Commit(told.to_owned())))
    }

    /// Resolves `name` to a commit or a range. An empty side of a range means `HEAD`.
    pub(super) async fn range(
        &self,
        ctx: &Ctx,
        name: &str,
        pointer: &str,
    ) -> Result<Range, ToolError> {
        check(name, pointer)?;
        let or_head =
            |name: &str| if name.is_empty() { "HEAD".to_owned() } else { name.to_owned() };
        let (from, to, make): (_, _, fn(Commit, Commit) -> Range) =
            if let Some((from, to)) = name.split_once("...") {
                (from, to, Range::Parted)
            } else if let Some((from, to)) = name.split_once("..") {
                (from, to, Range::Between)
            } else {
                return self.commit(ctx, name, pointer).await.map(Range::One);
            };
        let from = self.commit(ctx, &or_head(from), pointer).await?;
        let to = self.commit(ctx, &or_head(to), pointer).await?;
        Ok(make(from, to))
    }

    /// Returns the commit of `HEAD`, or `None` before the first commit.
    pub(super) async fn head(&self, ctx: &Ctx) -> Result<Option<Commit>, ToolError> {
        self.commit_if_any(ctx, "HEAD", "").await
    }

    /// Returns true if the local branch `name` exists.
    pub(super) async fn has_branch(&self, ctx: &Ctx, name: &str) -> Result<bool, ToolError> {
        let verify = self.read("show-ref").args(["--verify", "--quiet", "--"]);
        Ok(verify.arg(format!("refs/heads/{name}")).attempt(ctx).await?.code == 0)
    }

    /// Refuses a name that no branch can have.
    pub(super) async fn check_branch(
        &self,
        ctx: &Ctx,
        name: &str,
        pointer: &str,
    ) -> Result<(), ToolError> {
        check(name, pointer)?;
        let checked = self.read("check-ref-format").arg(format!("refs/heads/{name}"));
        if checked.attempt(ctx).await?.code == 0 && name != "HEAD" {
            return Ok(());
        }
        let message = format!("a branch cannot be called {}", shown(name));
        Err(ToolError::invalid(pointer, message))
    }
}

/// Refuses a name that is malformed or could be taken for something else, such as an option.
fn check(name: &str, pointer: &str) -> Result<(), ToolError> {
    let why = if name.trim().is_empty() {
        "is empty"
    } else if name.starts_with(['-', '^']) {
        "begins with a character no name begins with"
    } else if name.chars().any(char::is_control) {
        "has a control character in it"
    } else if name.len() > NAME_BYTES_MAX {
        "is too long"
    } else {
        return Ok(());
    };
    let wish = "name a branch, a tag or a commit, e.g. `main`, `v1.0`, `HEAD~2`";
    Err(ToolError::invalid(pointer, format!("the name {why}; {wish}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_an_option_is_no_name() {
        for name in ["", " ", "-x", "--help", "--upload-pack=x", "^HEAD", "a\0b", "a\nb", "a\tb"] {
            assert!(check(name, "/ref").is_err(), "{name:?}");
        }
        for name in ["main", "feat/x", "HEAD~2", "HEAD^{/fix the bug}", "main@{2 days ago}", "@"] {
            check(name, "/ref").unwrap();
        }
    }
}
