//! Settings of the `docs` toolset.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tools that load, render and search documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Offers the tools that load, create and find documents.
    pub enabled: bool,
    /// Largest document, or metadata file, that can be loaded, in bytes.
    pub bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { enabled: true, bytes_max: 1 << 20 }
    }
}
