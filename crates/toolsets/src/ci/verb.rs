//! What the tools that build, test, lint and restore are given.

use schemars::JsonSchema;
use serde::Deserialize;

use super::kind::Kind;
use crate::exec::TIMEOUT_MS_MAX;

const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Which project, and how.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The project's folder, in the workspace: it, or else the nearest around it that has a
    /// project, is meant; by default the workspace itself.
    #[serde(default)]
    pub(super) project: Option<String>,
    /// What it is built with, where a folder is several things; ci_detect tells.
    #[serde(default)]
    pub(super) kind: Option<Kind>,
    /// Further arguments for the program.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// How long it may run before it is stopped with all it started; 600000 unless the server
    /// is set otherwise.
    #[serde(default)]
    #[schemars(range(min = 1, max = TIMEOUT_MS_MAX))]
    pub(super) timeout_ms: Option<u64>,
    /// How much of the end of what it prints is shown; 8192 unless the server is set otherwise.
    #[serde(default)]
    #[schemars(range(min = 1, max = OUTPUT_BYTES_MAX))]
    pub(super) max_output_bytes: Option<usize>,
}
