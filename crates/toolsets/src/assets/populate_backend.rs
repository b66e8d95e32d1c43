//! `assets.populate_backend`: sends an asset to the backend.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Effects, Tool, ToolContext, ToolError, exact_json};

use super::backend::{AssetBackendAnswer, AssetBackendClient};
use super::outcome::{AssetError, AssetRejectionReason};
use super::schema_names::schema_of_example;
use super::snapshot::AssetSnapshot;
use toolgate_world::root::DiskWorkMonitor;

/// The file name that an asset is assumed to have if it does not name its schema. The file name
/// determines the schema.
const DEFAULT_FILE_NAME: &str = "example.json";

/// The `assets.populate_backend` tool.
pub struct PopulateBackend {
    pub(super) assets: Arc<AssetSnapshot>,
    pub(super) backend: Option<AssetBackendClient>,
}

/// Input of `assets.populate_backend`: the asset to send.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PopulateBackendInput {
    /// The asset, sent unchanged.
    #[serde(deserialize_with = "exact_json::deserialize")]
    asset: Value,
    /// Validates first and does not send an invalid asset; `true` by default. The asset's `schema`
    /// or `$schemaRef` names the schema.
    #[serde(default)]
    validate_first: Option<bool>,
}

/// The result of sending an asset to the backend.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct PopulateBackendOutput {
    /// True if the backend accepted the asset.
    ok: bool,
    /// Id of the asset at the backend; empty if the backend gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    asset_id: Option<String>,
    /// URL of the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_url: Option<String>,
    /// Reason why the asset was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<AssetRejectionReason>,
    /// Errors, if the asset is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<AssetError>>,
    /// HTTP status of the refusal; 503 if the backend is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The backend's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Tool for PopulateBackend {
    const NAME: &'static str = "assets.populate_backend";
    const TITLE: &'static str = "Populate backend";
    const DESCRIPTION: &'static str = "Send a JSON asset to the backend, which stores it. Validates the \
        asset first unless `validate_first` is false.";
    const EFFECTS: Effects = Effects::Changes;
    const KEEPS_FLOATS: bool = true;
    type Input = PopulateBackendInput;
    type Output = PopulateBackendOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let PopulateBackendInput { mut asset, validate_first } = input;
        let Some(backend) = &self.backend else {
            return Ok(PopulateBackendOutput {
                reason: Some(AssetRejectionReason::Unsupported),
                detail: Some("backend disabled".to_owned()),
                ..PopulateBackendOutput::default()
            });
        };
        if validate_first.unwrap_or(true) {
            let assets = self.assets.clone();
            let work = move |[asset]: [Value; 1], watch: &DiskWorkMonitor| {
                let schema = schema_of_example(&asset, DEFAULT_FILE_NAME);
                let errors = assets.validate_untrusted(&asset, &schema, watch)?;
                Ok::<_, ToolError>((asset, errors))
            };
            let (validated, errors) = self.assets.run_work(ctx, [asset], work).await?;
            asset = validated;
            if !errors.is_empty() {
                return Ok(PopulateBackendOutput {
                    reason: Some(AssetRejectionReason::ValidationFailed),
                    errors: Some(errors),
                    ..PopulateBackendOutput::default()
                });
            }
        }
        Ok(match backend.send(ctx, &asset).await? {
            AssetBackendAnswer::Stored { id } => PopulateBackendOutput {
                ok: true,
                asset_id: Some(id),
                backend_url: Some(backend.url().to_owned()),
                ..PopulateBackendOutput::default()
            },
            AssetBackendAnswer::Refused { status, detail } => PopulateBackendOutput {
                reason: Some(AssetRejectionReason::BackendError),
                status: Some(status),
                detail: Some(detail),
                ..PopulateBackendOutput::default()
            },
        })
    }
}
