//! The `git` toolset: the git program, run so that a repository cannot run anything by it.
//!
//! No verb reaches a network. A repository is one only if all of it lies in the workspace.

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

/// Longer than the longest `git.timeout_ms`, so that git is stopped by its own.
const DEADLINE: Option<Duration> = Some(Duration::from_secs(610));

/// The tools of this toolset, for repositories beneath the workspace of `programs`.
///
/// What may be run by `exec` does not matter here: git is the one program, run as it is below.
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

/// What every tool here is made of.
#[derive(Clone)]
pub(super) struct Git {
    programs: Programs,
    settings: Arc<Settings>,
}

impl Git {
    /// The tool that `make` makes, whose programs are its own.
    fn verb<T: Tool>(&self, make: impl FnOnce(Self) -> T) -> Arc<dyn AnyTool> {
        erase(make(Self { programs: self.programs.of(T::NAME), settings: self.settings.clone() }))
    }
}
