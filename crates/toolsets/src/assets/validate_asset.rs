//! `assets.validate_asset`: what is wrong with an asset.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::outcome::{Reason, Wrong};
use super::snapshot::Assets;
use crate::world::Root;
use crate::world::root::Watch;

/// Validates an asset.
pub struct ValidateAsset {
    assets: Arc<Assets>,
}

/// What, against which schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The asset. A `$schemaRef` at its top is not looked at.
    asset: Value,
    /// The name of the schema, as `assets_list_schemas` tells it; `nested-synesthetic-asset` is
    /// `synesthetic-asset`.
    schema: String,
}

/// What came of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Whether it is valid.
    ok: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// What is wrong with it, in order of path and message; empty if it is valid.
    errors: Vec<Wrong>,
}

impl ValidateAsset {
    /// The tool for the schemas among `assets`.
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
