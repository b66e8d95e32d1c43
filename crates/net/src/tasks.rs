//! Starts asynchronous tasks, and blocking work on separate threads.
//!
//! The compiler generates all code of a task, for each kind of runtime, for each future or closure
//! that Tokio's own functions get. In a crate with a hundred of them, this is a tenth of all code.
//! The futures and closures that these functions get are boxed, so they share the code of one task.

use std::any::Any;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

/// Starts `task` on the current runtime, like `tokio::spawn`.
///
/// # Panics
/// Panics outside of a Tokio runtime.
#[track_caller]
pub fn spawn_task<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task: ErasedTask<T> = Box::pin(task);
    tokio::spawn(task)
}

/// Starts `task` on `runtime`, like Tokio's `Handle::spawn`.
#[track_caller]
pub fn spawn_task_on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let task: ErasedTask<T> = Box::pin(task);
    runtime.spawn(task)
}

type ErasedTask<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs `work` on a thread for blocking work, like Tokio's function of the same name.
///
/// # Panics
/// Panics outside of a Tokio runtime.
#[track_caller]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingTask<T> {
    let work: ErasedWork = Box::new(move || Box::new(work()));
    BlockingTask { task: tokio::task::spawn_blocking(work), result: PhantomData }
}

type ErasedWork = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

/// Blocking work that runs on another thread. Awaiting it returns the result of the work, or an
/// error if the work panicked. Dropping it does not stop the work.
#[derive(Debug)]
pub struct BlockingTask<T> {
    task: JoinHandle<Box<dyn Any + Send>>,
    result: PhantomData<fn() -> T>,
}

impl<T: 'static> Future for BlockingTask<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.task).poll(cx));
        Poll::Ready(result.map(|result| *result.downcast().expect("the work returns a `T`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_returns_its_result_or_its_panic() {
        let runtime = Handle::current();
        assert_eq!(spawn_task(async { 1 }).await.expect("it has no panic"), 1);
        assert_eq!(spawn_task_on(&runtime, async { 2 }).await.expect("it has no panic"), 2);
        let panic = spawn_task(async { panic!("no") }).await.expect_err("it panics");
        assert_eq!(panic.into_panic().downcast_ref(), Some(&"no"));
    }

    #[tokio::test]
    async fn blocking_work_returns_its_result_or_its_panic() {
        let here = std::thread::current().id();
        let there = spawn_blocking(|| std::thread::current().id()).await.expect("it has no panic");
        assert_ne!(there, here);
        let panic = spawn_blocking(|| -> u8 { panic!("no") }).await.expect_err("it panics");
        assert_eq!(panic.into_panic().downcast_ref(), Some(&"no"));
    }
}
