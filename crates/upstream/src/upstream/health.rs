//! Remembers since when an upstream is reachable or not, and logs each change.

use std::sync::Mutex;

use jiff::Timestamp;
use toolgate_contract::lock_mutex;

/// Reachability of an upstream, as the last attempts to reach it have shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamHealth {
    /// True if the last attempt to reach the upstream failed, false if it succeeded. `None` if
    /// there was no attempt.
    pub is_failing: Option<bool>,
    /// Time at which the upstream became reachable or unreachable, as it still is.
    pub since: Option<Timestamp>,
    /// Reason of the last failure to reach the upstream, even if the upstream has recovered.
    pub last_error: Option<String>,
}

/// Record of the reachability of one upstream.
#[derive(Debug, Default)]
pub(super) struct UpstreamHealthLog(Mutex<UpstreamHealthState>);

#[derive(Debug, Default)]
struct UpstreamHealthState {
    health: UpstreamHealth,
    /// Number of attempts in a row to reach the upstream that failed for the last reason.
    failed_attempts: u32,
}

impl UpstreamHealthLog {
    /// Returns the current reachability of the upstream.
    pub(super) fn current(&self) -> UpstreamHealth {
        lock_mutex(&self.0).health.clone()
    }

    /// Records an attempt to reach the upstream `name`. Logs a line if the upstream is connected,
    /// fails for a new reason, or has recovered. Logs failures for the same reason at growing
    /// intervals.
    pub(super) fn record(&self, name: &str, attempt: Result<(), &str>) {
        let mut state = lock_mutex(&self.0);
        let UpstreamHealthState { health, failed_attempts } = &mut *state;
        match attempt {
            Ok(()) if health.is_failing == Some(true) => {
                tracing::info!("the upstream `{name}` has recovered");
            }
            Ok(()) if health.is_failing.is_none() => {
                tracing::info!("the upstream `{name}` is connected");
            }
            Err(why) if health.is_failing != Some(true) || *why != *health.last_error() => {
                *failed_attempts = 1;
                tracing::warn!("the upstream `{name}` is unavailable: {why}");
            }
            Err(why) => {
                *failed_attempts = failed_attempts.saturating_add(1);
                if failed_attempts.is_power_of_two() {
                    tracing::warn!(
                        "the upstream `{name}` is still unavailable after {failed_attempts} \
                         attempts: {why}"
                    );
                }
            }
            Ok(()) => {}
        }
        health.set(attempt);
    }

    /// Records that the connection to the upstream broke, which was logged already.
    pub(super) fn record_disconnected(&self, why: &str) {
        lock_mutex(&self.0).health.set(Err(why));
    }
}

impl UpstreamHealth {
    fn last_error(&self) -> &str {
        self.last_error.as_deref().unwrap_or_default()
    }

    fn set(&mut self, attempt: Result<(), &str>) {
        if self.is_failing != Some(attempt.is_err()) {
            self.is_failing = Some(attempt.is_err());
            self.since = Some(Timestamp::now());
        }
        if let Err(why) = attempt {
            self.last_error = Some(why.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_state_stays_until_the_state_changes() {
        let log = UpstreamHealthLog::default();
        assert_eq!(log.current(), UpstreamHealth::default());
        log.record("a", Err("no route"));
        let first = log.current();
        log.record("a", Err("refused"));
        let second = log.current();
        assert_eq!(first.since, second.since);
        assert_eq!(second.last_error.as_deref(), Some("refused"));
        log.record("a", Ok(()));
        let recovered = log.current();
        assert_eq!(recovered.is_failing, Some(false));
        assert_eq!(recovered.last_error.as_deref(), Some("refused"));
    }
}
