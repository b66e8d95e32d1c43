//! The input that the tools to build, lint and restore projects have in common.

use schemars::JsonSchema;
use serde::Deserialize;

use super::build_tool::BuildTool;
use crate::exec::TIMEOUT_MS_MAX;

const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Input of a `ci` tool: the project and its options.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CiProjectInput {
    /// Project folder.
    #[serde(default)]
    pub(super) path: Option<String>,
    /// Build tool, if a folder has several; ci_detect lists them.
    #[serde(default)]
    pub(super) kind: Option<BuildTool>,
    /// Further arguments.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// Time limit in milliseconds; 600000 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub(super) timeout_ms: Option<u64>,
    /// Bytes to show from the end of the output; 8192 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = OUTPUT_BYTES_MAX))]
    pub(super) max_output_bytes: Option<usize>,
}
