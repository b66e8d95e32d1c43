//! The `git` toolset: runs the git program in such a way that a repository cannot make git run
//! other programs.
//!
//! No tool uses the network. A repository is accepted only if all of it is in the workspace, or if
//! the settings allow the use of a repository outside to which the workspace belongs.

mod status;
mod log;
mod diff;
mod show;
mod blame;
mod branches;
mod current_branch;
mod add;
mod unstage;
mod commit;
mod checkout;
mod restore;
mod stash;
mod settings;
mod repository;
mod discovery;
mod outside;
mod configuration;
mod command;
mod error_redaction;
mod filters;
mod nested;
mod submodules;
mod revision;
mod pathspec;
mod times;
mod commits;
mod quoting;
mod staged;
mod write_failures;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests access the repositories from outside")]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{AnyTool, Effects, Tool, erase_tool};

use crate::exec::WorkspaceProgramRunner;

pub use settings::{GitProgram, GitSettings, OutsideRepositoryAccess};

/// The deadline of calls of the `git` tools. It exceeds git's time limit, so that git is stopped
/// before the deadline ends the call.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));

/// Returns all `git` tools, for repositories in the workspace of `programs`.
///
/// The setting `exec.allow` does not apply: the tools run only git, with arguments that they
/// control.
pub fn tools(programs: &WorkspaceProgramRunner, settings: &GitSettings) -> Vec<Arc<dyn AnyTool>> {
    let git = GitContext {
        programs: programs.clone(),
        settings: Arc::new(settings.clone()),
        outside: outside::OutsideRepository::find(&programs.root).map(Arc::new),
        changes: false,
    };
    vec![
        git.tool(status::GitStatus),
        git.tool(log::GitLog),
        git.tool(diff::GitDiff),
        git.tool(show::GitShow),
        git.tool(blame::GitBlame),
        git.tool(branches::GitBranches),
        git.tool(current_branch::GitCurrentBranch),
        git.tool(add::GitAdd),
        git.tool(unstage::GitUnstage),
        git.tool(commit::GitCommit),
        git.tool(checkout::GitCheckout),
        git.tool(restore::GitRestore),
        git.tool(stash::GitStash),
    ]
}

/// The program runner and settings that every `git` tool uses.
#[derive(Clone)]
pub(super) struct GitContext {
    programs: WorkspaceProgramRunner,
    settings: Arc<GitSettings>,
    /// The repository to which the workspace belongs, if its `.git` folder is outside the
    /// workspace.
    outside: Option<Arc<outside::OutsideRepository>>,
    /// True if the tool may change the repository.
    changes: bool,
}

impl GitContext {
    /// Creates the tool with `make`. The tool's processes run under its own name and sandbox
    /// profile.
    fn tool<T: Tool>(&self, make: impl FnOnce(Self) -> T) -> Arc<dyn AnyTool> {
        erase_tool(make(Self {
            programs: self.programs.for_tool(T::NAME),
            settings: self.settings.clone(),
            outside: self.outside.clone(),
            changes: T::EFFECTS != Effects::Reads,
        }))
    }
}
