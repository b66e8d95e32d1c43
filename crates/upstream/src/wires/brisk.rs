//! Looking for an answer for a moment, where answers come soon, instead of sleeping: to put a
//! thread to sleep and wake it takes longer than a server on this machine may take to answer. One
//! that is not quick costs nothing here but a look at the clock. Where the runtime has several
//! threads each look would wake another of them, which costs more than it saves.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Within how long an answer has come soon; for longer than this it is not looked for.
const SOON: Duration = Duration::from_micros(150);
/// How often in a row it has to, before answers are looked for.
const OFTEN: u32 = 4;

/// How soon answers come.
pub(super) struct Brisk {
    /// Whether it matters at all: on a single processor an answer would be looked for in the place
    /// of whoever gives it.
    can: bool,
    /// How often in a row one came soon.
    soon: AtomicU32,
}

impl Brisk {
    pub(super) fn new() -> Self {
        let can = available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Self { can, soon: AtomicU32::new(0) }
    }

    /// What `answer` comes to. One that is `alone` is looked for; whatever else is ready runs
    /// before each look.
    pub(super) async fn wait<F: Future>(&self, alone: bool, answer: F) -> F::Output {
        if !alone || !self.can || !is_alone_on_its_thread() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        let begun = Instant::now();
        if self.soon.load(Ordering::Relaxed) >= OFTEN {
            while begun.elapsed() < SOON {
                let looked = std::future::poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
                match looked {
                    Poll::Ready(answer) => return answer,
                    Poll::Pending => tokio::task::yield_now().await,
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
}

/// Whether the runtime has this thread alone.
fn is_alone_on_its_thread() -> bool {
    Handle::try_current()
        .is_ok_and(|runtime| matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_looked_for_where_that_would_wake_another_thread() {
        let brisk = Brisk { can: true, soon: AtomicU32::new(OFTEN) };
        brisk.wait(true, tokio::time::sleep(SOON * 2)).await;
        assert_eq!(brisk.soon.load(Ordering::Relaxed), OFTEN, "it was only waited for");
    }

    #[tokio::test]
    async fn answers_are_looked_for_once_several_came_soon_and_until_one_does_not() {
        let brisk = Brisk { can: true, soon: AtomicU32::new(0) };
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
}
