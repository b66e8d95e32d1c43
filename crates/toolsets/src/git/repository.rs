//! A repository that lies wholly in the workspace, and git run in it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use toolgate_contract::{Ctx, ToolError};

use super::Git;
use super::command::{Command, Reads};

/// A repository, found for one call.
pub(super) struct Repository<'g> {
    pub(super) git: &'g Git,
    /// Its top folder, held open: git starts there, so paths are told from there.
    pub(super) top: OwnedFd,
    /// Where that is, absolute.
    pub(super) top_path: PathBuf,
    /// Where its own folder is, absolute; of a linked work tree, the part that is only that one's.
    pub(super) git_dir: PathBuf,
    /// Where the folder is that all its work trees have in common, absolute.
    pub(super) common_dir: PathBuf,
    /// What is set above its configuration.
    pub(super) overrides: Vec<(OsString, OsString)>,
    /// The filters its configuration or this user's defines, where they do not run.
    pub(super) idle_filters: Vec<String>,
    /// Whether it prints names with bytes beyond ASCII escaped.
    pub(super) quotes_paths: bool,
}

/// What stands in a repository's folder while it is in the middle of something.
const UNDER_WAY: [(&str, &str); 6] = [
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
];

impl Repository<'_> {
    /// `git VERB`, which takes no lock: for what only reads.
    pub(super) fn read(&self, verb: &str) -> Command<'_> {
        self.command(verb).env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// `git VERB`, for what changes it.
    pub(super) fn change(&self, verb: &str) -> Command<'_> {
        self.command(verb).changing(&self.common_dir)
    }

    /// What it is in the middle of, if it is: a merge, say, that is not concluded.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        let is_there = |name: &str| self.git_dir.join(name).symlink_metadata().is_ok();
        UNDER_WAY.iter().find(|(name, _)| is_there(name)).map(|(_, what)| *what)
    }

    /// What is in conflict, the first of it.
    pub(super) async fn in_conflict(&self, ctx: &Ctx) -> Result<Vec<String>, ToolError> {
        let listed =
            self.read("diff").args(["--name-only", "--diff-filter=U", "-z", "--no-ext-diff"]);
        Ok(listed.args(["--no-color", "--"]).run(ctx).await?.fields())
    }

    fn command(&self, verb: &str) -> Command<'_> {
        // Looked for again from its top, another might be found, which nobody has looked at.
        Command::new(self.git, &self.top, &self.overrides, Reads::Repository, verb)
            .env("GIT_DIR", &self.git_dir)
            .env("GIT_WORK_TREE", &self.top_path)
    }
}
