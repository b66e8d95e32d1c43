//! The `git` toolset: runs the git program so that a repository cannot make it run other programs.
//!
//! No tool uses the network. A repository is accepted only if all of it is in the workspace.

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
mod configuration;
mod command;
mod complaints;
mod filters;
mod nested;
mod revision;
mod pathspec;
mod times;
mod commits;
mod quoting;
mod staged;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the repositories from outside")]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{AnyTool, Tool, erase};

use crate::exec::Programs;

pub use settings::Settings;

/// Deadline of a call: longer than the highest `git.timeout_ms`, so that this setting applies
/// first.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));

/// Returns all tools of this toolset, for repositories in the workspace of `programs`.
///
/// The allowlist of `exec` does not apply: the tools run git only, with fixed arguments.
pub fn tools(programs: &Programs, settings: &Settings) -> Vec<Arc<dyn AnyTool>> {
    let git = Git { programs: programs.clone(), settings: Arc::new(settings.clone()) };
    vec![
        git.verb(status::Status),
        git.verb(log::Log),
        git.verb(diff::Diff),
        git.verb(show::Show),
        git.verb(blame::Blame),
        git.verb(branches::Branches),
        git.verb(current_branch::CurrentBranch),
        git.verb(add::Add),
        git.verb(unstage::Unstage),
        git.verb(commit::Commit),
        git.verb(checkout::Checkout),
        git.verb(restore::Restore),
        git.verb(stash::Stash),
    ]
}

/// Programs and settings that every tool of this toolset uses.
#[derive(Clone)]
pub(super) struct Git {
    programs: Programs,
    settings: Arc<Settings>,
}

impl Git {
    /// Creates the tool with `make`, and attributes its processes to that tool.
    fn verb<T: Tool>(&self, make: impl FnOnce(Self) -> T) -> Arc<dyn AnyTool> {
        erase(make(Self { programs: self.programs.of(T::NAME), settings: self.settings.clone() }))
    }
}
