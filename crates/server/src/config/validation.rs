//! Settings of the validation of tool output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Validation of tool output against schemas.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationSection {
    /// Tools, as patterns such as `github.*` (or `github_*`), that may return output that does not
    /// match their schema. toolgate sends it and logs a warning. Such output from other tools is
    /// refused.
    pub shadow: Vec<String>,
}
