//! Settings of the validation of tool output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Validation of tool output against schemas.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationSection {
    /// Patterns of tools, such as `github.*` (or `github_*`), whose output need not match their
    /// schema. If the output does not match, toolgate sends the output and logs a warning. If the
    /// output of another tool does not match its schema, toolgate refuses the output.
    pub shadow: Vec<String>,
}
