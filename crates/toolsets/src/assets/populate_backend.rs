//! `assets.populate_backend`: an asset sent to the backend.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Ctx, Effects, Tool, ToolError};

use super::backend::{Backend, Sent};
use super::named::schema_of_example;
use super::outcome::{Reason, Wrong};
use super::snapshot::Assets;
use crate::world::Root;
use crate::world::root::Watch;

/// What an asset without a word of its schema is taken for.
const NAMELESS: &str = "example.json";

/// Sends assets to the backend.
pub struct PopulateBackend {
    assets: Arc<Assets>,
    backend: Option<Backend>,
}

/// What to send.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The asset, sent as it is.
    asset: Value,
    /// Whether it is validated first, and not sent if it is invalid: `true` unless said otherwise.
    /// Its `schema`, or else its `$schemaRef`, says against what.
    #[serde(default)]
    validate_first: Option<bool>,
}

/// What came of it.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Output {
    /// Whether the backend took it.
    ok: bool,
    /// What the backend knows it by; empty if it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    asset_id: Option<String>,
    /// Which backend took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_url: Option<String>,
    /// Why it was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// What is wrong with it, where it is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<Wrong>>,
    /// The HTTP status that the backend refused it with; 503 where it was not reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// What the backend said to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl PopulateBackend {
    /// The tool that validates by the schemas among `assets` and sends to `backend`, if there is one.
    pub fn new(assets: &Arc<Assets>, backend: Option<Backend>) -> Self {
        Self { assets: assets.clone(), backend }
    }
}

impl Tool for PopulateBackend {
    const NAME: &'static str = "assets.populate_backend";
    const TITLE: &'static str = "Populate backend";
    const ABOUT: &'static str = "Sends a JSON asset to the backend, which stores it. It is validated \
        first unless `validate_first` is false.";
    const EFFECTS: Effects = Effects::Changes;
    const VERBATIM: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { asset, validate_first } = input;
        let Some(backend) = &self.backend else {
            return Ok(Output {
                reason: Some(Reason::Unsupported),
                detail: Some("backend disabled".to_owned()),
                ..Output::default()
            });
        };
        let asset = Arc::new(asset);
        if validate_first.unwrap_or(true) {
            let (assets, asset) = (self.assets.clone(), asset.clone());
            let work = move |_: &Root, watch: &Watch| {
                assets.judge(&asset, &schema_of_example(&asset, NAMELESS), watch)
            };
            let errors = self.assets.root().work(ctx, work).await?;
            if !errors.is_empty() {
                return Ok(Output {
                    reason: Some(Reason::ValidationFailed),
                    errors: Some(errors),
                    ..Output::default()
                });
            }
        }
        Ok(match backend.send(ctx, &asset).await? {
            Sent::Taken { id } => Output {
                ok: true,
                asset_id: Some(id),
                backend_url: Some(backend.url().to_owned()),
                ..Output::default()
            },
            Sent::Refused { status, detail } => Output {
                reason: Some(Reason::BackendError),
                status: Some(status),
                detail: Some(detail),
                ..Output::default()
            },
        })
    }
}
