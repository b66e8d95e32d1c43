//! Page visits: a server of 2025-11-25 may refuse a call until the caller has visited a page. The
//! caller is asked to visit the page, and the call is repeated.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::timeout;
use toolgate_contract::{ClientAnswer, ClientAnswers, ElicitationAnswer, ToolError, ToolErrorKind};
use toolgate_net::RetryBackoff;

use super::Upstream;
use crate::message::UpstreamRpcError;
use crate::server_requests::CallMessageReceiver;

/// JSON-RPC error code of a refusal that requires the caller to visit a page. The upstream has not
/// run the call.
const URL_ELICITATION_REQUIRED: i64 = -32042;
/// Maximum number of pages to visit in one refusal.
const PAGES_MAX: usize = 16;
/// Maximum number of refusals of one call that require page visits.
const REFUSALS_MAX: usize = 64;
/// Time for visiting a page after a caller has agreed. After this time, the page is offered again.
const VISIT_WAIT: Duration = Duration::from_secs(30);
/// First pause before the refused call is repeated without a notification of the visit.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause before the refused call is repeated without a notification of the visit.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The URL elicitations of one call: pages that the caller must visit before the upstream runs the
/// call.
pub(super) struct UrlElicitations {
    /// Ids of the page visits to which the caller agreed.
    agreed: BTreeSet<String>,
    since: Instant,
    backoff: RetryBackoff,
    times: usize,
}

impl UrlElicitations {
    pub(super) fn new() -> Self {
        let backoff = RetryBackoff::new(RETRY_PAUSE, RETRY_PAUSE_MAX);
        Self { agreed: BTreeSet::new(), since: Instant::now(), backoff, times: 0 }
    }

    /// Returns true if `error` says that the caller must first visit a page.
    pub(super) fn is_required(error: &UpstreamRpcError) -> bool {
        error.code == URL_ELICITATION_REQUIRED
    }

    /// Waits until the call that was refused with `error` can be repeated.
    ///
    /// # Errors
    ///
    /// Returns an error if the caller declines, or if the server asks for too many visits.
    pub(super) async fn complete(
        &mut self,
        upstream: &Upstream,
        receiver: &CallMessageReceiver,
        error: &UpstreamRpcError,
    ) -> Result<(), ToolError> {
        let pages = error.data.as_ref().and_then(|data| data["elicitations"].as_array());
        let pages = pages.map(Vec::as_slice).unwrap_or_default();
        self.times += 1;
        if pages.is_empty() || pages.len() > PAGES_MAX || self.times > REFUSALS_MAX {
            let message = &error.message;
            return Err(ToolError::failed(format!(
                "the upstream asks the user to open pages, but its request names no page or too \
                 many, or is repeated too often: {message}"
            )));
        }
        let open: Vec<_> =
            pages.iter().filter(|page| !self.agreed.contains(&visit_id(page))).collect();
        if open.is_empty() && self.since.elapsed() < VISIT_WAIT {
            let pause = self.backoff.next_pause();
            let _ = timeout(pause, upstream.visit_completed.notified()).await;
            return Ok(());
        }
        let open = if open.is_empty() { pages.iter().collect() } else { open };
        let answers = receiver.ask_visits(&open).await?;
        if !all_accepted(&answers) {
            let why = &error.message;
            let message = format!(
                "the user did not open the page that the upstream requires: \
                 {why}"
            );
            return Err(ToolError::new(ToolErrorKind::NotAllowed, message));
        }
        self.agreed.extend(open.into_iter().map(visit_id));
        self.since = Instant::now();
        self.backoff.reset();
        Ok(())
    }
}

/// Returns the id of a page visit, or the URL of the page.
fn visit_id(page: &Value) -> String {
    let name = page["elicitationId"].as_str().or_else(|| page["url"].as_str());
    name.unwrap_or_default().to_owned()
}

fn all_accepted(answers: &ClientAnswers) -> bool {
    answers
        .values()
        .all(|answer| matches!(answer, ClientAnswer::Choice(ElicitationAnswer::Accepted(_))))
}
