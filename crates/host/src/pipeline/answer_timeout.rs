//! Measures the time that a call waits for answers, which does not count against its deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use toolgate_contract::{
    Asker, BoxFuture, ClientAnswers, ClientQuestions, QuestionSender, QuestionSupport, ToolError,
};

/// Clock for the time that a call waits for answers, up to a maximum.
#[derive(Default)]
pub(crate) struct AnswerClock {
    wait_max: Duration,
    state: Mutex<AnswerClockState>,
    /// Notified when a wait begins or ends.
    changed: Notify,
}

#[derive(Default)]
struct AnswerClockState {
    /// Number of current waits. `since` is the start of the oldest.
    waiting: usize,
    since: Option<Instant>,
    ended_waits: Duration,
}

impl AnswerClock {
    /// Creates a clock that grants at most `most` for all answers together.
    pub(crate) fn new(most: Duration) -> Arc<Self> {
        Arc::new(Self { wait_max: most, ..Self::default() })
    }

    /// Returns `asker` with the time of its questions measured.
    pub(crate) fn time_asker(self: &Arc<Self>, asker: &Asker) -> Asker {
        if asker.supported() == QuestionSupport::default() {
            return asker.clone();
        }
        asker.with_proxy(Arc::new(TimedAsker { asker: asker.clone(), patience: self.clone() }))
    }

    /// Waits until `deadline` plus the time that answers took. Returns that extra time.
    pub(crate) async fn wait_until_over(&self, deadline: Instant) -> Duration {
        loop {
            let changed = self.changed.notified();
            let more = self.extension();
            tokio::select! {
                () = sleep_until(deadline + more) => return more,
                () = changed => {}
            }
        }
    }

    /// Returns the extension of the deadline so far. While an answer is awaited, that is the
    /// maximum.
    fn extension(&self) -> Duration {
        let spent = self.lock_state();
        if spent.waiting > 0 { self.wait_max } else { spent.ended_waits.min(self.wait_max) }
    }

    fn lock_state(&self) -> MutexGuard<'_, AnswerClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for answers, which ends when it is dropped.
struct AnswerWaitGuard<'p>(&'p AnswerClock);

impl<'p> AnswerWaitGuard<'p> {
    fn begin(patience: &'p AnswerClock) -> Self {
        let mut spent = patience.lock_state();
        spent.waiting += 1;
        spent.since.get_or_insert_with(Instant::now);
        drop(spent);
        patience.changed.notify_waiters();
        Self(patience)
    }
}

impl Drop for AnswerWaitGuard<'_> {
    fn drop(&mut self) {
        let mut spent = self.0.lock_state();
        spent.waiting -= 1;
        if spent.waiting == 0
            && let Some(since) = spent.since.take()
        {
            spent.ended_waits += since.elapsed();
        }
        drop(spent);
        self.0.changed.notify_waiters();
    }
}

/// Asker that measures how long its questions take.
struct TimedAsker {
    asker: Asker,
    patience: Arc<AnswerClock>,
}

impl QuestionSender for TimedAsker {
    fn ask(&self, questions: ClientQuestions) -> BoxFuture<'_, Result<ClientAnswers, ToolError>> {
        Box::pin(async move {
            let _wait = AnswerWaitGuard::begin(&self.patience);
            self.asker.ask(questions).await
        })
    }
}
