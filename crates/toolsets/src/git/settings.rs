//! What the owner of the server decides about git.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What git may run by itself, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether the hooks of a repository run, e.g. `pre-commit`: programs that it brings along.
    pub hooks: bool,
    /// Whether filters run, e.g. Git LFS: programs that a configuration names, this user's or the
    /// repository's own, through which files go on their way in and out. Where they do not, a file
    /// that one is meant for cannot be added.
    pub filters: bool,
    /// How long git may take over one call, at most 600000.
    pub timeout_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { hooks: false, filters: false, timeout_ms: 60_000 }
    }
}
