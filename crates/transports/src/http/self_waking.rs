//! Polls a future that often wakes itself, without waking its task each time.
//!
//! hyper's connections wake themselves for every body. The runtime would treat this as new work and
//! wake another thread for it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Maximum number of polls of a future in a row before other tasks get their turn.
const POLLS_IN_A_ROW_MAX: usize = 4;

/// State of a future that is not being polled. A wake-up wakes the task.
const IDLE: u8 = 0;
/// State of a future that is being polled.
const POLLING: u8 = 1;
/// State of a future that was woken while it was being polled.
const WOKEN: u8 = 2;

/// Wrapper of a future. If the future wakes itself while it is polled, the wrapper polls it again
/// at once.
pub(super) struct SelfWakingFuture<F> {
    pub(super) future: F,
    wake_state: Arc<SelfWakeState>,
    waker: Waker,
}

struct SelfWakeState {
    state: AtomicU8,
    task: AtomicWaker,
}

impl<F> SelfWakingFuture<F> {
    pub(super) fn new(future: F) -> Self {
        let wake_state =
            Arc::new(SelfWakeState { state: AtomicU8::new(IDLE), task: AtomicWaker::new() });
        Self { future, waker: wake_state.clone().into(), wake_state }
    }
}

impl<F: Future + Unpin> Future for SelfWakingFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wake_state, waker } = &mut *self;
        wake_state.task.register(cx.waker());
        let mut quietly = Context::from_waker(waker);
        for _ in 0..POLLS_IN_A_ROW_MAX {
            wake_state.state.store(POLLING, Ordering::SeqCst);
            let polled = Pin::new(&mut *future).poll(&mut quietly);
            let is_idle = wake_state.state.compare_exchange(
                POLLING,
                IDLE,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if polled.is_ready() || is_idle.is_ok() {
                return polled;
            }
        }
        wake_state.state.store(IDLE, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for SelfWakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let was = self.state.compare_exchange(POLLING, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if was == Err(IDLE) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::ready;

    use super::*;

    /// Waker for tests that counts how often it is woken.
    struct PollWakeCounter(AtomicUsize);

    impl Wake for PollWakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A future that wakes itself `left` times before it is done.
    struct SelfWakingCountdown {
        left: usize,
    }

    impl Future for SelfWakingCountdown {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.left == 0 {
                return Poll::Ready(());
            }
            self.left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }

    fn polled(future: &mut (impl Future + Unpin), woken: &Arc<PollWakeCounter>) -> bool {
        let waker = Waker::from(woken.clone());
        Pin::new(future).poll(&mut Context::from_waker(&waker)).is_ready()
    }

    #[test]
    fn a_few_self_wakes_do_not_wake_the_task_and_many_yield_to_others() {
        let woken = Arc::new(PollWakeCounter(AtomicUsize::new(0)));
        assert!(polled(
            &mut SelfWakingFuture::new(SelfWakingCountdown { left: POLLS_IN_A_ROW_MAX - 1 }),
            &woken
        ));
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        let mut long = SelfWakingFuture::new(SelfWakingCountdown { left: POLLS_IN_A_ROW_MAX });
        assert!(!polled(&mut long, &woken));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(polled(&mut long, &woken));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_from_another_thread_is_lost() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let sending = std::thread::spawn(move || {
            for number in 0..20_000 {
                sender.blocking_send(number).expect("the receiver lives");
            }
        });
        let mut received = 0;
        let all = std::future::poll_fn(move |cx| {
            while let Some(number) = ready!(receiver.poll_recv(cx)) {
                assert_eq!(number, received);
                received += 1;
            }
            Poll::Ready(received)
        });
        let all = tokio::spawn(SelfWakingFuture::new(Box::pin(all)));
        let all = tokio::time::timeout(std::time::Duration::from_secs(60), all);
        assert_eq!(all.await.expect("no timeout").expect("no panic"), 20_000);
        sending.join().expect("no panic");
    }
}
