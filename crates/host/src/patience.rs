//! Measures the time that a call waits for answers, which does not count against its deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use toolgate_contract::{AskNow, Askable, Asker, BoxFuture, Given, Questions, ToolError};

/// Clock for the time that a call waits for answers, up to a maximum.
#[derive(Default)]
pub(crate) struct Patience {
    most: Duration,
    spent: Mutex<Spent>,
    /// Notified when a wait begins or ends.
    changed: Notify,
}

#[derive(Default)]
struct Spent {
    /// Number of current waits. `since` is the start of the oldest.
    waiting: usize,
    since: Option<Instant>,
    before: Duration,
}

impl Patience {
    /// Creates a clock that grants at most `most` for all answers together.
    pub(crate) fn of(most: Duration) -> Arc<Self> {
        Arc::new(Self { most, ..Self::default() })
    }

    /// Returns `asker` with the time of its questions measured.
    pub(crate) fn counted(self: &Arc<Self>, asker: &Asker) -> Asker {
        if asker.can() == Askable::default() {
            return asker.clone();
        }
        asker.asking_through(Arc::new(Counted { asker: asker.clone(), patience: self.clone() }))
    }

    /// Waits until `deadline` plus the time that answers took. Returns that extra time.
    pub(crate) async fn over(&self, deadline: Instant) -> Duration {
        loop {
            let changed = self.changed.notified();
            let more = self.more();
            tokio::select! {
                () = sleep_until(deadline + more) => return more,
                () = changed => {}
            }
        }
    }

    /// Returns the extension of the deadline so far. While an answer is awaited, that is the
    /// maximum.
    fn more(&self) -> Duration {
        let spent = self.spent();
        if spent.waiting > 0 { self.most } else { spent.before.min(self.most) }
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for answers, which ends when it is dropped.
struct Wait<'p>(&'p Patience);

impl<'p> Wait<'p> {
    fn begin(patience: &'p Patience) -> Self {
        let mut spent = patience.spent();
        spent.waiting += 1;
        spent.since.get_or_insert_with(Instant::now);
        drop(spent);
        patience.changed.notify_waiters();
        Self(patience)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut spent = self.0.spent();
        spent.waiting -= 1;
        if spent.waiting == 0
            && let Some(since) = spent.since.take()
        {
            spent.before += since.elapsed();
        }
        drop(spent);
        self.0.changed.notify_waiters();
    }
}

/// Asker that measures how long its questions take.
struct Counted {
    asker: Asker,
    patience: Arc<Patience>,
}

impl AskNow for Counted {
    fn ask(&self, questions: Questions) -> BoxFuture<'_, Result<Given, ToolError>> {
        Box::pin(async move {
            let _wait = Wait::begin(&self.patience);
            self.asker.ask(questions).await
        })
    }
}
