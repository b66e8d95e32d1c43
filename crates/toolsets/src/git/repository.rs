//! A git repository that is wholly inside the workspace, and git commands in it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use toolgate_contract::{Ctx, ToolError};

use super::Git;
use super::command::{Command, Reads};

/// A repository, opened for one call.
pub(super) struct Repository<'g> {
    pub(super) git: &'g Git,
    /// Top folder of the work tree, open as the directory that git starts in.
    pub(super) top: OwnedFd,
    /// Absolute path of the top folder.
    pub(super) top_path: PathBuf,
    /// Absolute path of the repository's folder (`.git`). For a linked work tree, its private part.
    pub(super) git_dir: PathBuf,
    /// Absolute path of the folder that all work trees share.
    pub(super) common_dir: PathBuf,
    /// Settings that override the configuration.
    pub(super) overrides: Vec<(OsString, OsString)>,
    /// Filters that are defined but not allowed to run.
    pub(super) idle_filters: Vec<String>,
    /// Set if git prints bytes beyond ASCII escaped in names.
    pub(super) quotes_paths: bool,
}

/// Files in the repository's folder that show an unfinished operation, each with its name.
const UNDER_WAY: [(&str, &str); 6] = [
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
];

impl Repository<'_> {
    /// Creates the command `git VERB` without optional locks, for commands that only read.
    pub(super) fn read(&self, verb: &str) -> Command<'_> {
        self.command(verb).env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// Creates the command `git VERB` for commands that change the repository.
    pub(super) fn change(&self, verb: &str) -> Command<'_> {
        self.command(verb).changing(&self.common_dir)
    }

    /// Returns the unfinished operation, if there is one, e.g. `merge`.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        let is_there = |name: &str| self.git_dir.join(name).symlink_metadata().is_ok();
        UNDER_WAY.iter().find(|(name, _)| is_there(name)).map(|(_, what)| *what)
    }

    /// Returns the paths of the files in conflict, as many as git's output limit allows.
    pub(super) async fn in_conflict(&self, ctx: &Ctx) -> Result<Vec<String>, ToolError> {
        let listed =
            self.read("diff").args(["--name-only", "--diff-filter=U", "-z", "--no-ext-diff"]);
        Ok(listed.args(["--no-color", "--"]).run(ctx).await?.fields())
    }

    fn command(&self, verb: &str) -> Command<'_> {
        // A new search for the repository could find another one, which was not checked.
        Command::new(self.git, &self.top, &self.overrides, Reads::Repository, verb)
            .env("GIT_DIR", &self.git_dir)
            .env("GIT_WORK_TREE", &self.top_path)
    }
}
