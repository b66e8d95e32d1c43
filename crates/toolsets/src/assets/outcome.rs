//! How a tool says that an asset was not taken.

use schemars::JsonSchema;
use serde::Serialize;

/// Why an asset was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// It is invalid.
    ValidationFailed,
    /// The backend refused it, or was not reached.
    BackendError,
    /// There is no backend.
    Unsupported,
}

/// One thing that is wrong with an asset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Wrong {
    /// Where: an absolute JSON Pointer (RFC 6901), empty for the whole.
    pub path: String,
    /// What.
    pub msg: String,
}
