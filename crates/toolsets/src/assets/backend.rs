//! HTTP client of the backend server that stores assets.

use serde_json::Value;
use toolgate_contract::{ToolContext, ToolError, exact_json, strip_byte_order_mark_bytes};

use super::AssetSettings;
use toolgate_net::{HttpUrl, HttpUrlError};
use toolgate_world::HttpFetcher;
use toolgate_world::fetch::FetchedHttpResponse;

/// The HTTP status and detail reported if the asset backend is unreachable or does not answer in
/// time.
const UNREACHABLE_RESPONSE: (u16, &str) = (503, "network_unreachable");

/// HTTP client of the backend server that stores assets. The settings name the backend's URL.
pub struct AssetBackendClient {
    /// The backend's URL, as the settings give it.
    url: String,
    /// The URL to which assets are posted, or the reason why the URL from the settings is unusable.
    target: Result<HttpUrl, HttpUrlError>,
    fetch: HttpFetcher,
}

/// The backend's answer to an asset that a tool sent.
pub(super) enum AssetBackendAnswer {
    /// The backend stored the asset and identifies it by `id`.
    Stored { id: String },
    /// The backend refused the asset with an HTTP status, or was unreachable. `detail` is the
    /// reason.
    Refused { status: u16, detail: String },
}

impl AssetBackendClient {
    /// Creates a client of the backend in `settings`. Returns `None` if none is configured.
    pub fn new(settings: &AssetSettings, fetch: &HttpFetcher) -> Option<Self> {
        let url = settings.backend()?.to_owned();
        let target = HttpUrl::parse_below(&url, &settings.assets_path());
        Some(Self { url, target, fetch: fetch.clone() })
    }

    /// Returns the backend's URL from the settings.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts `asset` unchanged to the backend, without retries. An unreachable backend counts as a
    /// refusal. Fails if the call is cancelled.
    pub(super) async fn send(
        &self,
        ctx: &ToolContext,
        asset: &Value,
    ) -> Result<AssetBackendAnswer, ToolError> {
        let (unreachable_status, unreachable) = UNREACHABLE_RESPONSE;
        let target = match &self.target {
            Ok(target) => target,
            Err(why) => {
                let detail = format!("the backend's URL is unusable: it {why}");
                return Ok(AssetBackendAnswer::Refused { status: unreachable_status, detail });
            }
        };
        let json = serde_json::to_vec(asset)
            .map_err(|err| ToolError::with_cause("the asset cannot be written as JSON", err))?;
        let response = ctx.run_unless_canceled(self.fetch.post(target, json)).await?;
        Ok(match response {
            Ok(FetchedHttpResponse { status: 200..=299, body }) => {
                AssetBackendAnswer::Stored { id: response_id(&body) }
            }
            Ok(FetchedHttpResponse { status, body }) => AssetBackendAnswer::Refused {
                status,
                detail: String::from_utf8_lossy(&body).into_owned(),
            },
            Err(why) => {
                tracing::warn!("the backend {} is unreachable: {why}", self.url);
                AssetBackendAnswer::Refused {
                    status: unreachable_status,
                    detail: unreachable.to_owned(),
                }
            }
        })
    }
}

/// Returns the `id` in `body`, the backend's JSON answer, as text. Returns an empty text if the
/// answer has no `id`.
fn response_id(body: &[u8]) -> String {
    let answer: Value =
        exact_json::parse_bytes(strip_byte_order_mark_bytes(body)).unwrap_or_default();
    match answer.get("id") {
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {
            String::new()
        }
    }
}
