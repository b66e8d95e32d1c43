//! A git repository that was opened for one call, and git commands in this repository.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use toolgate_contract::{ToolContext, ToolError};

use super::GitContext;
use super::command::{GitCommand, GitConfigScope};
use super::outside::{OutsideRepository, WorkspaceRepositoryRelation};

/// A git repository that was opened for one call.
pub(super) struct GitRepository<'g> {
    pub(super) git: &'g GitContext,
    /// The open top folder of the work tree, in which git starts.
    pub(super) top: OwnedFd,
    /// The absolute path of the top folder of the work tree.
    pub(super) top_path: PathBuf,
    /// The absolute path of the repository's `.git` folder. For a linked work tree, this is the
    /// work tree's own folder inside the shared `.git` folder.
    pub(super) git_dir: PathBuf,
    /// The absolute path of the `.git` folder that all work trees share.
    pub(super) common_dir: PathBuf,
    /// Details of the repository if its `.git` folder is outside the workspace.
    pub(super) outside: Option<Arc<OutsideRepository>>,
    /// Git settings that take precedence over the repository's configuration.
    pub(super) overrides: Vec<(OsString, OsString)>,
    /// The names of git filters that are defined but not allowed to run.
    pub(super) disabled_filters: Vec<String>,
}

/// Files in the `.git` folder that exist while an operation such as a merge is in progress, with
/// the name of the operation.
const OPERATION_FILES: [(&str, &str); 6] = [
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
];

impl GitRepository<'_> {
    /// Returns the path of the workspace relative to the top folder of the work tree, with a slash
    /// at its end. Empty if the workspace contains the top folder.
    pub(super) fn workspace_prefix(&self) -> &str {
        self.outside.as_ref().map_or("", |outside| outside.prefix.as_str())
    }

    /// Returns `.`, the path argument for commands about all files, if the workspace is only a
    /// subfolder of the repository. Returns `None` for other workspaces, in which such commands
    /// need no path.
    pub(super) fn visible_paths(&self) -> Option<String> {
        let outside = self.outside.as_ref();
        outside
            .filter(|outside| outside.kind == WorkspaceRepositoryRelation::Subfolder)
            .map(|_| ".".to_owned())
    }

    /// Returns the path of the top folder of the work tree relative to the workspace, or `.` for
    /// the workspace itself. For a repository outside the workspace, returns an absolute path.
    pub(super) fn top_in_workspace(&self) -> String {
        if let Some(outside) = &self.outside {
            return outside.shown_path();
        }
        let root = self.git.programs.root.path();
        let inside = self.top_path.strip_prefix(root).unwrap_or(&self.top_path).to_string_lossy();
        if inside.is_empty() { ".".to_owned() } else { inside.into_owned() }
    }

    /// Creates the command `git VERB`, which only reads the repository. Git takes no optional
    /// locks.
    pub(super) fn read_command(&self, verb: &str) -> GitCommand<'_> {
        self.command(verb).env("GIT_OPTIONAL_LOCKS", "0")
    }

    /// Creates the command `git VERB`, which may change the repository.
    pub(super) fn change_command(&self, verb: &str) -> GitCommand<'_> {
        self.command(verb).with_changes_to(&self.common_dir)
    }

    /// Returns the name of the git operation in progress, such as `merge`, if there is one.
    pub(super) fn unfinished_operation(&self) -> Option<&'static str> {
        let exists = |name: &str| self.git_dir.join(name).symlink_metadata().is_ok();
        OPERATION_FILES.iter().find(|(name, _)| exists(name)).map(|(_, operation)| *operation)
    }

    /// Returns the paths of the files that have merge conflicts, as many as fit into git's output
    /// limit.
    pub(super) async fn conflicting_files(
        &self,
        ctx: &ToolContext,
    ) -> Result<Vec<String>, ToolError> {
        let listed = self.read_command("diff").args([
            "--name-only",
            "--diff-filter=U",
            "-z",
            "--no-ext-diff",
        ]);
        Ok(listed.args(["--no-color", "--"]).run(ctx).await?.fields())
    }

    fn command(&self, verb: &str) -> GitCommand<'_> {
        if let Some(outside) = &self.outside {
            let scope = GitConfigScope::Repository;
            return self.git.outside_command(outside, &self.top, &self.overrides, scope, verb);
        }
        // A new search for the repository could find another one, which was not checked.
        GitCommand::new(self.git, &self.top, &self.overrides, GitConfigScope::Repository, verb)
            .env("GIT_DIR", &self.git_dir)
            .env("GIT_WORK_TREE", &self.top_path)
    }
}
