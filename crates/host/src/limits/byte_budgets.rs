//! Limits the bytes of each caller over time, with buckets that may go into debt.
//!
//! The size of an operation is known only afterwards. Therefore the last admitted operation may
//! exceed the budget. The next operations must wait until the debt is repaid.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use toolgate_contract::{CallError, Caller, ToolError, ToolErrorKind, WriteRateBudget, lock_mutex};

use super::shared_bytes::SharedByteAccount;
use super::shared_rates::SharedRates;

/// Number of new callers after which buckets that are full again are removed.
const CLEANUP_INTERVAL: usize = 1024;

/// Rate and size of a caller's budget of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerByteRate {
    /// Number of bytes that the caller may use at once after a long pause.
    pub at_once: u64,
    /// Number of bytes per second that the budget regains.
    pub per_second: u64,
}

/// Byte budgets of all callers, such as the bytes that each caller may write.
pub(super) struct ByteBudgets {
    accounts: Mutex<HashMap<Caller, Arc<CallerByteBudget>>>,
    rate: CallerByteRate,
    /// Participle that completes the error message, for example `written`.
    verb: &'static str,
    started: Instant,
    /// Buckets that servers of a fleet share, if the host is part of a fleet.
    shared: OnceLock<Arc<SharedRates>>,
}

/// Byte budget of one caller, such as the bytes that the caller may write.
struct CallerByteBudget {
    bucket: ByteTokenBucket,
    /// Account of the caller's bytes at all servers of a fleet, if the servers share the budget.
    shared: Option<Arc<SharedByteAccount>>,
    started: Instant,
    /// Participle that completes the error message, for example `written`.
    verb: &'static str,
}

impl ByteBudgets {
    /// Creates a byte budget of the size `rate` for every caller. `verb` completes the error
    /// message.
    pub(super) fn new(rate: CallerByteRate, verb: &'static str) -> Self {
        let (accounts, shared) = (Mutex::default(), OnceLock::new());
        Self { accounts, rate, verb, started: Instant::now(), shared }
    }

    /// Makes the budgets count for all servers of a fleet together. Call this function before the
    /// first tool call.
    pub(super) fn share(&self, rates: Arc<SharedRates>) {
        // A host shares them once.
        let _ = self.shared.set(rates);
    }

    /// Returns the byte budget of `caller`, from which writes are deducted.
    pub(super) fn write_budget(&self, caller: &Caller) -> Arc<dyn WriteRateBudget> {
        self.account(caller)
    }

    /// Checks that the byte budget of `caller` is not used up.
    ///
    /// # Errors
    /// The budget is used up. The error contains the retry time.
    pub(super) fn check_left(&self, caller: &Caller) -> Result<(), CallError> {
        self.account(caller)
            .take(0)
            .map_err(|(retry_after, message)| CallError::Limited { message, retry_after })
    }

    /// Charges `bytes` to the budget of `caller`, even if that exceeds the budget.
    pub(super) fn charge(&self, caller: &Caller, bytes: u64) {
        self.account(caller).charge(bytes);
    }

    fn account(&self, caller: &Caller) -> Arc<CallerByteBudget> {
        let mut accounts = lock_mutex(&self.accounts);
        if let Some(account) = accounts.get(caller) {
            return account.clone();
        }
        if accounts.len() % CLEANUP_INTERVAL == CLEANUP_INTERVAL - 1 {
            let now = self.started.elapsed();
            accounts.retain(|_, account| {
                !account.bucket.is_full(now) || Arc::strong_count(account) > 1
            });
        }
        let bucket = ByteTokenBucket::new(self.rate);
        let shared = self.shared.get().map(|rates| {
            Arc::new(SharedByteAccount::new(rates.clone(), self.verb, caller, self.rate))
        });
        let (started, verb) = (self.started, self.verb);
        let account = Arc::new(CallerByteBudget { bucket, shared, started, verb });
        accounts.insert(caller.clone(), account.clone());
        account
    }
}

impl CallerByteBudget {
    /// Charges `bytes` to the caller's budget. If the budget is used up, returns the retry time and
    /// the message as the error.
    fn take(&self, bytes: u64) -> Result<(), (Duration, String)> {
        self.charge_all_servers(bytes).map_err(|wait| {
            let CallerByteRate { at_once, per_second } = self.bucket.rate;
            let message = format!(
                "you have {} too many bytes recently (limit: {at_once} bytes at once, then \
                 {per_second} bytes per second)",
                self.verb
            );
            (wait, message)
        })
    }

    /// Charges `bytes` to the budget of this server and to the budget that all servers share. If
    /// either budget is used up, returns the time to wait as the error.
    fn charge_all_servers(&self, bytes: u64) -> Result<(), Duration> {
        let now = self.started.elapsed();
        let Some(shared) = &self.shared else { return self.bucket.take(bytes, now) };
        shared.check()?;
        self.bucket.take(bytes.saturating_mul(shared.weight()), now)?;
        shared.add(bytes);
        Ok(())
    }
}

impl WriteRateBudget for CallerByteBudget {
    fn reserve(&self, bytes: u64) -> Result<(), ToolError> {
        let taken = self.take(bytes);
        taken.map_err(|(wait, message)| ToolError::new(ToolErrorKind::Limited(wait), message))
    }

    fn charge(&self, bytes: u64) {
        let weight = self.shared.as_ref().map_or(1, |shared| shared.weight());
        self.bucket.charge(bytes.saturating_mul(weight), self.started.elapsed());
        if let Some(shared) = &self.shared {
            shared.add(bytes);
        }
    }
}

/// Token bucket by the generic cell rate algorithm, which stores the time in nanoseconds at which
/// the debt is repaid.
struct ByteTokenBucket {
    rate: CallerByteRate,
    repaid_at: AtomicU64,
}

impl ByteTokenBucket {
    fn new(rate: CallerByteRate) -> Self {
        Self { rate, repaid_at: AtomicU64::new(0) }
    }

    /// Charges `bytes` to the bucket at the time `now`, unless the debt is too large. In that case,
    /// returns the wait time as the error.
    fn take(&self, bytes: u64, now: Duration) -> Result<(), Duration> {
        let now = nanos(now);
        let room = self.refill_nanos(self.rate.at_once);
        let next = |even_at: u64| {
            let owed = even_at.saturating_sub(now);
            (owed == 0 || owed < room)
                .then(|| even_at.max(now).saturating_add(self.refill_nanos(bytes)))
        };
        match self.repaid_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(_) => Ok(()),
            Err(even_at) => {
                // Rounded up to milliseconds, so that a retry after this time succeeds.
                let wait = even_at.saturating_sub(now).saturating_sub(room).saturating_add(1);
                Err(Duration::from_millis(wait.div_ceil(1_000_000)))
            }
        }
    }

    /// Charges `bytes` to the bucket at the time `now`, even if that exceeds the bucket.
    fn charge(&self, bytes: u64, now: Duration) {
        let now = nanos(now);
        let next = |even_at: u64| Some(even_at.max(now).saturating_add(self.refill_nanos(bytes)));
        let _ = self.repaid_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    fn is_full(&self, now: Duration) -> bool {
        self.repaid_at.load(Ordering::Acquire) <= nanos(now)
    }

    /// Returns the time in nanoseconds in which the bucket regains `bytes`.
    fn refill_nanos(&self, bytes: u64) -> u64 {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(at_once: u64, per_second: u64) -> ByteTokenBucket {
        ByteTokenBucket::new(CallerByteRate { at_once, per_second })
    }

    #[test]
    fn the_last_take_may_overdraw_and_the_next_waits_until_the_debt_is_repaid() {
        let bucket = bucket(1000, 100);
        let start = Duration::from_secs(5);
        bucket.take(999, start).expect("there is room");
        bucket.take(2001, start).expect("there is room for one");
        // 3000 bytes are taken, and 1000 may be owed.
        let wait = bucket.take(1, start).expect_err("it owes");
        assert!((20_000..=20_001).contains(&wait.as_millis()), "{wait:?}");
        let before = wait - Duration::from_millis(1);
        bucket.take(1, start + before).expect_err("the debt is not repaid yet");
        bucket.take(1, start + wait).expect("the retry time has passed");
    }

    #[test]
    fn charges_add_to_the_debt_without_limit() {
        let bucket = bucket(1000, 1000);
        let now = Duration::from_secs(5);
        for _ in 0..3 {
            bucket.charge(2000, now);
        }
        assert_eq!(bucket.take(0, now).expect_err("it owes").as_millis(), 5001);
    }

    #[test]
    fn each_caller_has_its_own_budget() {
        let bytes = ByteBudgets::new(CallerByteRate { at_once: 10, per_second: 1 }, "written");
        let ada = Caller::with_key("ada");
        let bob = Caller::with_key("bob");
        bytes.write_budget(&ada).reserve(100).expect("her first");
        let refused = bytes.write_budget(&ada).reserve(1).expect_err("she owes");
        assert!(matches!(refused.fault, ToolErrorKind::Limited(wait) if !wait.is_zero()));
        bytes.write_budget(&bob).reserve(100).expect("his first");
    }

    #[test]
    fn callers_without_debt_are_removed() {
        let bytes = ByteBudgets::new(
            CallerByteRate { at_once: 1_000, per_second: 1_000_000_000 },
            "written",
        );
        for nth in 0..10_000 {
            bytes.write_budget(&Caller::with_key(&nth.to_string())).reserve(1).expect("a first");
        }
        assert!(
            lock_mutex(&bytes.accounts).len() <= CLEANUP_INTERVAL,
            "{}",
            lock_mutex(&bytes.accounts).len()
        );
    }

    proptest! {
        #[test]
        fn the_bucket_behaves_like_a_simple_model(
            takes in prop::collection::vec((0..2000_u64, 0..5_u64), 1..60),
            at_once in 1..2000_u64,
        ) {
            // One byte a millisecond, and whole milliseconds: the model is exact.
            let bucket = bucket(at_once, 1000);
            let mut now = 0_u64;
            let mut owed = 0_u64;
            for (bytes, after) in takes {
                now += after * 100;
                owed = owed.saturating_sub(after * 100);
                let taken = bucket.take(bytes, Duration::from_millis(now));
                prop_assert_eq!(taken.is_ok(), owed < at_once);
                match taken {
                    Ok(()) => owed += bytes,
                    Err(wait) => prop_assert_eq!(
                        u64::try_from(wait.as_millis()).expect("short"), owed - at_once + 1
                    ),
                }
            }
        }
    }
}
