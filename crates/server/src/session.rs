//! One conversation with one client: its frames in, its calls in flight, its answers out.

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

/// What every session of a server shares.
pub struct Desk {
    /// Answers requests.
    pub host: Arc<Host>,
    /// Cancelled when nobody need listen any more: nothing new is begun.
    pub(crate) closing: CancellationToken,
    /// Cancelled when calls in flight must end.
    stop: CancellationToken,
    /// All that goes on, whether its client is still there or not.
    running: TaskTracker,
    /// What was said on streams that have ended, for clients that come back.
    ended: Arc<Ended>,
    /// Whether anything was asked of late.
    pub(crate) bustle: Bustle,
}

impl Desk {
    /// A desk before `host`.
    pub fn new(host: Arc<Host>) -> Arc<Self> {
        let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
        let (running, ended) = (TaskTracker::new(), Arc::default());
        Arc::new(Self { host, closing, stop, running, ended, bustle: Bustle::default() })
    }

    /// Once `shutdown` is cancelled, lets calls in flight go on for `drain`, then cancels them.
    pub(crate) async fn stop_after(self: Arc<Self>, shutdown: CancellationToken, drain: Duration) {
        shutdown.cancelled().await;
        self.closing.cancel();
        tokio::time::sleep(drain).await;
        self.stop.cancel();
    }

    /// Waits until nothing goes on.
    pub(crate) async fn idle(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

/// One conversation with one client.
pub(crate) struct Session {
    desk: Arc<Desk>,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) caller: Caller,
    /// How its client is connected: `http`, `stdio` or `websocket`.
    transport: &'static str,
    /// What it is known by in records, once it is one that is known by anything.
    name: OnceLock<Arc<str>>,
    conversation: Mutex<Box<dyn Conversation>>,
    in_flight: Mutex<InFlight>,
    serial: AtomicU64,
    /// What the client was asked and has not answered.
    questions: LazyLock<Arc<Questions>>,
    /// What the client wants to be told of unasked.
    subscribed: LazyLock<Subscribed>,
    /// What is said to it on streams that it can come back to.
    pub(crate) streams: Streams,
    /// Cancelled when nothing more is to be told.
    over: CancellationToken,
}

/// Where what is said to a client goes while it is worked for.
#[derive(Clone)]
pub(crate) enum Out {
    /// Nowhere: its answer is all it gets.
    Nowhere,
    /// To a client that stays connected, from this place of its calls in flight.
    Connected(mpsc::Sender<Bytes>, Arc<Place>),
    /// To the stream that its request is answered by.
    Stream(mpsc::Sender<Word>),
}

/// What is said on a stream.
pub(crate) enum Word {
    /// A message.
    Message(Bytes),
    /// The connection may go.
    LetGo,
}

impl Out {
    /// Says what may be missed by a client that does not keep up.
    pub(crate) fn say(&self, message: Bytes) {
        match self {
            Self::Nowhere => {}
            Self::Connected(out, _) => drop(out.try_send(message)),
            Self::Stream(out) => drop(out.try_send(Word::Message(message))),
        }
    }

    /// Says what must not be missed; whether there is anybody to hear it.
    pub(crate) async fn insist(&self, message: Bytes) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Connected(out, _) => out.send(message).await.is_ok(),
            Self::Stream(out) => out.send(Word::Message(message)).await.is_ok(),
        }
    }

    /// Takes no place in flight while the client is waited for.
    ///
    /// # Errors
    /// When as much is waited for as may be.
    pub(crate) fn step_aside(&self) -> Result<Option<OwnedSemaphorePermit>, ToolError> {
        match self {
            Self::Nowhere | Self::Stream(_) => Ok(None),
            Self::Connected(_, place) => place.step_aside().map(Some),
        }
    }

    /// Waits for the place that [`Out::step_aside`] gave up.
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

/// What was begun and not answered.
#[derive(Default)]
struct InFlight {
    asks: HashMap<Key, Begin>,
    /// Why nothing more is begun, once that is so.
    ended: Option<&'static str>,
}

struct Begin {
    serial: u64,
    cancel: CancellationToken,
}

/// An ask that was taken: its work, and the way to end it.
pub(crate) struct Begun {
    /// To be run by [`crate::going::now_or_spawned`] or as [`crate::going::Going`].
    pub(crate) work: BoxFuture<'static, Answered>,
    /// Ends the work.
    pub(crate) cancel: CancellationToken,
}

/// What an ask came to.
pub(crate) struct Answered {
    /// The answer; `None` if none is owed any more.
    pub(crate) reply: Option<Reply>,
    /// The job that is the answer, where the client wants to hear of it.
    pub(crate) follow: Option<Watching>,
}

/// How much of the hash of its id a session is known by in records.
const NAME_CHARS: usize = 16;

/// Nothing is told of a followed job but what happens.
const FOLLOW: Pace = Pace::Events { quiet: Duration::MAX };

impl Session {
    pub(crate) fn new(desk: Arc<Desk>, dialect: Arc<dyn Dialect>, caller: Caller) -> Arc<Self> {
        Self::over("http", desk, dialect, caller)
    }

    /// With a client that is connected by `transport`.
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
            // Most sessions are one request, which asks and subscribes to nothing.
            questions: LazyLock::new(|| Arc::new(Questions::new())),
            subscribed: LazyLock::new(Subscribed::default),
            streams,
            over: CancellationToken::new(),
        })
    }

    /// It is known by `id` from now on: to its client as it is, in records by its hash, since
    /// whoever has an id may take up the session.
    pub(crate) fn is_known_as(&self, id: &str) {
        let hash = blake3::hash(id.as_bytes()).to_hex();
        let _ = self.name.set(hash[..NAME_CHARS].into());
    }

    /// Reads one frame.
    pub(crate) fn read(&self, frame: &Frame) -> Reading {
        locked(&self.conversation).read(frame)
    }

    /// One reply out of the replies to a batch.
    pub(crate) fn join(&self, replies: Vec<Reply>) -> Reply {
        locked(&self.conversation).join(replies)
    }

    /// Takes `ask`, which `caller` makes now, and gives the work it makes; what is said meanwhile
    /// goes to `out`.
    ///
    /// Whoever makes it is whose the session is, and may by now be allowed more than when it began,
    /// or less.
    ///
    /// Refused if its key is in flight already.
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
            // Gone from the list, it was cancelled, and whoever cancels wants no answer.
            if !listed.strike() {
                if let Some(seal) = seal {
                    seal.unwanted(&session.desk.host);
                }
                return Answered { reply: None, follow: None };
            }
            // Still listed, nobody cancelled it but whoever ends the session or the server.
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

    /// How whoever made a request can be asked something while it is worked on.
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

    /// Takes what the client says to the question it was asked as `id`.
    pub(crate) fn told(&self, id: &str, heard: &Heard) {
        self.questions.told(id, heard);
    }

    /// Says that nothing more is read of the client: what it was asked it cannot answer.
    pub(crate) fn hears_no_more(&self) {
        self.questions.end();
    }

    /// Whoever asks for a list is told when it changes.
    fn notes_interest(&self, request: &Request) {
        match request {
            Request::ListResources { .. } => self.subscribed.to_lists(false, true),
            Request::ListPrompts { .. } => self.subscribed.to_lists(true, false),
            _ => {}
        }
    }

    /// Changes of the resource `uri` are not told any more.
    pub(crate) fn unwatch(&self, uri: &str) {
        self.subscribed.not_to(uri);
    }

    /// Tells `out` of changes as `listening` wants, until it is cancelled, nobody hears it any
    /// more or the session ends.
    ///
    /// Refused if its key is in flight already.
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
        let (interest, ticket) = (listening.interest, listening.ticket);
        let caller = caller.clone();
        tokio::spawn(self.desk.running.track_future(async move {
            let _place = place;
            let session = &listed.session;
            let telling =
                listening::tell(&session.desk.host, &caller, interest, ticket.as_ref(), &out);
            tokio::select! {
                // Who has cancelled is told nothing more, though there be room for it again.
                biased;
                () = cancel.cancelled() => {}
                () = session.over.cancelled() => {}
                () = out.closed() => return,
                () = telling => return,
            }
            // Cancelled by its client it is not listed any more, and nothing more is said.
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

    /// Tells `out` what is told unasked, until nobody hears it any more or the session ends;
    /// nothing if the wire has no such words.
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

    /// Tells of a job to `out`, until it has ended, the client is gone or the session ends.
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

    /// Cancels the ask called `key`, if it is in flight; it is not answered then.
    pub(crate) fn cancel(&self, key: &Key) {
        if let Some(ask) = locked(&self.in_flight).asks.remove(key) {
            ask.cancel.cancel();
        }
    }

    /// Begins nothing more and cancels all that is in flight; each ask is answered `why`.
    pub(crate) fn end(&self, why: &'static str) {
        self.over.cancel();
        let mut in_flight = locked(&self.in_flight);
        in_flight.ended.get_or_insert(why);
        for ask in in_flight.asks.values() {
            ask.cancel.cancel();
        }
    }

    /// It is over for good: what was had for it alone is let go.
    pub(crate) fn is_over(&self) {
        if let Some(name) = self.name.get() {
            self.desk.host.left(name);
        }
    }

    /// Whether nothing is in flight and nobody listens.
    pub(crate) fn is_idle(&self) -> bool {
        locked(&self.in_flight).asks.is_empty() && !self.streams.are_read()
    }

    /// Cancelled when nobody need listen any more.
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

/// An ask's place in the list of those in flight, struck off when it is dropped at the latest.
struct Listed {
    session: Arc<Session>,
    key: Key,
    serial: u64,
}

impl Listed {
    /// Strikes the ask off; whether it was still there.
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

/// Lets a call's events out until it is answered, and never after.
struct Mouth(Option<Arc<Mutex<Option<Out>>>>);

fn mouth(ticket: &Arc<dyn Ticket>, events: Accepts, out: &Out) -> (EventSink, Mouth) {
    // Who can come back is let go, whether or not they listen.
    if events != Accepts::Resumable && !ticket.listens() {
        return (EventSink::none(), Mouth(None));
    }
    let open = Arc::new(Mutex::new(Some(out.clone())));
    let mouth = Mouth(Some(open.clone()));
    let (ticket, lines) = (ticket.clone(), ticket.lines());
    let events = EventSink::new(move |event: Event| {
        // Held while speaking, so that nothing is said once the mouth is shut.
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
    /// A tool may keep its sink for as long as it likes; what the events went to is let go here.
    fn shut(&self) {
        if let Some(open) = &self.0 {
            *locked(open) = None;
        }
    }
}

/// The lock, whoever panicked while holding it: each guards a value that is whole at every step.
pub(crate) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
