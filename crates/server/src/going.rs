//! Work that was begun and may have to wait: where it goes on, so that a client that leaves can
//! cancel it and never cuts it half way.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use toolgate_contract::BoxFuture;

/// Work that was begun: done already, or going on in a task of its own.
pub(crate) enum Running<T> {
    /// It is done.
    Done(T),
    /// It goes on.
    On(JoinHandle<T>),
}

/// Runs `work` as far as it goes without waiting, and what is left in a task of its own: a call that
/// has nothing to wait for, as most have not, costs no task.
pub(crate) async fn now_or_spawned<T: Send + 'static>(
    mut work: BoxFuture<'static, T>,
) -> Running<T> {
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => Running::Done(done),
        Poll::Pending => Running::On(tokio::spawn(work)),
    }
}

/// Work that goes on where it is waited for, at the cost of no task, and in a task of its own once
/// nobody waits any more.
pub(crate) struct Going<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Going<T> {
    /// `work`, as far as it goes without waiting; what is left goes on.
    pub(crate) async fn begin(work: BoxFuture<'static, T>) -> Result<T, Self> {
        let mut going = Self(Some(work));
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut going).poll(cx))).await {
            Poll::Ready(Some(done)) => Ok(done),
            Poll::Ready(None) | Poll::Pending => Err(going),
        }
    }

    /// Has it go on in a task of its own.
    pub(crate) fn apart(mut self) -> JoinHandle<Option<T>> {
        let work = self.0.take();
        tokio::spawn(async move { Self(work).await })
    }
}

impl<T: Send + 'static> Future for Going<T> {
    type Output = Option<T>;

    /// What it comes to; nothing if it broke off.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(work) = &mut self.0 else { return Poll::Ready(None) };
        // A fault in it is not one of the connection that waits.
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

impl<T: Send + 'static> Drop for Going<T> {
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
        let going = Going::begin(Box::pin(work)).await.expect_err("it waits");
        drop(going);
        go_on.send(()).expect("it waits still");
        assert_eq!(heard.await, Ok("done"));
    }

    #[tokio::test]
    async fn what_need_not_wait_is_done_at_once_and_what_breaks_off_comes_to_nothing() {
        assert_eq!(Going::begin(Box::pin(async { 7 })).await.ok(), Some(7));
        let broken = async {
            tokio::task::yield_now().await;
            panic!("a fault in it");
        };
        let going = Going::<()>::begin(Box::pin(broken)).await.expect_err("it waits");
        assert_eq!(going.await, None);
    }

    #[tokio::test]
    async fn what_is_set_apart_comes_to_the_same() {
        let work = async {
            tokio::task::yield_now().await;
            7
        };
        let going = Going::begin(Box::pin(work)).await.expect_err("it waits");
        assert_eq!(going.apart().await.expect("no panic"), Some(7));
    }
}
