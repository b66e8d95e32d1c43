//! `assets.diff_assets`: compares two assets.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Effects, Tool, ToolContext, ToolError, exact_json};

use super::patch::{JsonPatchOperation, patch_between};
use super::snapshot::AssetSnapshot;
use toolgate_world::root::DiskWorkMonitor;

/// The `assets.diff_assets` tool.
pub struct DiffAssets {
    /// The schemas and examples of the workspace. The tool compares assets on their worker threads.
    pub(super) assets: Arc<AssetSnapshot>,
}

/// The two assets to compare.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffAssetsInput {
    /// Old asset.
    #[serde(deserialize_with = "exact_json::deserialize")]
    base: Value,
    /// New asset.
    #[serde(deserialize_with = "exact_json::deserialize")]
    new: Value,
}

/// The differences between two assets.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DiffAssetsOutput {
    /// Constant `true`.
    ok: bool,
    /// A JSON Patch (RFC 6902) from `base` to `new`, in order of path.
    patch: Vec<JsonPatchOperation>,
}

impl Tool for DiffAssets {
    const NAME: &'static str = "assets.diff_assets";
    const TITLE: &'static str = "Diff assets";
    const DESCRIPTION: &'static str = "Compare two JSON assets. Returns the JSON Patch (RFC 6902) of \
        `add`, `remove` and `replace` from the first to the second. A changed array is replaced \
        whole.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const KEEPS_FLOATS: bool = true;
    type Input = DiffAssetsInput;
    type Output = DiffAssetsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let DiffAssetsInput { base, new } = input;
        let work =
            |[base, new]: [Value; 2], watch: &DiskWorkMonitor| patch_between(&base, new, watch);
        Ok(DiffAssetsOutput {
            ok: true,
            patch: self.assets.run_work(ctx, [base, new], work).await?,
        })
    }
}
