//! One connected client: reads its messages and writes its answers and notifications.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use toolgate_budget::{InputMemoryOwner, InputMemoryReservation};
use toolgate_contract::{
    CallError, Caller, HostRequest, MessageFrame, Reply, ReplyBody, ToolError, ToolErrorKind,
    lock_mutex,
};
use toolgate_dialects::{
    ChangeSubscription, DisconnectEffect, FrameRefusal, ParsedFrame, PendingHostRequest,
};
use toolgate_transports::http::websocket::WebSocketMessageMemory;

use crate::sessions::detachable::{DetachableWorkState, run_or_spawn};
use crate::sessions::frame_actions::{FrameAction, FrameToolCalls, RequestedMessageStream};
use crate::sessions::session::{CallAnswer, CallEventDestination, ClientSession};

/// Maximum number of messages that wait to be written to a client. At this number, calls wait
/// before they queue their answers.
const OUTBOX_MESSAGES_MAX: usize = 256;

/// Maximum total size of the answers that wait to be written to a client, in KiB. At this size, no
/// new call of the client begins.
const UNWRITTEN_KIB_MAX: usize = 16 << 10;

/// Largest answer that may wait without counting against [`UNWRITTEN_KIB_MAX`], in bytes.
const UNCOUNTED_BYTES_MAX: usize = 4 << 10;

/// Longest wait for free memory before a large answer is queued without a reservation.
const ANSWER_MEMORY_WAIT: Duration = Duration::from_secs(10);

/// Client that stays connected: over stdio, a WebSocket or a duplex conversation.
pub(crate) struct ConnectedClient {
    pub(crate) session: Arc<ClientSession>,
    outbox: mpsc::Sender<Bytes>,
    call_permits: Arc<Semaphore>,
    calls_max: usize,
    /// Permits for the client's requests that only wait: for the end of a job, for changes, or for
    /// the client's answer to a question.
    waiting_permits: Arc<Semaphore>,
    /// Permits for answers that wait to be written to the client, one per KiB.
    unwritten_kib: Arc<Semaphore>,
    running_work: TaskTracker,
    /// True once a task that sends notifications to the client has started.
    is_notified: AtomicBool,
}

impl ConnectedClient {
    /// Creates a connected client that may have up to `in_flight_max` calls in flight. Returns the
    /// client and the queue of messages to write to it.
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

    /// Handles one message of the client, sent by the caller who owns the session. Waits while too
    /// many calls are in flight.
    pub(crate) async fn receive(self: Arc<Self>, message: Bytes) {
        let caller = self.session.caller.clone();
        self.receive_from(&caller, message, WebSocketMessageMemory::default()).await;
    }

    /// Handles one message like [`Self::receive`]. Holds `memory`, which is reserved for the
    /// message, until the message is answered.
    pub(crate) async fn receive_counted(
        self: Arc<Self>,
        message: Bytes,
        memory: WebSocketMessageMemory,
    ) {
        let caller = self.session.caller.clone();
        self.receive_from(&caller, message, memory).await;
    }

    /// Handles one message that `caller` sent. Holds `memory`, which is reserved for the message,
    /// until the message is answered. Waits while too many calls are in flight.
    pub(crate) async fn receive_from(
        self: Arc<Self>,
        caller: &Caller,
        message: Bytes,
        memory: WebSocketMessageMemory,
    ) {
        let reading = self.session.read_frame(&MessageFrame::from_line(message)).await;
        self.act(reading, caller, memory).await;
    }

    /// Answers a client's `message` that the transport refused. The answer repeats the request id
    /// in the message. `message` is empty if the transport did not read it.
    pub(crate) async fn answer_refused(self: &Arc<Self>, message: Bytes, refusal: &FrameRefusal) {
        let frame = MessageFrame::from_line(message);
        let reading = self.session.dialect.reject_frame(&frame, refusal);
        drop(frame);
        self.clone().act(reading, &self.session.caller, WebSocketMessageMemory::default()).await;
    }

    /// Performs the action that a client's message demands. `reading` is the message as its dialect
    /// parsed it. Calls hold `memory`, which is reserved for the message.
    async fn act(
        self: Arc<Self>,
        reading: ParsedFrame,
        caller: &Caller,
        memory: WebSocketMessageMemory,
    ) {
        match self.session.handle(reading) {
            FrameAction::Reply(reply) | FrameAction::CloseSession(reply) => self.send(reply).await,
            FrameAction::ReplyAll(replies) => {
                for reply in replies {
                    self.send(reply).await;
                }
            }
            FrameAction::OpenSession(reply) => {
                self.send(reply).await;
                // Some clients initialize twice on one connection.
                if !self.is_notified.swap(true, Ordering::Relaxed) {
                    self.session.send_notifications(self.outbox.clone());
                }
            }
            FrameAction::Run(calls) => match self.acquire_permit(&calls).await {
                Ok(permit) => self.start_work(calls, permit, memory, caller).await,
                Err(refusal) => self.send_if_any(refusal).await,
            },
            FrameAction::Stream(RequestedMessageStream::Job(job)) => {
                self.session.watch_job(job, self.outbox.clone());
            }
            FrameAction::Stream(RequestedMessageStream::Changes(subscription)) => {
                self.listen(subscription, caller).await;
            }
            // A connected client gets notifications anyway.
            FrameAction::Stream(RequestedMessageStream::Notifications { .. }) => {}
        }
    }

    /// Runs the calls of a message until they first have to wait. After that, a task finishes the
    /// calls and sends the answer.
    async fn start_work(
        self: Arc<Self>,
        calls: FrameToolCalls,
        permit: Arc<InFlightPermit>,
        memory: WebSocketMessageMemory,
        caller: &Caller,
    ) {
        let out = CallEventDestination::Connected(self.outbox.clone(), permit.clone());
        let pending = calls.begin(&self.session, &out, caller);
        let client = self.clone();
        let work = async move {
            let CallAnswer { reply, followed_job } = pending.answer(&client.session).await;
            // The answer counts instead. An answer that waits for memory must not keep any.
            drop(memory);
            client.send_if_any(reply).await;
            if let Some(job) = followed_job {
                client.session.watch_job(job, client.outbox.clone());
            }
            permit.release();
        };
        let running = run_or_spawn(Box::pin(self.running_work.track_future(work))).await;
        if let DetachableWorkState::Spawned(work) = running
            && self.session.dialect.answers_in_order()
        {
            // This dialect needs answers in order, so the next message waits.
            let _ = work.await;
        }
    }

    async fn listen(&self, subscription: ChangeSubscription, caller: &Caller) {
        let Ok(permit) = self.waiting_permits.clone().try_acquire_owned() else {
            let refusal = subscription.encoder.encode_refusal(&self.too_many_waiting_error());
            return self.send_if_any(refusal).await;
        };
        let started = self.session.listen(subscription, self.outbox.clone(), Some(permit), caller);
        if let Err(refusal) = started {
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

    /// Waits until the client has read enough of the earlier answers. Then takes one in-flight
    /// permit for a single call, or one for each message of a batch.
    ///
    /// # Errors
    /// Too many requests of the client already wait. The error is the answer to send.
    async fn acquire_permit(
        &self,
        calls: &FrameToolCalls,
    ) -> Result<Arc<InFlightPermit>, Option<Reply>> {
        let wanted = match calls {
            // Waiting for a job uses a separate permit, so that the message that ends the job can
            // still be read.
            FrameToolCalls::Single(PendingHostRequest {
                request: HostRequest::AwaitJob { .. },
                encoder,
                ..
            }) => {
                let waiting = &self.waiting_permits;
                let permit = waiting
                    .clone()
                    .try_acquire_owned()
                    .map_err(|_| encoder.encode_reply(Err(self.too_many_waiting_error())))?;
                return Ok(InFlightPermit::new(permit, waiting, waiting));
            }
            FrameToolCalls::Single(_) => 1,
            FrameToolCalls::Batch(readings) => readings.len().min(self.calls_max),
        };
        // The size of the answer is unknown yet. It waits for its own room later, so some free room
        // is enough. The semaphores are never closed, so waiting cannot fail.
        drop(self.unwritten_kib.acquire().await.map_err(|_| None)?);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let permit =
            self.call_permits.clone().acquire_many_owned(wanted).await.map_err(|_| None)?;
        Ok(InFlightPermit::new(permit, &self.call_permits, &self.waiting_permits))
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

    /// Waits until an answer of this size may be queued. Returns `bytes`, which now holds the
    /// permits for its size until it is written.
    async fn with_write_permits(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES_MAX {
            return bytes;
        }
        let kib = u32::try_from((bytes.len() >> 10).min(UNWRITTEN_KIB_MAX)).unwrap_or(u32::MAX);
        match self.unwritten_kib.clone().acquire_many_owned(kib).await {
            Ok(permits) => {
                let memory = self.reserve_memory(bytes.len()).await;
                Bytes::from_owner(UnwrittenAnswer { bytes, _permits: permits, _memory: memory })
            }
            // The semaphore is never closed.
            Err(_) => bytes,
        }
    }

    /// Reserves memory for an answer of `bytes` bytes in the budget for requests, and waits for it
    /// if necessary. Returns `None` if the memory does not become free within 10 seconds.
    async fn reserve_memory(&self, bytes: usize) -> Option<InputMemoryReservation> {
        let memory = self.session.server.host.input_memory();
        let owner = InputMemoryOwner::Caller(self.session.caller.clone());
        timeout(ANSWER_MEMORY_WAIT, memory.reserve_when_free(owner, bytes)).await.ok()
    }

    /// Waits up to `grace` for the client's calls in flight. Then cancels the remaining calls, each
    /// of which gets the answer `reason`.
    pub(crate) async fn stop(&self, grace: Duration, reason: &'static str) {
        self.session.close_questions();
        self.running_work.close();
        if timeout(grace, self.running_work.wait()).await.is_err() {
            self.session.end(reason);
            self.running_work.wait().await;
        }
        // A watched job would keep its watcher running for as long as the job does.
        self.session.end(reason);
        self.session.release();
    }
}

/// Answer that waits to be written to a client. Holds the permits for its size.
struct UnwrittenAnswer {
    bytes: Bytes,
    _permits: OwnedSemaphorePermit,
    /// Memory that is reserved for the answer. `None` if no memory became free in time.
    _memory: Option<InputMemoryReservation>,
}

impl AsRef<[u8]> for UnwrittenAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Permit that a client's call needs while it is in flight.
///
/// A call gives its permit back while it waits for the client's answer to a question. Otherwise all
/// calls in flight could wait for answers that nobody reads, because the reader waits for a permit.
pub(crate) struct InFlightPermit {
    state: Mutex<InFlightPermitState>,
    call_permits: Arc<Semaphore>,
    waiting_permits: Arc<Semaphore>,
}

enum InFlightPermitState {
    /// The call holds its permit.
    Held(#[allow(dead_code, reason = "taken until it is dropped")] OwnedSemaphorePermit),
    /// The call holds no permit while it waits for the client's answer to a question.
    Returned,
    /// The call has ended and holds no permit.
    Released,
}

impl InFlightPermit {
    fn new(
        permit: OwnedSemaphorePermit,
        call_permits: &Arc<Semaphore>,
        waiting_permits: &Arc<Semaphore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(InFlightPermitState::Held(permit)),
            call_permits: call_permits.clone(),
            waiting_permits: waiting_permits.clone(),
        })
    }

    /// Gives the call's in-flight permit back while the call waits for the client's answer. Returns
    /// a permit for a waiting request instead.
    ///
    /// # Errors
    /// Too many questions to this client are open.
    pub(crate) fn release_while_waiting(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        let mut state = lock_mutex(&self.state);
        if let InFlightPermitState::Held(_) = &*state {
            *state = InFlightPermitState::Returned;
        }
        self.waiting_permits.clone().try_acquire_owned().map_err(|_| {
            let message =
                "too many open questions for this client; call again after some are answered";
            ToolError::new(ToolErrorKind::Unavailable, message)
        })
    }

    /// Takes the in-flight permit again after the wait for the client's answer. Waits until a
    /// permit is free.
    pub(crate) async fn reacquire(&self) {
        if !matches!(&*lock_mutex(&self.state), InFlightPermitState::Returned) {
            return;
        }
        let Ok(permit) = self.call_permits.clone().acquire_owned().await else { return };
        let mut state = lock_mutex(&self.state);
        if let InFlightPermitState::Returned = &*state {
            *state = InFlightPermitState::Held(permit);
        }
    }

    /// Releases the in-flight permit permanently, even if the tool still has a reference to this
    /// value.
    fn release(&self) {
        *lock_mutex(&self.state) = InFlightPermitState::Released;
    }
}

/// Guard that exists while the client of a call is connected. Dropping the guard cancels the call,
/// if the client's dialect requires that.
pub(crate) struct ClientPresenceGuard(
    #[allow(dead_code, reason = "cancels on drop")] Option<DropGuard>,
);

impl ClientPresenceGuard {
    pub(crate) fn new(on_disconnect: DisconnectEffect, cancel: CancellationToken) -> Self {
        Self(match on_disconnect {
            DisconnectEffect::Cancels => Some(cancel.drop_guard()),
            DisconnectEffect::Continues => None,
        })
    }
}

/// Returns 128 random bits in hexadecimal digits. Fails if the system has no random numbers.
pub(crate) fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}
