//! What is told of calls to those who watch many servers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is told of calls to those who watch many servers.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Whether `GET /metrics` at the address of `server.listen` says how many calls there were and how much goes on, as Prometheus reads it; to whoever may call.
    pub metrics: bool,
    /// Where a collector takes spans of calls, by OTLP over HTTP in JSON, e.g. `http://127.0.0.1:4318`: they are posted to `/v1/traces` there.
    pub otlp: Option<String>,
}
