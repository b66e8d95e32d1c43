//! `assets.list_examples`: lists the examples.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, Tool, ToolContext, ToolError};

use super::snapshot::AssetSnapshot;

/// The `assets.list_examples` tool.
pub struct ListAssetExamples {
    pub(super) assets: Arc<AssetSnapshot>,
}

/// The component whose examples are listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAssetExamplesInput {
    /// The component: a file name up to its first dot. `all`, `*` or nothing lists every component.
    #[serde(default)]
    component: Option<String>,
}

/// The example assets of a workspace, in order of component and path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListAssetExamplesOutput {
    /// Constant `true`.
    ok: bool,
    /// The examples.
    examples: Vec<ListedAssetExample>,
}

/// An example asset in the list.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedAssetExample {
    /// The file name up to the first dot.
    component: String,
    /// Path for `assets_get_example`.
    path: String,
}

impl Tool for ListAssetExamples {
    const NAME: &'static str = "assets.list_examples";
    const TITLE: &'static str = "List examples";
    const DESCRIPTION: &'static str = "List example assets, of all components or of one.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = ListAssetExamplesInput;
    type Output = ListAssetExamplesOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let ListAssetExamplesInput { component } = input;
        self.assets.load(ctx).await?;
        let wanted = match component.as_deref().map(str::trim) {
            None | Some("" | "*" | "all") => None,
            Some(component) => Some(component),
        };
        let mut examples: Vec<ListedAssetExample> = self
            .assets
            .examples()
            .filter(|example| wanted.is_none_or(|wanted| example.component() == wanted))
            .map(|example| ListedAssetExample {
                component: example.component().to_owned(),
                path: example.listed_path.clone(),
            })
            .collect();
        examples.sort_by(|a, b| (&a.component, &a.path).cmp(&(&b.component, &b.path)));
        Ok(ListAssetExamplesOutput { ok: true, examples })
    }
}
