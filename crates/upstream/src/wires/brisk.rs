//! Looking for an answer for a moment, where answers come soon, instead of sleeping: to put a
//! thread to sleep and wake it takes longer than a server on this machine may take to answer. One
//! that is not quick costs nothing here but a look at the clock.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;

/// Within how long an answer has come soon; for longer than this it is not looked for.
const SOON: Duration = Duration::from_micros(150);
/// How often in a row it has to, before answers are looked for.
const OFTEN: u32 = 4;

/// Whether a thread looks: one at a time does, so that never more than one processor is spent on it.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// How soon answers come.
pub(super) struct Brisk {
    /// Whether it matters at all: on a single processor an answer would be looked for in the place
    /// of whoever gives it.
    can: bool,
    /// How often in a row one came soon.
    soon: AtomicU32,
    who: Who,
}

/// Who looks.
enum Who {
    /// Whoever waits for the answer, and whatever else is ready runs before each look. Where the
    /// runtime has several threads nobody does: each look would wake another of them.
    Waiter,
    /// Whoever reads what comes, once it is told.
    Reader { told: Notify, is_wanted: AtomicBool },
}

impl Brisk {
    /// Where whoever waits looks.
    pub(super) fn new() -> Self {
        let can = available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Self { can, soon: AtomicU32::new(0), who: Who::Waiter }
    }

    /// Where whoever reads does, when it [is told](Self::is_wanted).
    pub(super) fn reader() -> Self {
        let who = Who::Reader { told: Notify::new(), is_wanted: AtomicBool::new(false) };
        Self { who, ..Self::new() }
    }

    /// The same, of one whose answers have come soon.
    #[cfg(test)]
    pub(super) fn quick_reader() -> Self {
        Self { can: true, soon: AtomicU32::new(OFTEN), ..Self::reader() }
    }

    /// What `answer` comes to. One that is `alone` is looked for.
    pub(super) async fn wait<F: Future>(&self, alone: bool, answer: F) -> F::Output {
        if !alone || !self.can || !self.who.can_look() {
            return answer.await;
        }
        let begun = Instant::now();
        let mut answer = pin!(answer);
        if self.soon.load(Ordering::Relaxed) >= OFTEN {
            match &self.who {
                Who::Reader { told, is_wanted } => {
                    is_wanted.store(true, Ordering::Release);
                    told.notify_one();
                }
                Who::Waiter => {
                    while begun.elapsed() < SOON {
                        let looked =
                            std::future::poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
                        match looked {
                            Poll::Ready(answer) => return answer,
                            Poll::Pending => tokio::task::yield_now().await,
                        }
                    }
                }
            }
        }
        let answer = answer.await;
        match begun.elapsed() < SOON {
            true => self.soon.fetch_add(1, Ordering::Relaxed),
            false => self.soon.swap(0, Ordering::Relaxed),
        };
        answer
    }

    /// Ends when whoever reads is to look.
    pub(super) async fn is_wanted(&self) {
        let Who::Reader { told, is_wanted } = &self.who else {
            return std::future::pending().await;
        };
        loop {
            told.notified().await;
            if is_wanted.swap(false, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Something came: nothing is to be looked for any more.
    pub(super) fn came(&self) {
        if let Who::Reader { is_wanted, .. } = &self.who {
            is_wanted.store(false, Ordering::Release);
        }
    }
}

impl Who {
    fn can_look(&self) -> bool {
        match self {
            Self::Reader { .. } => true,
            Self::Waiter => Handle::try_current().is_ok_and(|runtime| {
                matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread)
            }),
        }
    }
}

/// Looks by `look`, which is told until when; whether it found anything.
pub(super) fn look(look: impl FnOnce(Instant) -> bool) -> bool {
    if LOOKS.swap(true, Ordering::Acquire) {
        return false;
    }
    let found = look(Instant::now() + SOON);
    LOOKS.store(false, Ordering::Release);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_looked_for_where_that_would_wake_another_thread() {
        let brisk = Brisk { can: true, soon: AtomicU32::new(OFTEN), who: Who::Waiter };
        brisk.wait(true, tokio::time::sleep(SOON * 2)).await;
        assert_eq!(brisk.soon.load(Ordering::Relaxed), OFTEN, "it was only waited for");
    }

    #[tokio::test]
    async fn answers_are_looked_for_once_several_came_soon_and_until_one_does_not() {
        let brisk = Brisk { can: true, ..Brisk::new() };
        let soon = || brisk.soon.load(Ordering::Relaxed);
        for at in 0..OFTEN {
            assert_eq!(soon(), at);
            brisk.wait(true, async {}).await;
        }
        brisk.wait(false, tokio::time::sleep(SOON * 2)).await;
        assert_eq!(soon(), OFTEN, "what is not alone says nothing");
        brisk.wait(true, tokio::time::sleep(SOON * 2)).await;
        assert_eq!(soon(), 0);
    }

    #[tokio::test]
    async fn whoever_reads_is_told_to_look_and_not_once_it_has_read() {
        let brisk = Brisk::quick_reader();
        let is_wanted = async || {
            let now = tokio::time::timeout(Duration::ZERO, brisk.is_wanted());
            now.await.is_ok()
        };
        assert!(!is_wanted().await, "nothing is waited for");
        brisk.wait(true, tokio::task::yield_now()).await;
        assert!(is_wanted().await);
        assert!(!is_wanted().await, "it was told once");
        brisk.wait(true, tokio::task::yield_now()).await;
        brisk.came();
        assert!(!is_wanted().await);
        brisk.wait(false, tokio::task::yield_now()).await;
        assert!(!is_wanted().await, "several may be meant");
    }
}
