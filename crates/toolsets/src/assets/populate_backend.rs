//! `assets.populate_backend`: sends an asset to the backend.

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

/// The assumed file name of an asset that does not name its schema.
const NAMELESS: &str = "example.json";

/// The `assets.populate_backend` tool.
pub struct PopulateBackend {
    assets: Arc<Assets>,
    backend: Option<Backend>,
}

/// The asset to send.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The asset, sent unchanged.
    asset: Value,
    /// Validates first and does not send an invalid asset; `true` by default. The asset's `schema`
    /// or `$schemaRef` names the schema.
    #[serde(default)]
    validate_first: Option<bool>,
}

/// The result.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Output {
    /// True if the backend took it.
    ok: bool,
    /// Backend's id for it; empty if it gave none.
    #[serde(skip_serializing_if = "Option::is_none")]
    asset_id: Option<String>,
    /// URL of the backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_url: Option<String>,
    /// Reason if it was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// Errors, if it is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<Wrong>>,
    /// HTTP status of the refusal; 503 if the backend is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The backend's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl PopulateBackend {
    /// Creates the tool. It validates with the schemas in `assets` and sends to `backend`, if there
    /// is one.
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
            let assets = self.assets.clone();
            let asset = asset.clone();
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
