//! One conversation with one client: reads frames, tracks calls in flight and returns answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{
    Answer, Asker, Beside, BoxFuture, CallError, Caller, Event, EventSink, Frame, Reply, Request,
    ToolError,
};
use toolgate_dialects::{
    Accepts, Ask, Asking, Conversation, Dialect, Heard, Key, Listening, Pace, Reading, Refused,
    Ticket, Watching,
};
use toolgate_host::{Asked, Host};

use crate::client::Place;
use crate::enveloping::Seal;
use crate::listening::{self, Subscribed};
use crate::memory::Bustle;
use crate::questions::{Questions, SessionAsks};
use crate::streams::{Ended, Streams};
use crate::watching;

/// State that all sessions of a server share.
pub struct Desk {
    /// Host that answers requests.
    pub host: Arc<Host>,
    /// Cancelled when shutdown starts. No new call or subscription begins after that.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the drain time ends. Calls in flight are cancelled then.
    stop: CancellationToken,
    /// All running work, including that of disconnected clients.
    running: TaskTracker,
    /// Ended streams that clients may come back to read.
    ended: Arc<Ended>,
    /// Tracks if the server is idle.
    pub(crate) bustle: Bustle,
}

impl Desk {
    /// Creates the state of a server that answers with `host`.
    pub fn new(host: Arc<Host>) -> Arc<Self> {
        let closing = CancellationToken::new();
        let stop = CancellationToken::new();
        let running = TaskTracker::new();
        let ended = Arc::default();
        Arc::new(Self { host, closing, stop, running, ended, bustle: Bustle::default() })
    }

    /// Waits for `shutdown`, lets calls in flight run for `drain`, then cancels them.
    pub(crate) async fn stop_after(self: Arc<Self>, shutdown: CancellationToken, drain: Duration) {
        shutdown.cancelled().await;
        self.closing.cancel();
        tokio::time::sleep(drain).await;
        self.stop.cancel();
    }

    /// Waits until all work has ended.
    pub(crate) async fn idle(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

/// Conversation with one client.
pub(crate) struct Session {
    desk: Arc<Desk>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) caller: Caller,
    /// Transport of its client: `http`, `stdio` or `websocket`.
    transport: &'static str,
    /// Name of the session in audit records, once it has an id.
    name: OnceLock<Arc<str>>,
    conversation: Mutex<Box<dyn Conversation>>,
    in_flight: Mutex<InFlight>,
    serial: AtomicU64,
    /// Questions to the client that it has not answered.
    questions: LazyLock<Arc<Questions>>,
    /// Changes about which the client receives notifications.
    subscribed: LazyLock<Subscribed>,
    /// Event streams that the client can resume.
    pub(crate) streams: Streams,
    /// Cancelled when no more notifications are to be sent.
    over: CancellationToken,
}

/// Destination of the events of a running call.
#[derive(Clone)]
pub(crate) enum Out {
    /// No destination: the client gets only the answer.
    Nowhere,
    /// Connected client, with the in-flight permit of the call.
    Connected(mpsc::Sender<Bytes>, Arc<Place>),
    /// Event stream that answers the call's HTTP request.
    Stream(mpsc::Sender<Word>),
}

/// Item on an event stream.
pub(crate) enum Word {
    /// Message for the client.
    Message(Bytes),
    /// Request to close the connection. The client may resume the stream later.
    LetGo,
}

impl Out {
    /// Sends an event, or drops it if the client does not keep up.
    pub(crate) fn say(&self, message: Bytes) {
        match self {
            Self::Nowhere => {}
            Self::Connected(out, _) => drop(out.try_send(message)),
            Self::Stream(out) => drop(out.try_send(Word::Message(message))),
        }
    }

    /// Sends a message and waits for room. Returns false if nobody receives it.
    pub(crate) async fn insist(&self, message: Bytes) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Connected(out, _) => out.send(message).await.is_ok(),
            Self::Stream(out) => out.send(Word::Message(message)).await.is_ok(),
        }
    }

    /// Returns the in-flight permit while the call waits for the client.
    ///
    /// # Errors
    /// When too many questions are open with this client.
    pub(crate) fn step_aside(&self) -> Result<Option<OwnedSemaphorePermit>, ToolError> {
        match self {
            Self::Nowhere | Self::Stream(_) => Ok(None),
            Self::Connected(_, place) => place.step_aside().map(Some),
        }
    }

    /// Takes back the permit that [`Out::step_aside`] returned.
    pub(crate) async fn step_back(&self) {
        match self {
            Self::Nowhere | Self::Stream(_) => {}
            Self::Connected(_, place) => place.step_back().await,
        }
    }

    fn let_go(&self) {
        if let Self::Stream(out) = self {
            drop(out.try_send(Word::LetGo));
        }
    }
}

/// Calls in flight, by key.
#[derive(Default)]
struct InFlight {
    asks: HashMap<Key, Begin>,
    /// Reason why no call begins any more, if the session has ended.
    ended: Option<&'static str>,
}

struct Begin {
    serial: u64,
    cancel: CancellationToken,
}

/// Accepted call: its work and its cancel token.
pub(crate) struct Begun {
    /// Work of the call. Run it by [`crate::going::now_or_spawned`] or as [`crate::going::Going`].
    pub(crate) work: BoxFuture<'static, Answered>,
    /// Token that cancels the work.
    pub(crate) cancel: CancellationToken,
}

/// Result of a call.
pub(crate) struct Answered {
    /// Answer for the client. `None` if the client cancelled the call.
    pub(crate) reply: Option<Reply>,
    /// Job to watch after the answer, if the client asked to follow it.
    pub(crate) follow: Option<Watching>,
}

/// Length of a session's name in records: the first characters of its id's hash.
const NAME_CHARS: usize = 16;

/// Pace of a followed job: events only, with no heartbeat.
const FOLLOW: Pace = Pace::Events { quiet: Duration::MAX };

impl Session {
    pub(crate) fn new(desk: Arc<Desk>, dialect: Arc<dyn Dialect>, caller: Caller) -> Arc<Self> {
        Self::over("http", desk, dialect, caller)
    }

    /// Creates a session with a client that is connected by `transport`.
    pub(crate) fn over(
        transport: &'static str,
        desk: Arc<Desk>,
        dialect: Arc<dyn Dialect>,
        caller: Caller,
    ) -> Arc<Self> {
        let conversation = Mutex::new(dialect.converse(&caller));
        let streams = Streams::new(desk.ended.clone());
        Arc::new(Self {
            desk,
            dialect,
            caller,
            transport,
            name: OnceLock::new(),
            conversation,
            in_flight: Mutex::default(),
            serial: AtomicU64::new(0),
            // Created on demand: most sessions are one request without questions or subscriptions.
            questions: LazyLock::new(|| Arc::new(Questions::new())),
            subscribed: LazyLock::new(Subscribed::default),
            streams,
            over: CancellationToken::new(),
        })
    }

    /// Sets the session's id. Records name it by a hash, because anyone with the id could resume
    /// the session.
    pub(crate) fn is_known_as(&self, id: &str) {
        let hash = blake3::hash(id.as_bytes()).to_hex();
        let _ = self.name.set(hash[..NAME_CHARS].into());
    }

    /// Parses one frame.
    pub(crate) fn read(&self, frame: &Frame) -> Reading {
        locked(&self.conversation).read(frame)
    }

    /// Joins the replies to a batch into one reply.
    pub(crate) fn join(&self, replies: Vec<Reply>) -> Reply {
        locked(&self.conversation).join(replies)
    }

    /// Begins `ask` for `caller`. Events go to `out` while it runs.
    ///
    /// `caller` owns the session, but its permissions may have changed since the session began.
    ///
    /// # Errors
    /// A refusal, when a call with the same key is in flight or the session has ended.
    pub(crate) fn begin(
        self: &Arc<Self>,
        mut ask: Ask,
        out: Out,
        caller: &Caller,
    ) -> Result<Begun, Reply> {
        self.desk.bustle.is_now();
        let cancel = self.desk.stop.child_token();
        let seal = Seal::before(&self.desk.host, &mut ask, self.dialect.name(), self.transport);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        if let Err(refused) = self.enter(&ask.key, Begin { serial, cancel: cancel.clone() }) {
            if let Some(seal) = seal {
                seal.never_begun(&self.desk.host);
            }
            return Err(refused);
        }
        let listed = Listed { session: self.clone(), key: ask.key, serial };

        self.notes_interest(&ask.request);
        let (events, mouth) = mouth(&ask.ticket, ask.events, &out);
        let (asker, state) = self.asker(ask.asking, &ask.ticket, &cancel, out);
        let asked = Asked {
            request: ask.request,
            caller: caller.clone(),
            dialect: self.dialect.name(),
            cancel: cancel.clone(),
            events,
            asker,
            state,
            beside: Beside {
                session: self.name.get().cloned(),
                transport: self.transport,
                ..ask.beside
            },
            within: ask.within,
        };
        let ticket = ask.ticket;
        let work = self.desk.running.track_future(async move {
            let session = listed.session.clone();
            let outcome = session.desk.host.answer(asked).await;
            mouth.shut();
            // Not listed any more, so the client cancelled it and expects no answer.
            if !listed.strike() {
                if let Some(seal) = seal {
                    seal.unwanted(&session.desk.host);
                }
                return Answered { reply: None, follow: None };
            }
            // Still listed, so only the end of the session or server can have cancelled it.
            let outcome = outcome.map_err(|error| match error {
                CallError::Canceled => CallError::Unavailable {
                    message: format!("{}; the call was cancelled", session.ending()),
                },
                other => other,
            });
            let outcome = match outcome {
                Ok(Answer::Watched { uri, hold }) => session.subscribed.to(uri, hold),
                other => other,
            };
            let follow = match &outcome {
                Ok(Answer::Job(job)) => ticket.follow(job).map(|ticket| Watching {
                    id: job.id.to_string(),
                    pace: FOLLOW,
                    ticket,
                }),
                Ok(_) | Err(_) => None,
            };
            let reply = match seal {
                None => ticket.reply(outcome),
                Some(seal) => seal.reply(&session.desk.host, ticket.as_ref(), outcome),
            };
            Answered { reply, follow }
        });
        Ok(Begun { work: Box::pin(work), cancel })
    }

    /// Returns the way in which the call can ask its client questions.
    fn asker(
        &self,
        asking: Asking,
        ticket: &Arc<dyn Ticket>,
        cancel: &CancellationToken,
        out: Out,
    ) -> (Asker, Option<String>) {
        match (asking, out) {
            (Asking::Nobody, _) | (Asking::Now(_), Out::Nowhere) => (Asker::nobody(), None),
            (Asking::Again { can, given, state }, _) => (Asker::again(can, given), state),
            (Asking::Now(can), out) => {
                let asks = SessionAsks {
                    questions: self.questions.clone(),
                    ticket: ticket.clone(),
                    out,
                    cancel: cancel.clone(),
                    closing: self.desk.closing.clone(),
                };
                (Asker::now(can, Arc::new(asks)), None)
            }
        }
    }

    /// Passes the client's response to the question `id`.
    pub(crate) fn told(&self, id: &str, heard: &Heard) {
        self.questions.told(id, heard);
    }

    /// Fails all open questions, because the client's messages are not read any more.
    pub(crate) fn hears_no_more(&self) {
        self.questions.end();
    }

    /// Subscribes the client to a list that it has requested.
    fn notes_interest(&self, request: &Request) {
        match request {
            Request::ListResources { .. } => self.subscribed.to_lists(false, true),
            Request::ListPrompts { .. } => self.subscribed.to_lists(true, false),
            _ => {}
        }
    }

    /// Ends the subscription to the resource `uri`.
    pub(crate) fn unwatch(&self, uri: &str) {
        self.subscribed.not_to(uri);
    }

    /// Sends change notifications to `out` as `listening` requests.
    ///
    /// It ends when the request is cancelled, the receiver is gone or the session ends.
    ///
    /// # Errors
    /// A refusal, when a request with the same key is in flight or the session has ended.
    pub(crate) fn listen(
        self: &Arc<Self>,
        listening: Listening,
        out: mpsc::Sender<Bytes>,
        place: Option<OwnedSemaphorePermit>,
        caller: &Caller,
    ) -> Result<(), Reply> {
        let cancel = self.desk.closing.child_token();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        self.enter(&listening.key, Begin { serial, cancel: cancel.clone() })?;
        let listed = Listed { session: self.clone(), key: listening.key, serial };
        let interest = listening.interest;
        let ticket = listening.ticket;
        let caller = caller.clone();
        tokio::spawn(self.desk.running.track_future(async move {
            let _place = place;
            let session = &listed.session;
            let telling =
                listening::tell(&session.desk.host, &caller, interest, ticket.as_ref(), &out);
            tokio::select! {
                // After a cancel nothing more is sent, even if there is room again.
                biased;
                () = cancel.cancelled() => {}
                () = session.over.cancelled() => {}
                () = out.closed() => return,
                () = telling => return,
            }
            // If the client cancelled, the entry is gone and no end message is sent.
            if listed.strike() {
                for message in ticket.end() {
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }));
        Ok(())
    }

    /// Sends the session's notifications to `out` until the receiver is gone or the session ends.
    /// Does nothing if the dialect has none.
    pub(crate) fn tell_tidings(self: &Arc<Self>, out: mpsc::Sender<Bytes>) {
        let Some(ticket) = locked(&self.conversation).tidings() else { return };
        let session = self.clone();
        tokio::spawn(self.desk.running.track_future(async move {
            let host = &session.desk.host;
            let caller = (&session.caller, session.name.get().cloned());
            tokio::select! {
                () = session.subscribed.tell(host, caller, ticket.as_ref(), &out) => {}
                () = out.closed() => {}
                () = session.over.cancelled() => {}
                () = session.desk.closing.cancelled() => {}
            }
        }));
    }

    /// Sends a job's events to `out` until the job ends, the client leaves or the session ends.
    pub(crate) fn watch(self: &Arc<Self>, job: Watching, out: mpsc::Sender<Bytes>) {
        let session = self.clone();
        tokio::spawn(self.desk.running.track_future(async move {
            let over = async {
                tokio::select! {
                    () = session.desk.stop.cancelled() => {}
                    () = session.over.cancelled() => {}
                    () = out.closed() => {}
                }
            };
            tokio::select! {
                () = watching::tell(&session.desk.host, &session.caller, &job, &out) => {}
                () = over => {}
            }
        }));
    }

    /// Cancels the call `key` if it is in flight. It gets no answer.
    pub(crate) fn cancel(&self, key: &Key) {
        if let Some(ask) = locked(&self.in_flight).asks.remove(key) {
            ask.cancel.cancel();
        }
    }

    /// Ends the session: cancels all calls in flight, which are answered with `why`, and refuses
    /// new ones.
    pub(crate) fn end(&self, why: &'static str) {
        self.over.cancel();
        let mut in_flight = locked(&self.in_flight);
        in_flight.ended.get_or_insert(why);
        for ask in in_flight.asks.values() {
            ask.cancel.cancel();
        }
    }

    /// Releases everything that the host keeps for this session alone.
    pub(crate) fn is_over(&self) {
        if let Some(name) = self.name.get() {
            self.desk.host.left(name);
        }
    }

    /// Returns true if no call is in flight and no stream is read.
    pub(crate) fn is_idle(&self) -> bool {
        locked(&self.in_flight).asks.is_empty() && !self.streams.are_read()
    }

    /// Returns the token that is cancelled when shutdown starts.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.desk.closing.clone()
    }

    fn ending(&self) -> &'static str {
        locked(&self.in_flight).ended.unwrap_or("the server is stopping")
    }

    fn enter(&self, key: &Key, ask: Begin) -> Result<(), Reply> {
        let mut in_flight = locked(&self.in_flight);
        if in_flight.ended.is_some() {
            return Err(self.dialect.unknown_session());
        }
        if in_flight.asks.contains_key(key) {
            return Err(self.dialect.refuse(&Refused::Repeated { key: key.clone() }));
        }
        in_flight.asks.insert(key.clone(), ask);
        Ok(())
    }
}

/// Entry of a call in the list of calls in flight. Dropping it removes the entry.
struct Listed {
    session: Arc<Session>,
    key: Key,
    serial: u64,
}

impl Listed {
    /// Removes the entry. Returns false if it was already gone.
    fn strike(&self) -> bool {
        let mut in_flight = locked(&self.session.in_flight);
        let there = in_flight.asks.get(&self.key).is_some_and(|ask| ask.serial == self.serial);
        if there {
            in_flight.asks.remove(&self.key);
        }
        there
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.strike();
    }
}

/// Gate for a call's events. It closes once the call is answered.
struct Mouth(Option<Arc<Mutex<Option<Out>>>>);

fn mouth(ticket: &Arc<dyn Ticket>, events: Accepts, out: &Out) -> (EventSink, Mouth) {
    // Resumable streams need the sink even if the client wants no events, to receive requests to
    // close.
    if events != Accepts::Resumable && !ticket.listens() {
        return (EventSink::none(), Mouth(None));
    }
    let open = Arc::new(Mutex::new(Some(out.clone())));
    let mouth = Mouth(Some(open.clone()));
    let lines = ticket.lines();
    let ticket = ticket.clone();
    let events = EventSink::new(move |event: Event| {
        // The lock is held while sending, so that no event follows the close.
        let open = locked(&open);
        let Some(out) = &*open else { return };
        match (&event, ticket.event(&event)) {
            (Event::LetGo, _) => out.let_go(),
            (_, Some(message)) => out.say(message),
            (_, None) => {}
        }
    });
    let events = events.for_lines(lines);
    (events, mouth)
}

impl Mouth {
    /// Closes the gate and drops the destination, since a tool may keep its sink for longer.
    fn shut(&self) {
        if let Some(open) = &self.0 {
            *locked(open) = None;
        }
    }
}

/// Locks `mutex` even if it is poisoned. Each guarded value is consistent at every step.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
