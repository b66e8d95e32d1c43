//! Upstreams whose tools differ from their pins, as the overview shows them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

use crate::sync::lock_mutex;

/// Time for which the console reuses a comparison of tools with their pins. All open pages share
/// it, because a comparison reads the definitions of all tools.
const LIFETIME: Duration = Duration::from_secs(5);

/// Upstream whose tools differ from their pins.
#[derive(Debug)]
pub(crate) struct UpstreamWithPinChanges {
    pub(crate) name: String,
    /// Summary of the differences: one line with numbers, and one line for each changed tool.
    pub(crate) summary: String,
    /// Digest of all differences between the tools and their pins.
    pub(crate) digest: String,
}

/// Returns the digest of `text`, the differences between tools and their pins. The form that
/// approves the tools repeats it, so that a person approves only what the page has shown.
pub(crate) fn changes_digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Function that compares the known tools of all upstreams with their pins.
pub(crate) type PinCheckFn =
    Arc<dyn Fn() -> anyhow::Result<Vec<UpstreamWithPinChanges>> + Send + Sync>;

/// Result of comparing tools with their pins. The error is for people.
pub(crate) type PinCheckResult = Result<Vec<UpstreamWithPinChanges>, String>;

/// Comparison of the tools of upstreams with their pins, reused for a few seconds.
pub(crate) struct PinComparisonCache {
    check: PinCheckFn,
    last: Mutex<Option<(Instant, Arc<PinCheckResult>)>>,
}

impl PinComparisonCache {
    pub(crate) fn new(check: PinCheckFn) -> Self {
        Self { check, last: Mutex::default() }
    }

    /// Returns the result of a comparison with the pins that is at most a few seconds old.
    pub(crate) async fn current(&self) -> Arc<PinCheckResult> {
        let last = lock_mutex(&self.last).clone();
        if let Some((at, result)) = last
            && at.elapsed() < LIFETIME
        {
            return result;
        }
        let check = self.check.clone();
        let result = match spawn_blocking(move || check()).await {
            Ok(result) => result.map_err(|why| format!("{why:#}")),
            Err(_) => Err("The tools of the upstreams cannot be compared.".to_owned()),
        };
        let result = Arc::new(result);
        *lock_mutex(&self.last) = Some((Instant::now(), result.clone()));
        result
    }

    /// Forgets the last comparison with the pins, because the pins have changed.
    pub(crate) fn forget(&self) {
        *lock_mutex(&self.last) = None;
    }
}
