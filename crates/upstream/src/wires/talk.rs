//! A conversation over whatever carries messages both ways: pipes, a stream and requests, a socket.

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

/// How many messages may wait to be written.
const WAITING: usize = 256;
/// How many questions of one upstream may be open at once.
pub(super) const QUESTIONS_MAX: usize = 64;
/// How much of what it says beside is kept to explain its end.
const LAST_WORDS: usize = 2048;

/// A conversation in which answers find their questions by number, whatever carries it.
pub(crate) struct Talk {
    shared: Arc<Shared>,
    out: Way,
    _ends: DropGuard,
    /// Whoever waits for its end is told.
    _gone: DropGuard,
    /// What carries it lives as long as this.
    _hold: Hold,
}

/// What both directions of a conversation know.
pub(crate) struct Shared {
    in_flight: Arc<InFlight<Answer>>,
    brisk: Arc<Brisk>,
    gone: CancellationToken,
    why: Mutex<String>,
    last_words: Mutex<Vec<u8>>,
    questions: Arc<Semaphore>,
}

/// Where an answer goes.
type Answer = oneshot::Sender<Result<Box<RawValue>, Trouble>>;

impl Shared {
    /// Ends it: who waits for an answer gets none.
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
    /// A conversation that `hears` what belongs to no request. What is to be sent comes by the
    /// receiver; the token says when nobody wants it any more.
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

    /// The same, where `pen` writes what does not have to wait.
    pub(super) fn written_by(mut self, pen: Arc<Pen>) -> Self {
        self.out.pen = Some(pen);
        self
    }

    /// Whoever reads what comes is told by this when to look for it.
    pub(super) fn brisk(&self) -> &Arc<Brisk> {
        &self.shared.brisk
    }

    /// What carries it tells what comes to this.
    pub(crate) fn ear(&self) -> Ear {
        Ear { shared: self.shared.clone(), out: self.out.clone() }
    }
}

/// Where what comes is told.
#[derive(Clone)]
pub(crate) struct Ear {
    pub(crate) shared: Arc<Shared>,
    out: Way,
}

/// Who cannot take what comes takes it no more, and whoever waits must know.
impl Drop for Ear {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end("what it said could not be handled".to_owned());
        }
    }
}

/// The way out: a queue, which whoever carries the conversation writes from, and a pen for what
/// finds nothing before it.
#[derive(Clone)]
struct Way {
    queue: mpsc::Sender<Bytes>,
    pen: Option<Arc<Pen>>,
}

/// Nobody writes any more.
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

    /// The same, unless too much waits already.
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
    /// Keeps what it says beside, as far as that may explain its end.
    pub(crate) fn says(&self, said: &[u8]) {
        let mut words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend_from_slice(said);
        let over = words.len().saturating_sub(LAST_WORDS);
        words.drain(..over);
    }
}

/// Why an answer that is longer than `bytes_max` is none.
pub(super) fn too_long(bytes_max: usize) -> Trouble {
    let why =
        format!("it answered with more than the {bytes_max} bytes that `message_bytes` lets it");
    Trouble::Refused(RpcError::new(-32603, why))
}

/// Does `work` until `ends`.
pub(crate) async fn until(ends: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = ends.cancelled() => {}
        () = work => {}
    }
}

impl Ear {
    /// What is too long to be read fails whom it answers; an answer that does not say whom may be
    /// for anybody who waits.
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

    /// The request `id` gets no answer.
    pub(crate) fn fails(&self, id: u64, trouble: Trouble) {
        if let Some(answer) = self.shared.in_flight.end(id) {
            let _ = answer.send(Err(trouble));
        }
    }

    /// A message has come.
    pub(crate) fn taken(&self, line: &[u8]) {
        let Self { shared, out } = self;
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let messages = match message::read(line) {
            Ok(messages) => messages,
            Err(why) => {
                // A server that prints to its standard output says nothing to anybody by that.
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
                tracing::debug!("an upstream prints what is no message ({why}): {shown}");
                return;
            }
        };
        for message in messages {
            match message {
                Message::Answer(id, outcome) => {
                    // What nobody asked, or was answered already, is nothing.
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
                    let (shared, out) = (shared.clone(), out.clone());
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

/// A request that is waited for; who stops waiting says so.
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
