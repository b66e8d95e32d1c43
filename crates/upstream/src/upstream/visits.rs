//! Calls that a server of 2025-11-25 refuses until somebody has been to a page: whoever called is
//! sent there, and the call is made again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::timeout;
use toolgate_contract::{Choice, Fault, Given, Told, ToolError};

use super::Upstream;
use crate::hearing::Hearing;
use crate::message::RpcError;

/// What it refuses with. Nothing was done by then.
const URL_ELICITATION_REQUIRED: i64 = -32042;
/// How many pages one refusal may name, and how often one call may be refused.
const PAGES_MAX: usize = 16;
const TIMES_MAX: usize = 64;
/// Who agreed to go need not have been there yet: how long it is waited for that they have, before
/// they are sent once more.
const PATIENCE: Duration = Duration::from_secs(30);
/// After how long the call is made again where nobody says that they have.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Where whoever called was sent for one call.
pub(super) struct Visits {
    /// The pages that they agreed to go to, by the names that the server has for the visits.
    agreed: BTreeSet<String>,
    since: Instant,
    pause: Duration,
    times: usize,
}

impl Visits {
    pub(super) fn new() -> Self {
        Self { agreed: BTreeSet::new(), since: Instant::now(), pause: PAUSE, times: 0 }
    }

    /// Whether `error` says that somebody must go to a page first.
    pub(super) fn are_wanted(error: &RpcError) -> bool {
        error.code == URL_ELICITATION_REQUIRED
    }

    /// Returns once the call that was refused with `error` can be made again.
    ///
    /// # Errors
    /// When whoever called does not go there.
    pub(super) async fn done(
        &mut self,
        upstream: &Upstream,
        hearing: &Hearing,
        error: &RpcError,
    ) -> Result<(), ToolError> {
        let pages = error.data.as_ref().and_then(|data| data["elicitations"].as_array());
        let pages = pages.map(Vec::as_slice).unwrap_or_default();
        self.times += 1;
        if pages.is_empty() || pages.len() > PAGES_MAX || self.times > TIMES_MAX {
            let message = &error.message;
            return Err(ToolError::failed(format!(
                "it wants a page to be visited first and names none, too many, or wants it again \
                 and again: {message}"
            )));
        }
        let open: Vec<_> = pages.iter().filter(|page| !self.agreed.contains(&name(page))).collect();
        if open.is_empty() && self.since.elapsed() < PATIENCE {
            let _ = timeout(self.pause, upstream.visited.notified()).await;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            return Ok(());
        }
        let open = if open.is_empty() { pages.iter().collect() } else { open };
        let given = hearing.visits(&open).await?;
        if !have_agreed(&given) {
            let why = &error.message;
            let message = format!("nobody went to the page that it wants to be visited: {why}");
            return Err(ToolError::new(Fault::NotAllowed, message));
        }
        self.agreed.extend(open.into_iter().map(name));
        (self.since, self.pause) = (Instant::now(), PAUSE);
        Ok(())
    }
}

/// What the server calls the visit, or where it leads.
fn name(page: &Value) -> String {
    let name = page["elicitationId"].as_str().or_else(|| page["url"].as_str());
    name.unwrap_or_default().to_owned()
}

fn have_agreed(given: &Given) -> bool {
    given.values().all(|told| matches!(told, Told::Choice(Choice::Accepted(_))))
}
