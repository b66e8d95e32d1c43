//! Upstreams whose tools differ from the approved tools (pins), for the console's overview.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use toolgate_contract::lock_mutex;
use toolgate_net::spawn_blocking;

/// Time for which the console reuses a comparison of tools with their pins. A comparison is costly,
/// because it reads the definitions of all tools.
const LIFETIME: Duration = Duration::from_secs(5);

/// Upstream whose tools differ from the approved tools (pins).
#[derive(Debug)]
pub(crate) struct UpstreamWithPinChanges {
    pub(crate) name: String,
    /// Summary of the differences: one line with numbers, and one line for each changed tool.
    pub(crate) summary: String,
    /// Digest of the text about all differences between the tools and their pins.
    pub(crate) digest: String,
}

/// Returns the digest of `text`, the differences between tools and their pins. The form that
/// approves the tools contains this digest, so that a person approves exactly the differences that
/// the page has shown.
pub(crate) fn changes_digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Function that compares the last known tools of all upstreams with their pins, and returns the
/// upstreams that differ.
pub(crate) type PinCheckFn =
    Arc<dyn Fn() -> anyhow::Result<Vec<UpstreamWithPinChanges>> + Send + Sync>;

/// Result of comparing tools with their pins. The error is a sentence for people.
pub(crate) type PinCheckResult = Result<Vec<UpstreamWithPinChanges>, String>;

/// Cache of the comparison between upstreams' tools and their pins, which is reused for a few
/// seconds.
pub(crate) struct PinComparisonCache {
    check: PinCheckFn,
    last: Mutex<Option<(Instant, Arc<PinCheckResult>)>>,
}

impl PinComparisonCache {
    pub(crate) fn new(check: PinCheckFn) -> Self {
        Self { check, last: Mutex::default() }
    }

    /// Returns a comparison of the tools with their pins that is at most 5 seconds old. Compares
    /// again if the last result is older.
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

    /// Drops the last comparison of the tools with their pins, because the pins have changed.
    pub(crate) fn forget(&self) {
        *lock_mutex(&self.last) = None;
    }
}
