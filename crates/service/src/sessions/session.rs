//! Session of one client: parses frames, tracks calls in flight and returns answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    BoxFuture, CallError, CallEvent, CallEventSink, CallMetadata, Caller, HostAnswer, HostRequest,
    MessageFrame, QuestionAsker, Reply, ToolError, lock_mutex, try_lock_mutex,
};
use toolgate_dialects::{
    AcceptedResponseMode, AnswerEncoder, ChangeSubscription, ClientConversation,
    ClientQuestionResponse, Dialect, FrameRefusal, InFlightRequestKey, JobWatchRequest,
    JobWatchSchedule, ParsedFrame, PendingHostRequest, QuestionChannel,
};
use toolgate_host::IncomingRequest;

use crate::sessions::client::InFlightPermit;
use crate::sessions::job_streams;
use crate::sessions::notifications;
use crate::sessions::notifications::SessionSubscriptions;
use crate::sessions::pending_envelope::PendingEnvelope;
use crate::sessions::questions::{SessionQuestionSender, SessionQuestions};
use crate::sessions::server_state::ServerState;
use crate::sessions::streams::SessionEventStreams;
use crate::sessions::waiting_questions::InteractiveCallDescription;

/// Longest message that is parsed on a thread that serves calls, in bytes. Longer messages are
/// parsed on threads of low priority.
const DIRECT_FRAME_BYTES_MAX: usize = 256 << 10;

/// Session of one client, with the client's calls in flight, questions, subscriptions and event
/// streams.
pub(crate) struct ClientSession {
    pub(crate) server: Arc<ServerState>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) caller: Caller,
    /// Transport of the client: `http`, `stdio` or `websocket`.
    transport: &'static str,
    /// Name of the session in audit records. Empty until the session has an id.
    record_name: OnceLock<Arc<str>>,
    conversation: Mutex<Box<dyn ClientConversation>>,
    in_flight: Mutex<InFlightCalls>,
    serial: AtomicU64,
    /// Questions to the client that the client has not answered yet.
    questions: LazyLock<Arc<SessionQuestions>>,
    /// Changes about which the client receives notifications.
    subscriptions: LazyLock<SessionSubscriptions>,
    /// Event streams that the client can resume.
    pub(crate) streams: SessionEventStreams,
    /// A token that is cancelled when the session ends. After that, no more notifications are sent.
    ended: CancellationToken,
}

/// Channel over which the events of a running call reach its client.
#[derive(Clone)]
pub(crate) enum CallEventDestination {
    /// Drops events, so that the client gets only the answer to the call.
    Discard,
    /// Sends events to a connected client. Also holds the in-flight permit of the call.
    Connected(mpsc::Sender<Bytes>, Arc<InFlightPermit>),
    /// Sends events to the event stream that answers the call's HTTP request.
    Stream(mpsc::Sender<EventStreamItem>),
}

/// Item of an event stream: a message, or a request to close the connection.
pub(crate) enum EventStreamItem {
    /// A message for the client.
    Message(Bytes),
    /// Closes the connection. The client may resume the stream later.
    Disconnect,
}

impl CallEventDestination {
    /// Sends a message to the client, or drops the message if the client's queue is full.
    pub(crate) fn try_send(&self, message: Bytes) {
        match self {
            Self::Discard => {}
            Self::Connected(out, _) => drop(out.try_send(message)),
            Self::Stream(out) => drop(out.try_send(EventStreamItem::Message(message))),
        }
    }

    /// Sends a message to the client, and waits while the client's queue is full. Returns false if
    /// nobody receives the message.
    pub(crate) async fn send(&self, message: Bytes) -> bool {
        match self {
            Self::Discard => false,
            Self::Connected(out, _) => out.send(message).await.is_ok(),
            Self::Stream(out) => out.send(EventStreamItem::Message(message)).await.is_ok(),
        }
    }

    /// Gives the call's in-flight permit back while the call waits for the client's answer. Returns
    /// a permit for a waiting request instead, or `None` if the client is not connected.
    ///
    /// # Errors
    /// Too many questions to this client are open.
    pub(crate) fn release_permit(&self) -> Result<Option<OwnedSemaphorePermit>, ToolError> {
        match self {
            Self::Discard | Self::Stream(_) => Ok(None),
            Self::Connected(_, permit) => permit.release_while_waiting().map(Some),
        }
    }

    /// Takes the in-flight permit again that [`CallEventDestination::release_permit`] gave back.
    /// Waits until a permit is free.
    pub(crate) async fn reacquire_permit(&self) {
        match self {
            Self::Discard | Self::Stream(_) => {}
            Self::Connected(_, permit) => permit.reacquire().await,
        }
    }

    fn request_disconnect(&self) {
        if let Self::Stream(out) = self {
            drop(out.try_send(EventStreamItem::Disconnect));
        }
    }
}

/// Calls of a session that are in flight, by the key of their request.
#[derive(Default)]
struct InFlightCalls {
    calls: HashMap<InFlightRequestKey, InFlightCall>,
    /// Reason why the session has ended. `None` while new calls may begin.
    end_reason: Option<&'static str>,
}

/// Call of a session that has no answer yet.
struct InFlightCall {
    serial: u64,
    cancel: CancellationToken,
}

/// A call that the session has accepted: a future that runs the call, and the token that cancels
/// it.
pub(crate) struct AcceptedCall {
    /// Future that runs the call. Pass it to
    /// [`run_or_spawn`](crate::sessions::detachable::run_or_spawn) or
    /// [`DetachableWork`](crate::sessions::detachable::DetachableWork).
    pub(crate) work: BoxFuture<'static, CallAnswer>,
    /// Token that cancels the call.
    pub(crate) cancel: CancellationToken,
}

/// Answer to a call, and the job whose events follow the answer.
pub(crate) struct CallAnswer {
    /// Answer to the call for the client. `None` if the client cancelled the call.
    pub(crate) reply: Option<Reply>,
    /// Job whose events follow the answer, if the client asked to follow it.
    pub(crate) followed_job: Option<JobWatchRequest>,
}

/// Number of characters of a session's name in audit records. The name is the beginning of the hash
/// of the session's id.
const RECORD_NAME_CHARS: usize = 16;

/// Schedule of messages about a job that its own caller follows: events only, without heartbeats.
const FOLLOW_SCHEDULE: JobWatchSchedule = JobWatchSchedule::Events { quiet: Duration::MAX };

impl ClientSession {
    pub(crate) fn new(
        server: Arc<ServerState>,
        dialect: Arc<dyn Dialect>,
        caller: Caller,
    ) -> Arc<Self> {
        Self::with_transport("http", server, dialect, caller)
    }

    /// Creates a session with a client that is connected by `transport`.
    pub(crate) fn with_transport(
        transport: &'static str,
        server: Arc<ServerState>,
        dialect: Arc<dyn Dialect>,
        caller: Caller,
    ) -> Arc<Self> {
        let conversation = Mutex::new(dialect.start_conversation(&caller));
        let streams = SessionEventStreams::new(server.ended_streams.clone());
        Arc::new(Self {
            server,
            dialect,
            caller,
            transport,
            record_name: OnceLock::new(),
            conversation,
            in_flight: Mutex::default(),
            serial: AtomicU64::new(0),
            // Created on demand: most sessions are one request without questions or subscriptions.
            questions: LazyLock::new(|| Arc::new(SessionQuestions::new())),
            subscriptions: LazyLock::new(SessionSubscriptions::default),
            streams,
            ended: CancellationToken::new(),
        })
    }

    /// Sets the session's id. Audit records contain a hash instead of the id, because anyone with
    /// the id could resume the session.
    pub(crate) fn set_id(&self, id: &str) {
        let hash = blake3::hash(id.as_bytes()).to_hex();
        let _ = self.record_name.set(hash[..RECORD_NAME_CHARS].into());
    }

    /// Parses one message of the client. The result may depend on earlier messages of the session.
    pub(crate) fn read(&self, frame: &MessageFrame) -> ParsedFrame {
        lock_mutex(&self.conversation).read(frame)
    }

    /// Parses one message of the client. If the message is long, or a long message of the session is
    /// being parsed, a thread of low priority parses the message, so that no other call waits.
    pub(crate) async fn read_frame(self: &Arc<Self>, frame: &MessageFrame) -> ParsedFrame {
        if frame.body.len() <= DIRECT_FRAME_BYTES_MAX
            && let Some(mut conversation) = try_lock_mutex(&self.conversation)
        {
            return conversation.read(frame);
        }
        let (session, whole) = (self.clone(), frame.clone());
        let reading = self.server.long_frames.run(move || session.read(&whole)).await;
        reading.unwrap_or_else(|_| {
            // Its id is unknown, because it was not parsed.
            let unread = MessageFrame { head: frame.head.clone(), body: Bytes::new() };
            let message = "too many long messages are being parsed; try again later".to_owned();
            self.dialect.reject_frame(&unread, &FrameRefusal::Busy { message })
        })
    }

    /// Joins the replies to a JSON-RPC batch into one reply, as the session's dialect requires.
    pub(crate) fn join_replies(&self, replies: Vec<Reply>) -> Reply {
        lock_mutex(&self.conversation).join_replies(replies)
    }

    /// Starts the call `request` on behalf of `caller`. The events of the call go to `out`.
    ///
    /// `caller` owns the session, but the caller's permissions may have changed since the session
    /// began.
    ///
    /// # Errors
    /// A call with the same key is in flight, or the session has ended. The error is the refusal to
    /// send.
    pub(crate) fn begin_call(
        self: &Arc<Self>,
        mut request: PendingHostRequest,
        out: CallEventDestination,
        caller: &Caller,
    ) -> Result<AcceptedCall, Reply> {
        self.server.idle_tracker.note_activity();
        let cancel = self.server.stop.child_token();
        let envelope = PendingEnvelope::for_request(
            &self.server.host,
            &mut request,
            self.dialect.name(),
            self.transport,
        );
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let call = InFlightCall { serial, cancel: cancel.clone() };
        if let Err(refusal) = self.register_call(&request.key, call) {
            if let Some(envelope) = envelope {
                envelope.seal_not_started(&self.server.host);
            }
            return Err(refusal);
        }
        let in_flight = InFlightGuard { session: self.clone(), key: request.key, serial };

        self.note_list_interest(&request.request);
        let encoder = request.encoder;
        let (events, event_gate) = open_event_gate(&encoder, request.answer_form, &out);
        let asking = InteractiveCallDescription::new(caller, &request.request);
        let (asker, state) = self.asker(request.question_mode, &encoder, &cancel, out, asking);
        let incoming = IncomingRequest {
            request: request.request,
            caller: caller.clone(),
            dialect: self.dialect.name(),
            cancel: cancel.clone(),
            events,
            asker,
            state,
            metadata: CallMetadata {
                session: self.record_name.get().cloned(),
                transport: self.transport,
                ..request.metadata
            },
            time_limit: request.time_limit,
        };
        let work = self.server.running.track_future(async move {
            let session = in_flight.session.clone();
            let outcome = session.server.host.answer(incoming).await;
            event_gate.close();
            // The entry is gone, so the client cancelled the call and expects no answer.
            if !in_flight.remove() {
                if let Some(envelope) = envelope {
                    envelope.seal_cancelled(&session.server.host);
                }
                return CallAnswer { reply: None, followed_job: None };
            }
            // The entry was there, so only the end of the session or server can have cancelled it.
            let outcome = outcome.map_err(|error| match error {
                CallError::Canceled => CallError::Unavailable {
                    message: format!("{}; the call was cancelled", session.end_reason()),
                },
                other => other,
            });
            let outcome = match outcome {
                Ok(HostAnswer::Watched { uri, hold }) => session.subscriptions.subscribe(uri, hold),
                other => other,
            };
            let followed_job = match &outcome {
                Ok(HostAnswer::Job(job)) => encoder.job_encoder(job).map(|encoder| {
                    JobWatchRequest { id: job.id.to_string(), schedule: FOLLOW_SCHEDULE, encoder }
                }),
                Ok(_) | Err(_) => None,
            };
            let reply = match envelope {
                None => encoder.encode_reply(outcome),
                Some(envelope) => envelope.reply(&session.server.host, encoder.as_ref(), outcome),
            };
            CallAnswer { reply, followed_job }
        });
        Ok(AcceptedCall { work: Box::pin(work), cancel })
    }

    /// Returns an asker with which the call asks its client questions. The asker refuses to ask if
    /// the client cannot be asked. The second value is the state of an earlier call, if the client
    /// repeats that call with answers.
    fn asker(
        &self,
        question_mode: QuestionChannel,
        encoder: &Arc<dyn AnswerEncoder>,
        cancel: &CancellationToken,
        out: CallEventDestination,
        call: InteractiveCallDescription,
    ) -> (QuestionAsker, Option<String>) {
        match (question_mode, out) {
            (QuestionChannel::Nobody, _)
            | (QuestionChannel::DuringCall(_), CallEventDestination::Discard) => {
                (QuestionAsker::none(), None)
            }
            (QuestionChannel::OnRepeat { can, given, state }, _) => {
                (QuestionAsker::on_repeat(can, given), state)
            }
            (QuestionChannel::DuringCall(can), out) => {
                let asker = SessionQuestionSender {
                    questions: self.questions.clone(),
                    id_prefix: self.server.question_id_prefix.clone(),
                    waiting: self.server.waiting_questions.clone(),
                    call,
                    encoder: encoder.clone(),
                    out,
                    cancel: cancel.clone(),
                    closing: self.server.closing.clone(),
                };
                (QuestionAsker::during_call(can, Arc::new(asker)), None)
            }
        }
    }

    /// Passes the client's response to the question `id` to the call that asked. Ignores unknown
    /// ids.
    pub(crate) fn receive_answer(&self, id: &str, response: &ClientQuestionResponse) {
        self.questions.receive_answer(id, response);
    }

    /// Returns true if the question `id` to the client waits for an answer at this server.
    pub(crate) fn has_question(&self, id: &str) -> bool {
        self.questions.contains(id)
    }

    /// Returns true if a question to the client waits for an answer at this server.
    pub(crate) fn has_questions(&self) -> bool {
        self.questions.has_open()
    }

    /// Returns true if the request with the key `key` is in flight at this server.
    pub(crate) fn is_in_flight(&self, key: &InFlightRequestKey) -> bool {
        lock_mutex(&self.in_flight).calls.contains_key(key)
    }

    /// Fails all open questions to the client, because no more messages of the client are read.
    pub(crate) fn close_questions(&self) {
        self.questions.close();
    }

    /// Subscribes the client to changes of the list of prompts or resources, if `request` asks for
    /// that list.
    fn note_list_interest(&self, request: &HostRequest) {
        match request {
            HostRequest::ListResources { .. } => self.subscriptions.add_lists(false, true),
            HostRequest::ListPrompts { .. } => self.subscriptions.add_lists(true, false),
            _ => {}
        }
    }

    /// Ends the session's subscription to changes of the resource `uri`.
    pub(crate) fn unsubscribe(&self, uri: &str) {
        self.subscriptions.unsubscribe(uri);
    }

    /// Sends notifications of the changes in `subscription` to `out`.
    ///
    /// The subscription ends when the request is cancelled, the receiver of `out` is dropped or the
    /// session ends.
    ///
    /// # Errors
    /// A request with the same key is in flight, or the session has ended. The error is the refusal
    /// to send.
    pub(crate) fn listen(
        self: &Arc<Self>,
        subscription: ChangeSubscription,
        out: mpsc::Sender<Bytes>,
        permit: Option<OwnedSemaphorePermit>,
        caller: &Caller,
    ) -> Result<(), Reply> {
        let cancel = self.server.closing.child_token();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let ChangeSubscription { key, filter, encoder } = subscription;
        self.register_call(&key, InFlightCall { serial, cancel: cancel.clone() })?;
        let in_flight = InFlightGuard { session: self.clone(), key, serial };
        let caller = caller.clone();
        toolgate_net::spawn_task(self.server.running.track_future(async move {
            let _permit = permit;
            let session = &in_flight.session;
            let host = &session.server.host;
            let sending =
                notifications::send_changes(host, &caller, filter, encoder.as_ref(), &out);
            tokio::select! {
                // After a cancel nothing more is sent, even if there is room again.
                biased;
                () = cancel.cancelled() => {}
                () = session.ended.cancelled() => {}
                () = out.closed() => return,
                () = sending => return,
            }
            // If the client cancelled, the entry is gone and no end message is sent.
            if in_flight.remove() {
                for message in encoder.encode_end() {
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }));
        Ok(())
    }

    /// Spawns a task that sends the session's notifications to `out`, until the receiver of `out`
    /// is dropped or the session ends. Does nothing if the dialect has no notifications.
    pub(crate) fn send_notifications(self: &Arc<Self>, out: mpsc::Sender<Bytes>) {
        let Some(encoder) = lock_mutex(&self.conversation).notification_encoder() else { return };
        let session = self.clone();
        toolgate_net::spawn_task(self.server.running.track_future(async move {
            let host = &session.server.host;
            let caller = (&session.caller, session.record_name.get().cloned());
            tokio::select! {
                () = session.subscriptions.send_changes(host, caller, encoder.as_ref(), &out) => {}
                () = out.closed() => {}
                () = session.ended.cancelled() => {}
                () = session.server.closing.cancelled() => {}
            }
        }));
    }

    /// Spawns a task that sends a job's events to `out`, until the job ends, the client disconnects
    /// or the session ends.
    pub(crate) fn watch_job(self: &Arc<Self>, job: JobWatchRequest, out: mpsc::Sender<Bytes>) {
        let session = self.clone();
        toolgate_net::spawn_task(self.server.running.track_future(async move {
            tokio::select! {
                () = job_streams::stream_job(&session.server.host, &session.caller, &job, &out) => {}
                () = session.server.stop.cancelled() => {}
                () = session.ended.cancelled() => {}
                () = out.closed() => {}
            }
        }));
    }

    /// Cancels the call with the key `key` if it is in flight. The client gets no answer to that
    /// call.
    pub(crate) fn cancel(&self, key: &InFlightRequestKey) {
        if let Some(call) = lock_mutex(&self.in_flight).calls.remove(key) {
            call.cancel.cancel();
        }
    }

    /// Ends the session: refuses new calls, and cancels all calls in flight. Each of these calls
    /// gets the answer `reason`.
    pub(crate) fn end(&self, reason: &'static str) {
        self.ended.cancel();
        let mut in_flight = lock_mutex(&self.in_flight);
        in_flight.end_reason.get_or_insert(reason);
        for call in in_flight.calls.values() {
            call.cancel.cancel();
        }
    }

    /// Releases everything that the host stores for this session, such as remembered searches.
    pub(crate) fn release(&self) {
        if let Some(name) = self.record_name.get() {
            self.server.host.end_session(name);
        }
    }

    /// Returns true if the session has no call in flight, and no client reads any of its event
    /// streams.
    pub(crate) fn is_idle(&self) -> bool {
        lock_mutex(&self.in_flight).calls.is_empty() && !self.streams.has_readers()
    }

    /// Returns the token that is cancelled when shutdown starts.
    pub(crate) fn closing_token(&self) -> CancellationToken {
        self.server.closing.clone()
    }

    fn end_reason(&self) -> &'static str {
        lock_mutex(&self.in_flight).end_reason.unwrap_or("the server is stopping")
    }

    fn register_call(&self, key: &InFlightRequestKey, call: InFlightCall) -> Result<(), Reply> {
        let mut in_flight = lock_mutex(&self.in_flight);
        if in_flight.end_reason.is_some() {
            return Err(self.dialect.unknown_session());
        }
        if in_flight.calls.contains_key(key) {
            return Err(self.dialect.refuse(&FrameRefusal::DuplicateId { key: key.clone() }));
        }
        in_flight.calls.insert(key.clone(), call);
        Ok(())
    }
}

/// Entry of a call in the session's list of calls in flight. Dropping this guard removes the entry.
struct InFlightGuard {
    session: Arc<ClientSession>,
    key: InFlightRequestKey,
    serial: u64,
}

impl InFlightGuard {
    /// Removes the call from the session's list of calls in flight. Returns false if the call was
    /// no longer in the list.
    fn remove(&self) -> bool {
        let mut in_flight = lock_mutex(&self.session.in_flight);
        let is_listed =
            in_flight.calls.get(&self.key).is_some_and(|call| call.serial == self.serial);
        if is_listed {
            in_flight.calls.remove(&self.key);
        }
        is_listed
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Switch that passes a call's events to the client until the call is answered.
struct CallEventForwarder(Option<Arc<Mutex<Option<CallEventDestination>>>>);

fn open_event_gate(
    encoder: &Arc<dyn AnswerEncoder>,
    answer_form: AcceptedResponseMode,
    out: &CallEventDestination,
) -> (CallEventSink, CallEventForwarder) {
    // Resumable streams need the sink even if the client wants no events, to receive requests to
    // close.
    if answer_form != AcceptedResponseMode::Resumable && !encoder.encodes_events() {
        return (CallEventSink::none(), CallEventForwarder(None));
    }
    let open = Arc::new(Mutex::new(Some(out.clone())));
    let gate = CallEventForwarder(Some(open.clone()));
    let log_level = encoder.log_level();
    let encoder = encoder.clone();
    let events = CallEventSink::new(move |event: CallEvent| {
        // The lock is held while sending, so that no event follows the close.
        let open = lock_mutex(&open);
        let Some(out) = &*open else { return };
        match (&event, encoder.encode_event(&event)) {
            (CallEvent::ReleaseConnection, _) => out.request_disconnect(),
            (_, Some(message)) => out.try_send(message),
            (_, None) => {}
        }
    });
    (events.with_log_level(log_level), gate)
}

impl CallEventForwarder {
    /// Stops passing events to the client, and drops the channel to the client, because a tool may
    /// keep its event sink after the call.
    fn close(&self) {
        if let Some(open) = &self.0 {
            *lock_mutex(open) = None;
        }
    }
}
