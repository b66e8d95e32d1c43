//! Settings of the `git` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Programs that git may run, and its time limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GitSettings {
    /// Repository hooks, such as `pre-commit`, which are programs that a repository brings along.
    /// `true` lets them run; `false` (default) does not.
    pub hooks: bool,
    /// Filters, such as Git LFS: programs in the user's or the repository's configuration that
    /// convert files. `true` lets them run. With `false` (default), a file that needs a filter
    /// cannot be added.
    pub filters: bool,
    /// Time limit for git in one call, in milliseconds; at most 600000. Default: 60000.
    pub timeout_ms: u64,
}

impl Default for GitSettings {
    fn default() -> Self {
        Self { hooks: false, filters: false, timeout_ms: 60_000 }
    }
}
