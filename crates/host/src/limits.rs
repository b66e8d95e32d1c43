//! Limits concurrent calls, call rates and byte volumes.

mod shared_rates;
mod shared_bytes;
mod byte_budgets;
mod caller_pools;
mod rates;
mod refusals;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use foldhash::HashMap;
use governor::clock::MonotonicClock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallError, Caller, ConcurrencyGroup, Effects, ToolId, ToolSpec, WriteBudget, lock_mutex,
};

use crate::gauges::CallPoolGauge;
use crate::policy::{KnownToolSet, ToolRuleError};
use byte_budgets::ByteBudgets;
use caller_pools::{CallerPoolPermit, CallerPools};
use rates::RateLimits;
use refusals::RefusalRateLimits;
use shared_rates::{SharedRateDenial, SharedRates};

pub use byte_budgets::CallerByteRate;
pub use rates::CallRateLimit;
pub(crate) use shared_rates::SharedRateBucketStore;
pub use shared_rates::{RateBucket, RateBucketGrant, RateOutagePolicy};

/// Limits on the number of concurrent calls and on their rates.
///
/// Calls that run programs have a separate pool, so that slow programs never delay reads. Tools
/// with their own limit, and groups such as upstreams, have separate pools, too.
pub struct CallLimits {
    calls: CallSlotPool,
    programs: CallSlotPool,
    tool_pools: HashMap<ToolId, CallSlotPool>,
    /// Pools of call groups, such as the calls to one upstream, by group name. Groups may appear
    /// and disappear.
    groups: Mutex<HashMap<Arc<str>, Arc<GroupCallPools>>>,
    /// Maximum number of concurrent calls of one caller in each group.
    group_calls_per_caller: Option<usize>,
    rates: Option<RateLimits>,
    /// True if rates count for all servers of a fleet together.
    shares_rates: bool,
    /// Policy for calls that cannot be counted, because the store of shared rates is unavailable.
    uncounted: RateOutagePolicy,
    /// Rates that the servers of a fleet share, if the host is part of a fleet.
    shared_rates: OnceLock<Arc<SharedRates>>,
    caller_calls: Option<CallerPools>,
    caller_programs: Option<CallerPools>,
    write_budgets: Option<ByteBudgets>,
    traffic_budgets: Option<ByteBudgets>,
    refusals: Option<RefusalRateLimits>,
}

/// Proof that the limits admitted a call. Dropping the proof frees the call's slots.
pub(crate) struct CallSlot {
    #[allow(dead_code, reason = "held, and given back on drop")]
    pool_permit: OwnedSemaphorePermit,
    #[allow(dead_code, reason = "held, and given back on drop")]
    tool_permit: Option<OwnedSemaphorePermit>,
    #[allow(dead_code, reason = "held, and given back on drop")]
    caller_share: Option<CallerPoolPermit>,
}

/// Limit on the wait of a call for a free slot: a bounded time, or endless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotWaitLimit {
    Bounded,
    Endless,
}

/// Pool of slots for calls that run at once, with a bounded queue.
struct CallSlotPool {
    label: String,
    size: usize,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

impl CallLimits {
    /// Creates limits of `calls` concurrent calls and, separately, `programs` calls that run
    /// programs.
    ///
    /// For each of the two, up to `waiting_max` further calls wait for at most `wait_max`.
    pub fn new(calls: usize, programs: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let pool = |label, size| CallSlotPool::new(label, size, waiting_max, wait_max);
        Self {
            calls: pool("calls", calls),
            programs: pool("programs", programs),
            tool_pools: HashMap::default(),
            groups: Mutex::default(),
            group_calls_per_caller: None,
            rates: None,
            shares_rates: false,
            uncounted: RateOutagePolicy::Share,
            shared_rates: OnceLock::new(),
            caller_calls: None,
            caller_programs: None,
            write_budgets: None,
            traffic_budgets: None,
            refusals: None,
        }
    }

    /// Limits the concurrent `calls` and `programs` of each caller. Further calls wait in the
    /// caller's own queue.
    pub fn with_caller_limits(self, calls: usize, programs: usize) -> Self {
        let waiting_max = self.calls.waiting_max;
        let wait_max = self.calls.wait_max;
        let pools = |label, size| {
            Some(CallerPools::new(move || CallSlotPool::new(label, size, waiting_max, wait_max)))
        };
        Self {
            caller_calls: pools("calls of one caller", calls),
            caller_programs: pools("programs of one caller", programs),
            group_calls_per_caller: Some(calls),
            ..self
        }
    }

    /// Limits the bytes that each caller may write.
    pub fn with_write_budget(self, rate: CallerByteRate) -> Self {
        Self { write_budgets: Some(ByteBudgets::new(rate, "written")), ..self }
    }

    /// Limits the bytes of inputs and outputs of each caller.
    pub fn with_traffic_budget(self, rate: CallerByteRate) -> Self {
        Self { traffic_budgets: Some(ByteBudgets::new(rate, "sent and received")), ..self }
    }

    /// Returns true if the bytes of inputs and outputs are limited.
    pub(crate) fn counts_traffic(&self) -> bool {
        self.traffic_budgets.is_some()
    }

    /// Charges `bytes` of input or output to the budget of `caller`, even beyond the limit.
    pub(crate) fn count_traffic(&self, caller: &Caller, bytes: u64) {
        if let Some(budgets) = &self.traffic_budgets {
            budgets.charge(caller, bytes);
        }
    }

    /// Limits the number of each caller's refused calls that leave an audit record: `burst` at
    /// once, then `per_second`.
    pub fn with_refusal_limit(self, burst: NonZeroU32, per_second: NonZeroU32) -> Self {
        Self { refusals: Some(RefusalRateLimits::new(burst, per_second)), ..self }
    }

    /// Charges a refused call to the refusal limit of `caller`.
    ///
    /// # Errors
    /// The caller had too many refused calls. In that case the call must leave no audit record.
    pub(crate) fn count_refusal(&self, caller: &Caller) -> Result<(), CallError> {
        self.refusals.as_ref().map_or(Ok(()), |refusals| refusals.take(caller))
    }

    /// Returns the load of the pool of calls and of the pool of programs.
    pub(crate) fn pool_gauges(&self) -> [CallPoolGauge; 2] {
        [self.calls.gauge("calls"), self.programs.gauge("programs")]
    }

    /// Returns the byte budget of `caller`, from which a call's writes are deducted.
    pub(crate) fn write_budget(&self, caller: &Caller) -> WriteBudget {
        self.write_budgets.as_ref().map_or_else(WriteBudget::unlimited, |bytes| {
            WriteBudget::new(bytes.write_budget(caller))
        })
    }

    /// Limits the call rates of each caller and tool. The first of `rules` that matches a tool
    /// applies.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn with_rates(self, rules: &[CallRateLimit]) -> Result<Self, ToolRuleError> {
        Ok(Self { rates: Some(RateLimits::new(rules, MonotonicClock)?), ..self })
    }

    /// Makes the rates count for all servers of a fleet together, if the host is part of a fleet.
    /// The policy `uncounted` applies while the store of shared rates is unavailable.
    pub fn with_shared_rates(self, uncounted: RateOutagePolicy) -> Self {
        Self { shares_rates: true, uncounted, ..self }
    }

    /// Sets the store that keeps the rates and byte quotas which servers of a fleet share.
    pub(crate) fn set_rate_ledger(&self, ledger: Arc<dyn SharedRateBucketStore>) {
        self.use_shared_rates(&Arc::new(SharedRates::new(ledger)));
    }

    /// Continues to use the rates that a fleet shares from the limits `before`, which these limits
    /// replace.
    pub(crate) fn keep_shared_rates(&self, before: &Self) {
        if let Some(shared) = before.shared_rates.get() {
            self.use_shared_rates(shared);
        }
    }

    fn use_shared_rates(&self, shared: &Arc<SharedRates>) {
        shared.set_policy(self.uncounted);
        for budgets in [&self.write_budgets, &self.traffic_budgets].into_iter().flatten() {
            budgets.share(shared.clone());
        }
        // A host sets it once.
        let _ = self.shared_rates.set(shared.clone());
    }

    /// Returns an error for the first rate rule that matches none of the `known` tools.
    pub fn check(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.check(known))
    }

    /// Adds pools for the `tools` that have their own limit, and rate buckets for all of them.
    pub(crate) fn with_tools<'t>(mut self, tools: impl Iterator<Item = &'t ToolSpec>) -> Self {
        for spec in tools {
            if let Some(rates) = &mut self.rates {
                rates.add_tool(spec);
            }
            let Some(size) = spec.concurrency_max else { continue };
            let pool = CallSlotPool {
                label: format!("calls of `{}`", spec.id),
                size,
                permits: Arc::new(Semaphore::new(size)),
                waiting: AtomicUsize::new(0),
                ..self.calls
            };
            self.tool_pools.insert(spec.id.clone(), pool);
        }
        self
    }

    /// Counts a call of the tool `spec` against the rate limits, and waits for a call slot for a
    /// bounded time.
    ///
    /// # Errors
    /// A limit is exceeded, no slot becomes free in time, or `cancel` is cancelled.
    pub(crate) async fn admit(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<CallSlot, CallError> {
        self.count_call(caller, spec).await?;
        self.admit_counted(caller, spec, cancel).await
    }

    /// Waits for a call slot for a bounded time. The call of the tool `spec` was counted against
    /// the rate limits before.
    ///
    /// # Errors
    /// No slot becomes free in time, or `cancel` is cancelled.
    pub(crate) async fn admit_counted(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<CallSlot, CallError> {
        self.acquire_slot(caller, spec, cancel, SlotWaitLimit::Bounded).await
    }

    /// Counts a call of the tool `spec` against the rate limits of `caller`.
    ///
    /// # Errors
    /// A rate limit is exceeded, or the byte budget of `caller` is used up.
    pub(crate) async fn count_call(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
    ) -> Result<(), CallError> {
        self.traffic_budgets.as_ref().map_or(Ok(()), |budgets| budgets.check_left(caller))?;
        let Some(rates) = &self.rates else { return Ok(()) };
        let Some(shared) = self.shared_rates.get().filter(|_| self.shares_rates) else {
            return rates.take(caller, spec);
        };
        let Some((bucket, limit)) = rates.shared_bucket(caller, spec) else { return Ok(()) };
        // The shared bucket comes first, because a call cannot be put back into this server's own.
        // Boxed: few calls are counted like this, and every call would reserve space for it.
        let taken = Box::pin(shared.take(bucket)).await;
        taken.map_err(|denial| match denial {
            SharedRateDenial::Empty(retry_after) => {
                rates::too_many_calls(spec, &limit, retry_after)
            }
            SharedRateDenial::Unavailable => rates::cannot_count(spec),
        })?;
        rates.take(caller, spec).inspect_err(|_| shared.give_back(bucket))
    }

    /// Waits without a time limit for a call slot, for a job that calls the tool `spec`. The call
    /// was counted against the rate limits when the job was accepted.
    pub(crate) async fn admit_job(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<CallSlot, CallError> {
        self.acquire_slot(caller, spec, cancel, SlotWaitLimit::Endless).await
    }

    async fn acquire_slot(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
        wait: SlotWaitLimit,
    ) -> Result<CallSlot, CallError> {
        let group = spec.group.as_ref().map(|group| self.group_pools(group));
        let (pool, caller_pools) = match (&group, spec.effects) {
            (Some(group), _) => (&group.pool, &group.caller_pools),
            (None, Effects::Runs) => (&self.programs, &self.caller_programs),
            (None, Effects::Reads | Effects::Adds | Effects::Changes) => {
                (&self.calls, &self.caller_calls)
            }
        };
        // The caller's own limit comes first: a call that waits there must not occupy a shared
        // place.
        let caller_share = match caller_pools {
            Some(pools) => Some(pools.admit(caller, cancel, wait).await?),
            None => None,
        };
        let tool_permit = match self.tool_pools.get(&spec.id) {
            Some(pool) => Some(pool.admit(cancel, wait).await?),
            None => None,
        };
        let pool_permit = pool.admit(cancel, wait).await?;
        Ok(CallSlot { pool_permit, tool_permit, caller_share })
    }
}

/// The pools of calls and of programs of one group, such as an upstream.
struct GroupCallPools {
    pool: CallSlotPool,
    caller_pools: Option<CallerPools>,
}

impl CallLimits {
    /// Returns the pools of a group. If the group's size has changed, creates new pools, which do
    /// not count the calls that already run.
    fn group_pools(&self, group: &ConcurrencyGroup) -> Arc<GroupCallPools> {
        let mut all = lock_mutex(&self.groups);
        if let Some(pools) = all.get(&group.name).filter(|it| it.pool.size == group.concurrency_max)
        {
            return pools.clone();
        }
        let waiting_max = self.calls.waiting_max;
        let wait_max = self.calls.wait_max;
        let label = format!("calls of `{}`", group.name);
        let caller_label = format!("calls of `{}` by one caller", group.name);
        let caller_pools = self.group_calls_per_caller.map(|size| {
            CallerPools::new(move || CallSlotPool::new(&caller_label, size, waiting_max, wait_max))
        });
        let pool = CallSlotPool::new(&label, group.concurrency_max, waiting_max, wait_max);
        let pools = Arc::new(GroupCallPools { pool, caller_pools });
        all.insert(group.name.clone(), pools.clone());
        pools
    }
}

impl CallSlotPool {
    fn new(label: &str, size: usize, waiting_max: usize, wait_max: Duration) -> Self {
        Self {
            label: label.to_owned(),
            size,
            permits: Arc::new(Semaphore::new(size)),
            waiting: AtomicUsize::new(0),
            waiting_max,
            wait_max,
        }
    }

    fn gauge(&self, name: &'static str) -> CallPoolGauge {
        CallPoolGauge {
            name,
            running: self.size.saturating_sub(self.permits.available_permits()),
            running_max: self.size,
            waiting: self.waiting.load(Ordering::Relaxed),
            waiting_max: self.waiting_max,
        }
    }

    async fn admit(
        &self,
        cancel: &CancellationToken,
        wait: SlotWaitLimit,
    ) -> Result<OwnedSemaphorePermit, CallError> {
        match self.permits.clone().try_acquire_owned() {
            Ok(permit) => Ok(permit),
            // Boxed: few calls wait, and every call would reserve space for it.
            Err(_) if wait == SlotWaitLimit::Endless => {
                Box::pin(self.wait_for(cancel, Duration::MAX)).await
            }
            Err(_) => {
                let place = CallQueuePosition::reserve(self);
                let _place = place.ok_or_else(|| self.refusal("the queue is full"))?;
                Box::pin(self.wait_for(cancel, self.wait_max)).await
            }
        }
    }

    async fn wait_for(
        &self,
        cancel: &CancellationToken,
        wait_max: Duration,
    ) -> Result<OwnedSemaphorePermit, CallError> {
        tokio::select! {
            permit = self.permits.clone().acquire_owned() => permit.map_err(|_| CallError::Canceled),
            () = cancel.cancelled() => Err(CallError::Canceled),
            () = tokio::time::sleep(wait_max) => {
                let waited = wait_max.as_millis();
                Err(self.refusal(&format!("no place became free within {waited} ms")))
            }
        }
    }

    fn refusal(&self, why: &str) -> CallError {
        CallError::Limited {
            message: format!(
                "too many {} are running (limit {}), and {why}",
                self.label, self.size
            ),
            retry_after: Duration::from_secs(1),
        }
    }
}

/// A position in the queue for the slots of a pool. Dropping the value frees the position.
struct CallQueuePosition<'a>(&'a AtomicUsize);

impl<'a> CallQueuePosition<'a> {
    fn reserve(pool: &'a CallSlotPool) -> Option<Self> {
        let free = |waiting| (waiting < pool.waiting_max).then_some(waiting + 1);
        pool.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).ok()?;
        Some(Self(&pool.waiting))
    }
}

impl Drop for CallQueuePosition<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::BoxFuture;

    use super::*;

    /// Store of shared rate limits that refuses the first call, and then allows two calls.
    #[derive(Default)]
    struct RefuseOnceRateBucketStore(AtomicUsize);

    impl SharedRateBucketStore for RefuseOnceRateBucketStore {
        fn take_calls(&self, _bucket: RateBucket) -> BoxFuture<'_, Option<RateBucketGrant>> {
            let calls = if self.0.fetch_add(1, Ordering::Relaxed) == 0 { 0 } else { 2 };
            let retry_after = Duration::from_millis(1);
            Box::pin(std::future::ready(Some(RateBucketGrant { calls, retry_after, servers: 2 })))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_the_shared_bucket_refuses_is_not_counted_here() {
        let hour = Duration::from_secs(3600);
        let calls = NonZeroU32::new(2).expect("some");
        let limits = CallLimits::new(8, 8, 8, hour)
            .with_rates(&[CallRateLimit { tools: "*".to_owned(), calls, per: hour }])
            .expect("a sound rule")
            .with_shared_rates(RateOutagePolicy::Share);
        limits.set_rate_ledger(Arc::new(RefuseOnceRateBucketStore::default()));
        let read = spec(Effects::Reads);
        let refused = limits.count_call(&me(), &read).await;
        assert!(matches!(refused, Err(CallError::Limited { .. })), "{refused:?}");
        tokio::time::advance(Duration::from_millis(5)).await;
        for _ in 0..2 {
            limits.count_call(&me(), &read).await.expect("the own bucket is still full");
        }
    }

    fn spec(effects: Effects) -> ToolSpec {
        let id = ToolId::new("t.t").expect("an id");
        ToolSpec { idempotent: true, ..ToolSpec::new(id, "", "", effects) }
    }

    fn me() -> Caller {
        Caller::local()
    }

    fn not_cancelled() -> CancellationToken {
        CancellationToken::new()
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_refuses_a_call_after_the_wait_with_a_retry_time() {
        let limits = CallLimits::new(1, 1, 1, Duration::from_secs(5));
        let slot = limits
            .admit(&me(), &spec(Effects::Reads), &not_cancelled())
            .await
            .expect("the first fits");
        let refused = limits.admit(&me(), &spec(Effects::Reads), &not_cancelled()).await;
        assert!(
            matches!(refused, Err(CallError::Limited { retry_after, .. }) if !retry_after.is_zero())
        );
        drop(slot);
        assert!(limits.admit(&me(), &spec(Effects::Reads), &not_cancelled()).await.is_ok());
    }

    #[tokio::test]
    async fn a_call_is_refused_at_once_if_the_queue_is_full() {
        let limits = CallLimits::new(1, 1, 0, Duration::from_secs(3600));
        let _slot = limits
            .admit(&me(), &spec(Effects::Reads), &not_cancelled())
            .await
            .expect("the first fits");
        let refused = limits.admit(&me(), &spec(Effects::Reads), &not_cancelled()).await.err();
        let refused = refused.expect("the queue is full").to_string();
        assert!(refused.contains("the queue is full"), "{refused}");
    }

    #[tokio::test]
    async fn a_running_program_does_not_delay_a_read() {
        let limits = CallLimits::new(1, 1, 0, Duration::ZERO);
        let _program =
            limits.admit(&me(), &spec(Effects::Runs), &not_cancelled()).await.expect("it fits");
        assert!(limits.admit(&me(), &spec(Effects::Reads), &not_cancelled()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_waits_where_a_call_would_be_refused() {
        let limits = CallLimits::new(1, 1, 0, Duration::ZERO);
        let program = spec(Effects::Runs);
        let cancel = not_cancelled();
        let me = me();
        let slot = limits.admit(&me, &program, &cancel).await.expect("it fits");
        let (admitted, ()) = tokio::join!(limits.admit_job(&me, &program, &cancel), async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(slot);
        });
        assert!(admitted.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_counts_against_the_limit_of_its_caller_only() {
        let limits = CallLimits::new(9, 9, 0, Duration::ZERO).with_caller_limits(9, 1);
        let program = spec(Effects::Runs);
        let cancel = not_cancelled();
        let ada = Caller::with_key("ada");
        let bob = Caller::with_key("bob");
        let job = limits.admit_job(&ada, &program, &cancel).await.expect("it fits");
        assert!(limits.admit(&ada, &program, &cancel).await.is_err());
        limits.admit(&bob, &program, &cancel).await.expect("bob has his own limit");
        drop(job);
        limits.admit(&ada, &program, &cancel).await.expect("there is room again");
    }

    #[tokio::test]
    async fn a_group_has_its_own_limit_and_does_not_affect_other_calls() {
        let grouped = |name: &str, at_once| {
            let group = Some(ConcurrencyGroup { name: name.into(), concurrency_max: at_once });
            ToolSpec { group, ..spec(Effects::Changes) }
        };
        let limits = CallLimits::new(1, 1, 0, Duration::ZERO).with_caller_limits(1, 1);
        let (slow, other) = (grouped("slow", 1), grouped("other", 2));
        let slot = limits.admit(&me(), &slow, &not_cancelled()).await.expect("it fits");
        let refused = limits.admit(&me(), &slow, &not_cancelled()).await;
        assert!(
            matches!(refused, Err(CallError::Limited { message, .. }) if message.contains("`slow`"))
        );
        let _other = limits
            .admit(&me(), &other, &not_cancelled())
            .await
            .expect("another group has its own limit");
        let _own = limits
            .admit(&me(), &spec(Effects::Reads), &not_cancelled())
            .await
            .expect("calls without a group have their own limit");
        // The current limit of the group applies.
        let _more = limits
            .admit(&me(), &grouped("slow", 2), &not_cancelled())
            .await
            .expect("there is room");
        drop(slot);
    }

    #[tokio::test]
    async fn a_tool_with_its_own_limit_is_held_to_it() {
        let one = ToolSpec { concurrency_max: Some(1), ..spec(Effects::Runs) };
        let limits = CallLimits::new(9, 9, 0, Duration::ZERO).with_tools([&one].into_iter());
        let slot = limits.admit(&me(), &one, &not_cancelled()).await.expect("it fits");
        assert!(limits.admit(&me(), &one, &not_cancelled()).await.is_err());
        drop(slot);
        assert!(limits.admit(&me(), &one, &not_cancelled()).await.is_ok());
    }
}
