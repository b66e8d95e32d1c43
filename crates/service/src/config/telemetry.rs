//! Settings of metrics and traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics and traces of calls.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySection {
    /// Serves Prometheus metrics at `GET /metrics` on the address of `server.listen`, to
    /// authenticated callers.
    pub metrics: bool,
    /// URL of a collector for traces of calls (OTLP over HTTP with JSON), such as
    /// `http://127.0.0.1:4318`. The server posts spans to the path `/v1/traces` of this URL.
    pub otlp: Option<String>,
}
