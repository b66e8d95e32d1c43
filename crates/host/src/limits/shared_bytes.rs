//! Counts the bytes of a caller for all servers of a fleet together.
//!
//! A server counts bytes in memory. As soon as they amount to a slice, it takes them from a bucket
//! that all servers share, afterwards and in the background. If the bucket does not have that many,
//! the caller waits until it has.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use toolgate_contract::{Caller, lock_mutex};

use super::byte_budgets::CallerByteRate;
use super::shared_rates::{RateBucket, SharedRates};

/// Number of bytes that count as one call in a shared rate limit bucket.
const UNIT_BYTES: u64 = 1024;
/// Number of slices into which the byte quota of a second is divided. A server takes one slice from
/// the shared bucket at once.
const SLICES_PER_SECOND: u64 = 20;

/// Account of the bytes of one caller at all servers of a fleet.
pub(super) struct SharedByteAccount {
    rates: Arc<SharedRates>,
    bucket: RateBucket,
    rate: CallerByteRate,
    state: Mutex<UnchargedByteCount>,
}

/// Bytes that a server has counted and not yet taken from the shared bucket.
#[derive(Default)]
struct UnchargedByteCount {
    bytes: u64,
    /// True if a task is taking the uncharged bytes from the shared bucket now.
    is_paying: bool,
    /// Time until which the caller waits, because the bucket did not have enough bytes.
    refused_until: Option<Instant>,
}

impl SharedByteAccount {
    /// Creates the account of `caller` for the quota `rate`. `quota` distinguishes the quotas of a
    /// caller.
    pub(super) fn new(
        rates: Arc<SharedRates>,
        quota: &str,
        caller: &Caller,
        rate: CallerByteRate,
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        // No tool has an empty id.
        hasher.update(&[0]);
        hasher.update(quota.as_bytes());
        hasher.update(&[0]);
        hasher.update(caller.name.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let nanos = UNIT_BYTES.saturating_mul(1_000_000_000) / rate.per_second.max(1);
        let interval = Duration::from_nanos(nanos.max(1));
        let bucket = RateBucket { key, interval, burst: units(rate.at_once), at_least: 1 };
        Self { rates, bucket, rate, state: Mutex::default() }
    }

    /// Returns the number by which this server multiplies the bytes that it counts by itself: the
    /// number of servers while their shared bucket is unavailable, otherwise 1.
    pub(super) fn weight(&self) -> u64 {
        if self.rates.is_away() { self.rates.servers().into() } else { 1 }
    }

    /// Checks that the caller need not wait for the shared bucket.
    ///
    /// # Errors
    /// The shared bucket did not have enough bytes. The error is the time to wait.
    pub(super) fn check(self: &Arc<Self>) -> Result<(), Duration> {
        let mut state = lock_mutex(&self.state);
        let Some(until) = state.refused_until else { return Ok(()) };
        let now = Instant::now();
        if now < until {
            let wait = until.saturating_duration_since(now);
            return Err(wait.max(Duration::from_millis(1)));
        }
        state.refused_until = None;
        self.charge_if_due(state);
        Ok(())
    }

    /// Counts `bytes` of the caller, and starts to take them from the shared bucket if enough are
    /// uncharged.
    pub(super) fn add(self: &Arc<Self>, bytes: u64) {
        let mut state = lock_mutex(&self.state);
        // After an outage, the caller owes no more than a full bucket has.
        state.bytes = state.bytes.saturating_add(bytes).min(self.rate.at_once);
        self.charge_if_due(state);
    }

    /// Starts to take the uncharged bytes from the shared bucket if they amount to a slice.
    fn charge_if_due(self: &Arc<Self>, mut state: MutexGuard<'_, UnchargedByteCount>) {
        let is_due = state.bytes >= self.slice() && state.refused_until.is_none();
        if !is_due || state.is_paying || self.rates.is_away() {
            return;
        }
        // Without a runtime there is no store either.
        let Ok(runtime) = Handle::try_current() else { return };
        state.is_paying = true;
        drop(state);
        let account = self.clone();
        // It ends soon, because the store answers within a bounded time.
        toolgate_net::spawn_task_on(&runtime, async move { account.pay().await });
    }

    /// Takes the uncharged bytes from the shared bucket.
    async fn pay(&self) {
        loop {
            let wanted = units(lock_mutex(&self.state).bytes).min(self.bucket.burst);
            let bucket = RateBucket { at_least: wanted, ..self.bucket };
            let grant = self.rates.take_slice(bucket).await;
            let mut state = lock_mutex(&self.state);
            let Some(grant) = grant else {
                state.is_paying = false;
                return;
            };
            let paid = u64::from(grant.calls).saturating_mul(UNIT_BYTES);
            state.bytes = state.bytes.saturating_sub(paid);
            let missing = wanted.saturating_sub(grant.calls);
            if missing > 0 {
                let wait = self.bucket.interval.saturating_mul(missing);
                state.refused_until = Instant::now().checked_add(wait);
            }
            if missing > 0 || state.bytes < self.slice() {
                state.is_paying = false;
                return;
            }
        }
    }

    /// Returns the number of bytes that this server takes from the shared bucket at once.
    fn slice(&self) -> u64 {
        let all = self.rate.per_second / SLICES_PER_SECOND;
        (all / u64::from(self.rates.servers())).max(UNIT_BYTES)
    }
}

/// Returns the number of units of a shared bucket for `bytes`, at least one.
fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use toolgate_contract::BoxFuture;

    use super::super::shared_rates::{RateBucketGrant, SharedRateBucketStore};
    use super::*;

    /// Shared bucket with a number of units, which does not refill. `u32::MAX` units simulate that
    /// the store of the bucket is unavailable.
    struct NonRefillingTestBucket(AtomicU32);

    impl SharedRateBucketStore for NonRefillingTestBucket {
        fn take_calls(&self, bucket: RateBucket) -> BoxFuture<'_, Option<RateBucketGrant>> {
            let left = self.0.load(Ordering::Relaxed);
            let calls = bucket.at_least.min(left);
            let grant = (left != u32::MAX).then(|| {
                self.0.store(left - calls, Ordering::Relaxed);
                RateBucketGrant { calls, retry_after: Duration::ZERO, servers: 2 }
            });
            Box::pin(std::future::ready(grant))
        }
    }

    /// Rate of one unit per millisecond, for which each of two servers takes slices of 25 units.
    const RATE: CallerByteRate =
        CallerByteRate { at_once: 100 * UNIT_BYTES, per_second: 1000 * UNIT_BYTES };

    /// Returns the accounts of a caller at two servers, and their shared bucket with `left` units.
    fn accounts(left: u32) -> ([Arc<SharedByteAccount>; 2], Arc<NonRefillingTestBucket>) {
        let ledger = Arc::new(NonRefillingTestBucket(AtomicU32::new(left)));
        let accounts = [(); 2].map(|()| {
            let rates = Arc::new(SharedRates::new(ledger.clone()));
            let caller = Caller::with_key("ada");
            Arc::new(SharedByteAccount::new(rates, "written", &caller, RATE))
        });
        (accounts, ledger)
    }

    /// Yields until background tasks have taken bytes from the shared bucket.
    async fn settle() {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_at_several_servers_come_from_one_bucket_in_slices() {
        let ([one, two], bucket) = accounts(100);
        let left = || bucket.0.load(Ordering::Relaxed);
        // The first slice is that of a single server.
        one.add(49 * UNIT_BYTES);
        settle().await;
        assert_eq!(left(), 100, "less than a slice is not taken");
        one.add(UNIT_BYTES);
        two.add(60 * UNIT_BYTES);
        settle().await;
        assert_eq!(left(), 0);
        let mut waits = [one.check(), two.check()];
        waits.sort();
        assert_eq!(waits, [Ok(()), Err(Duration::from_millis(10))]);
        // The bucket has bytes again.
        bucket.0.store(40, Ordering::Relaxed);
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!([one.check(), two.check()], [Ok(()), Ok(())]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_each_byte_counts_once_for_each_server() {
        let ([one, _], bucket) = accounts(100);
        one.add(50 * UNIT_BYTES);
        settle().await;
        assert_eq!((one.weight(), bucket.0.load(Ordering::Relaxed)), (1, 50));
        bucket.0.store(u32::MAX, Ordering::Relaxed);
        one.add(50 * UNIT_BYTES);
        settle().await;
        assert_eq!((one.weight(), one.check()), (2, Ok(())));
    }
}
