//! Limits how often each caller may call each tool, with one token bucket per pair.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use foldhash::HashMap;
use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use toolgate_contract::{CallError, Caller, ToolId, ToolSpec, lock_read, lock_write};

use super::shared_rates::RateBucket;
use crate::policy::{KnownToolSet, ToolPattern, ToolRuleError};

/// Name of the setting with the rate rules.
const SETTING: &str = "limits.rate";
/// Number of calls after which buckets that are full again are removed.
const CLEANUP_INTERVAL: u32 = 4096;

/// A rate limit for the calls of one caller to each matching tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRateLimit {
    /// Pattern of tool ids, for example `exec.*`.
    pub tools: String,
    /// Sustained number of calls in each period `per`, and the largest number in a row after a long
    /// pause.
    pub calls: NonZeroU32,
    /// Period in which the caller may make `calls` calls.
    pub per: Duration,
}

/// Rate rules, and the token buckets of each matching tool.
pub(super) struct RateLimits<C: Clock = MonotonicClock> {
    rules: Vec<(ToolPattern, Quota)>,
    buckets: HashMap<ToolId, CallRateBuckets<C>>,
    /// Token buckets of tools that were added after these limits were created. `None` for a tool
    /// that no rule matches.
    later_buckets: RwLock<HashMap<ToolId, Option<Arc<CallRateBuckets<C>>>>>,
    clock: C,
}

/// Rate limiter with one token bucket for each caller, and the clock `C`.
type KeyedRateLimiter<C> =
    RateLimiter<Arc<str>, HashMapStateStore<Arc<str>>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// Token buckets of one tool, one for each recent caller.
///
/// A full bucket needs no memory, so only the buckets of recent callers are kept.
pub(super) struct CallRateBuckets<C: Clock = MonotonicClock> {
    limiter: KeyedRateLimiter<C>,
    quota: Quota,
    calls_since_cleanup: AtomicU32,
}

impl<C: Clock + Clone> RateLimits<C> {
    /// Creates rate limits from `rules`. The first rule that matches a tool applies.
    pub(super) fn new(rules: &[CallRateLimit], clock: C) -> Result<Self, ToolRuleError> {
        let rules = rules.iter().map(|CallRateLimit { tools, calls, per }| {
            let one = (*per / calls.get()).max(Duration::from_nanos(1));
            let quota = Quota::with_period(one).expect("not zero").allow_burst(*calls);
            Ok((ToolPattern::new(SETTING, tools)?, quota))
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            buckets: HashMap::default(),
            later_buckets: RwLock::default(),
            clock,
        })
    }

    /// Returns an error for the first rate rule that matches none of the `known` tools.
    pub(super) fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        self.rules.iter().try_for_each(|(rule, _)| rule.check(known))
    }

    /// Prepares the token buckets of a tool.
    pub(super) fn add_tool(&mut self, spec: &ToolSpec) {
        let Some((_, quota)) = self.rules.iter().find(|(rule, _)| rule.restricts(spec)) else {
            return;
        };
        self.buckets.insert(spec.id.clone(), CallRateBuckets::new(*quota, self.clock.clone()));
    }

    /// Takes one call from the token bucket of `caller` for the tool `spec`.
    ///
    /// # Errors
    /// The bucket is empty. The error contains the retry time.
    pub(super) fn take(&self, caller: &Caller, spec: &ToolSpec) -> Result<(), CallError> {
        let refused = |buckets: &CallRateBuckets<C>, retry_after| {
            too_many_calls(spec, &buckets.describe(), retry_after)
        };
        if let Some(buckets) = self.buckets.get(&spec.id) {
            return buckets.take(caller, &self.clock).map_err(|after| refused(buckets, after));
        }
        match self.later_tool_buckets(spec) {
            Some(it) => it.take(caller, &self.clock).map_err(|after| refused(&it, after)),
            None => Ok(()),
        }
    }

    /// Returns the bucket of `caller` for the tool `spec` that servers of a fleet may share, and a
    /// description of the rate limit. Returns `None` if no rule matches the tool.
    pub(super) fn shared_bucket(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
    ) -> Option<(RateBucket, String)> {
        let shared =
            |buckets: &CallRateBuckets<C>| (buckets.shared(caller, spec), buckets.describe());
        match self.buckets.get(&spec.id) {
            Some(buckets) => Some(shared(buckets)),
            None => self.later_tool_buckets(spec).map(|buckets| shared(&buckets)),
        }
    }

    /// Returns the token buckets of a tool that was added after these limits were created.
    fn later_tool_buckets(&self, spec: &ToolSpec) -> Option<Arc<CallRateBuckets<C>>> {
        let known = lock_read(&self.later_buckets);
        if let Some(known) = known.get(&spec.id) {
            return known.clone();
        }
        drop(known);
        let rule = self.rules.iter().find(|(rule, _)| rule.restricts(spec));
        let buckets =
            rule.map(|(_, quota)| Arc::new(CallRateBuckets::new(*quota, self.clock.clone())));
        let mut later = lock_write(&self.later_buckets);
        later.entry(spec.id.clone()).or_insert(buckets).clone()
    }
}

impl<C: Clock + Clone> CallRateBuckets<C> {
    pub(super) fn new(quota: Quota, clock: C) -> Self {
        let limiter = RateLimiter::hashmap_with_clock(quota, clock);
        Self { limiter, quota, calls_since_cleanup: AtomicU32::new(0) }
    }

    /// Takes one token from the bucket of `caller`. If the bucket is empty, returns the wait time
    /// as the error.
    pub(super) fn take(&self, caller: &Caller, clock: &C) -> Result<(), Duration> {
        if self.calls_since_cleanup.fetch_add(1, Ordering::Relaxed) == CLEANUP_INTERVAL {
            self.calls_since_cleanup.store(0, Ordering::Relaxed);
            self.limiter.retain_recent();
        }
        let taken = self.limiter.check_key(&caller.name);
        taken.map_err(|early| round_up_ms(early.wait_time_from(clock.now())))
    }

    /// Returns the bucket of `caller` for the tool `spec`, in the format of the store of shared
    /// rates.
    fn shared(&self, caller: &Caller, spec: &ToolSpec) -> RateBucket {
        let mut hasher = blake3::Hasher::new();
        hasher.update(spec.id.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(caller.name.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let burst = self.quota.burst_size().get();
        RateBucket { key, interval: self.quota.replenish_interval(), burst, at_least: 1 }
    }

    /// Describes the rate limit in words.
    pub(super) fn describe(&self) -> String {
        let interval_ms = format_ms(self.quota.replenish_interval());
        format!("{} at once, then one every {interval_ms} ms", self.quota.burst_size())
    }
}

/// Returns the error for a call that exceeds the rate limit described by `limit`.
pub(super) fn too_many_calls(spec: &ToolSpec, limit: &str, retry_after: Duration) -> CallError {
    let message = format!("`{}` is called too often (limit: {limit})", spec.id);
    CallError::Limited { message, retry_after }
}

/// Returns the error for a call that cannot be counted, because the store of shared rates is
/// unavailable.
pub(super) fn cannot_count(spec: &ToolSpec) -> CallError {
    let message = format!(
        "`{}` has a rate limit, which cannot be checked: the database of the fleet does not \
         answer; try again later",
        spec.id
    );
    CallError::Unavailable { message }
}

/// Rounds `wait` up to whole milliseconds, at least one.
fn round_up_ms(wait: Duration) -> Duration {
    let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}

fn format_ms(interval: Duration) -> String {
    let ms = interval.as_secs_f64() * 1000.0;
    if ms >= 10.0 { format!("{ms:.0}") } else { format!("{ms}") }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use toolgate_contract::Effects;

    use super::*;

    fn spec(id: &str) -> ToolSpec {
        ToolSpec::new(ToolId::new(id).expect("an id"), "", "", Effects::Reads)
    }

    fn rate(tools: &str, calls: u32, per_ms: u64) -> CallRateLimit {
        let calls = NonZeroU32::new(calls).expect("some");
        CallRateLimit { tools: tools.to_owned(), calls, per: Duration::from_millis(per_ms) }
    }

    /// Returns rate limits with `rules` for the tools `a.one`, `a.two` and `b.one`, and the fake
    /// clock that these limits read.
    fn rates(rules: &[CallRateLimit]) -> (RateLimits<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let mut rates = RateLimits::new(rules, clock.clone()).expect("patterns");
        for id in ["a.one", "a.two", "b.one"] {
            rates.add_tool(&spec(id));
        }
        (rates, clock)
    }

    #[track_caller]
    fn wait(refused: Result<(), CallError>) -> Duration {
        match refused {
            Err(CallError::Limited { retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_burst_is_admitted_and_the_next_call_gets_an_exact_retry_time() {
        let (rates, clock) = rates(&[rate("a.*", 3, 300)]);
        let ada = Caller::with_key("ada");
        for _ in 0..3 {
            rates.take(&ada, &spec("a.one")).expect("a burst");
        }
        let first = wait(rates.take(&ada, &spec("a.one")));
        assert_eq!(first, Duration::from_millis(100));
        clock.advance(first - Duration::from_millis(1));
        assert_eq!(wait(rates.take(&ada, &spec("a.one"))), Duration::from_millis(1));
        clock.advance(Duration::from_millis(1));
        rates.take(&ada, &spec("a.one")).expect("the retry time has passed");
        wait(rates.take(&ada, &spec("a.one")));
    }

    #[test]
    fn each_caller_and_tool_has_its_own_bucket() {
        let (rates, _) = rates(&[rate("a.*", 1, 1000)]);
        let ada = Caller::with_key("ada");
        let bob = Caller::with_key("bob");
        rates.take(&ada, &spec("a.one")).expect("her first");
        wait(rates.take(&ada, &spec("a.one")));
        rates.take(&ada, &spec("a.two")).expect("another tool has its own bucket");
        rates.take(&bob, &spec("a.one")).expect("his first");
        for _ in 0..1000 {
            rates.take(&ada, &spec("b.one")).expect("no rule matches it");
        }
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let (rates, _) = rates(&[rate("a_one", 2, 1000), rate("*", 1, 1000)]);
        let ada = Caller::with_key("ada");
        rates.take(&ada, &spec("a.one")).expect("one");
        rates.take(&ada, &spec("a.one")).expect("two");
        wait(rates.take(&ada, &spec("a.one")));
        rates.take(&ada, &spec("b.one")).expect("one");
        wait(rates.take(&ada, &spec("b.one")));
    }

    #[test]
    fn a_tool_ruled_as_another_has_the_rate_of_that_tool() {
        let clock = FakeRelativeClock::default();
        let mut rates = RateLimits::new(&[rate("exec.*", 1, 1000)], clock).expect("patterns");
        let ruled = ToolSpec { ruled_as: ToolId::new("exec.run"), ..spec("ci.run") };
        rates.add_tool(&ruled);
        let ada = Caller::with_key("ada");
        rates.take(&ada, &ruled).expect("one");
        wait(rates.take(&ada, &ruled));
    }

    #[test]
    fn callers_that_do_not_return_are_removed() {
        let (rates, clock) = rates(&[rate("*", 1, 10)]);
        let spec = spec("a.one");
        for caller in 0..100_000 {
            rates.take(&Caller::with_key(&caller.to_string()), &spec).expect("a first call");
            clock.advance(Duration::from_micros(100));
        }
        let bucket_count = rates.buckets[&spec.id].limiter.len();
        assert!(bucket_count <= CLEANUP_INTERVAL as usize + 200, "{bucket_count}");
    }

    #[test]
    fn a_rule_that_matches_no_tool_is_refused() {
        let (rates, _) = rates(&[rate("execc.*", 1, 1)]);
        let known = KnownToolSet { tools: vec![spec("exec.run").id], ..KnownToolSet::default() };
        let why = rates.check(&known).expect_err("no tool").to_string();
        assert!(why.contains("limits.rate") && why.contains("`exec.*`"), "{why}");
        let bad = RateLimits::new(&[rate("a[", 1, 1)], FakeRelativeClock::default());
        assert!(bad.is_err());
    }
}
