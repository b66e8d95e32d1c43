//! Serves HTTP clients: routes paths to dialects and keeps sessions for dialects that have them.

mod giving_up;
mod sealed;
mod seats;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::poll_fn;
use http::{HeaderMap, Method};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use toolgate_contract::{Body, BoxFuture, Caller, Frame, Head, Reply, Request};
use toolgate_dialects::{Accepts, Ask, Dialect, Duplex, OnLeave, Reading, Refused, Upgrade};
use toolgate_transports::http::{Exchange, Incoming, Outgoing, Sender, SentEvent, Unread};

use crate::client::{Pending, Presence, random_id};
use crate::duplex::Duplexes;
use crate::going::Going;
use crate::identity::Identity;
use crate::lines::LineBounds;
use crate::routes::Routes;
use crate::session::{Answered, Begun, Desk, Out, Session, Word, locked};
use crate::sockets::{Closing, Conversing, Viewing};
use crate::streams::tidings_event;
use crate::telemetry::Page;
pub(crate) use sealed::{KEY_BYTES, Sealed};

/// Events that may wait for a slow client. Beyond them, events are dropped.
const EVENTS_WAITING: usize = 64;

/// Limits of sessions over HTTP.
#[derive(Debug, Clone)]
pub struct SessionBounds {
    /// Most sessions at once.
    pub sessions_max: usize,
    /// Time until a client that accepts streams gets one instead of a single answer.
    pub stream_after: Duration,
    /// Limits of a conversation over a WebSocket.
    pub socket: LineBounds,
}

/// HTTP endpoints of the dialects, and their open sessions.
pub struct Endpoints {
    desk: Arc<Desk>,
    routes: Routes,
    identity: Arc<Identity>,
    sessions: Mutex<HashMap<String, Seat>>,
    duplexes: Duplexes,
    sealed: Arc<Sealed>,
    bounds: SessionBounds,
    metrics: Option<Page>,
}

/// Open session with its last activity.
struct Seat {
    session: Arc<Session>,
    heard: Instant,
}

impl Endpoints {
    /// Serves each dialect at its paths, to callers that `identity` accepts.
    pub(crate) fn new(
        desk: Arc<Desk>,
        dialects: Vec<Arc<dyn Dialect>>,
        identity: Arc<Identity>,
        sealed: Arc<Sealed>,
        bounds: SessionBounds,
    ) -> Self {
        Self::at(desk, Routes::new(dialects), (identity, sealed), bounds)
    }

    /// Serves one dialect on a listener of its own.
    pub(crate) fn of_one(
        desk: Arc<Desk>,
        dialect: Arc<dyn Dialect>,
        identity: Arc<Identity>,
        sealed: Arc<Sealed>,
        bounds: SessionBounds,
    ) -> Self {
        let routes = Routes::at_paths(vec![dialect], |dialect| dialect.own_paths());
        Self::at(desk, routes, (identity, sealed), bounds)
    }

    fn at(
        desk: Arc<Desk>,
        routes: Routes,
        (identity, sealed): (Arc<Identity>, Arc<Sealed>),
        bounds: SessionBounds,
    ) -> Self {
        let sessions = Mutex::default();
        let duplexes = Duplexes::default();
        Self { desk, routes, identity, sessions, duplexes, sealed, bounds, metrics: None }
    }

    /// Adds the metrics page, if there is one.
    pub(crate) fn with_metrics(self, metrics: Option<Page>) -> Self {
        Self { metrics, ..self }
    }

    /// Returns the metrics page if `path` is its path.
    fn metrics(&self, path: &str) -> Option<&Page> {
        self.metrics.as_ref().filter(|_| Page::is_at(path))
    }

    async fn answer(&self, incoming: &Incoming) -> Outgoing {
        let Incoming { frame, upgrade, sender } = incoming;
        let Some(dialect) = self.routes.of(&frame.head) else {
            return Outgoing::Whole(Reply::empty(404));
        };
        let nobody = |why| self.turn_away(dialect, frame, *upgrade, why);
        let caller = match sender {
            Sender::Known(caller) => caller.clone(),
            Sender::Anybody => Caller::http(),
            Sender::Nobody { said } => return nobody(Refused::Unauthorized { said: *said }).await,
            Sender::Several => return nobody(Refused::Several).await,
            Sender::Guesser { retry_after } => {
                return nobody(Refused::Throttled { retry_after: *retry_after }).await;
            }
        };
        if *upgrade {
            return self.upgrade(dialect, dialect.upgrade(&frame.head), caller);
        }
        match dialect.duplex(&frame.head) {
            Some(Duplex::Open) => return self.open_duplex(dialect, caller),
            Some(Duplex::Say { id }) => {
                let said = self.duplexes.say(&id, &caller, frame.body.clone()).await;
                return Outgoing::Whole(said.unwrap_or_else(|| dialect.unknown_duplex()));
            }
            None => {}
        }
        let (id, session) = match dialect.session(&frame.head) {
            Some(id) => match self
                .seated(id, &caller, dialect.name())
                .or_else(|| self.taken_up(id, &caller, dialect))
            {
                Some(session) => (Some(id.to_owned()), session),
                None => return Outgoing::Whole(dialect.unknown_session()),
            },
            None => (None, Session::new(self.desk.clone(), dialect.clone(), caller.clone())),
        };
        self.follow(session.read(frame), (id, Some(frame)), session, &caller).await
    }

    /// Answers a frame from an unauthenticated sender.
    async fn turn_away(
        &self,
        dialect: &Arc<dyn Dialect>,
        frame: &Frame,
        upgrade: bool,
        why: Refused,
    ) -> Outgoing {
        if upgrade {
            let refused = dialect.turn_away_socket(&frame.head, &why);
            return self.upgrade(dialect, refused, Caller::http());
        }
        match dialect.turn_away(frame, &why) {
            Reading::Ask(ask) => Outgoing::Whole(self.refused_unrecorded(dialect, ask, &why)),
            reading => {
                let nobody = Caller::http();
                let session = Session::new(self.desk.clone(), dialect.clone(), nobody.clone());
                self.follow(reading, (None, None), session, &nobody).await
            }
        }
    }

    /// Answers an unauthenticated request without a record or a log line. Otherwise strangers could
    /// push out the records of others.
    fn refused_unrecorded(&self, dialect: &Arc<dyn Dialect>, ask: Ask, why: &Refused) -> Reply {
        let Ask { request, ticket, via, .. } = ask;
        let reply = match (request, via) {
            (Request::Refuse(why) | Request::RefuseCall { why, .. }, Some(via)) => {
                ticket.enveloped(&self.desk.host.envelopes().seal_unlogged(&via, why))
            }
            (Request::Refuse(why) | Request::RefuseCall { why, .. }, None) => {
                ticket.reply(Err(why))
            }
            // No other request is answered without authentication.
            _ => None,
        };
        reply.unwrap_or_else(|| dialect.refuse(why))
    }

    /// Acts on a frame that the dialect has read. `id` is the id of an existing session.
    async fn follow(
        &self,
        reading: Reading,
        (id, frame): (Option<String>, Option<&Frame>),
        session: Arc<Session>,
        caller: &Caller,
    ) -> Outgoing {
        match reading {
            Reading::Reply(reply) => Outgoing::Whole(reply),
            // These occur only on line-based transports.
            Reading::Replies(_) => Outgoing::Whole(Reply::empty(500)),
            Reading::Opened(reply) => Outgoing::Whole(self.seat(reply, frame, session)),
            Reading::Closed(reply) => {
                if let Some(id) = id {
                    self.sealed.end(&id);
                    locked(&self.sessions).remove(&id);
                }
                session.end("the session was ended");
                session.is_over();
                Outgoing::Whole(reply)
            }
            Reading::Cancel { key, reply } => {
                session.cancel(&key);
                Outgoing::Whole(reply)
            }
            Reading::Ask(ask) => self.work(&session, ask, caller).await,
            batch @ Reading::Batch(_) => {
                let pending = Pending::of(batch, &session, &Out::Nowhere, caller);
                let work = tokio::spawn(async move { pending.answer(&session).await });
                Outgoing::Whole(joined(work.await))
            }
            Reading::Listen(listening) => {
                let (words, told) = mpsc::channel(EVENTS_WAITING);
                match session.listen(listening, words, None, caller) {
                    Ok(()) => events_of(told, SentEvent::message),
                    Err(refusal) => Outgoing::Whole(refusal),
                }
            }
            Reading::Tidings { after } => tidings(&session, after.as_deref()),
            Reading::Unwatch { uri, reply } => {
                session.unwatch(&uri);
                Outgoing::Whole(reply)
            }
            Reading::Told { id, heard, reply } => {
                session.told(&id, &heard);
                Outgoing::Whole(reply)
            }
            Reading::Watch(job) => {
                let (words, told) = mpsc::channel(EVENTS_WAITING);
                session.watch(job, words);
                events_of(told, SentEvent::plain)
            }
        }
    }

    /// Opens the kind of WebSocket that the dialect selected.
    fn upgrade(
        &self,
        dialect: &Arc<dyn Dialect>,
        upgrade: Result<Upgrade, Reply>,
        caller: Caller,
    ) -> Outgoing {
        let upgrade = match upgrade {
            Ok(upgrade) => upgrade,
            Err(refusal) => return Outgoing::Whole(refusal),
        };
        let session = Session::over("websocket", self.desk.clone(), dialect.clone(), caller);
        // The client never sees this id. It separates the calls of conversations in records.
        if let Ok(id) = random_id() {
            session.is_known_as(&id);
        }
        Outgoing::Socket(match upgrade {
            Upgrade::Converse => {
                Box::new(Conversing { session, bounds: self.bounds.socket.clone() })
            }
            Upgrade::Watch(job) => Box::new(Viewing { session, job }),
            Upgrade::Close(message, code) => Box::new(Closing { message, code }),
        })
    }

    /// Runs one call. A client that accepts streams gets one once an event or a delay occurs;
    /// otherwise the answer is one message.
    async fn work(&self, session: &Arc<Session>, ask: Ask, caller: &Caller) -> Outgoing {
        let (say, mut events) = mpsc::channel(EVENTS_WAITING);
        let on_leave = ask.on_leave;
        let accepts = ask.events;
        let Begun { work, cancel } = match session.begin(ask, Out::Stream(say), caller) {
            Ok(begun) => begun,
            Err(refusal) => return Outgoing::Whole(refusal),
        };
        let presence = Presence::new(on_leave, cancel);
        let mut work = match Going::begin(work).await {
            Ok(answer) => return answered(session, answer.reply, events, accepts),
            Err(work) => work,
        };
        let first = match accepts {
            Accepts::Message => {
                return Outgoing::Whole(owed((&mut work).await.and_then(|all| all.reply)));
            }
            Accepts::Stream | Accepts::Resumable => tokio::select! {
                biased;
                answer = &mut work => {
                    let answer = answer.and_then(|all| all.reply);
                    return answered(session, answer, events, accepts);
                }
                Some(event) = events.recv() => Some(event),
                () = tokio::time::sleep(self.bounds.stream_after) => None,
            },
        };
        match (accepts, on_leave) {
            (Accepts::Resumable, OnLeave::Continues) => {
                resumable(session, first, events, Working::On(work.apart()))
            }
            _ => {
                let state = Working::On(work.apart());
                told(Telling { first, events, state, _presence: Some(presence) })
            }
        }
    }

    /// Opens a duplex conversation: an event stream to the client, and requests from it.
    fn open_duplex(&self, dialect: &Arc<dyn Dialect>, caller: Caller) -> Outgoing {
        let id = match random_id() {
            Ok(id) if self.duplexes.len() < self.bounds.sessions_max => id,
            Ok(_) => {
                let message = "as many conversations as may are open; come back later".to_owned();
                return Outgoing::Whole(dialect.refuse(&Refused::Busy { message }));
            }
            Err(err) => {
                let message = format!("no conversation could be opened: {err}");
                return Outgoing::Whole(dialect.refuse(&Refused::Busy { message }));
            }
        };
        let session = Session::new(self.desk.clone(), dialect.clone(), caller);
        session.is_known_as(&id);
        let first = SentEvent {
            name: Some("endpoint"),
            ..SentEvent::plain(dialect.duplex_endpoint(&id).into())
        };
        self.duplexes.open(id, session, first, &self.bounds.socket)
    }
}

impl Exchange for Endpoints {
    fn serves(&self, path: &str) -> bool {
        let is_page = self.identity.has_page(path) || self.metrics(path).is_some();
        is_page || self.routes.at(path).is_some()
    }

    fn paths(&self) -> Vec<&str> {
        self.routes.paths()
    }

    fn sender<'a>(&'a self, head: &'a Head, peer: SocketAddr) -> BoxFuture<'a, Sender> {
        Box::pin(async move {
            if self.metrics(head.path()).is_some() {
                return self.identity.identify(None, head, peer.ip()).await;
            }
            match self.routes.of(head).filter(|_| !self.identity.has_page(head.path())) {
                Some(dialect) => {
                    self.identity.identify(Some(dialect.as_ref()), head, peer.ip()).await
                }
                None => Sender::Anybody,
            }
        })
    }

    fn exchange<'a>(&'a self, incoming: &'a Incoming) -> BoxFuture<'a, Outgoing> {
        Box::pin(async move {
            if let Some(page) = self.identity.page(&incoming.frame.head) {
                return Outgoing::Whole(page);
            }
            let head = &incoming.frame.head;
            if let Some(page) = self.metrics(head.path()) {
                let sessions = locked(&self.sessions).len() + self.duplexes.len();
                let said = page.answer(head, &incoming.sender, sessions);
                return Outgoing::Whole(self.identity.completed(said, head));
            }
            if !self.identity.challenges() {
                return self.answer(incoming).await;
            }
            match self.answer(incoming).await {
                Outgoing::Whole(reply) => Outgoing::Whole(self.identity.completed(reply, head)),
                outgoing @ (Outgoing::Events(_) | Outgoing::Feed(_) | Outgoing::Socket(_)) => {
                    outgoing
                }
            }
        })
    }

    fn unread<'a>(&'a self, head: &'a Head, why: &'a Unread) -> BoxFuture<'a, Option<Reply>> {
        Box::pin(async move {
            let dialect = self.routes.of(head)?;
            let reading = match why {
                Unread::TooLarge { limit } => {
                    let frame = Frame { head: head.clone(), body: Bytes::new() };
                    dialect.turn_away(&frame, &Refused::TooLarge { limit: *limit })
                }
                Unread::Late | Unread::Broken | Unread::Unfit(_) => {
                    dialect.unreadable(head, &why.told())?
                }
                Unread::Crowded | Unread::Full => {
                    return Some(dialect.refuse(&Refused::Busy { message: why.told() }));
                }
            };
            let nobody = Caller::http();
            let session = Session::new(self.desk.clone(), dialect.clone(), nobody.clone());
            match self.follow(reading, (None, None), session, &nobody).await {
                Outgoing::Whole(reply) => Some(reply),
                Outgoing::Events(_) | Outgoing::Feed(_) | Outgoing::Socket(_) => None,
            }
        })
    }

    fn answers_health(&self) -> bool {
        let head = Head::Http {
            method: Method::GET,
            path: "/healthz".to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
        };
        self.routes.of(&head).is_some_and(|dialect| dialect.is_open(&head))
    }
}

/// Returns a finished answer: one message, or a stream if events came before it.
fn answered(
    session: &Session,
    answer: Option<Reply>,
    mut events: mpsc::Receiver<Word>,
    accepts: Accepts,
) -> Outgoing {
    match (events.try_recv(), answer) {
        (Err(_), Some(reply)) => Outgoing::Whole(reply),
        (_, answer) if accepts == Accepts::Message => Outgoing::Whole(owed(answer)),
        // The client cancelled the call, so a waiting request gets a stream that just ends.
        (first, answer) => {
            let first = first.ok();
            let state = Working::Ended(answer.and_then(message));
            match accepts {
                Accepts::Resumable => resumable(session, first, events, state),
                Accepts::Message | Accepts::Stream => {
                    told(Telling { first, events, state, _presence: None })
                }
            }
        }
    }
}

/// Time for which notifications are kept for a client that has left.
const LINGER: Duration = Duration::from_secs(60);

/// Returns a resumable stream of the call's events and answer. The work continues without the
/// client.
fn resumable(
    session: &Session,
    first: Option<Word>,
    events: mpsc::Receiver<Word>,
    state: Working,
) -> Outgoing {
    let log = session.streams.open();
    let events_read = log.read(0);
    tokio::spawn(async move {
        let mut telling = Telling { first, events, state, _presence: None };
        while let Some(word) = std::future::poll_fn(|cx| telling.poll_word(cx)).await {
            match word {
                Word::Message(message) => log.push(message),
                Word::LetGo => log.let_go(),
            }
        }
        log.end();
    });
    Outgoing::Events(events_read)
}

/// Returns the notification stream, or the rest of the stream that the event `after` was on.
fn tidings(session: &Arc<Session>, after: Option<&str>) -> Outgoing {
    let after = match after {
        None => None,
        Some(id) => match (tidings_event(id), session.streams.of_event(id)) {
            (Some(event), _) => Some(event),
            (None, Some((log, event))) => return Outgoing::Feed(log.read(event)),
            (None, None) => return Outgoing::Whole(session.dialect.unknown_event(id)),
        },
    };
    let (log, is_new) = session.streams.tidings();
    // A client without a last event id gets only new events.
    let last = log.last();
    let events = log.read(after.map_or(last, |after| after.min(last)));
    if is_new {
        let (out, mut told) = mpsc::channel(EVENTS_WAITING);
        session.tell_tidings(out);
        tokio::spawn(async move {
            let telling = async {
                while let Some(message) = told.recv().await {
                    log.push(message);
                }
            };
            tokio::select! {
                () = telling => {}
                () = log.deserted_for(LINGER) => {}
            }
            log.end();
        });
    }
    Outgoing::Feed(events)
}

/// Returns a stream of `told`, with each message made into an event by `made`.
fn events_of(mut told: mpsc::Receiver<Bytes>, made: fn(Bytes) -> SentEvent) -> Outgoing {
    Outgoing::Feed(Box::pin(poll_fn(move |cx| told.poll_recv(cx).map(|next| next.map(made)))))
}

/// Stream of a call's events, followed by its answer.
struct Telling {
    first: Option<Word>,
    events: mpsc::Receiver<Word>,
    state: Working,
    _presence: Option<Presence>,
}

/// State of a call's work.
enum Working {
    /// Task that runs the work.
    On(JoinHandle<Option<Answered>>),
    /// Finished work with its answer. Earlier events may still be queued.
    Ended(Option<Bytes>),
}

impl Telling {
    fn poll_word(&mut self, cx: &mut Context<'_>) -> Poll<Option<Word>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Working::On(work) = &mut self.state
            && let Poll::Ready(answer) = Pin::new(work).poll(cx)
        {
            let answer = answer.ok().flatten().and_then(|all| all.reply);
            self.state = Working::Ended(answer.and_then(message));
        }
        match (self.events.poll_recv(cx), &mut self.state) {
            (Poll::Ready(Some(event)), _) => Poll::Ready(Some(event)),
            (Poll::Ready(None) | Poll::Pending, Working::Ended(answer)) => {
                Poll::Ready(answer.take().map(Word::Message))
            }
            (Poll::Ready(None) | Poll::Pending, Working::On(_)) => Poll::Pending,
        }
    }
}

impl Stream for Telling {
    type Item = SentEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SentEvent>> {
        loop {
            match std::task::ready!(self.poll_word(cx)) {
                Some(Word::Message(message)) => {
                    return Poll::Ready(Some(SentEvent::message(message)));
                }
                // This stream cannot be resumed, so its connection stays open.
                Some(Word::LetGo) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

fn message(reply: Reply) -> Option<Bytes> {
    match reply.body {
        Body::Json(bytes) => Some(bytes),
        Body::Empty | Body::File(_) => None,
    }
}

fn joined(answer: Result<Answered, JoinError>) -> Reply {
    owed(answer.ok().and_then(|all| all.reply))
}

fn told(telling: Telling) -> Outgoing {
    Outgoing::Events(Box::pin(telling))
}

/// Returns the answer, or an empty 202: HTTP requires a response even to a cancelled call.
fn owed(answer: Option<Reply>) -> Reply {
    answer.unwrap_or_else(|| Reply::empty(202))
}
