//! `assets.get_schema`: returns one schema.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Effects, Tool, ToolContext, ToolError};

use super::snapshot::AssetSnapshot;

/// The `assets.get_schema` tool.
pub struct GetAssetSchema {
    pub(super) assets: Arc<AssetSnapshot>,
}

/// The name of the schema to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAssetSchemaInput {
    /// Name of a schema from `assets_list_schemas`.
    name: String,
}

/// A schema for assets, as its file contains it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GetAssetSchemaOutput {
    /// Constant `true`.
    ok: bool,
    /// The schema.
    schema: Map<String, Value>,
    /// Version of the schema; empty if the schema has none.
    version: String,
}

impl Tool for GetAssetSchema {
    const NAME: &'static str = "assets.get_schema";
    const TITLE: &'static str = "Get schema";
    const DESCRIPTION: &'static str = "Return one JSON Schema by its name.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = GetAssetSchemaInput;
    type Output = GetAssetSchemaOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GetAssetSchemaInput { name } = input;
        self.assets.load(ctx).await?;
        let schema = self.assets.schema(&name).ok_or_else(|| {
            let message = format!("unknown schema `{name}`; assets_list_schemas lists them");
            ToolError::not_found(message)
        })?;
        Ok(GetAssetSchemaOutput {
            ok: true,
            schema: schema.fields(),
            version: schema.read_version(),
        })
    }
}
