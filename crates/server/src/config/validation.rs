//! What happens to output that breaks its tool's schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::OutputCheck;

/// How the output of tools is checked.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Validation {
    /// What happens to output that breaks its tool's schema: `off`, `shadow` (logged) or `enforce` (refused).
    pub output: OutputCheck,
    /// The same for some tools, a table `[[validation.rules]]` for each rule: the first that matches a tool counts for it.
    pub rules: Vec<OutputRule>,
}

/// What happens to the output of some tools that breaks their schemas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputRule {
    /// A pattern over tools, e.g. `github.*` (or `github_*`).
    pub tools: String,
    /// `off`, `shadow` or `enforce`, as `validation.output` has them.
    pub output: OutputCheck,
}

impl Default for Validation {
    fn default() -> Self {
        Self { output: OutputCheck::Enforce, rules: Vec::new() }
    }
}
