//! Threads that each serve their own connections.
//!
//! A multi-threaded runtime wakes other threads when work is ready, which takes longer than most
//! calls. Connections that stay on one thread avoid this.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, available_parallelism};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::lock_mutex;

/// Longest wait at shutdown for blocking tasks that cannot be cancelled.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_millis(200);

/// Pool of threads that serve connections: one per processor, each with its own runtime. Clones
/// share the pool.
#[derive(Debug, Clone)]
pub struct WorkerPool(Arc<WorkerPoolState>);

#[derive(Debug)]
struct WorkerPoolState {
    workers: Vec<WorkerPoolThread>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: CancellationToken,
}

/// Thread of the pool, with the number of its connections.
#[derive(Debug)]
struct WorkerPoolThread {
    runtime: Handle,
    /// Number of connections that the worker thread serves.
    connections: AtomicUsize,
}

/// Guard that counts one connection of a worker thread until it is dropped.
struct WorkerConnectionGuard(WorkerPool, usize);

impl WorkerPool {
    /// Starts the worker threads. They stop when [`end`](Self::end) is called or the last clone is
    /// dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let over = CancellationToken::new();
        // If a thread cannot be started, the guard stops the others.
        let guard = over.clone().drop_guard();
        let mut all = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            all.push(WorkerPoolThread {
                runtime: runtime.handle().clone(),
                connections: AtomicUsize::new(0),
            });
            let over = over.clone();
            let thread = std::thread::Builder::new().name("connections".to_owned());
            threads.push(thread.spawn(move || {
                runtime.block_on(over.cancelled());
                runtime.shutdown_timeout(SHUTDOWN_WAIT_MAX);
            })?);
        }
        guard.disarm();
        Ok(Self(Arc::new(WorkerPoolState {
            workers: all,
            threads: Mutex::new(threads),
            stop: over,
        })))
    }

    /// Stops the worker threads and everything that still runs on them.
    pub fn end(self) {
        let Self(inner) = &self;
        inner.stop.cancel();
        let threads = std::mem::take(&mut *lock_mutex(&inner.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Calls `serve` for the connection `stream` on the worker thread with the fewest connections.
    pub(super) fn serve<F>(
        &self,
        stream: TcpStream,
        connections: &TaskTracker,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = ()> + Send,
    {
        let Self(inner) = self;
        let serves = |at: &usize| inner.workers[*at].connections.load(Ordering::Relaxed);
        let at = (0..inner.workers.len()).min_by_key(serves).expect("there is at least one worker");
        inner.workers[at].connections.fetch_add(1, Ordering::Relaxed);
        let place = WorkerConnectionGuard(self.clone(), at);
        // A stream gets its events from the runtime that it is registered with.
        let stream = stream.into_std()?;
        let served = async move {
            let _place = place;
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(err) => tracing::warn!("cannot accept a connection: {err}"),
            }
        };
        connections.spawn_on(served, &inner.workers[at].runtime);
        Ok(())
    }
}

impl Drop for WorkerPoolState {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Drop for WorkerConnectionGuard {
    fn drop(&mut self) {
        let Self(WorkerPool(inner), at) = self;
        inner.workers[*at].connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn each_connection_stays_on_the_thread_with_the_fewest() {
        let workers = WorkerPool::start().expect("threads");
        let count = workers.0.workers.len();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let connections = TaskTracker::new();
        let (report, mut threads) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for _ in 0..2 * count {
            clients.push(TcpStream::connect(addr).await.expect("it listens"));
            let (stream, _) = listener.accept().await.expect("a connection");
            let report = report.clone();
            let serve = move |stream: TcpStream| async move {
                let before = std::thread::current().id();
                let _ = stream.readable().await;
                let _ = report.send((before, std::thread::current().id()));
            };
            workers.serve(stream, &connections, serve).expect("the worker takes it");
        }
        drop(clients);
        connections.close();
        connections.wait().await;
        let mut served = std::collections::HashMap::new();
        for _ in 0..2 * count {
            let (before, after) = threads.recv().await.expect("one report for each connection");
            assert_eq!(before, after);
            *served.entry(after).or_insert(0) += 1;
        }
        assert!(served.len() == count && served.values().all(|&many| many == 2), "{served:?}");
        workers.end();
    }
}
