//! `assets.validate_asset`: validates an asset against a schema.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Effects, Tool, ToolContext, ToolError, exact_json};

use super::outcome::{AssetError, AssetRejectionReason};
use super::snapshot::AssetSnapshot;
use toolgate_world::root::DiskWorkMonitor;

/// The `assets.validate_asset` tool.
pub struct ValidateAsset {
    pub(super) assets: Arc<AssetSnapshot>,
}

/// Input of `assets.validate_asset`: the asset and the name of a schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValidateAssetInput {
    /// The asset; its top-level `$schemaRef` is ignored.
    #[serde(deserialize_with = "exact_json::deserialize")]
    asset: Value,
    /// Name of the schema, as `assets_list_schemas` lists it. `nested-synesthetic-asset` means
    /// `synesthetic-asset`.
    schema: String,
}

/// The result of validating an asset.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ValidateAssetOutput {
    /// True if the asset is valid.
    ok: bool,
    /// Reason why the asset was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<AssetRejectionReason>,
    /// Errors, in order of path and message; empty if the asset is valid.
    errors: Vec<AssetError>,
}

impl Tool for ValidateAsset {
    const NAME: &'static str = "assets.validate_asset";
    const TITLE: &'static str = "Validate asset";
    const DESCRIPTION: &'static str = "Validate a JSON asset against a schema (JSON Schema 2020-12). \
        Returns each error with its JSON Pointer.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const KEEPS_FLOATS: bool = true;
    type Input = ValidateAssetInput;
    type Output = ValidateAssetOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let ValidateAssetInput { asset, schema } = input;
        let assets = self.assets.clone();
        let work = move |[asset]: [Value; 1], watch: &DiskWorkMonitor| {
            assets.validate_untrusted(&asset, &schema, watch)
        };
        let errors = self.assets.run_work(ctx, [asset], work).await?;
        let ok = errors.is_empty();
        Ok(ValidateAssetOutput {
            ok,
            reason: (!ok).then_some(AssetRejectionReason::ValidationFailed),
            errors,
        })
    }
}
