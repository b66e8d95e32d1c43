//! `assets.get_example`: returns one example and validates it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Effects, Tool, ToolContext, ToolError};

use super::schema_names::schema_of_example;
use super::snapshot::AssetSnapshot;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

/// The `assets.get_example` tool.
pub struct GetAssetExample {
    pub(super) assets: Arc<AssetSnapshot>,
}

/// The path of the example to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAssetExampleInput {
    /// Path as `assets_list_examples` lists it, or relative to the folder of examples.
    path: String,
}

/// An example asset, as its file contains it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GetAssetExampleOutput {
    /// Constant `true`.
    ok: bool,
    /// The example.
    example: Value,
    /// Name of the example's schema: from its `schema` or `$schemaRef`, or else from its file name.
    schema: String,
    /// True if the example is valid for this schema.
    validated: bool,
}

impl Tool for GetAssetExample {
    const NAME: &'static str = "assets.get_example";
    const TITLE: &'static str = "Get example";
    const DESCRIPTION: &'static str = "Return one example asset by its path, with the name of its schema and whether it is valid.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = GetAssetExampleInput;
    type Output = GetAssetExampleOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let GetAssetExampleInput { path } = input;
        let assets = self.assets.clone();
        let work = move |_: &Root, watch: &DiskWorkMonitor| {
            let found = assets.example(&path).ok_or_else(|| {
                let message =
                    format!("there is no example at `{path}`; assets_list_examples lists them");
                ToolError::not_found(message)
            })?;
            let example = found.document()?;
            let schema = schema_of_example(&example, found.file_name());
            let validated = assets.validate_untrusted(&example, &schema, watch)?.is_empty();
            Ok(GetAssetExampleOutput { ok: true, example, schema, validated })
        };
        self.assets.root().run_blocking(ctx, work).await
    }
}
