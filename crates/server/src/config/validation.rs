//! Settings of the validation of tool output.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::OutputCheck;

/// Validation of tool output against schemas.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationSection {
    /// Reaction to output that does not match its tool's schema: `off`, `shadow` (log it) or
    /// `enforce` (refuse it).
    pub output: OutputCheck,
    /// Exceptions for some tools, with one `[[validation.rules]]` table for each. The first rule
    /// that matches a tool applies.
    pub rules: Vec<OutputRule>,
}

/// Validation of the output of some tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputRule {
    /// Pattern of tools, such as `github.*` (or `github_*`).
    pub tools: String,
    /// Reaction to output of these tools, as for `validation.output`: `off`, `shadow` or `enforce`.
    pub output: OutputCheck,
}

impl Default for ValidationSection {
    fn default() -> Self {
        Self { output: OutputCheck::Enforce, rules: Vec::new() }
    }
}
