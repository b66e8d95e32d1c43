//! `assets.list_examples`: lists the examples.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::snapshot::Assets;

/// The `assets.list_examples` tool.
pub struct ListExamples {
    assets: Arc<Assets>,
}

/// The component.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The component: a file name up to its first dot. `all`, `*` or nothing lists every component.
    #[serde(default)]
    component: Option<String>,
}

/// The examples, in order of component and path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Constant `true`.
    ok: bool,
    /// The examples.
    examples: Vec<Listed>,
}

/// One example.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// The file name up to the first dot.
    component: String,
    /// Path, as `assets_get_example` takes it.
    path: String,
}

impl ListExamples {
    /// Creates the tool for the examples in `assets`.
    pub fn new(assets: &Arc<Assets>) -> Self {
        Self { assets: assets.clone() }
    }
}

impl Tool for ListExamples {
    const NAME: &'static str = "assets.list_examples";
    const TITLE: &'static str = "List examples";
    const ABOUT: &'static str = "Lists the example assets, all or those of one component.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, _ctx: &Ctx, Input { component }: Input) -> Result<Output, ToolError> {
        let wanted = match component.as_deref().map(str::trim) {
            None | Some("" | "*" | "all") => None,
            Some(component) => Some(component),
        };
        let mut examples: Vec<Listed> = self
            .assets
            .examples()
            .filter(|example| wanted.is_none_or(|wanted| example.component() == wanted))
            .map(|example| Listed {
                component: example.component().to_owned(),
                path: example.listed.clone(),
            })
            .collect();
        examples.sort_by(|a, b| (&a.component, &a.path).cmp(&(&b.component, &b.path)));
        Ok(Output { ok: true, examples })
    }
}
