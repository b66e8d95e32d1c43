//! One connected client: reads its messages and writes its answers and notifications.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use toolgate_contract::{
    BoxFuture, CallError, Caller, HostRequest, MessageFrame, Reply, ReplyBody, ToolError, ToolFault,
};
use toolgate_dialects::{
    ChangeSubscription, FrameReading, FrameRefusal, OnDisconnect, PendingRequest,
};

use crate::sessions::detachable::{WorkProgress, run_or_spawn};
use crate::sessions::session::{CallAnswer, ClientSession, OutboundChannel};
use crate::sync::lock_mutex;

/// Messages that may wait to be written before calls wait to answer.
const OUTBOX_MESSAGES_MAX: usize = 256;

/// Answers that may wait to be written before no new call begins, in KiB.
const UNWRITTEN_KIB_MAX: usize = 16 << 10;

/// Largest answer that does not count against [`UNWRITTEN_KIB_MAX`], in bytes.
const UNCOUNTED_BYTES_MAX: usize = 4 << 10;

/// Client that stays connected, over stdio, a WebSocket or a duplex conversation.
pub(crate) struct ConnectedClient {
    pub(crate) session: Arc<ClientSession>,
    outbox: mpsc::Sender<Bytes>,
    call_permits: Arc<Semaphore>,
    calls_max: usize,
    /// Permits for requests that only wait for a job, a subscription or the client's own answer.
    waiting_permits: Arc<Semaphore>,
    /// Permits for answers that wait to be written, one per KiB.
    unwritten_kib: Arc<Semaphore>,
    running_work: TaskTracker,
    /// Set once notifications are sent to the client.
    is_notified: AtomicBool,
}

impl ConnectedClient {
    /// Creates a client with up to `in_flight_max` calls in flight. Returns it with the queue of
    /// messages to write.
    pub(crate) fn new(
        session: Arc<ClientSession>,
        in_flight_max: usize,
    ) -> (Arc<Self>, mpsc::Receiver<Bytes>) {
        let (outbox, queue) = mpsc::channel(OUTBOX_MESSAGES_MAX);
        let client = Self {
            session,
            outbox,
            call_permits: Arc::new(Semaphore::new(in_flight_max)),
            calls_max: in_flight_max,
            waiting_permits: Arc::new(Semaphore::new(in_flight_max)),
            unwritten_kib: Arc::new(Semaphore::new(UNWRITTEN_KIB_MAX)),
            running_work: TaskTracker::new(),
            is_notified: AtomicBool::new(false),
        };
        (Arc::new(client), queue)
    }

    /// Handles one message from the session's own caller. Waits while too much is in flight.
    pub(crate) async fn receive(self: Arc<Self>, message: Bytes) {
        let caller = self.session.caller.clone();
        self.receive_from(&caller, message).await;
    }

    /// Handles one message that `caller` sent. Waits while too much is in flight.
    pub(crate) async fn receive_from(self: Arc<Self>, caller: &Caller, message: Bytes) {
        let reading = self.session.read(&MessageFrame::from_line(message));
        self.handle_reading(reading, caller).await;
    }

    /// Answers a message that was refused unread.
    pub(crate) async fn answer_refused(self: &Arc<Self>, why: &FrameRefusal) {
        let reading =
            self.session.dialect.reject_frame(&MessageFrame::from_line(Bytes::new()), why);
        self.clone().handle_reading(reading, &self.session.caller).await;
    }

    async fn handle_reading(self: Arc<Self>, reading: FrameReading, caller: &Caller) {
        match reading {
            FrameReading::Reply(reply) | FrameReading::CloseSession(reply) => {
                self.send(reply).await;
            }
            FrameReading::OpenSession(reply) => {
                self.send(reply).await;
                // Some clients initialize twice on one connection.
                if !self.is_notified.swap(true, Ordering::Relaxed) {
                    self.session.send_notifications(self.outbox.clone());
                }
            }
            FrameReading::Replies(replies) => {
                for reply in replies {
                    self.send(reply).await;
                }
            }
            FrameReading::Cancel { key, reply } => {
                self.session.cancel(&key);
                self.send(reply).await;
            }
            FrameReading::Watch(job) => self.session.watch_job(job, self.outbox.clone()),
            FrameReading::Subscribe(listening) => self.listen(listening, caller).await,
            // A connected client gets notifications anyway.
            FrameReading::OpenNotifications { .. } => {}
            FrameReading::Unwatch { uri, reply } => {
                self.session.unsubscribe(&uri);
                self.send(reply).await;
            }
            FrameReading::Response { id, heard, reply } => {
                self.session.receive_answer(&id, &heard);
                self.send(reply).await;
            }
            // Waiting for a job uses a separate permit, so that the message that ends the job can
            // still be read.
            FrameReading::Request(PendingRequest {
                request: HostRequest::AwaitJob { .. },
                encoder: ref ticket,
                ..
            }) => match self.waiting_permits.clone().try_acquire_owned() {
                Ok(place) => {
                    let place =
                        InFlightPermit::new(place, &self.waiting_permits, &self.waiting_permits);
                    self.start_work(reading, place, caller).await;
                }
                Err(_) => {
                    self.send_if_any(ticket.encode_reply(Err(self.too_many_waiting_error()))).await;
                }
            },
            FrameReading::Request(_) | FrameReading::Batch(_) => {
                let Ok(place) = self.acquire_permit(&reading).await else { return };
                let place = InFlightPermit::new(place, &self.call_permits, &self.waiting_permits);
                self.start_work(reading, place, caller).await;
            }
        }
    }

    /// Starts the work of `reading` in place and finishes it in a task if it has to wait.
    async fn start_work(
        self: Arc<Self>,
        reading: FrameReading,
        place: Arc<InFlightPermit>,
        caller: &Caller,
    ) {
        let out = OutboundChannel::Connected(self.outbox.clone(), place.clone());
        let pending = PendingAnswer::from_reading(reading, &self.session, &out, caller);
        let client = self.clone();
        let work = async move {
            let CallAnswer { reply, followed_job: follow } = pending.answer(&client.session).await;
            client.send_if_any(reply).await;
            if let Some(job) = follow {
                client.session.watch_job(job, client.outbox.clone());
            }
            place.release();
        };
        let running = run_or_spawn(Box::pin(self.running_work.track_future(work))).await;
        if let WorkProgress::Spawned(work) = running
            && self.session.dialect.answers_in_order()
        {
            // This dialect needs answers in order, so the next message waits.
            let _ = work.await;
        }
    }

    async fn listen(&self, listening: ChangeSubscription, caller: &Caller) {
        let Ok(place) = self.waiting_permits.clone().try_acquire_owned() else {
            return self
                .send_if_any(listening.encoder.encode_refusal(&self.too_many_waiting_error()))
                .await;
        };
        let listens = self.session.listen(listening, self.outbox.clone(), Some(place), caller);
        if let Err(refusal) = listens {
            self.send(refusal).await;
        }
    }

    fn too_many_waiting_error(&self) -> CallError {
        let message = format!(
            "too many open subscriptions and calls (the limit is {}); cancel some of them",
            self.calls_max
        );
        CallError::Unavailable { message }
    }

    /// Waits for room for the answer, and for one permit per message of a batch.
    async fn acquire_permit(
        &self,
        reading: &FrameReading,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        // The size of the answer is unknown yet. It waits for its own room later, so some free room
        // is enough.
        drop(self.unwritten_kib.acquire().await?);
        let wanted = match reading {
            FrameReading::Batch(readings) => readings.len().min(self.calls_max),
            FrameReading::Request(_)
            | FrameReading::Reply(_)
            | FrameReading::OpenSession(_)
            | FrameReading::CloseSession(_)
            | FrameReading::Replies(_)
            | FrameReading::Watch(_)
            | FrameReading::Subscribe(_)
            | FrameReading::OpenNotifications { .. }
            | FrameReading::Unwatch { .. }
            | FrameReading::Response { .. }
            | FrameReading::Cancel { .. } => 1,
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.call_permits.clone().acquire_many_owned(wanted).await
    }

    async fn send_if_any(&self, reply: Option<Reply>) {
        if let Some(reply) = reply {
            self.send(reply).await;
        }
    }

    async fn send(&self, reply: Reply) {
        if let ReplyBody::Json(bytes) = reply.body {
            let bytes = self.with_write_permits(bytes).await;
            // The writer ends only after the client has left. Nobody needs the answer then.
            let _ = self.outbox.send(bytes).await;
        }
    }

    /// Attaches permits for the size of `bytes`, released after they are written.
    async fn with_write_permits(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES_MAX {
            return bytes;
        }
        let kib = u32::try_from((bytes.len() >> 10).min(UNWRITTEN_KIB_MAX)).unwrap_or(u32::MAX);
        match self.unwritten_kib.clone().acquire_many_owned(kib).await {
            Ok(room) => Bytes::from_owner(UnwrittenAnswer { bytes, _permits: room }),
            // The semaphore is never closed.
            Err(_) => bytes,
        }
    }

    /// Waits up to `patience` for calls in flight, then cancels them and answers with `why`.
    pub(crate) async fn stop(&self, patience: Duration, why: &'static str) {
        self.session.close_questions();
        self.running_work.close();
        if timeout(patience, self.running_work.wait()).await.is_err() {
            self.session.end(why);
            self.running_work.wait().await;
        }
        // A watched job would keep its watcher running for as long as the job does.
        self.session.end(why);
        self.session.release();
    }
}

/// Answer that waits to be written, with its permits.
struct UnwrittenAnswer {
    bytes: Bytes,
    _permits: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for UnwrittenAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Permit for one of a client's calls in flight.
///
/// A call returns it while it waits for the client's answer. Otherwise all calls in flight could
/// wait for answers that nobody reads, because the reader waits for a permit.
pub(crate) struct InFlightPermit {
    state: Mutex<PermitState>,
    call_permits: Arc<Semaphore>,
    waiting_permits: Arc<Semaphore>,
}

enum PermitState {
    /// The call holds its permit.
    Held(#[allow(dead_code, reason = "taken until it is dropped")] OwnedSemaphorePermit),
    /// The call returned its permit while it waits for the client.
    Returned,
    /// The call is over.
    Released,
}

impl InFlightPermit {
    fn new(
        place: OwnedSemaphorePermit,
        places: &Arc<Semaphore>,
        waiting: &Arc<Semaphore>,
    ) -> Arc<Self> {
        let held = Mutex::new(PermitState::Held(place));
        Arc::new(Self {
            state: held,
            call_permits: places.clone(),
            waiting_permits: waiting.clone(),
        })
    }

    /// Returns the permit while the call waits for the client, and takes one for waiting instead.
    ///
    /// # Errors
    /// When too many questions are open with this client.
    pub(crate) fn release_while_waiting(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        let mut held = lock_mutex(&self.state);
        if let PermitState::Held(_) = &*held {
            *held = PermitState::Returned;
        }
        self.waiting_permits.clone().try_acquire_owned().map_err(|_| {
            let why = "too many open questions for this client; call again after some are answered";
            ToolError::new(ToolFault::Unavailable, why)
        })
    }

    /// Takes the permit again, and waits for it if necessary.
    pub(crate) async fn reacquire(&self) {
        if !matches!(&*lock_mutex(&self.state), PermitState::Returned) {
            return;
        }
        let Ok(place) = self.call_permits.clone().acquire_owned().await else { return };
        let mut held = lock_mutex(&self.state);
        if let PermitState::Returned = &*held {
            *held = PermitState::Held(place);
        }
    }

    /// Releases the permit for good, even if the tool keeps a reference to it.
    fn release(&self) {
        *lock_mutex(&self.state) = PermitState::Released;
    }
}

/// Answer to a frame: ready, or still to be computed.
pub(crate) enum PendingAnswer {
    Ready(Reply),
    Work(BoxFuture<'static, CallAnswer>),
    Batch(Vec<PendingAnswer>),
}

impl PendingAnswer {
    /// Begins everything that `reading` requests for `caller`. Events go to `out` meanwhile.
    pub(crate) fn from_reading(
        reading: FrameReading,
        session: &Arc<ClientSession>,
        out: &OutboundChannel,
        caller: &Caller,
    ) -> Self {
        match reading {
            FrameReading::Request(ask) => match session.begin_call(ask, out.clone(), caller) {
                Ok(begun) => Self::Work(begun.work),
                Err(refusal) => Self::Ready(refusal),
            },
            FrameReading::Batch(readings) => {
                let parts = readings.into_iter();
                let parts = parts.map(|reading| Self::from_reading(reading, session, out, caller));
                Self::Batch(parts.collect())
            }
            FrameReading::Cancel { key, reply } => {
                session.cancel(&key);
                Self::Ready(reply)
            }
            FrameReading::Reply(reply)
            | FrameReading::OpenSession(reply)
            | FrameReading::CloseSession(reply) => Self::Ready(reply),
            // No dialect of ours watches, or answers several times, within a batch.
            FrameReading::Unwatch { uri, reply } => {
                session.unsubscribe(&uri);
                Self::Ready(reply)
            }
            FrameReading::Response { id, heard, reply } => {
                session.receive_answer(&id, &heard);
                Self::Ready(reply)
            }
            FrameReading::Watch(_)
            | FrameReading::Subscribe(_)
            | FrameReading::OpenNotifications { .. }
            | FrameReading::Replies(_) => Self::Ready(Reply::empty(202)),
        }
    }

    /// Waits for all work and returns the answer.
    pub(crate) async fn answer(self, session: &ClientSession) -> CallAnswer {
        match self {
            Self::Ready(reply) => CallAnswer { reply: Some(reply), followed_job: None },
            Self::Work(work) => work.await,
            Self::Batch(parts) => {
                let parts = parts.into_iter().map(|part| Box::pin(part.answer(session)));
                let replies = join_all(parts).await.into_iter().filter_map(|part| part.reply);
                CallAnswer {
                    reply: Some(session.join_replies(replies.collect())),
                    followed_job: None,
                }
            }
        }
    }
}

/// Presence of a client. Dropping it cancels the call if the dialect demands that.
pub(crate) struct PresenceGuard(#[allow(dead_code, reason = "cancels on drop")] Option<DropGuard>);

impl PresenceGuard {
    pub(crate) fn new(on_leave: OnDisconnect, cancel: CancellationToken) -> Self {
        Self(match on_leave {
            OnDisconnect::Cancels => Some(cancel.drop_guard()),
            OnDisconnect::Continues => None,
        })
    }
}

/// Returns 128 random bits in hexadecimal.
pub(crate) fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}
