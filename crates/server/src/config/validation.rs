//! Settings of the validation of tool output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Validation of tool output against schemas.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationSection {
    /// Patterns of tools, such as `github.*` (or `github_*`), whose output is logged and sent if it
    /// does not match its schema. For other tools, such output is refused.
    pub shadow: Vec<String>,
}
