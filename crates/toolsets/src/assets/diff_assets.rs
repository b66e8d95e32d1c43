//! `assets.diff_assets`: compares two assets.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::patch::{Operation, between};
use super::snapshot::Assets;
use crate::world::Root;
use crate::world::root::Watch;

/// The `assets.diff_assets` tool.
pub struct DiffAssets {
    assets: Arc<Assets>,
}

/// The two assets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The asset before.
    base: Value,
    /// The asset after.
    new: Value,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// Constant `true`.
    ok: bool,
    /// A JSON Patch (RFC 6902) from `base` to `new`, in order of path.
    patch: Vec<Operation>,
}

impl DiffAssets {
    /// Creates the tool. It compares on the worker threads of the root of `assets`.
    pub fn new(assets: &Arc<Assets>) -> Self {
        Self { assets: assets.clone() }
    }
}

impl Tool for DiffAssets {
    const NAME: &'static str = "assets.diff_assets";
    const TITLE: &'static str = "Diff assets";
    const ABOUT: &'static str = "Compares two JSON assets and gives a JSON Patch (RFC 6902) of \
        `add`, `remove` and `replace` that makes the second of the first. An array that differs is \
        replaced whole.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const VERBATIM: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, Input { base, new }: Input) -> Result<Output, ToolError> {
        let work = move |_: &Root, watch: &Watch| between(&base, new, watch);
        Ok(Output { ok: true, patch: self.assets.root().work(ctx, work).await? })
    }
}
