//! State that all sessions of a server share, and the shutdown of their calls.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_budget::{BlockingWorkPool, InputMemoryReservation};
use toolgate_contract::BoxFuture;
use toolgate_host::Host;

use crate::sessions::detachable::keep_until_done;
use crate::sessions::idle_tracker::IdleTracker;
use crate::sessions::streams::EndedEventStreams;
use crate::sessions::waiting_questions::WaitingQuestions;

/// Maximum time for which a long message waits to be parsed. The same limit applies to the parsing
/// itself.
const FRAME_TIME_MAX: Duration = Duration::from_secs(30);

/// State that all sessions of a server share.
pub struct ServerState {
    /// Host that answers requests.
    pub host: Arc<Host>,
    /// A token that is cancelled when shutdown starts. No new call or subscription begins after
    /// that.
    pub(crate) closing: CancellationToken,
    /// A token that is cancelled when the drain time at shutdown ends, together with the calls in
    /// flight.
    pub(super) stop: CancellationToken,
    /// Tracker of all running tasks of the server, including calls of disconnected clients.
    pub(super) running: TaskTracker,
    /// Ended event streams that clients may still resume.
    pub(super) ended_streams: Arc<EndedEventStreams>,
    /// Tracker of recent requests, which releases memory while the server is idle.
    pub(crate) idle_tracker: IdleTracker,
    /// Start of the ids of questions to clients. The servers of a fleet have different ones, because
    /// an answer may arrive at any of them.
    pub(super) question_id_prefix: Arc<str>,
    /// Questions to connected clients that wait for an answer.
    pub(crate) waiting_questions: Arc<WaitingQuestions>,
    /// Runtime that runs large requests, or `None` if this value was created outside of a runtime.
    background: Option<Handle>,
    /// Threads that parse long messages.
    pub(super) long_frames: BlockingWorkPool,
}

impl ServerState {
    /// Creates the state of a server that answers with `host`.
    pub fn new(host: Arc<Host>) -> Arc<Self> {
        let closing = CancellationToken::new();
        let stop = CancellationToken::new();
        let running = TaskTracker::new();
        let ended_streams = Arc::default();
        let idle_tracker = IdleTracker::default();
        let waiting_questions = Arc::default();
        let question_id_prefix = match host.shared_sessions() {
            None => "toolgate".into(),
            Some(_) => format!("toolgate-{:08x}", getrandom::u32().unwrap_or_default()).into(),
        };
        let processors = available_parallelism().map_or(1, usize::from);
        let long_frames = BlockingWorkPool::new(processors, FRAME_TIME_MAX);
        Arc::new(Self {
            host,
            closing,
            stop,
            running,
            ended_streams,
            idle_tracker,
            question_id_prefix,
            waiting_questions,
            background: Handle::try_current().ok(),
            long_frames,
        })
    }

    /// Returns a future for `work`, the work of a request. With `memory`, which large requests
    /// have, the future keeps the memory until the work is done, and the work runs on the
    /// background runtime, because its long steps would delay the other connections of this thread.
    pub(crate) fn spawn_large<T: Send + 'static>(
        &self,
        memory: Option<Arc<InputMemoryReservation>>,
        work: BoxFuture<'static, T>,
    ) -> BoxFuture<'static, T> {
        let Some(background) = self.background.as_ref().filter(|_| memory.is_some()) else {
            return keep_until_done(memory, work);
        };
        let running = background.spawn(keep_until_done(memory, work));
        Box::pin(async move {
            match running.await {
                Ok(done) => done,
                Err(err) if err.is_panic() => resume_unwind(err.into_panic()),
                // The runtime ends, and so does whoever waits.
                Err(_) => pending().await,
            }
        })
    }

    /// Waits until `shutdown` is cancelled, and lets calls in flight run for the time `drain`. Then
    /// cancels these calls and all jobs.
    pub(crate) async fn stop_after(self: Arc<Self>, shutdown: CancellationToken, drain: Duration) {
        shutdown.cancelled().await;
        self.closing.cancel();
        self.host.leave_waiting_jobs();
        tokio::time::sleep(drain).await;
        self.stop.cancel();
        // Jobs end at the same time as the calls, not after them.
        self.host.stop_jobs().await;
    }

    /// Waits until all running tasks of the server have ended.
    pub(crate) async fn wait_idle(&self) {
        self.running.close();
        self.running.wait().await;
    }
}
