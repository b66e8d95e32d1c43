//! Work that outlives the request it began in: a client that disconnects can cancel it, but never
//! cuts it off midway.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use toolgate_contract::BoxFuture;

/// Work that is either finished or runs in its own task.
pub(crate) enum WorkProgress<T> {
    /// Finished work with its result.
    Done(T),
    /// Task that continues the work.
    Spawned(JoinHandle<T>),
}

/// Polls `work` once and spawns a task only if it has to wait. Most calls finish at once and need
/// no task.
pub(crate) async fn run_or_spawn<T: Send + 'static>(
    mut work: BoxFuture<'static, T>,
) -> WorkProgress<T> {
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => WorkProgress::Done(done),
        Poll::Pending => WorkProgress::Spawned(tokio::spawn(work)),
    }
}

/// Work that runs in place while it is awaited, without a task. Dropping it moves the rest to a
/// task of its own.
pub(crate) struct DetachableWork<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> DetachableWork<T> {
    /// Polls `work` once. Returns its result, or the unfinished rest.
    pub(crate) async fn start(work: BoxFuture<'static, T>) -> Result<T, Self> {
        let mut going = Self(Some(work));
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut going).poll(cx))).await {
            Poll::Ready(Some(done)) => Ok(done),
            Poll::Ready(None) | Poll::Pending => Err(going),
        }
    }

    /// Spawns a task that finishes the work.
    pub(crate) fn detach(mut self) -> JoinHandle<Option<T>> {
        let work = self.0.take();
        tokio::spawn(async move { Self(work).await })
    }
}

impl<T: Send + 'static> Future for DetachableWork<T> {
    type Output = Option<T>;

    /// Yields the result, or `None` if the work panicked.
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
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_goes_on_to_its_end() {
        let (go_on, told) = oneshot::channel::<()>();
        let (done, heard) = oneshot::channel();
        let work = async move {
            let _ = told.await;
            let _ = done.send("done");
        };
        let going = DetachableWork::start(Box::pin(work)).await.expect_err("it waits");
        drop(going);
        go_on.send(()).expect("it waits still");
        assert_eq!(heard.await, Ok("done"));
    }

    #[tokio::test]
    async fn what_need_not_wait_is_done_at_once_and_what_breaks_off_comes_to_nothing() {
        assert_eq!(DetachableWork::start(Box::pin(async { 7 })).await.ok(), Some(7));
        let broken = async {
            tokio::task::yield_now().await;
            panic!("a fault in it");
        };
        let going = DetachableWork::<()>::start(Box::pin(broken)).await.expect_err("it waits");
        assert_eq!(going.await, None);
    }

    #[tokio::test]
    async fn what_is_set_apart_comes_to_the_same() {
        let work = async {
            tokio::task::yield_now().await;
            7
        };
        let going = DetachableWork::start(Box::pin(work)).await.expect_err("it waits");
        assert_eq!(going.detach().await.expect("no panic"), Some(7));
    }
}
