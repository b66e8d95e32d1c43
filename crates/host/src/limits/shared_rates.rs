//! Counts calls against rates that the servers of a fleet share.
//!
//! The buckets are in a store. A server takes several calls from a bucket at once, and spends them
//! from memory. Without the store, a server admits its share of each rate, or no call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::HashMap;
use tokio::time::{Instant, timeout};
use toolgate_contract::{BoxFuture, lock_mutex};

/// Time after which a server gives up calls that it took from a shared bucket and did not use, so
/// that no server saves them for a later burst.
const SLICE_TIME: Duration = Duration::from_secs(1);
/// Longest wait for the store of shared rates.
const LEDGER_WAIT: Duration = Duration::from_secs(2);
/// Time for which a server does not ask the store of shared rates after the store did not answer.
const AWAY_TIME: Duration = Duration::from_secs(5);
/// Number of shared buckets in memory above which old ones are removed.
const BUCKETS_MAX: usize = 4096;

/// Key of a rate limit's bucket in the store.
type RateBucketKey = [u8; 16];

/// A rate limit bucket for the calls of one caller to one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateBucket {
    /// Digest of the tool and the caller, which identifies the bucket.
    pub key: RateBucketKey,
    /// Time in which the bucket regains one call.
    pub interval: Duration,
    /// Maximum number of calls in a row.
    pub burst: u32,
    /// Minimum number of calls to take at once, unless the bucket has fewer.
    pub at_least: u32,
}

/// Calls that a server took at once from a shared rate limit bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateBucketGrant {
    /// Number of calls that the server took. Zero if the bucket is empty.
    pub calls: u32,
    /// Time until the empty bucket has a call again.
    pub retry_after: Duration,
    /// Number of the servers that share the bucket.
    pub servers: u32,
}

/// Reaction of a server to a call that it cannot count against a shared rate, because the store of
/// shared rates is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateOutagePolicy {
    /// Each server admits its share: the rate divided by the number of servers.
    #[default]
    Share,
    /// The server refuses the call.
    Refuse,
}

/// Reason why a call is not admitted under a rate that servers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedRateDenial {
    /// The bucket is empty, and has a call again after this time.
    Empty(Duration),
    /// The store of shared rates is unavailable.
    Unavailable,
}

/// Store of the rate limits' buckets that the servers of a fleet share.
pub(crate) trait SharedRateBucketStore: Send + Sync + 'static {
    /// Takes some calls from the bucket. Returns `None` if the store of buckets is unavailable.
    fn take_calls(&self, bucket: RateBucket) -> BoxFuture<'_, Option<RateBucketGrant>>;
}

/// Rate limits that all servers of a fleet share.
pub(super) struct SharedRates {
    ledger: Arc<dyn SharedRateBucketStore>,
    slices: Mutex<HashMap<RateBucketKey, LocalRateShare>>,
    refusals: Mutex<HashMap<RateBucketKey, RateRefusal>>,
    /// Buckets for this server's share of a rate while the store is unavailable, each with the time
    /// at which it is full again.
    own_buckets: Mutex<HashMap<RateBucketKey, Instant>>,
    /// Time until which this server does not ask the store of shared rates.
    away_until: Mutex<Option<Instant>>,
    was_away: AtomicBool,
    /// True if calls are refused while the store is unavailable.
    refuses_uncounted: AtomicBool,
    /// Number of servers that share the rates, as last known.
    servers: AtomicU32,
}

/// Calls that this server took from a shared bucket and may still use.
struct LocalRateShare {
    calls: u32,
    until: Instant,
}

/// Refusal of a shared bucket, which this server repeats for a short time without asking the store.
struct RateRefusal {
    /// Time until which the refusal is repeated.
    until: Instant,
    /// Time at which the bucket has a call again.
    retry_at: Instant,
}

impl SharedRates {
    pub(super) fn new(ledger: Arc<dyn SharedRateBucketStore>) -> Self {
        Self {
            ledger,
            slices: Mutex::default(),
            refusals: Mutex::default(),
            own_buckets: Mutex::default(),
            away_until: Mutex::default(),
            was_away: AtomicBool::new(false),
            refuses_uncounted: AtomicBool::new(false),
            servers: AtomicU32::new(1),
        }
    }

    /// Sets the policy for calls while the store of shared rates is unavailable.
    pub(super) fn set_policy(&self, policy: RateOutagePolicy) {
        let refuses = policy == RateOutagePolicy::Refuse;
        self.refuses_uncounted.store(refuses, Ordering::Relaxed);
    }

    /// Takes one call from the shared bucket.
    ///
    /// # Errors
    /// The bucket is empty, or the store is unavailable and calls are refused then.
    pub(super) async fn take(&self, bucket: RateBucket) -> Result<(), SharedRateDenial> {
        if self.spend(bucket.key) {
            return Ok(());
        }
        if let Some(retry_after) = self.repeated_refusal(bucket.key) {
            return Err(SharedRateDenial::Empty(retry_after));
        }
        match self.take_slice(bucket).await {
            Some(grant) if grant.calls == 0 => {
                let retry_after = grant.retry_after.max(Duration::from_millis(1));
                self.note_refusal(bucket.key, retry_after);
                Err(SharedRateDenial::Empty(retry_after))
            }
            Some(grant) => {
                self.keep(bucket.key, grant.calls - 1);
                Ok(())
            }
            None if self.refuses_uncounted.load(Ordering::Relaxed) => {
                Err(SharedRateDenial::Unavailable)
            }
            None => self.take_share(bucket).map_err(SharedRateDenial::Empty),
        }
    }

    /// Takes several calls from the bucket in the store. Returns `None` if the store is
    /// unavailable.
    pub(super) async fn take_slice(&self, bucket: RateBucket) -> Option<RateBucketGrant> {
        if self.is_away() {
            return None;
        }
        match timeout(LEDGER_WAIT, self.ledger.take_calls(bucket)).await {
            Ok(Some(grant)) => {
                self.note_answer();
                self.servers.store(grant.servers.max(1), Ordering::Relaxed);
                Some(grant)
            }
            Ok(None) | Err(_) => {
                self.note_absence();
                None
            }
        }
    }

    /// Returns the number of servers that share the rates, as last known.
    pub(super) fn servers(&self) -> u32 {
        self.servers.load(Ordering::Relaxed).max(1)
    }

    /// Gives back one call that was taken from the bucket and not made. This server may use that
    /// call within a second.
    pub(super) fn give_back(&self, bucket: RateBucket) {
        self.keep(bucket.key, 1);
    }

    /// Records that the bucket `key` is empty, so that the store is not asked for each call.
    fn note_refusal(&self, key: RateBucketKey, retry_after: Duration) {
        let now = Instant::now();
        let mut refusals = lock_mutex(&self.refusals);
        if refusals.len() >= BUCKETS_MAX {
            refusals.retain(|_, refusal| refusal.until > now);
        }
        let until = now + retry_after.min(SLICE_TIME);
        // A rule may allow so few calls that the clock cannot hold the time of the next one.
        let retry_at = now.checked_add(retry_after).unwrap_or(until);
        refusals.insert(key, RateRefusal { until, retry_at });
    }

    /// Returns the time until the bucket `key` has a call again, if the store reported shortly
    /// before that the bucket is empty.
    fn repeated_refusal(&self, key: RateBucketKey) -> Option<Duration> {
        let now = Instant::now();
        let mut refusals = lock_mutex(&self.refusals);
        let RateRefusal { until, retry_at } = refusals.get(&key)?;
        if *until > now {
            return Some(retry_at.saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        refusals.remove(&key);
        None
    }

    /// Uses one of the calls that this server took from the bucket `key`. Returns false if there is
    /// none or they are too old.
    fn spend(&self, key: RateBucketKey) -> bool {
        let mut slices = lock_mutex(&self.slices);
        let Some(slice) = slices.get_mut(&key) else { return false };
        if slice.calls == 0 || slice.until <= Instant::now() {
            slices.remove(&key);
            return false;
        }
        slice.calls -= 1;
        true
    }

    /// Adds `calls` to the calls that this server took from the bucket `key` and may still use.
    fn keep(&self, key: RateBucketKey, calls: u32) {
        if calls == 0 {
            return;
        }
        let now = Instant::now();
        let until = now + SLICE_TIME;
        let mut slices = lock_mutex(&self.slices);
        if slices.len() >= BUCKETS_MAX {
            slices.retain(|_, slice| slice.until > now);
        }
        let slice = slices.entry(key).or_insert(LocalRateShare { calls: 0, until });
        slice.calls = if slice.until > now { slice.calls.saturating_add(calls) } else { calls };
        slice.until = until;
    }

    /// Takes one call from this server's own share of the rate, while the store of shared rates is
    /// unavailable. If no call is left, returns the time to wait as the error.
    fn take_share(&self, bucket: RateBucket) -> Result<(), Duration> {
        let servers = self.servers();
        let interval = bucket.interval.saturating_mul(servers);
        let tolerance = interval.saturating_mul((bucket.burst / servers).saturating_sub(1));
        let now = Instant::now();
        let mut own = lock_mutex(&self.own_buckets);
        if own.len() >= BUCKETS_MAX {
            own.retain(|_, full| *full > now);
        }
        let full = own.entry(bucket.key).or_insert(now);
        let lead = full.saturating_duration_since(now);
        if lead > tolerance {
            return Err((lead - tolerance).max(Duration::from_millis(1)));
        }
        *full = (*full).max(now) + interval;
        Ok(())
    }

    /// Returns true if the store of shared rates did not answer in the last 5 s.
    pub(super) fn is_away(&self) -> bool {
        lock_mutex(&self.away_until).is_some_and(|until| Instant::now() < until)
    }

    fn note_answer(&self) {
        *lock_mutex(&self.away_until) = None;
        if self.was_away.swap(false, Ordering::Relaxed) {
            tracing::info!("rates and byte quotas count for all servers again");
        }
    }

    fn note_absence(&self) {
        *lock_mutex(&self.away_until) = Some(Instant::now() + AWAY_TIME);
        if !self.was_away.swap(true, Ordering::Relaxed) {
            let servers = self.servers();
            let rates = match self.refuses_uncounted.load(Ordering::Relaxed) {
                true => "refuses calls with a rate",
                false => "admits its share of each rate",
            };
            tracing::warn!(
                "the database of the fleet does not answer; this server {rates} and admits \
                 1/{servers} of each byte quota"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Store of shared rate limits with prepared answers. It counts the requests that it receives.
    #[derive(Default)]
    struct ScriptedRateBucketStore {
        answers: Mutex<VecDeque<Option<RateBucketGrant>>>,
        asked: AtomicU32,
    }

    impl SharedRateBucketStore for ScriptedRateBucketStore {
        fn take_calls(&self, _bucket: RateBucket) -> BoxFuture<'_, Option<RateBucketGrant>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answer = lock_mutex(&self.answers).pop_front().flatten();
            Box::pin(std::future::ready(answer))
        }
    }

    fn grant(calls: u32) -> Option<RateBucketGrant> {
        Some(RateBucketGrant { calls, retry_after: Duration::from_millis(70), servers: 2 })
    }

    fn rates(answers: &[Option<RateBucketGrant>]) -> (SharedRates, Arc<ScriptedRateBucketStore>) {
        let answers = Mutex::new(answers.iter().copied().collect());
        let ledger = Arc::new(ScriptedRateBucketStore { answers, asked: AtomicU32::new(0) });
        (SharedRates::new(ledger.clone()), ledger)
    }

    fn empty_for(millis: u64) -> Result<(), SharedRateDenial> {
        Err(SharedRateDenial::Empty(Duration::from_millis(millis)))
    }

    fn bucket() -> RateBucket {
        RateBucket { key: [7; 16], interval: Duration::from_millis(100), burst: 4, at_least: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slice_is_spent_from_memory_until_it_is_empty_or_old() {
        let (rates, ledger) = rates(&[grant(3), grant(3), grant(0)]);
        let asked = || ledger.asked.load(Ordering::Relaxed);
        for _ in 0..3 {
            rates.take(bucket()).await.expect("the first slice");
        }
        assert_eq!(asked(), 1);
        rates.take(bucket()).await.expect("the second slice");
        assert_eq!(asked(), 2);
        tokio::time::advance(SLICE_TIME).await;
        assert_eq!(rates.take(bucket()).await, empty_for(70));
        assert_eq!(asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_repeated_without_the_store_until_the_bucket_has_room() {
        let (rates, ledger) = rates(&[grant(0), grant(1)]);
        let asked = || ledger.asked.load(Ordering::Relaxed);
        assert_eq!(rates.take(bucket()).await, empty_for(70));
        tokio::time::advance(Duration::from_millis(30)).await;
        assert_eq!(rates.take(bucket()).await, empty_for(40));
        assert_eq!(asked(), 1);
        tokio::time::advance(Duration::from_millis(40)).await;
        rates.take(bucket()).await.expect("the bucket has room");
        assert_eq!(asked(), 2);
        rates.give_back(bucket());
        rates.take(bucket()).await.expect("the call was given back");
        assert_eq!(asked(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_a_server_admits_its_share_and_asks_again_later() {
        let (rates, ledger) = rates(&[grant(1), None, None, grant(1)]);
        rates.take(bucket()).await.expect("the store answers");
        for _ in 0..2 {
            rates.take(bucket()).await.expect("half of the burst");
        }
        assert_eq!(rates.take(bucket()).await, empty_for(200));
        assert_eq!(ledger.asked.load(Ordering::Relaxed), 2, "it is not asked for each call");
        tokio::time::advance(AWAY_TIME).await;
        rates.take(bucket()).await.expect("the share has room again");
        tokio::time::advance(AWAY_TIME).await;
        rates.take(bucket()).await.expect("the store answers");
        assert_eq!(ledger.asked.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_a_server_refuses_each_call_if_the_settings_say_so() {
        let (rates, ledger) = rates(&[grant(1), None, grant(1)]);
        rates.set_policy(RateOutagePolicy::Refuse);
        rates.take(bucket()).await.expect("the store answers");
        for _ in 0..2 {
            assert_eq!(rates.take(bucket()).await, Err(SharedRateDenial::Unavailable));
        }
        assert_eq!(ledger.asked.load(Ordering::Relaxed), 2, "it is not asked for each call");
        tokio::time::advance(AWAY_TIME).await;
        rates.take(bucket()).await.expect("the store answers again");
    }
}
