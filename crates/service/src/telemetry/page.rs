//! The page `GET /metrics`, which only authenticated callers may read.

use std::sync::Arc;

use http::Method;
use toolgate_contract::{FrameMetadata, Reply};
use toolgate_host::Host;
use toolgate_transports::http::{OpenConnectionCounter, RequestSenderIdentity};

use super::metrics::{ConnectionCounts, MEDIA_TYPE};
use super::sinks::TelemetrySinks;

/// Path of the metrics page.
const PATH: &str = "/metrics";

/// Metrics page of the HTTP server.
pub(crate) struct MetricsPage {
    pub(crate) telemetry: TelemetrySinks,
    pub(crate) host: Arc<Host>,
    pub(crate) occupancy: OpenConnectionCounter,
    /// Limits of connections, streams and sessions, which the metrics page shows beside their
    /// current numbers.
    pub(crate) bounds: ConnectionCounts,
}

impl MetricsPage {
    /// Returns true if `path` is the metrics page.
    pub(crate) fn is_path(path: &str) -> bool {
        path == PATH
    }

    /// Answers the request `head` of `sender` for the metrics page. `sessions` is the number of
    /// open sessions.
    pub(crate) fn answer(
        &self,
        head: &FrameMetadata,
        sender: &RequestSenderIdentity,
        sessions: usize,
    ) -> Reply {
        match sender {
            RequestSenderIdentity::Known(_) => {}
            RequestSenderIdentity::Anonymous | RequestSenderIdentity::Unauthenticated { .. } => {
                return Reply::empty(401).with_header("www-authenticate", "Bearer");
            }
            RequestSenderIdentity::MultipleCredentials => return Reply::empty(400),
            RequestSenderIdentity::Throttled { retry_after } => {
                let wait = retry_after.as_secs().max(1).to_string();
                return Reply::empty(429).with_header("retry-after", wait);
            }
        }
        if !matches!(head, FrameMetadata::Http { method: Method::GET | Method::HEAD, .. }) {
            return Reply::empty(405).with_header("allow", "GET, HEAD");
        }
        let Some(metrics) = &self.telemetry.metrics else { return Reply::empty(404) };
        let connected = ConnectionCounts {
            connections: self.occupancy.connections(),
            streams: self.occupancy.streams(),
            sessions,
            ..self.bounds
        };
        let text =
            metrics.openmetrics_text(self.host.gauges(), connected, self.telemetry.span_counts());
        Reply::json(text).with_header("content-type", MEDIA_TYPE)
    }
}
