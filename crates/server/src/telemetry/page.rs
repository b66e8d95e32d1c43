//! `GET /metrics`, for authenticated callers.

use std::sync::Arc;

use http::Method;
use toolgate_contract::{Head, Reply};
use toolgate_host::Host;
use toolgate_transports::http::{Occupancy, Sender};

use super::metrics::{Connected, MEDIA_TYPE};
use super::told::Told;

/// Path of the metrics page.
const PATH: &str = "/metrics";

/// Metrics page of the HTTP server.
pub(crate) struct Page {
    pub(crate) told: Told,
    pub(crate) host: Arc<Host>,
    pub(crate) occupancy: Occupancy,
    /// Limits of connections, streams and sessions.
    pub(crate) bounds: Connected,
}

impl Page {
    /// Returns true if `path` is the metrics page.
    pub(crate) fn is_at(path: &str) -> bool {
        path == PATH
    }

    /// Answers the request `head` of `sender`. `sessions` is the number of open sessions.
    pub(crate) fn answer(&self, head: &Head, sender: &Sender, sessions: usize) -> Reply {
        match sender {
            Sender::Known(_) => {}
            Sender::Anybody | Sender::Nobody { .. } => {
                return Reply::empty(401).with_header("www-authenticate", "Bearer");
            }
            Sender::Several => return Reply::empty(400),
            Sender::Guesser { retry_after } => {
                let wait = retry_after.as_secs().max(1).to_string();
                return Reply::empty(429).with_header("retry-after", wait);
            }
        }
        if !matches!(head, Head::Http { method: Method::GET | Method::HEAD, .. }) {
            return Reply::empty(405).with_header("allow", "GET, HEAD");
        }
        let Some(metrics) = &self.told.metrics else { return Reply::empty(404) };
        let connected = Connected {
            connections: self.occupancy.connections(),
            streams: self.occupancy.streams(),
            sessions,
            ..self.bounds
        };
        let text = metrics.text(&self.host.gauges(), connected, self.told.sent());
        Reply::json(text).with_header("content-type", MEDIA_TYPE)
    }
}
