//! What whoever runs the server decides about documents.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The tools that load, make and find documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether they are offered.
    pub enabled: bool,
    /// How large a document, or what is told about one, may be to be loaded.
    pub bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { enabled: true, bytes_max: 1 << 20 }
    }
}
