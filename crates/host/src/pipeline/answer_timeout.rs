//! Measures the time that a call waits for answers. This time extends the call's deadline.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use toolgate_contract::{
    ClientAnswers, ClientQuestions, QuestionAsker, QuestionSender, QuestionSupport, ToolFuture,
    lock_mutex,
};

/// Clock for the time that a call waits for the client's answers to its questions, up to a maximum.
#[derive(Default)]
pub(crate) struct AnswerWaitClock {
    wait_max: Duration,
    state: Mutex<AnswerWaitClockState>,
    /// Signal that a wait for answers begins or ends.
    changed: Notify,
}

#[derive(Default)]
struct AnswerWaitClockState {
    /// Number of current waits for answers. `since` is the start of the oldest one.
    waiting: usize,
    since: Option<Instant>,
    ended_waits: Duration,
}

impl AnswerWaitClock {
    /// Creates a clock that grants at most `wait_max` for all answers of a call together.
    pub(crate) fn new(wait_max: Duration) -> Arc<Self> {
        Arc::new(Self { wait_max, ..Self::default() })
    }

    /// Wraps `asker` so that this clock measures the time for which its questions wait for answers.
    pub(crate) fn time_asker(self: &Arc<Self>, asker: &QuestionAsker) -> QuestionAsker {
        if asker.supported() == QuestionSupport::default() {
            return asker.clone();
        }
        asker
            .with_proxy(Arc::new(TimedQuestionSender { asker: asker.clone(), clock: self.clone() }))
    }

    /// Waits until `deadline` plus the time for which the call waited for answers. Returns this
    /// additional time.
    pub(crate) async fn wait_until_over(&self, deadline: Instant) -> Duration {
        loop {
            let changed = self.changed.notified();
            let extension = self.extension();
            tokio::select! {
                () = sleep_until(deadline + extension) => return extension,
                () = changed => {}
            }
        }
    }

    /// Returns the extension of the deadline so far. While the call waits for an answer, returns
    /// the maximum.
    fn extension(&self) -> Duration {
        let state = lock_mutex(&self.state);
        if state.waiting > 0 { self.wait_max } else { state.ended_waits.min(self.wait_max) }
    }
}

/// Guard of a call's wait for answers. Dropping the guard ends the wait.
struct AnswerWaitGuard<'c>(&'c AnswerWaitClock);

impl<'c> AnswerWaitGuard<'c> {
    fn begin(clock: &'c AnswerWaitClock) -> Self {
        let mut state = lock_mutex(&clock.state);
        state.waiting += 1;
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        clock.changed.notify_waiters();
        Self(clock)
    }
}

impl Drop for AnswerWaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock_mutex(&self.0.state);
        state.waiting -= 1;
        if state.waiting == 0
            && let Some(since) = state.since.take()
        {
            state.ended_waits += since.elapsed();
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}

/// Sender of a call's questions that measures the time until they are answered.
struct TimedQuestionSender {
    asker: QuestionAsker,
    clock: Arc<AnswerWaitClock>,
}

impl QuestionSender for TimedQuestionSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            let _wait = AnswerWaitGuard::begin(&self.clock);
            self.asker.ask(questions).await
        })
    }
}
