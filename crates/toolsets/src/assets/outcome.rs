//! Types that describe why a tool did not accept an asset.

use schemars::JsonSchema;
use serde::Serialize;

/// Reason why an asset was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AssetRejectionReason {
    /// The asset is invalid.
    ValidationFailed,
    /// The backend refused the asset, or was unreachable.
    BackendError,
    /// No backend that stores assets is configured.
    Unsupported,
}

/// One validation error in an asset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct AssetError {
    /// JSON Pointer (RFC 6901) to the invalid value; empty for the asset itself.
    pub path: String,
    /// Description of the error.
    pub msg: String,
}
