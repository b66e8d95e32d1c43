//! `assets.validate_asset`: validates an asset against a schema.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::outcome::{Reason, Wrong};
use super::snapshot::Assets;
use crate::world::Root;
use crate::world::root::Watch;

/// The `assets.validate_asset` tool.
pub struct ValidateAsset {
    assets: Arc<Assets>,
}

/// The asset and the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The asset. Its top-level `$schemaRef` is ignored.
    asset: Value,
    /// Name of the schema, as `assets_list_schemas` lists it. `nested-synesthetic-asset` is
    /// `synesthetic-asset`.
    schema: String,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// True if it is valid.
    ok: bool,
    /// Reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// Errors, in order of path and message; empty if it is valid.
    errors: Vec<Wrong>,
}

impl ValidateAsset {
    /// Creates the tool for the schemas in `assets`.
    pub fn new(assets: &Arc<Assets>) -> Self {
        Self { assets: assets.clone() }
    }
}

impl Tool for ValidateAsset {
    const NAME: &'static str = "assets.validate_asset";
    const TITLE: &'static str = "Validate asset";
    const ABOUT: &'static str = "Validates a JSON asset against a schema (JSON Schema 2020-12) and \
        tells everything that is wrong with it, each by its JSON Pointer.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const VERBATIM: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, Input { asset, schema }: Input) -> Result<Output, ToolError> {
        let assets = self.assets.clone();
        let work = move |_: &Root, watch: &Watch| assets.judge(&asset, &schema, watch);
        let errors = self.assets.root().work(ctx, work).await?;
        let ok = errors.is_empty();
        Ok(Output { ok, reason: (!ok).then_some(Reason::ValidationFailed), errors })
    }
}
