//! A repository that lies wholly in the workspace, and git run in it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

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

impl Repository<'_> {
    /// `git VERB`, which takes no lock: for what only reads.
    pub(super) fn read(&self, verb: &str) -> Command<'_> {
        self.command(verb).env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// `git VERB`, for what changes it.
    pub(super) fn change(&self, verb: &str) -> Command<'_> {
        self.command(verb).changing(&self.common_dir)
    }

    fn command(&self, verb: &str) -> Command<'_> {
        // Looked for again from its top, another might be found, which nobody has looked at.
        Command::new(self.git, &self.top, &self.overrides, Reads::Repository, verb)
            .env("GIT_DIR", &self.git_dir)
            .env("GIT_WORK_TREE", &self.top_path)
    }
}
