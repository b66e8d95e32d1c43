//! A conversation over any two-way transport: pipes, HTTP+SSE or a WebSocket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{BoxFuture, KeepActiveGuard, lock_mutex};
use toolgate_net::{AnswerBusyPollState, TruncatedText};

use super::in_flight::InFlightRequests;
use super::writer::PipeLineWriter;
use crate::message::truncated::{TruncatedMessageKind, kind_of_truncated};
use crate::message::{self, UpstreamMessage, UpstreamRpcError};
use crate::start_report::LAST_ERROR_OUTPUT;
use crate::transport::{
    MessageReceiver, OutgoingMessage, TransportConnection, UpstreamRequestFailure,
};
use crate::world::{RefusedHostsFn, UpstreamRefusedHost};

/// Maximum number of messages to an upstream that wait to be written.
const QUEUE_MAX: usize = 256;
/// Maximum number of an upstream's requests to toolgate that may be unanswered at a time.
pub(super) const QUESTIONS_MAX: usize = 64;
/// Maximum number of bytes from the end of a program's standard error output that are stored to
/// explain its exit.
const LAST_WORDS_BYTES: usize = 2048;

/// A conversation with an upstream over any transport, which matches answers to requests by id.
pub(crate) struct UpstreamConversation {
    shared: Arc<UpstreamConversationState>,
    outgoing: OutgoingMessageQueue,
    _ends: DropGuard,
    /// Guard that makes the tasks of the conversation end when it is dropped.
    _gone: DropGuard,
    /// Guard that releases the transport's resources on drop, for example stops the program.
    _hold: KeepActiveGuard,
}

/// State of a conversation with an upstream that both directions share.
pub(crate) struct UpstreamConversationState {
    in_flight: Arc<InFlightRequests<RequestAnswerSender>>,
    busy_poll: Arc<AnswerBusyPollState>,
    closed: CancellationToken,
    closed_reason: Mutex<String>,
    /// True if the upstream does not know the session any more.
    has_lost_session: AtomicBool,
    last_words: Mutex<Vec<u8>>,
    /// The source of the hosts that were refused to the upstream's program.
    refused_hosts: OnceLock<RefusedHostsFn>,
    questions: Arc<Semaphore>,
}

/// Channel that passes the answer to a request to the waiting task.
type RequestAnswerSender = oneshot::Sender<Result<Box<RawValue>, UpstreamRequestFailure>>;

impl UpstreamConversationState {
    /// Ends the conversation and fails all requests in flight with the reason `why`.
    pub(crate) fn end(&self, why: String) {
        let mut reason = lock_mutex(&self.closed_reason);
        if reason.is_empty() {
            *reason = why;
        }
        drop(reason);
        self.closed.cancel();
        drop(self.in_flight.remove_all());
    }

    /// Ends the conversation because the upstream refused the message `id` and does not know the
    /// session.
    pub(crate) fn end_lost_session(&self, id: Option<u64>, why: String) {
        // The refused request can be repeated. The others may have been executed.
        let refused = id.and_then(|id| self.in_flight.remove(id));
        self.has_lost_session.store(true, Ordering::Release);
        self.end(why.clone());
        if let Some(answer) = refused {
            let _ = answer.send(Err(UpstreamRequestFailure::SessionGone(why)));
        }
    }

    fn refused_hosts(&self) -> Vec<UpstreamRefusedHost> {
        self.refused_hosts.get().map(|list| list()).unwrap_or_default()
    }

    fn closed_reason(&self) -> String {
        let mut why = lock_mutex(&self.closed_reason).clone();
        for refused in self.refused_hosts() {
            let separator = if why.is_empty() { "" } else { "; " };
            why.push_str(&format!("{separator}refused host {}", refused.summary()));
        }
        let output = lock_mutex(&self.last_words);
        let output = String::from_utf8_lossy(&output);
        let output = output.trim();
        match (why.is_empty(), output.is_empty()) {
            (_, true) => why,
            (true, false) => output.to_owned(),
            (false, false) => format!("{why}{LAST_ERROR_OUTPUT}{output}"),
        }
    }
}

impl UpstreamConversation {
    /// Starts a conversation with an upstream. `receiver` gets messages that belong to no request.
    ///
    /// Returns the conversation, the receiver of outgoing messages, and a token that is cancelled
    /// when the conversation is dropped.
    pub(super) fn start(
        receiver: Arc<dyn MessageReceiver>,
        hold: KeepActiveGuard,
        busy_poll: AnswerBusyPollState,
    ) -> (Self, mpsc::Receiver<Bytes>, CancellationToken) {
        let shared = Arc::new(UpstreamConversationState {
            in_flight: Arc::new(InFlightRequests::new(receiver)),
            busy_poll: Arc::new(busy_poll),
            closed: CancellationToken::new(),
            closed_reason: Mutex::default(),
            has_lost_session: AtomicBool::new(false),
            last_words: Mutex::default(),
            refused_hosts: OnceLock::new(),
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
        });
        let (out, messages) = mpsc::channel(QUEUE_MAX);
        let ends = CancellationToken::new();
        let out = OutgoingMessageQueue { queue: out, writer: None };
        let _gone = shared.closed.clone().drop_guard();
        let conversation =
            Self { shared, outgoing: out, _ends: ends.clone().drop_guard(), _gone, _hold: hold };
        (conversation, messages, ends)
    }

    /// Sets the writer that writes messages at once if possible, without the queue.
    pub(super) fn with_writer(mut self, writer: Arc<PipeLineWriter>) -> Self {
        self.outgoing.writer = Some(writer);
        self
    }

    /// Sets the source of the hosts that were refused to the upstream's program.
    pub(super) fn set_refused_hosts(&self, refused_hosts: RefusedHostsFn) {
        let _ = self.shared.refused_hosts.set(refused_hosts);
    }

    /// Returns the state through which a task that waits for an answer makes the reader poll (poll
    /// without sleeping).
    pub(super) fn busy_poll(&self) -> &Arc<AnswerBusyPollState> {
        &self.shared.busy_poll
    }

    /// Returns the handler of the upstream's messages, for the task that reads them.
    pub(crate) fn incoming(&self) -> IncomingMessageReceiver {
        IncomingMessageReceiver { shared: self.shared.clone(), outgoing: self.outgoing.clone() }
    }
}

/// Handler of the messages that a transport receives.
#[derive(Clone)]
pub(crate) struct IncomingMessageReceiver {
    pub(crate) shared: Arc<UpstreamConversationState>,
    outgoing: OutgoingMessageQueue,
}

/// Ends the conversation if the reading task panics, so that requests in flight fail.
impl Drop for IncomingMessageReceiver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end("handling its messages failed".to_owned());
        }
    }
}

/// Messages to an upstream: a queue that the transport reads, and a direct writer that is used
/// while the queue is empty.
#[derive(Clone)]
struct OutgoingMessageQueue {
    queue: mpsc::Sender<Bytes>,
    writer: Option<Arc<PipeLineWriter>>,
}

/// Error of a send after the transport has stopped writing messages.
struct OutgoingQueueClosed;

impl OutgoingMessageQueue {
    async fn send(&self, message: Bytes) -> Result<(), OutgoingQueueClosed> {
        if self
            .writer
            .as_ref()
            .is_some_and(|writer| !self.queue.is_closed() && writer.try_write(&message))
        {
            return Ok(());
        }
        let permit = self.queue.reserve().await.map_err(|_| OutgoingQueueClosed)?;
        self.add_waiting();
        permit.send(message);
        Ok(())
    }

    /// Sends `message` to the upstream, or drops the message if the queue is full.
    fn try_send(&self, message: Bytes) {
        if let Ok(permit) = self.queue.try_reserve() {
            self.add_waiting();
            permit.send(message);
        }
    }

    fn add_waiting(&self) {
        if let Some(writer) = &self.writer {
            writer.add_waiting();
        }
    }
}

impl UpstreamConversationState {
    /// Records output of the upstream's program that is not an MCP message.
    pub(crate) fn record_output(&self, output: &[u8]) {
        self.in_flight.record_output(output);
    }

    /// Stores the end of the program's standard error output, to explain its exit.
    pub(crate) fn keep_error_output(&self, output: &[u8]) {
        self.in_flight.record_error_output(output);
        let mut kept = lock_mutex(&self.last_words);
        kept.extend_from_slice(output);
        let over = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..over);
        if over > 0 {
            drop_partial_start(&mut kept);
        }
    }
}

/// Removes the beginning of `text` up to the first whole line, or up to the first whole word if
/// there is only one line.
fn drop_partial_start(text: &mut Vec<u8>) {
    let end = text.trim_ascii_end().len();
    let is_break = |byte: &u8| *byte == b'\n';
    let line = text[..end].iter().position(is_break);
    let cut = line.or_else(|| text[..end].iter().position(u8::is_ascii_whitespace));
    if let Some(at) = cut {
        text.drain(..=at);
    }
}

/// Returns the error for an answer that is longer than `bytes_max`.
pub(super) fn too_long_error(bytes_max: usize) -> UpstreamRequestFailure {
    let why = format!("its answer is longer than {bytes_max} bytes");
    UpstreamRequestFailure::Refused(UpstreamRpcError::new(-32603, why))
}

/// Runs `work` until `ends` is cancelled.
pub(crate) async fn run_until(ends: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = ends.cancelled() => {}
        () = work => {}
    }
}

impl IncomingMessageReceiver {
    /// Fails the request that an overlong answer belongs to. If the answer's id is unreadable,
    /// fails all requests in flight.
    pub(crate) fn fail_too_long(&self, cut: &TruncatedText, bytes_max: usize) {
        let shared = &self.shared;
        let all = match kind_of_truncated(cut) {
            TruncatedMessageKind::Answer(Some(id)) => {
                shared.in_flight.forget_abandoned(id);
                shared.in_flight.remove(id).into_iter().collect()
            }
            TruncatedMessageKind::Answer(None) => shared.in_flight.remove_all(),
            TruncatedMessageKind::Other => {
                tracing::debug!(
                    "ignoring a message of an upstream, because it has more than \
                     {bytes_max} bytes"
                );
                Vec::new()
            }
        };
        for answer in all {
            let _ = answer.send(Err(too_long_error(bytes_max)));
        }
    }

    /// Fails the request `id` with `failure`.
    pub(crate) fn fail(&self, id: u64, failure: UpstreamRequestFailure) {
        if let Some(answer) = self.shared.in_flight.remove(id) {
            let _ = answer.send(Err(failure));
        }
    }

    /// Handles `line`, the text of one JSON-RPC message or batch from the upstream.
    pub(crate) fn handle(&self, line: &[u8]) {
        let Self { shared, outgoing: out } = self;
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let messages = match message::parse_messages(line) {
            Ok(messages) => messages,
            Err(why) => {
                // Text that a server prints to its standard output is ignored.
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
                tracing::debug!(
                    "ignoring output of an upstream, because it is not a message ({why}): {shown}"
                );
                shared.in_flight.record_output(line);
                return;
            }
        };
        for message in messages {
            match message {
                UpstreamMessage::Answer(id, outcome) => {
                    // Answers to unknown requests are ignored.
                    let Some(id) = id else { continue };
                    let Some(answer) = shared.in_flight.remove(id) else {
                        shared.in_flight.forget_abandoned(id);
                        continue;
                    };
                    let _ = answer.send(outcome.map_err(UpstreamRequestFailure::Refused));
                }
                UpstreamMessage::Notification { method, params } => {
                    shared.in_flight.notify(&method, &params);
                }
                UpstreamMessage::Request { id, method, params } => {
                    shared.in_flight.note_server_request(&method);
                    let Ok(permit) = shared.questions.clone().try_acquire_owned() else {
                        let busy = UpstreamRpcError::new(-32603, "too many requests at once");
                        out.try_send(message::encode_answer(&id, Err(busy)));
                        continue;
                    };
                    let shared = shared.clone();
                    let out = out.clone();
                    toolgate_net::spawn_task(async move {
                        let outcome = match method.as_str() {
                            "ping" => Ok(Value::Object(serde_json::Map::new())),
                            _ => tokio::select! {
                                outcome = shared.in_flight.clone().answer_request(method, params) => outcome,
                                () = shared.closed.cancelled() => return,
                            },
                        };
                        let _ = out.send(message::encode_answer(&id, outcome)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

/// A request to an upstream that waits for its answer. Dropping the guard before the answer arrives
/// sends a cancellation.
struct PendingRequestGuard<'a> {
    conversation: &'a UpstreamConversation,
    id: u64,
    cancellable: bool,
}

impl Drop for PendingRequestGuard<'_> {
    fn drop(&mut self) {
        let in_flight = &self.conversation.shared.in_flight;
        if !self.cancellable {
            in_flight.remove(self.id);
        } else if in_flight.abandon(self.id).is_some() {
            let reason = "the caller no longer waits for the answer";
            let params = serde_json::json!({ "requestId": self.id, "reason": reason });
            let message = message::encode_message(None, "notifications/cancelled", &params);
            self.conversation.outgoing.try_send(message);
        }
    }
}

impl TransportConnection for UpstreamConversation {
    fn request(
        &self,
        message: OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, UpstreamRequestFailure>> {
        Box::pin(async move {
            let id = message.id.unwrap_or_default();
            let (answer, answered) = oneshot::channel();
            self.shared.in_flight.insert(&message, receiver, answer);
            let cancellable = message.method != "initialize";
            let _waiting = PendingRequestGuard { conversation: self, id, cancellable };
            let closed_reason = || self.shared.closed_reason();
            if self.shared.closed.is_cancelled() {
                return Err(UpstreamRequestFailure::NotSent(closed_reason()));
            }
            self.outgoing
                .send(message.body)
                .await
                .map_err(|OutgoingQueueClosed| UpstreamRequestFailure::NotSent(closed_reason()))?;
            let alone = self.shared.in_flight.is_sole_request();
            self.shared
                .busy_poll
                .wait(alone, answered)
                .await
                .unwrap_or_else(|_| Err(UpstreamRequestFailure::Lost(closed_reason())))
        })
    }

    fn send_notification(
        &self,
        message: OutgoingMessage,
    ) -> BoxFuture<'_, Result<(), UpstreamRequestFailure>> {
        Box::pin(async move {
            let sent = self.outgoing.send(message.body).await;
            sent.map_err(|OutgoingQueueClosed| {
                UpstreamRequestFailure::NotSent(self.shared.closed_reason())
            })
        })
    }

    fn may_lose_session(&self) -> bool {
        // Only programs have a writer, and a program ends with its session.
        self.outgoing.writer.is_none()
    }

    fn has_lost_session(&self) -> bool {
        self.shared.has_lost_session.load(Ordering::Acquire)
    }

    fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    fn closed_reason(&self) -> String {
        self.shared.closed_reason()
    }

    fn refused_hosts(&self) -> Vec<UpstreamRefusedHost> {
        self.shared.refused_hosts()
    }
}
