//! Busy polling for the next request of a quick HTTP client, instead of sleeping.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Instant;

use tokio::io::ReadBuf;

use crate::rhythm::Rhythm;
use crate::stdio::eager;

/// Permit to poll, one per listener. At most one processor is spent on busy polling.
#[derive(Debug, Clone, Default)]
pub(super) struct Lookout(Arc<AtomicBool>);

/// Polling state of one connection.
#[derive(Debug)]
pub(super) struct Keen {
    rhythm: Rhythm,
    /// Time of the last write, if nothing has arrived since.
    answered: Option<Instant>,
    lookout: Lookout,
    looks: Option<Looks>,
}

/// Held [`Lookout`] permit, returned on drop.
#[derive(Debug)]
struct Looks(Lookout);

impl Keen {
    pub(super) fn new(lookout: Lookout) -> Self {
        Self { rhythm: Rhythm::new(), answered: None, lookout, looks: None }
    }

    /// Records that something was sent to the client.
    pub(super) fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    /// Records that data has arrived.
    pub(super) fn came(&mut self) {
        self.looks = None;
        if let Some(since) = self.answered.take() {
            self.rhythm.came_after(since.elapsed());
        }
    }

    /// Polls `input` for a moment if the client is quick, after other ready tasks have run. Returns
    /// true if data was read.
    pub(super) fn finds(
        &mut self,
        input: &impl AsFd,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> bool {
        let Some(since) = self.answered.filter(|_| self.rhythm.is_quick()) else { return false };
        if self.looks.is_none() {
            if self.takes() {
                cx.waker().wake_by_ref();
            }
            return false;
        }
        // An error here occurs again at the next read, which reports it.
        let found = eager::look(input, since + self.rhythm.within, buffer);
        self.looks = None;
        match found {
            Ok(true) => true,
            Ok(false) | Err(_) => {
                self.rhythm.missed();
                false
            }
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
    use std::io::Write;
    use std::os::unix::net::UnixStream;
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

    /// What is found of `keen`'s client, and whether it is to be polled again at once.
    fn found(keen: &mut Keen, input: &impl AsFd) -> (Option<Vec<u8>>, bool) {
        let woken = Arc::new(Counted(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut bytes = [0; 64];
        let mut buffer = ReadBuf::new(&mut bytes);
        let found = keen.finds(input, &mut Context::from_waker(&waker), &mut buffer);
        let read = found.then(|| buffer.filled().to_vec());
        (read, woken.0.load(Ordering::SeqCst) > 0)
    }

    const AGAIN: (Option<Vec<u8>>, bool) = (None, true);
    const WAITS: (Option<Vec<u8>>, bool) = (None, false);

    #[test]
    fn a_client_that_was_answered_and_is_quick_is_looked_for_once_all_else_has_run() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let mut keen = quick(&Lookout::default());
        assert_eq!(found(&mut keen, &server), WAITS, "it was not answered yet");
        keen.answered();
        assert_eq!(found(&mut keen, &server), AGAIN);
        client.write_all(b"next").expect("it is taken");
        assert_eq!(found(&mut keen, &server), (Some(b"next".to_vec()), false));
        keen.came();
        assert_eq!(found(&mut keen, &server), WAITS, "what it asks is worked on");
        let mut slow = Keen::new(Lookout::default());
        slow.answered();
        assert_eq!(found(&mut slow, &server), WAITS);
    }

    #[test]
    fn one_client_at_a_time_is_looked_for() {
        let (_client, server) = UnixStream::pair().expect("a pair");
        let lookout = Lookout::default();
        let mut one = quick(&lookout);
        let mut other = quick(&lookout);
        one.answered();
        other.answered();
        assert_eq!([found(&mut one, &server), found(&mut other, &server)], [AGAIN, WAITS]);
        one.came();
        assert_eq!(found(&mut other, &server), AGAIN);
        one.answered();
        assert_eq!(found(&mut one, &server), WAITS);
        drop(other);
        assert_eq!(found(&mut one, &server), AGAIN);
    }

    #[test]
    fn a_client_that_does_not_come_soon_is_given_up_until_it_is_quick_again() {
        let (_client, server) = UnixStream::pair().expect("a pair");
        let mut keen = quick(&Lookout::default());
        keen.rhythm.within = Duration::ZERO;
        keen.answered();
        assert_eq!(found(&mut keen, &server), AGAIN);
        assert_eq!(found(&mut keen, &server), WAITS);
        keen.rhythm.within = Duration::from_secs(20);
        assert_eq!(found(&mut keen, &server), WAITS);
        for _ in 0..OFTEN {
            keen.came();
            keen.answered();
        }
        assert_eq!(found(&mut keen, &server), AGAIN);
    }
}
