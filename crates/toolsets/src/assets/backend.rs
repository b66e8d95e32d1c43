//! The backend that takes assets.

use serde_json::Value;
use toolgate_contract::{Ctx, ToolError};

use super::Settings;
use crate::world::Fetch;
use crate::world::fetch::{Answered, Target};

/// What is told of a backend that is not reached, or does not answer in time.
const UNREACHED: (u16, &str) = (503, "network_unreachable");

/// A backend that takes assets.
pub struct Backend {
    /// As it was configured.
    url: String,
    /// The error says why assets cannot be sent there.
    target: Result<Target, String>,
    fetch: Fetch,
}

/// What came of sending an asset.
pub(super) enum Sent {
    /// The backend took it, and knows it by `id`.
    Taken { id: String },
    /// It refused it, or was not reached.
    Refused { status: u16, detail: String },
}

impl Backend {
    /// The backend that `settings` name, if they do, reached by `fetch`.
    pub fn new(settings: &Settings, fetch: &Fetch) -> Option<Self> {
        let url = settings.backend()?.to_owned();
        let target = Target::new(&url, &settings.assets_path());
        Some(Self { url, target, fetch: fetch.clone() })
    }

    /// Where it is, as it was configured.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends `asset` as it is, once.
    pub(super) async fn send(&self, ctx: &Ctx, asset: &Value) -> Result<Sent, ToolError> {
        let json = serde_json::to_vec(asset)
            .map_err(|err| ToolError::because("the asset cannot be written as JSON", err))?;
        let post =
            async { self.fetch.post(self.target.as_ref().map_err(Clone::clone)?, json).await };
        let answered = tokio::select! {
            answered = post => answered,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        Ok(match answered {
            Ok(Answered { status: 200..=299, body }) => Sent::Taken { id: id(&body) },
            Ok(Answered { status, body }) => {
                Sent::Refused { status, detail: String::from_utf8_lossy(&body).into_owned() }
            }
            Err(why) => {
                tracing::warn!("the backend {} was not reached: {why}", self.url);
                let (status, detail) = UNREACHED;
                Sent::Refused { status, detail: detail.to_owned() }
            }
        })
    }
}

/// The `id` in an answer, as text; empty if there is none.
fn id(body: &[u8]) -> String {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    match said.get("id") {
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {
            String::new()
        }
    }
}
