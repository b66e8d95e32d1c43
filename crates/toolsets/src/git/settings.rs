//! Settings of the `git` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Programs that git may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GitSettings {
    /// Kinds of programs that git may run. None by default.
    ///
    /// `hooks` are programs that a repository contains, such as `pre-commit`. `filters` are
    /// programs that convert files, such as Git LFS. The git configuration of the user or the
    /// repository names the filters. Without `filters`, a file that needs a filter cannot be added.
    pub programs: Vec<GitProgram>,
    /// Access to a repository outside the workspace, if the workspace is a linked worktree, a
    /// submodule or a subfolder of it.
    ///
    /// `none` refuses access. With `read`, only git tools that read work. In a subfolder, these
    /// tools show only the files of that folder, but all branches and commit messages. With
    /// `write`, all git tools work in a linked worktree or a submodule, unless `programs` is set.
    /// The git tools never change `config`, `hooks` or `info` of the repository, or the state of
    /// other worktrees.
    pub outside: OutsideRepositoryAccess,
}

/// Access to a repository outside the workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutsideRepositoryAccess {
    /// No access.
    #[default]
    None,
    /// Read access.
    Read,
    /// Read and write access.
    Write,
}

/// Kind of programs that git runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitProgram {
    /// Hooks of the repository.
    Hooks,
    /// Filters that convert files.
    Filters,
}

impl GitSettings {
    /// Returns true if the settings allow git to run programs of the kind `kind`.
    pub fn allows(&self, kind: GitProgram) -> bool {
        self.programs.contains(&kind)
    }
}
