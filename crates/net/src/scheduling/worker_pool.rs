//! Threads that each serve their own connections.
//!
//! A multi-threaded runtime wakes other threads when work is ready, which takes longer than most
//! calls. Connections that stay on one thread avoid this.

use std::io;
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
/// share the pool. The threads and their connections end when [`end`](Self::end) is called or the last
/// clone is dropped.
#[derive(Debug, Clone)]
pub struct WorkerPool(Arc<[WorkerThread]>);

/// Thread of the pool. Dropping this value stops the thread.
#[derive(Debug)]
struct WorkerThread {
    runtime: Handle,
    /// Connections that the thread serves.
    connections: TaskTracker,
    stop: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WorkerPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let processors = available_parallelism().map_or(1, usize::from);
        (0..processors).map(|_| WorkerThread::start()).collect::<io::Result<_>>().map(Self)
    }

    /// Stops the threads and everything that still runs on them.
    pub fn end(self) {
        self.0.iter().for_each(|worker| worker.stop.cancel());
        let threads = self.0.iter().filter_map(|worker| lock_mutex(&worker.thread).take());
        threads.for_each(|thread| drop(thread.join()));
    }

    /// Calls `serve` for the connection `stream` on the thread with the fewest connections.
    /// `connections` tracks the work until it ends.
    ///
    /// # Errors
    /// The stream cannot move from the runtime that accepted it to the one of the thread.
    pub fn serve<F: Future<Output = ()> + Send + 'static>(
        &self,
        stream: TcpStream,
        connections: &TaskTracker,
        serve: impl FnOnce(TcpStream) -> F,
    ) -> io::Result<()> {
        let idlest = self.0.iter().min_by_key(|worker| worker.connections.len());
        let worker = idlest.expect("there is at least one thread");
        let stream = stream.into_std()?;
        // A stream gets its events from the runtime in which it is created.
        let _entered = worker.runtime.enter();
        let served = worker.connections.track_future(serve(TcpStream::from_std(stream)?));
        connections.spawn_on(served, &worker.runtime);
        Ok(())
    }
}

impl WorkerThread {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread =
            std::thread::Builder::new().name("connections".to_owned()).spawn(move || {
                runtime.block_on(stopped.cancelled());
                runtime.shutdown_timeout(SHUTDOWN_WAIT_MAX);
            })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { runtime: handle, connections: TaskTracker::new(), stop, thread })
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.stop.cancel();
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
        let count = workers.0.len();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let connections = TaskTracker::new();
        let (report, mut threads) = mpsc::unbounded_channel();
        let (start, mut started) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for index in 0..2 * count {
            clients.push(TcpStream::connect(addr).await.expect("it listens"));
            let (stream, _) = listener.accept().await.expect("a connection");
            let report = report.clone();
            let start = start.clone();
            let serve = move |stream: TcpStream| async move {
                let before = std::thread::current().id();
                // Other tasks of a thread, such as those of an upstream, do not count.
                let others = if index == 0 { 5 } else { 0 };
                for _ in 0..others {
                    tokio::spawn(std::future::pending::<()>());
                }
                let _ = start.send(());
                let _ = stream.readable().await;
                let _ = report.send((before, std::thread::current().id()));
            };
            workers.serve(stream, &connections, serve).expect("the worker takes it");
            started.recv().await.expect("the connection is served");
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
