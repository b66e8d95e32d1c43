//! Limits concurrent calls, call rates and byte volumes.

mod bytes;
mod each;
mod rates;
mod refusals;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use governor::clock::MonotonicClock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{Among, CallError, Caller, Effects, Spent, ToolId, ToolSpec};

use crate::gauges::PoolGauge;
use crate::policy::{BadRule, KnownTools};
use bytes::Bytes;
use each::{Each, Share};
use rates::Rates;
use refusals::Refusals;

pub use bytes::Quantity;
pub use rates::Rate;

/// Limits on concurrent calls and rates.
///
/// Programs have their own pool, so that slow ones never delay reads. Tools with their own limit,
/// and groups such as upstreams, have separate pools as well.
pub struct Limits {
    calls: Pool,
    programs: Pool,
    each: HashMap<ToolId, Pool>,
    /// Pools of groups, such as upstreams, by group name; they come and go.
    apart: Mutex<HashMap<Arc<str>, Arc<Apart>>>,
    /// Largest number of concurrent calls of one caller in each group.
    apart_each: Option<usize>,
    rates: Option<Rates>,
    calls_each: Option<Each>,
    programs_each: Option<Each>,
    written: Option<Bytes>,
    carried: Option<Bytes>,
    refusals: Option<Refusals>,
}

/// Proof that limits admitted a call. Dropping it frees its places.
pub(crate) struct Slot {
    #[allow(dead_code, reason = "held, and given back on drop")]
    among_all: OwnedSemaphorePermit,
    #[allow(dead_code, reason = "held, and given back on drop")]
    of_its_tool: Option<OwnedSemaphorePermit>,
    #[allow(dead_code, reason = "held, and given back on drop")]
    of_its_caller: Option<Share>,
}

/// Behavior of a call that finds no free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    Bounded,
    Endless,
}

struct Pool {
    what: String,
    size: usize,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

impl Limits {
    /// Creates limits of `calls` concurrent calls and, separately, `programs` calls that run
    /// programs.
    ///
    /// For each of both, up to `waiting_max` further calls wait for at most `wait_max`.
    pub fn new(calls: usize, programs: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let pool = |what, size| Pool::new(what, size, waiting_max, wait_max);
        Self {
            calls: pool("calls", calls),
            programs: pool("programs", programs),
            each: HashMap::default(),
            apart: Mutex::default(),
            apart_each: None,
            rates: None,
            calls_each: None,
            programs_each: None,
            written: None,
            carried: None,
            refusals: None,
        }
    }

    /// Limits the concurrent `calls` and `programs` of each caller. Further calls wait in the
    /// caller's own queue.
    pub fn with_each(self, calls: usize, programs: usize) -> Self {
        let waiting_max = self.calls.waiting_max;
        let wait_max = self.calls.wait_max;
        let each =
            |what, size| Some(Each::new(move || Pool::new(what, size, waiting_max, wait_max)));
        let calls_each = each("calls of one caller", calls);
        let programs_each = each("programs of one caller", programs);
        Self { calls_each, programs_each, apart_each: Some(calls), ..self }
    }

    /// Limits the bytes that each caller may write.
    pub fn with_written(self, written: Quantity) -> Self {
        Self { written: Some(Bytes::new(written, "written")), ..self }
    }

    /// Limits the bytes of inputs and outputs of each caller.
    pub fn with_carried(self, carried: Quantity) -> Self {
        Self { carried: Some(Bytes::new(carried, "asked and answered")), ..self }
    }

    /// Returns true if bytes of inputs and outputs are counted.
    pub(crate) fn counts_carried(&self) -> bool {
        self.carried.is_some()
    }

    /// Counts `bytes` of input or output of `caller`.
    pub(crate) fn carried(&self, caller: &Caller, bytes: u64) {
        if let Some(carried) = &self.carried {
            carried.owe(caller, bytes);
        }
    }

    /// Limits the refused calls of each caller that are recorded: `burst` at once, then
    /// `per_second`.
    pub fn with_refused(self, burst: NonZeroU32, per_second: NonZeroU32) -> Self {
        Self { refusals: Some(Refusals::new(burst, per_second)), ..self }
    }

    /// Counts a refused call of `caller`.
    ///
    /// # Errors
    /// If there were too many; the call must then leave no record.
    pub(crate) fn refused(&self, caller: &Caller) -> Result<(), CallError> {
        self.refusals.as_ref().map_or(Ok(()), |refusals| refusals.take(caller))
    }

    /// Returns the load of both main pools.
    pub(crate) fn gauges(&self) -> [PoolGauge; 2] {
        [self.calls.gauge("calls"), self.programs.gauge("programs")]
    }

    /// Returns the byte budget that a call of `caller` draws on.
    pub(crate) fn spent(&self, caller: &Caller) -> Spent {
        self.written.as_ref().map_or_else(Spent::none, |bytes| Spent::from(bytes.purse(caller)))
    }

    /// Limits the call rates of each caller and tool. The first of `rules` that matches a tool
    /// applies.
    ///
    /// # Errors
    /// If a pattern is invalid.
    pub fn with_rates(self, rules: &[Rate]) -> Result<Self, BadRule> {
        Ok(Self { rates: Some(Rates::new(rules, MonotonicClock)?), ..self })
    }

    /// Checks that each rule matches one of the `known` tools.
    pub fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.check(known))
    }

    /// Adds pools for those `tools` that have their own limit, and rate buckets for all.
    pub(crate) fn with_tools<'t>(mut self, tools: impl Iterator<Item = &'t ToolSpec>) -> Self {
        for spec in tools {
            if let Some(rates) = &mut self.rates {
                rates.offer(spec);
            }
            let Some(size) = spec.at_once else { continue };
            let pool = Pool {
                what: format!("calls of `{}`", spec.id),
                size,
                free: Arc::new(Semaphore::new(size)),
                waiting: AtomicUsize::new(0),
                ..self.calls
            };
            self.each.insert(spec.id.clone(), pool);
        }
        self
    }

    /// Waits for a slot for one call of `spec`, for a bounded time, and counts the call.
    pub(crate) async fn admit(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<Slot, CallError> {
        self.take(caller, spec)?;
        self.admit_taken(caller, spec, cancel).await
    }

    /// Waits for a slot for a call that is counted already.
    pub(crate) async fn admit_taken(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<Slot, CallError> {
        self.slot(caller, spec, cancel, Patience::Bounded).await
    }

    /// Counts a call of `spec` against the byte and rate limits of `caller`.
    pub(crate) fn take(&self, caller: &Caller, spec: &ToolSpec) -> Result<(), CallError> {
        self.carried.as_ref().map_or(Ok(()), |carried| carried.are_left(caller))?;
        self.rates.as_ref().map_or(Ok(()), |rates| rates.take(caller, spec))
    }

    /// Waits for a slot for a job that calls `spec`, for as long as it takes. The call was counted
    /// when the job was accepted.
    pub(crate) async fn admit_job(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<Slot, CallError> {
        self.slot(caller, spec, cancel, Patience::Endless).await
    }

    async fn slot(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        cancel: &CancellationToken,
        patience: Patience,
    ) -> Result<Slot, CallError> {
        let apart = spec.among.as_ref().map(|among| self.apart(among));
        let (pool, each) = match (&apart, spec.effects) {
            (Some(apart), _) => (&apart.pool, &apart.each),
            (None, Effects::Runs) => (&self.programs, &self.programs_each),
            (None, Effects::Reads | Effects::Adds | Effects::Changes) => {
                (&self.calls, &self.calls_each)
            }
        };
        // The caller's own limit comes first: a call that waits there must not occupy a shared
        // place.
        let of_its_caller = match each {
            Some(each) => Some(each.admit(caller, cancel, patience).await?),
            None => None,
        };
        let of_its_tool = match self.each.get(&spec.id) {
            Some(pool) => Some(pool.admit(cancel, patience).await?),
            None => None,
        };
        Ok(Slot { among_all: pool.admit(cancel, patience).await?, of_its_tool, of_its_caller })
    }
}

/// Pools of one group.
struct Apart {
    pool: Pool,
    each: Option<Each>,
}

impl Limits {
    /// Returns the pools of a group. If its size changed, new pools are made, and running calls no
    /// longer count.
    fn apart(&self, among: &Among) -> Arc<Apart> {
        let mut all = self.apart.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(apart) = all.get(&among.name).filter(|it| it.pool.size == among.at_once) {
            return apart.clone();
        }
        let waiting_max = self.calls.waiting_max;
        let wait_max = self.calls.wait_max;
        let what = format!("calls of `{}`", among.name);
        let whose = format!("calls of `{}` by one caller", among.name);
        let each = self
            .apart_each
            .map(|size| Each::new(move || Pool::new(&whose, size, waiting_max, wait_max)));
        let pool = Pool::new(&what, among.at_once, waiting_max, wait_max);
        let apart = Arc::new(Apart { pool, each });
        all.insert(among.name.clone(), apart.clone());
        apart
    }
}

impl Pool {
    fn new(what: &str, size: usize, waiting_max: usize, wait_max: Duration) -> Self {
        Self {
            what: what.to_owned(),
            size,
            free: Arc::new(Semaphore::new(size)),
            waiting: AtomicUsize::new(0),
            waiting_max,
            wait_max,
        }
    }

    fn gauge(&self, name: &'static str) -> PoolGauge {
        PoolGauge {
            name,
            running: self.size.saturating_sub(self.free.available_permits()),
            running_max: self.size,
            waiting: self.waiting.load(Ordering::Relaxed),
            waiting_max: self.waiting_max,
        }
    }

    async fn admit(
        &self,
        cancel: &CancellationToken,
        patience: Patience,
    ) -> Result<OwnedSemaphorePermit, CallError> {
        match self.free.clone().try_acquire_owned() {
            Ok(permit) => Ok(permit),
            // Boxed: few calls wait, and every call would reserve space for it.
            Err(_) if patience == Patience::Endless => {
                Box::pin(self.wait_for(cancel, Duration::MAX)).await
            }
            Err(_) => {
                let place = Place::take(self);
                let _place = place.ok_or_else(|| self.refusal("and as many wait as may"))?;
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
            permit = self.free.clone().acquire_owned() => permit.map_err(|_| CallError::Canceled),
            () = cancel.cancelled() => Err(CallError::Canceled),
            () = tokio::time::sleep(wait_max) => Err(self.refusal("and none ended in time")),
        }
    }

    fn refusal(&self, why: &str) -> CallError {
        CallError::Limited {
            message: format!("as many {} as may are running, {why}", self.what),
            retry_after: Duration::from_secs(1),
        }
    }
}

/// A place in the queue, freed on drop.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(pool: &'a Pool) -> Option<Self> {
        let free = |waiting| (waiting < pool.waiting_max).then_some(waiting + 1);
        pool.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).ok()?;
        Some(Self(&pool.waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn spec(effects: Effects) -> ToolSpec {
        let id = ToolId::new("t.t").expect("an id");
        ToolSpec { idempotent: true, ..ToolSpec::new(id, "", "", effects) }
    }

    fn me() -> Caller {
        Caller::local()
    }

    fn wanted() -> CancellationToken {
        CancellationToken::new()
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_makes_wait_then_refuses_and_says_when_to_come_back() {
        let limits = Limits::new(1, 1, 1, Duration::from_secs(5));
        let slot =
            limits.admit(&me(), &spec(Effects::Reads), &wanted()).await.expect("the first fits");
        let refused = limits.admit(&me(), &spec(Effects::Reads), &wanted()).await;
        assert!(
            matches!(refused, Err(CallError::Limited { retry_after, .. }) if !retry_after.is_zero())
        );
        drop(slot);
        assert!(limits.admit(&me(), &spec(Effects::Reads), &wanted()).await.is_ok());
    }

    #[tokio::test]
    async fn a_running_program_does_not_keep_a_read_waiting() {
        let limits = Limits::new(1, 1, 0, Duration::ZERO);
        let _program = limits.admit(&me(), &spec(Effects::Runs), &wanted()).await.expect("it fits");
        assert!(limits.admit(&me(), &spec(Effects::Reads), &wanted()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_waits_where_a_call_would_be_refused() {
        let limits = Limits::new(1, 1, 0, Duration::ZERO);
        let program = spec(Effects::Runs);
        let cancel = wanted();
        let me = me();
        let slot = limits.admit(&me, &program, &cancel).await.expect("it fits");
        let (admitted, ()) = tokio::join!(limits.admit_job(&me, &program, &cancel), async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(slot);
        });
        assert!(admitted.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_counts_as_its_callers_and_as_no_others() {
        let limits = Limits::new(9, 9, 0, Duration::ZERO).with_each(9, 1);
        let program = spec(Effects::Runs);
        let cancel = wanted();
        let ada = Caller::named("ada");
        let bob = Caller::named("bob");
        let job = limits.admit_job(&ada, &program, &cancel).await.expect("it fits");
        assert!(limits.admit(&ada, &program, &cancel).await.is_err());
        limits.admit(&bob, &program, &cancel).await.expect("he has a share of his own");
        drop(job);
        limits.admit(&ada, &program, &cancel).await.expect("there is room again");
    }

    #[tokio::test]
    async fn calls_that_count_apart_keep_no_others_waiting_and_to_their_own_number() {
        let among = |name: &str, at_once| {
            let among = Some(Among { name: name.into(), at_once });
            ToolSpec { among, ..spec(Effects::Changes) }
        };
        let limits = Limits::new(1, 1, 0, Duration::ZERO).with_each(1, 1);
        let (slow, other) = (among("slow", 1), among("other", 2));
        let slot = limits.admit(&me(), &slow, &wanted()).await.expect("it fits");
        let refused = limits.admit(&me(), &slow, &wanted()).await;
        assert!(
            matches!(refused, Err(CallError::Limited { message, .. }) if message.contains("`slow`"))
        );
        let _other = limits.admit(&me(), &other, &wanted()).await.expect("it counts apart");
        let _own = limits.admit(&me(), &spec(Effects::Reads), &wanted()).await.expect("so does it");
        // As many as are said now, whatever was said before.
        let _more = limits.admit(&me(), &among("slow", 2), &wanted()).await.expect("there is room");
        drop(slot);
    }

    #[tokio::test]
    async fn a_tool_with_a_bound_of_its_own_keeps_to_it() {
        let one = ToolSpec { at_once: Some(1), ..spec(Effects::Runs) };
        let limits = Limits::new(9, 9, 0, Duration::ZERO).with_tools([&one].into_iter());
        let slot = limits.admit(&me(), &one, &wanted()).await.expect("it fits");
        assert!(limits.admit(&me(), &one, &wanted()).await.is_err());
        drop(slot);
        assert!(limits.admit(&me(), &one, &wanted()).await.is_ok());
    }
}
