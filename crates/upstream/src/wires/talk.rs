//! A conversation over any two-way transport: pipes, HTTP+SSE or a WebSocket.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{BoxFuture, Hold};

use super::brisk::Brisk;
use super::cut::{Cut, Is};
use super::in_flight::InFlight;
use super::pen::Pen;
use crate::message::{self, Message, RpcError};
use crate::wire::{Hears, Sent, Trouble, Wire};

/// Most messages that wait to be written.
const WAITING: usize = 256;
/// Most open requests of one upstream.
pub(super) const QUESTIONS_MAX: usize = 64;
/// Most bytes of standard error that are kept to explain an exit.
const LAST_WORDS: usize = 2048;

/// A conversation that matches answers to requests by id, over any transport.
pub(crate) struct Talk {
    shared: Arc<Shared>,
    out: Way,
    _ends: DropGuard,
    /// Guard that signals the end of the conversation.
    _gone: DropGuard,
    /// Resources of the transport, released on drop.
    _hold: Hold,
}

/// State shared by both directions of a conversation.
pub(crate) struct Shared {
    in_flight: Arc<InFlight<Answer>>,
    brisk: Arc<Brisk>,
    gone: CancellationToken,
    why: Mutex<String>,
    last_words: Mutex<Vec<u8>>,
    questions: Arc<Semaphore>,
}

/// Channel for the answer to a request.
type Answer = oneshot::Sender<Result<Box<RawValue>, Trouble>>;

impl Shared {
    /// Ends the conversation and fails all requests in flight.
    pub(crate) fn end(&self, why: String) {
        let mut known = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            *known = why;
        }
        drop(known);
        self.gone.cancel();
        drop(self.in_flight.end_all());
    }

    fn why(&self) -> String {
        let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words = String::from_utf8_lossy(&words);
        let words = words.trim();
        match (why.is_empty(), words.is_empty()) {
            (_, true) => why,
            (true, false) => words.to_owned(),
            (false, false) => format!("{why}; its last words: {words}"),
        }
    }
}

impl Talk {
    /// Starts a conversation. `hears` receives messages that belong to no request.
    ///
    /// The receiver yields outgoing messages. The token is cancelled when the conversation is
    /// dropped.
    pub(super) fn begin(
        hears: Arc<dyn Hears>,
        hold: Hold,
        brisk: Brisk,
    ) -> (Self, mpsc::Receiver<Bytes>, CancellationToken) {
        let shared = Arc::new(Shared {
            in_flight: Arc::new(InFlight::new(hears)),
            brisk: Arc::new(brisk),
            gone: CancellationToken::new(),
            why: Mutex::default(),
            last_words: Mutex::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS_MAX)),
        });
        let (out, messages) = mpsc::channel(WAITING);
        let ends = CancellationToken::new();
        let out = Way { queue: out, pen: None };
        let _gone = shared.gone.clone().drop_guard();
        let talk = Self { shared, out, _ends: ends.clone().drop_guard(), _gone, _hold: hold };
        (talk, messages, ends)
    }

    /// Sets a writer for messages that need not wait.
    pub(super) fn written_by(mut self, pen: Arc<Pen>) -> Self {
        self.out.pen = Some(pen);
        self
    }

    /// Returns the spinner, which asks the reader to spin.
    pub(super) fn brisk(&self) -> &Arc<Brisk> {
        &self.shared.brisk
    }

    /// Returns the receiver of incoming messages.
    pub(crate) fn ear(&self) -> Ear {
        Ear { shared: self.shared.clone(), out: self.out.clone() }
    }
}

/// Receiver of the transport's incoming messages.
#[derive(Clone)]
pub(crate) struct Ear {
    pub(crate) shared: Arc<Shared>,
    out: Way,
}

/// A receiver that panics ends the conversation, so that requests in flight fail.
impl Drop for Ear {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end("what it said could not be handled".to_owned());
        }
    }
}

/// Outgoing messages: a queue that the transport reads, and a direct writer for when the queue is
/// empty.
#[derive(Clone)]
struct Way {
    queue: mpsc::Sender<Bytes>,
    pen: Option<Arc<Pen>>,
}

/// The transport no longer writes.
struct Closed;

impl Way {
    async fn say(&self, message: Bytes) -> Result<(), Closed> {
        if self.pen.as_ref().is_some_and(|pen| !self.queue.is_closed() && pen.writes(&message)) {
            return Ok(());
        }
        let place = self.queue.reserve().await.map_err(|_| Closed)?;
        self.waits();
        place.send(message);
        Ok(())
    }

    /// Sends a message unless the queue is full.
    fn say_now(&self, message: Bytes) {
        if let Ok(place) = self.queue.try_reserve() {
            self.waits();
            place.send(message);
        }
    }

    fn waits(&self) {
        if let Some(pen) = &self.pen {
            pen.waits();
        }
    }
}

impl Shared {
    /// Keeps the end of the standard error output.
    pub(crate) fn says(&self, said: &[u8]) {
        let mut words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend_from_slice(said);
        let over = words.len().saturating_sub(LAST_WORDS);
        words.drain(..over);
    }
}

/// Returns the error for an answer longer than `bytes_max`.
pub(super) fn too_long(bytes_max: usize) -> Trouble {
    let why =
        format!("it answered with more than the {bytes_max} bytes that `message_bytes` lets it");
    Trouble::Refused(RpcError::new(-32603, why))
}

/// Runs `work` until `ends` is cancelled.
pub(crate) async fn until(ends: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = ends.cancelled() => {}
        () = work => {}
    }
}

impl Ear {
    /// Fails the request that an overlong message answers. If its id is unreadable, all requests in
    /// flight fail.
    pub(crate) fn too_long(&self, cut: &Cut, bytes_max: usize) {
        let shared = &self.shared;
        let all = match cut.is() {
            Is::Answer(Some(id)) => {
                shared.in_flight.is_done(id);
                shared.in_flight.end(id).into_iter().collect()
            }
            Is::Answer(None) => shared.in_flight.end_all(),
            Is::Other => {
                tracing::debug!("an upstream says more than {bytes_max} bytes at once");
                Vec::new()
            }
        };
        for answer in all {
            let _ = answer.send(Err(too_long(bytes_max)));
        }
    }

    /// Fails the request `id`.
    pub(crate) fn fails(&self, id: u64, trouble: Trouble) {
        if let Some(answer) = self.shared.in_flight.end(id) {
            let _ = answer.send(Err(trouble));
        }
    }

    /// Handles an incoming message.
    pub(crate) fn taken(&self, line: &[u8]) {
        let Self { shared, out } = self;
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let messages = match message::read(line) {
            Ok(messages) => messages,
            Err(why) => {
                // Text that a server prints to its standard output is ignored.
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
                tracing::debug!("an upstream prints what is no message ({why}): {shown}");
                return;
            }
        };
        for message in messages {
            match message {
                Message::Answer(id, outcome) => {
                    // Answers to unknown requests are ignored.
                    let Some(id) = id else { continue };
                    let Some(answer) = shared.in_flight.end(id) else {
                        shared.in_flight.is_done(id);
                        continue;
                    };
                    let _ = answer.send(outcome.map_err(Trouble::Refused));
                }
                Message::Notification { method, params } => shared.in_flight.said(&method, &params),
                Message::Request { id, method, params } => {
                    shared.in_flight.is_asked(&method);
                    let Ok(place) = shared.questions.clone().try_acquire_owned() else {
                        let busy = RpcError::new(-32603, "too much is asked at once");
                        out.say_now(message::answered(&id, Err(busy)));
                        continue;
                    };
                    let shared = shared.clone();
                    let out = out.clone();
                    tokio::spawn(async move {
                        let outcome = match method.as_str() {
                            "ping" => Ok(Value::Object(serde_json::Map::new())),
                            _ => tokio::select! {
                                outcome = shared.in_flight.clone().asked(method, params) => outcome,
                                () = shared.gone.cancelled() => return,
                            },
                        };
                        let _ = out.say(message::answered(&id, outcome)).await;
                        drop(place);
                    });
                }
            }
        }
    }
}

/// A request that waits for its answer. Dropping it early sends a cancellation.
struct Waiting<'a> {
    talk: &'a Talk,
    id: u64,
    cancellable: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let in_flight = &self.talk.shared.in_flight;
        if !self.cancellable {
            in_flight.end(self.id);
        } else if in_flight.abandon(self.id).is_some() {
            let reason = "nobody waits for the answer any more";
            let params = serde_json::json!({ "requestId": self.id, "reason": reason });
            let said = message::written(None, "notifications/cancelled", &params);
            self.talk.out.say_now(said);
        }
    }
}

impl Wire for Talk {
    fn request(
        &self,
        message: Sent,
        hears: Arc<dyn Hears>,
    ) -> BoxFuture<'_, Result<Box<RawValue>, Trouble>> {
        Box::pin(async move {
            let id = message.id.unwrap_or_default();
            let (answer, answered) = oneshot::channel();
            self.shared.in_flight.begin(&message, hears, answer);
            let cancellable = message.method != "initialize";
            let _waiting = Waiting { talk: self, id, cancellable };
            let gone = || self.shared.why();
            if self.shared.gone.is_cancelled() {
                return Err(Trouble::NotSent(gone()));
            }
            self.out.say(message.body).await.map_err(|Closed| Trouble::NotSent(gone()))?;
            let alone = self.shared.in_flight.is_alone();
            self.shared
                .brisk
                .wait(alone, answered)
                .await
                .unwrap_or_else(|_| Err(Trouble::Lost(gone())))
        })
    }

    fn say(&self, message: Sent) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(async move {
            let said = self.out.say(message.body).await;
            said.map_err(|Closed| Trouble::NotSent(self.shared.why()))
        })
    }

    fn tells_who_asks(&self) -> bool {
        false
    }

    fn gone(&self) -> &CancellationToken {
        &self.shared.gone
    }

    fn why(&self) -> String {
        self.shared.why()
    }
}
