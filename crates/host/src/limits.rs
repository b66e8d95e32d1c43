//! How much may go on at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallError, Effects, ToolSpec};

/// Bounds on calls at once. Programs have a bound of their own, so a slow one never keeps a read waiting.
pub struct Limits {
    calls: Pool,
    programs: Pool,
}

/// Proof that limits admitted a call; what it holds is given back when it is dropped.
pub(crate) struct Slot(
    #[allow(dead_code, reason = "held, and given back on drop")] OwnedSemaphorePermit,
);

struct Pool {
    what: &'static str,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

impl Limits {
    /// At most `calls` calls at once, beside them `programs` that run programs; of each up to
    /// `waiting_max` more wait, none longer than `wait_max`.
    pub fn new(calls: usize, programs: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let pool = |what, size| Pool {
            what,
            free: Arc::new(Semaphore::new(size)),
            waiting: AtomicUsize::new(0),
            waiting_max,
            wait_max,
        };
        Self { calls: pool("calls", calls), programs: pool("programs", programs) }
    }

    /// A slot for one call of `spec`, at once or after a bounded wait.
    pub(crate) async fn admit(
        &self,
        spec: &ToolSpec,
        cancel: &CancellationToken,
    ) -> Result<Slot, CallError> {
        let pool = match spec.effects {
            Effects::Reads | Effects::Adds | Effects::Changes => &self.calls,
            Effects::Runs => &self.programs,
        };
        match pool.free.clone().try_acquire_owned() {
            Ok(permit) => Ok(Slot(permit)),
            Err(_) => pool.wait(cancel).await,
        }
    }
}

impl Pool {
    async fn wait(&self, cancel: &CancellationToken) -> Result<Slot, CallError> {
        let _place = Place::take(self).ok_or_else(|| self.refusal("and as many wait as may"))?;
        tokio::select! {
            permit = self.free.clone().acquire_owned() => match permit {
                Ok(permit) => Ok(Slot(permit)),
                Err(_closed) => Err(CallError::Canceled),
            },
            () = cancel.cancelled() => Err(CallError::Canceled),
            () = tokio::time::sleep(self.wait_max) => Err(self.refusal("and none ended in time")),
        }
    }

    fn refusal(&self, why: &str) -> CallError {
        CallError::Limited {
            message: format!("as many {} as may are running, {why}", self.what),
            retry_after: Duration::from_secs(1),
        }
    }
}

/// A place in the queue, given back on drop.
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
    use serde_json::json;
    use toolgate_contract::ToolId;

    use super::*;

    fn spec(effects: Effects) -> ToolSpec {
        ToolSpec {
            id: ToolId::new("t.t").expect("an id"),
            title: String::new(),
            about: String::new(),
            effects,
            idempotent: true,
            deadline: None,
            input_schema: json!({}),
            output_schema: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_makes_wait_then_refuses_and_says_when_to_come_back() {
        let limits = Limits::new(1, 1, 1, Duration::from_secs(5));
        let cancel = CancellationToken::new();
        let slot = limits.admit(&spec(Effects::Reads), &cancel).await.expect("the first fits");
        let refused = limits.admit(&spec(Effects::Reads), &cancel).await;
        assert!(
            matches!(refused, Err(CallError::Limited { retry_after, .. }) if !retry_after.is_zero())
        );
        drop(slot);
        assert!(limits.admit(&spec(Effects::Reads), &cancel).await.is_ok());
    }

    #[tokio::test]
    async fn a_running_program_does_not_keep_a_read_waiting() {
        let limits = Limits::new(1, 1, 0, Duration::ZERO);
        let cancel = CancellationToken::new();
        let _program = limits.admit(&spec(Effects::Runs), &cancel).await.expect("it fits");
        assert!(limits.admit(&spec(Effects::Reads), &cancel).await.is_ok());
    }
}
