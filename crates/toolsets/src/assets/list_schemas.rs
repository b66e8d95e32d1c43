//! `assets.list_schemas`: lists the schemas.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{Effects, NoInput, Tool, ToolContext, ToolError};

use super::snapshot::AssetSnapshot;

/// The `assets.list_schemas` tool.
pub struct ListAssetSchemas {
    pub(super) assets: Arc<AssetSnapshot>,
}

/// The schemas of a workspace, in order of name, version and path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListAssetSchemasOutput {
    /// Constant `true`.
    ok: bool,
    /// The schemas.
    schemas: Vec<ListedAssetSchema>,
}

/// A schema for assets in the list.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedAssetSchema {
    /// Name for `assets_get_schema` and `assets_validate_asset`.
    name: String,
    /// Version of the schema; empty if the schema has none.
    version: String,
    /// Path: the folder of schemas, then the name with `.json`.
    path: String,
}

impl Tool for ListAssetSchemas {
    const NAME: &'static str = "assets.list_schemas";
    const TITLE: &'static str = "List schemas";
    const DESCRIPTION: &'static str = "List the JSON Schemas that assets can be validated against.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = NoInput;
    type Output = ListAssetSchemasOutput;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        self.assets.load(ctx).await?;
        let mut schemas: Vec<ListedAssetSchema> = self
            .assets
            .schemas()
            .map(|schema| ListedAssetSchema {
                name: schema.name.clone(),
                version: schema.read_version(),
                path: schema.listed_path.clone(),
            })
            .collect();
        schemas.sort_by(|a, b| (&a.name, &a.version, &a.path).cmp(&(&b.name, &b.version, &b.path)));
        Ok(ListAssetSchemasOutput { ok: true, schemas })
    }
}
