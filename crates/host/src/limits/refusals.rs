//! Limits the refused calls of each caller that are explained and recorded.
//!
//! Without this limit, a caller without rights could push other records out of the log.

use std::num::NonZeroU32;

use governor::Quota;
use governor::clock::MonotonicClock;
use toolgate_contract::{CallError, Caller};

use super::rates::CallRateBuckets;

/// Limits on the refused calls of each caller that leave an audit record.
pub(super) struct RefusalRateLimits(CallRateBuckets);

impl RefusalRateLimits {
    /// Creates limits for each caller: `burst` refusals at once, then `per_second`.
    pub(super) fn new(burst: NonZeroU32, per_second: NonZeroU32) -> Self {
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Self(CallRateBuckets::new(quota, MonotonicClock))
    }

    /// Takes one refusal from the limit of `caller`.
    ///
    /// # Errors
    /// The caller had too many refusals. The error contains the retry time.
    pub(super) fn take(&self, caller: &Caller) -> Result<(), CallError> {
        let Self(buckets) = self;
        buckets.take(caller, &MonotonicClock).map_err(|retry_after| CallError::Limited {
            message: format!(
                "too many of your calls were refused recently (limit: {})",
                buckets.describe()
            ),
            retry_after,
        })
    }
}
