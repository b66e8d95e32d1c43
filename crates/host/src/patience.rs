//! How long a call waits for answers to what it asks: a person's time is not held against it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use toolgate_contract::{AskNow, Askable, Asker, BoxFuture, Given, Questions, ToolError};

/// The time that a call spends waiting for answers, and how much of it is not held against it.
#[derive(Default)]
pub(crate) struct Patience {
    most: Duration,
    spent: Mutex<Spent>,
    /// Told when a wait begins or ends.
    changed: Notify,
}

#[derive(Default)]
struct Spent {
    /// How many wait, and since when any does.
    waiting: usize,
    since: Option<Instant>,
    before: Duration,
}

impl Patience {
    /// With up to `most` for all answers together.
    pub(crate) fn of(most: Duration) -> Arc<Self> {
        Arc::new(Self { most, ..Self::default() })
    }

    /// The same asker, whose time is counted.
    pub(crate) fn counted(self: &Arc<Self>, asker: &Asker) -> Asker {
        if asker.can() == Askable::default() {
            return asker.clone();
        }
        asker.asking_through(Arc::new(Counted { asker: asker.clone(), patience: self.clone() }))
    }

    /// Waits until `deadline` is over, and however long answers took; gives how long that was.
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

    /// How much later it is over, as far as that is known: while an answer is waited for, as late
    /// as can be.
    fn more(&self) -> Duration {
        let spent = self.spent();
        if spent.waiting > 0 { self.most } else { spent.before.min(self.most) }
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait for answers, for as long as it is held.
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

/// Asks, and counts how long that takes.
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
