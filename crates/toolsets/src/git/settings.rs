//! Settings of the `git` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Programs that git may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GitSettings {
    /// Kinds of programs that git may run. None by default.
    ///
    /// `hooks` are programs that a repository brings along, such as `pre-commit`. `filters` are
    /// programs in the user's or the repository's configuration that convert files, such as Git
    /// LFS; without them, a file that needs a filter cannot be added.
    pub programs: Vec<GitProgram>,
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
    /// Returns true if git may run programs of this `kind`.
    pub fn allows(&self, kind: GitProgram) -> bool {
        self.programs.contains(&kind)
    }
}
