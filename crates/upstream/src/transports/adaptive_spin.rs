//! Busy polling (spinning) for the answers of a fast upstream.
//!
//! Putting a thread to sleep and waking it can take longer than a server on this machine takes to
//! answer. For slow upstreams, the only additional cost is one read of the clock.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;

/// Longest time for which a thread spins (polls without sleeping) for an answer. An answer within
/// this time counts as fast.
const SPIN_TIME: Duration = Duration::from_micros(150);
/// Number of fast answers in a row after which threads spin for the next answer.
const FAST_ANSWERS_MIN: u32 = 4;

/// True while a thread spins (polls without sleeping) for an answer. Only one thread may spin at a
/// time, so that spinning uses at most one processor.
static IS_SPINNING: AtomicBool = AtomicBool::new(false);

/// Record of an upstream's fast answers. If several answers in a row were fast, a task spins (polls
/// without sleeping) for the next answer.
pub(super) struct AnswerBusyPollState {
    /// False on a machine with a single processor, where spinning would block the server that
    /// answers.
    is_multiprocessor: bool,
    /// Number of fast answers of the upstream in a row.
    fast_answers: AtomicU32,
    spinner: AnswerBusyPollTask,
}

/// The task that spins (polls without sleeping) for an answer.
enum AnswerBusyPollTask {
    /// The task that waits for the answer, which yields between polls. The task spins only on a
    /// single-threaded runtime, because each poll would wake a further thread on other runtimes.
    Waiter,
    /// The task that reads from the connection. The reader spins when a waiting task asks for it.
    Reader { signal: Notify, is_wanted: AtomicBool },
}

impl AnswerBusyPollState {
    /// Creates the state for transports on which the task that waits for an answer spins.
    pub(super) fn new() -> Self {
        let is_multiprocessor =
            available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Self {
            is_multiprocessor,
            fast_answers: AtomicU32::new(0),
            spinner: AnswerBusyPollTask::Waiter,
        }
    }

    /// Creates the state for transports on which the reader of the connection spins, [on
    /// request](Self::is_wanted).
    pub(super) fn for_reader() -> Self {
        let spinner =
            AnswerBusyPollTask::Reader { signal: Notify::new(), is_wanted: AtomicBool::new(false) };
        Self { spinner, ..Self::new() }
    }

    /// Creates the state for the reader of a connection that has already received fast answers.
    #[cfg(test)]
    pub(super) fn for_fast_reader() -> Self {
        Self {
            is_multiprocessor: true,
            fast_answers: AtomicU32::new(FAST_ANSWERS_MIN),
            ..Self::for_reader()
        }
    }

    /// Waits for `answer`. May spin (poll without sleeping) if no other request is in flight
    /// (`alone`).
    pub(super) async fn wait<F: Future>(&self, alone: bool, answer: F) -> F::Output {
        if !alone || !self.is_multiprocessor || !self.spinner.can_spin() {
            return answer.await;
        }
        let begun = Instant::now();
        let mut answer = pin!(answer);
        if self.fast_answers.load(Ordering::Relaxed) >= FAST_ANSWERS_MIN {
            match &self.spinner {
                AnswerBusyPollTask::Reader { signal, is_wanted } => {
                    is_wanted.store(true, Ordering::Release);
                    signal.notify_one();
                }
                AnswerBusyPollTask::Waiter => {
                    while begun.elapsed() < SPIN_TIME {
                        let polled =
                            std::future::poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await;
                        match polled {
                            Poll::Ready(answer) => return answer,
                            Poll::Pending => tokio::task::yield_now().await,
                        }
                    }
                }
            }
        }
        let answer = answer.await;
        match begun.elapsed() < SPIN_TIME {
            true => self.fast_answers.fetch_add(1, Ordering::Relaxed),
            false => self.fast_answers.swap(0, Ordering::Relaxed),
        };
        answer
    }

    /// Waits until a task that waits for an answer asks the reader to spin (poll without sleeping).
    pub(super) async fn wait_wanted(&self) {
        let AnswerBusyPollTask::Reader { signal, is_wanted } = &self.spinner else {
            return std::future::pending().await;
        };
        loop {
            signal.notified().await;
            if is_wanted.swap(false, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Records that data arrived and cancels the request to spin.
    pub(super) fn record_data(&self) {
        if let AnswerBusyPollTask::Reader { is_wanted, .. } = &self.spinner {
            is_wanted.store(false, Ordering::Release);
        }
    }
}

impl AnswerBusyPollTask {
    fn can_spin(&self) -> bool {
        match self {
            Self::Reader { .. } => true,
            Self::Waiter => Handle::try_current().is_ok_and(|runtime| {
                matches!(runtime.runtime_flavor(), RuntimeFlavor::CurrentThread)
            }),
        }
    }
}

/// Calls `look` with a deadline, up to which `look` may poll without sleeping. Returns false
/// without a call if another thread polls already. Returns true if `look` found data.
pub(super) fn spin(look: impl FnOnce(Instant) -> bool) -> bool {
    if IS_SPINNING.swap(true, Ordering::Acquire) {
        return false;
    }
    let found = look(Instant::now() + SPIN_TIME);
    IS_SPINNING.store(false, Ordering::Release);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiter_does_not_spin_on_a_multi_threaded_runtime() {
        let answer_spin = AnswerBusyPollState {
            is_multiprocessor: true,
            fast_answers: AtomicU32::new(FAST_ANSWERS_MIN),
            spinner: AnswerBusyPollTask::Waiter,
        };
        answer_spin.wait(true, tokio::time::sleep(SPIN_TIME * 2)).await;
        assert_eq!(
            answer_spin.fast_answers.load(Ordering::Relaxed),
            FAST_ANSWERS_MIN,
            "the waiter did not spin"
        );
    }

    #[tokio::test]
    async fn spinning_starts_after_several_fast_answers_and_ends_after_a_slow_one() {
        let answer_spin =
            AnswerBusyPollState { is_multiprocessor: true, ..AnswerBusyPollState::new() };
        let fast_answers = || answer_spin.fast_answers.load(Ordering::Relaxed);
        for at in 0..FAST_ANSWERS_MIN {
            assert_eq!(fast_answers(), at);
            answer_spin.wait(true, async {}).await;
        }
        answer_spin.wait(false, tokio::time::sleep(SPIN_TIME * 2)).await;
        assert_eq!(fast_answers(), FAST_ANSWERS_MIN, "a request that is not alone is not counted");
        answer_spin.wait(true, tokio::time::sleep(SPIN_TIME * 2)).await;
        assert_eq!(fast_answers(), 0);
    }

    #[tokio::test]
    async fn the_reader_is_asked_to_spin_until_it_has_read() {
        let answer_spin = AnswerBusyPollState::for_fast_reader();
        let is_wanted = async || {
            let now = tokio::time::timeout(Duration::ZERO, answer_spin.wait_wanted());
            now.await.is_ok()
        };
        assert!(!is_wanted().await, "no request waits");
        answer_spin.wait(true, tokio::task::yield_now()).await;
        assert!(is_wanted().await);
        assert!(!is_wanted().await, "the request is consumed");
        answer_spin.wait(true, tokio::task::yield_now()).await;
        answer_spin.record_data();
        assert!(!is_wanted().await);
        answer_spin.wait(false, tokio::task::yield_now()).await;
        assert!(!is_wanted().await, "other requests are in flight");
    }
}
