//! How many refused calls of each caller are told why, and recorded.
//!
//! Who may do nothing could else have the log put aside what it says of others.

use std::num::NonZeroU32;

use governor::Quota;
use governor::clock::MonotonicClock;
use toolgate_contract::{CallError, Caller};

use super::rates::Buckets;

/// A bucket for each caller whose calls were refused lately.
pub(super) struct Refusals(Buckets);

impl Refusals {
    /// `burst` at once, then `per_second`.
    pub(super) fn new(burst: NonZeroU32, per_second: NonZeroU32) -> Self {
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Self(Buckets::new(quota, MonotonicClock))
    }

    /// Takes one of `caller`'s, or says when there will be one.
    pub(super) fn take(&self, caller: &Caller) -> Result<(), CallError> {
        let Self(buckets) = self;
        buckets.take(caller, &MonotonicClock).map_err(|retry_after| CallError::Limited {
            message: format!("too many of your calls were refused of late: {}", buckets.bounds()),
            retry_after,
        })
    }
}
