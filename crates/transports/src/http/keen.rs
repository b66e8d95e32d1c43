//! Looking for a client's next request for a moment, where it comes soon after the answer, instead
//! of sleeping.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Instant;

use crate::rhythm::Rhythm;

/// The one place of a listener that looks: one connection at a time does, so that never more than
/// one processor is spent on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lookout(Arc<AtomicBool>);

/// How soon one client asks again.
#[derive(Debug)]
pub(super) struct Keen {
    rhythm: Rhythm,
    /// When something was last written, if nothing has come since.
    answered: Option<Instant>,
    lookout: Lookout,
    looks: Option<Looks>,
}

/// A taken [`Lookout`]. Dropped, it is free.
#[derive(Debug)]
struct Looks(Lookout);

impl Keen {
    pub(super) fn new(lookout: Lookout) -> Self {
        Self { rhythm: Rhythm::new(), answered: None, lookout, looks: None }
    }

    /// The client was answered, or told a part of it.
    pub(super) fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    /// Something has come.
    pub(super) fn came(&mut self) {
        self.looks = None;
        if let Some(since) = self.answered.take() {
            self.rhythm.came_after(since.elapsed());
        }
    }

    /// Nothing has come yet. If it is likely to come soon, whoever polls with `cx` polls again as
    /// soon as all else that is ready has run and the system was asked what has come.
    pub(super) fn waits(&mut self, cx: &mut Context<'_>) {
        let Some(since) = self.answered.filter(|_| self.rhythm.is_quick()) else { return };
        if since.elapsed() >= self.rhythm.within {
            self.looks = None;
            self.rhythm.missed();
        } else if self.looks.is_some() || self.takes() {
            // Polled once, it says that the task gives way for now.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
    }

    fn takes(&mut self) -> bool {
        let Lookout(taken) = &self.lookout;
        if !taken.swap(true, Ordering::Acquire) {
            self.looks = Some(Looks(self.lookout.clone()));
        }
        self.looks.is_some()
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        let Self(Lookout(taken)) = self;
        taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::rhythm::OFTEN;

    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One that asks again soon, however busy the machine is.
    fn quick(lookout: &Lookout) -> Keen {
        let mut keen = Keen::new(lookout.clone());
        keen.rhythm = Rhythm { can: true, within: Duration::from_secs(20), soon: OFTEN };
        keen
    }

    /// Whether it is polled again at once that nothing has come for.
    fn is_looked_for(keen: &mut Keen) -> bool {
        let woken = Arc::new(Counted(AtomicUsize::new(0)));
        // Out of a runtime whoever gives way is woken at once.
        keen.waits(&mut Context::from_waker(&Waker::from(woken.clone())));
        woken.0.load(Ordering::SeqCst) > 0
    }

    #[test]
    fn a_client_that_was_answered_and_is_quick_is_looked_for_and_no_other_is() {
        let lookout = Lookout::default();
        let mut keen = quick(&lookout);
        assert!(!is_looked_for(&mut keen), "it was not answered yet");
        keen.answered();
        assert!(is_looked_for(&mut keen));
        keen.came();
        assert!(!is_looked_for(&mut keen), "what it asks is worked on");
        let mut slow = Keen::new(lookout);
        slow.answered();
        assert!(!is_looked_for(&mut slow));
    }

    #[test]
    fn one_client_at_a_time_is_looked_for() {
        let lookout = Lookout::default();
        let (mut one, mut other) = (quick(&lookout), quick(&lookout));
        one.answered();
        other.answered();
        assert!(is_looked_for(&mut one) && !is_looked_for(&mut other));
        one.came();
        assert!(is_looked_for(&mut other));
        one.answered();
        assert!(!is_looked_for(&mut one));
        drop(other);
        assert!(is_looked_for(&mut one));
    }

    #[test]
    fn a_client_that_does_not_come_soon_is_given_up_until_it_is_quick_again() {
        let mut keen = quick(&Lookout::default());
        keen.rhythm.within = Duration::ZERO;
        keen.answered();
        assert!(!is_looked_for(&mut keen));
        keen.rhythm.within = Duration::from_secs(20);
        assert!(!is_looked_for(&mut keen));
        for _ in 0..OFTEN {
            keen.came();
            keen.answered();
        }
        assert!(is_looked_for(&mut keen));
    }
}
