//! Busy polling for the next request of a quick HTTP client, instead of putting the thread to
//! sleep.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Instant;

use tokio::io::ReadBuf;

use crate::adaptive_spin::BusyPollHistory;
use crate::stdio::spinning_reader;

/// Permit for busy polling. A listener has only one permit, so that at most one processor polls.
#[derive(Debug, Clone, Default)]
pub(super) struct BusyPollPermit(Arc<AtomicBool>);

/// State of busy polling for the next request on one connection.
#[derive(Debug)]
pub(super) struct RequestBusyPollState {
    history: BusyPollHistory,
    /// Time of the last write to the client, if no data has arrived since.
    answered_at: Option<Instant>,
    permit: BusyPollPermit,
    guard: Option<BusyPollPermitGuard>,
}

/// Guard for a [`BusyPollPermit`] that is in use. Dropping the guard returns the permit.
#[derive(Debug)]
struct BusyPollPermitGuard(BusyPollPermit);

impl RequestBusyPollState {
    pub(super) fn new(permit: BusyPollPermit) -> Self {
        Self { history: BusyPollHistory::new(), answered_at: None, permit, guard: None }
    }

    /// Records that data was sent to the client, so that the client's next request may follow soon.
    pub(super) fn note_answer(&mut self) {
        self.answered_at = Some(Instant::now());
    }

    /// Records that data of the client has arrived.
    pub(super) fn note_arrival(&mut self) {
        self.guard = None;
        if let Some(since) = self.answered_at.take() {
            self.history.record_arrival(since.elapsed());
        }
    }

    /// Waits a moment for the next request on `input` without sleeping, if the client usually sends
    /// its next request soon. Other ready tasks run first. Returns true if data was read.
    pub(super) fn try_spin_read(
        &mut self,
        input: &impl AsFd,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> bool {
        let Some(since) = self.answered_at.filter(|_| self.history.is_quick()) else {
            return false;
        };
        if self.guard.is_none() {
            if self.take_permit() {
                cx.waker().wake_by_ref();
            }
            return false;
        }
        // An error here occurs again at the next read, which reports it.
        let found = spinning_reader::spin_read(input, since + self.history.gap_max, buffer);
        self.guard = None;
        match found {
            Ok(true) => true,
            Ok(false) | Err(_) => {
                self.history.record_miss();
                false
            }
        }
    }

    fn take_permit(&mut self) -> bool {
        let BusyPollPermit(taken) = &self.permit;
        if !taken.swap(true, Ordering::Acquire) {
            self.guard = Some(BusyPollPermitGuard(self.permit.clone()));
        }
        self.guard.is_some()
    }
}

impl Drop for BusyPollPermitGuard {
    fn drop(&mut self) {
        let Self(BusyPollPermit(taken)) = self;
        taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::adaptive_spin::QUICK_ARRIVALS_MIN;

    /// Waker for tests that counts how often it is woken.
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the busy polling state of a connection whose client answers quickly, with the permit
    /// `lookout`. The state allows polling even on a busy machine.
    fn quick(lookout: &BusyPollPermit) -> RequestBusyPollState {
        let mut spin = RequestBusyPollState::new(lookout.clone());
        spin.history = BusyPollHistory {
            is_enabled: true,
            gap_max: Duration::from_secs(20),
            quick_arrivals: QUICK_ARRIVALS_MIN,
        };
        spin
    }

    /// Polls `input` once with the state `spin`. Returns the data that was read, if any. Also
    /// returns true if the task was woken at once.
    fn found(spin: &mut RequestBusyPollState, input: &impl AsFd) -> (Option<Vec<u8>>, bool) {
        let woken = Arc::new(WakeCounter(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut bytes = [0; 64];
        let mut buffer = ReadBuf::new(&mut bytes);
        let found = spin.try_spin_read(input, &mut Context::from_waker(&waker), &mut buffer);
        let read = found.then(|| buffer.filled().to_vec());
        (read, woken.0.load(Ordering::SeqCst) > 0)
    }

    const AGAIN: (Option<Vec<u8>>, bool) = (None, true);
    const WAITS: (Option<Vec<u8>>, bool) = (None, false);

    #[test]
    fn a_quick_client_is_polled_after_its_answer_once_other_tasks_have_run() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let mut spin = quick(&BusyPollPermit::default());
        assert_eq!(found(&mut spin, &server), WAITS, "it has no answer yet");
        spin.note_answer();
        assert_eq!(found(&mut spin, &server), AGAIN);
        client.write_all(b"next").expect("the write succeeds");
        assert_eq!(found(&mut spin, &server), (Some(b"next".to_vec()), false));
        spin.note_arrival();
        assert_eq!(found(&mut spin, &server), WAITS, "its request is in progress");
        let mut slow = RequestBusyPollState::new(BusyPollPermit::default());
        slow.note_answer();
        assert_eq!(found(&mut slow, &server), WAITS);
    }

    #[test]
    fn only_one_client_is_polled_at_a_time() {
        let (_client, server) = UnixStream::pair().expect("a pair");
        let permit = BusyPollPermit::default();
        let mut one = quick(&permit);
        let mut other = quick(&permit);
        one.note_answer();
        other.note_answer();
        assert_eq!([found(&mut one, &server), found(&mut other, &server)], [AGAIN, WAITS]);
        one.note_arrival();
        assert_eq!(found(&mut other, &server), AGAIN);
        one.note_answer();
        assert_eq!(found(&mut one, &server), WAITS);
        drop(other);
        assert_eq!(found(&mut one, &server), AGAIN);
    }

    #[test]
    fn a_slow_client_is_not_polled_until_it_is_quick_again() {
        let (_client, server) = UnixStream::pair().expect("a pair");
        let mut spin = quick(&BusyPollPermit::default());
        spin.history.gap_max = Duration::ZERO;
        spin.note_answer();
        assert_eq!(found(&mut spin, &server), AGAIN);
        assert_eq!(found(&mut spin, &server), WAITS);
        spin.history.gap_max = Duration::from_secs(20);
        assert_eq!(found(&mut spin, &server), WAITS);
        for _ in 0..QUICK_ARRIVALS_MIN {
            spin.note_arrival();
            spin.note_answer();
        }
        assert_eq!(found(&mut spin, &server), AGAIN);
    }
}
