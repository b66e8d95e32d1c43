//! Futures that may outlive the request that started them. If the client disconnects, such a future
//! may be cancelled, but always runs its cleanup.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use toolgate_contract::BoxFuture;

/// State of work that may outlive its request: finished, or running in a separate task.
pub(crate) enum DetachableWorkState<T> {
    /// The work is finished, with this result.
    Done(T),
    /// The work continues in this task.
    Spawned(JoinHandle<T>),
}

/// Polls `work` once. If the work has to wait, spawns a task for the rest. Most calls finish at the
/// first poll and need no task.
pub(crate) async fn run_or_spawn<T: Send + 'static>(
    mut work: BoxFuture<'static, T>,
) -> DetachableWorkState<T> {
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => DetachableWorkState::Done(done),
        Poll::Pending => DetachableWorkState::Spawned(toolgate_net::spawn_task(work)),
    }
}

/// Returns a future that runs `work`, and keeps `kept`, such as the memory of a request, until
/// `work` is done.
pub(crate) fn keep_until_done<T: Send + 'static>(
    kept: Option<impl Send + 'static>,
    work: BoxFuture<'static, T>,
) -> BoxFuture<'static, T> {
    let Some(kept) = kept else { return work };
    Box::pin(async move {
        let done = work.await;
        drop(kept);
        done
    })
}

/// Future that runs in the task which awaits it. If the future is dropped before its end, a new
/// task runs it to the end.
pub(crate) struct DetachableWork<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> DetachableWork<T> {
    /// Polls `work` once. Returns the result if the work is done, or the unfinished work as an
    /// error.
    pub(crate) async fn start(work: BoxFuture<'static, T>) -> Result<T, Self> {
        let mut unfinished = Self(Some(work));
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut unfinished).poll(cx))).await {
            Poll::Ready(Some(done)) => Ok(done),
            Poll::Ready(None) | Poll::Pending => Err(unfinished),
        }
    }

    /// Spawns a task that finishes the work even if nobody waits for the result.
    pub(crate) fn detach(mut self) -> JoinHandle<Option<T>> {
        let work = self.0.take();
        toolgate_net::spawn_task(async move { Self(work).await })
    }
}

impl<T: Send + 'static> Future for DetachableWork<T> {
    type Output = Option<T>;

    /// Returns the result of the work, or `None` if the work panicked.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(work) = &mut self.0 else { return Poll::Ready(None) };
        // A panic in the work must not take down the connection that awaits it.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => {
                self.0 = None;
                Poll::Ready(Some(done))
            }
            Err(_) => {
                self.0 = None;
                Poll::Ready(None)
            }
        }
    }
}

impl<T: Send + 'static> Drop for DetachableWork<T> {
    fn drop(&mut self) {
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            toolgate_net::spawn_task_on(&runtime, work);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn dropped_work_continues_to_its_end() {
        let (resume, resumed) = oneshot::channel::<()>();
        let (done, result) = oneshot::channel();
        let work = async move {
            let _ = resumed.await;
            let _ = done.send("done");
        };
        let unfinished = DetachableWork::start(Box::pin(work)).await.expect_err("it waits");
        drop(unfinished);
        resume.send(()).expect("it waits still");
        assert_eq!(result.await, Ok("done"));
    }

    #[tokio::test]
    async fn ready_work_finishes_at_once_and_a_panic_gives_none() {
        assert_eq!(DetachableWork::start(Box::pin(async { 7 })).await.ok(), Some(7));
        let panicking = async {
            tokio::task::yield_now().await;
            panic!("a bug in the work");
        };
        let unfinished =
            DetachableWork::<()>::start(Box::pin(panicking)).await.expect_err("it waits");
        assert_eq!(unfinished.await, None);
    }

    #[tokio::test]
    async fn the_memory_of_dropped_work_is_kept_until_its_end() {
        let kept = std::sync::Arc::new(());
        let (resume, resumed) = oneshot::channel::<()>();
        let work = Box::pin(async move { drop(resumed.await) });
        let work = keep_until_done(Some(kept.clone()), work);
        drop(DetachableWork::start(work).await.expect_err("it waits"));
        assert_eq!(std::sync::Arc::strong_count(&kept), 2);
        resume.send(()).expect("it waits still");
        while std::sync::Arc::strong_count(&kept) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn detached_work_gives_its_result() {
        let work = async {
            tokio::task::yield_now().await;
            7
        };
        let unfinished = DetachableWork::start(Box::pin(work)).await.expect_err("it waits");
        assert_eq!(unfinished.detach().await.expect("no panic"), Some(7));
    }
}
