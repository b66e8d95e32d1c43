//! `assets.get_example`: returns one example and validates it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::named::schema_of_example;
use super::snapshot::Assets;
use crate::world::Root;
use crate::world::root::Watch;

/// The `assets.get_example` tool.
pub struct GetExample {
    assets: Arc<Assets>,
}

/// The example's path.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Path as `assets_list_examples` lists it, or relative to the folder of examples.
    path: String,
}

/// The example in its file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Constant `true`.
    ok: bool,
    /// The example.
    example: Value,
    /// Name of the schema it is meant for: from its `schema` or `$schemaRef`, or else its file
    /// name.
    schema: String,
    /// True if it satisfies that schema.
    validated: bool,
}

impl GetExample {
    /// Creates the tool for the examples in `assets`.
    pub fn new(assets: &Arc<Assets>) -> Self {
        Self { assets: assets.clone() }
    }
}

impl Tool for GetExample {
    const NAME: &'static str = "assets.get_example";
    const TITLE: &'static str = "Get example";
    const ABOUT: &'static str =
        "Gives one example asset by its path, the schema it is meant for, and whether it is valid.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, Input { path }: Input) -> Result<Output, ToolError> {
        let assets = self.assets.clone();
        let work = move |_: &Root, watch: &Watch| {
            let found = assets.example(&path).ok_or_else(|| {
                let message = format!("no example is at `{path}`; assets_list_examples lists them");
                ToolError::not_found(message)
            })?;
            let example = found.document()?;
            let schema = schema_of_example(&example, found.file_name());
            let validated = assets.judge(&example, &schema, watch)?.is_empty();
            Ok(Output { ok: true, example, schema, validated })
        };
        self.assets.root().work(ctx, work).await
    }
}
