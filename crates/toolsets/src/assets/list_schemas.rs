//! `assets.list_schemas`: lists the schemas.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{Ctx, Effects, NoInput, Tool, ToolError};

use super::snapshot::Assets;

/// The `assets.list_schemas` tool.
pub struct ListSchemas {
    assets: Arc<Assets>,
}

/// The schemas, in order of name, version and path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Constant `true`.
    ok: bool,
    /// The schemas.
    schemas: Vec<Listed>,
}

/// One schema.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// Name for `assets_get_schema` and `assets_validate_asset`.
    name: String,
    /// The schema's `version`, or empty.
    version: String,
    /// The folder of schemas, and the name with `.json`.
    path: String,
}

impl ListSchemas {
    /// Creates the tool for the schemas in `assets`.
    pub fn new(assets: &Arc<Assets>) -> Self {
        Self { assets: assets.clone() }
    }
}

impl Tool for ListSchemas {
    const NAME: &'static str = "assets.list_schemas";
    const TITLE: &'static str = "List schemas";
    const ABOUT: &'static str = "Lists the JSON Schemas that assets can be validated against.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = NoInput;
    type Output = Output;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Output, ToolError> {
        let mut schemas: Vec<Listed> = self
            .assets
            .schemas()
            .map(|schema| Listed {
                name: schema.name.clone(),
                version: schema.version(),
                path: schema.listed.clone(),
            })
            .collect();
        schemas.sort_by(|a, b| (&a.name, &a.version, &a.path).cmp(&(&b.name, &b.version, &b.path)));
        Ok(Output { ok: true, schemas })
    }
}
