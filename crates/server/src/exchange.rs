//! Serves clients that speak over HTTP: a dialect a path, sessions where the dialect has them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};
use toolgate_contract::{Body, BoxFuture, Caller, Head, Reply};
use toolgate_dialects::{Accepts, Ask, Dialect, OnLeave, Reading, Refused, Upgrade};
use toolgate_transports::http::{EventStyle, Exchange, Incoming, Outgoing};

use crate::client::Pending;
use crate::lines::LineBounds;
use crate::session::{Answered, Begun, Desk, Running, Session, locked, now_or_spawned};
use crate::sockets::{Conversing, Viewing};

/// How many events may wait for a client that does not keep up; beyond, it misses some.
const EVENTS_WAITING: usize = 64;

/// How sessions over HTTP are bounded.
#[derive(Debug, Clone)]
pub struct SessionBounds {
    /// The most sessions at once.
    pub sessions_max: usize,
    /// How long a client that takes streams waits for an answer before it gets one.
    pub stream_after: Duration,
    /// What a client that converses over a socket is borne.
    pub socket: LineBounds,
}

/// The dialects served over HTTP, each at its paths, and the sessions begun there.
pub struct Endpoints {
    desk: Arc<Desk>,
    routes: Routes,
    sessions: Mutex<HashMap<String, Seat>>,
    bounds: SessionBounds,
}

/// Which dialect is spoken where.
struct Routes {
    dialects: Vec<Arc<dyn Dialect>>,
    /// By path, into `dialects`.
    exact: HashMap<&'static str, usize>,
    /// Paths that end in `/` and stand for all below them.
    below: Vec<(&'static str, usize)>,
}

impl Routes {
    fn new(dialects: Vec<Arc<dyn Dialect>>) -> Self {
        let (mut exact, mut below) = (HashMap::new(), Vec::new());
        for (at, dialect) in dialects.iter().enumerate() {
            for path in dialect.paths() {
                if path.ends_with('/') {
                    below.push((*path, at));
                } else {
                    exact.insert(*path, at);
                }
            }
        }
        Self { dialects, exact, below }
    }

    fn at(&self, path: &str) -> Option<&Arc<dyn Dialect>> {
        let below = || {
            let mut below = self.below.iter();
            below.find(|(above, _)| path.starts_with(above)).map(|(_, at)| *at)
        };
        let at = self.exact.get(path).copied().or_else(below)?;
        self.dialects.get(at)
    }

    /// Whose a request is: what a dialect claims is its own, whatever its path.
    fn of(&self, head: &Head) -> Option<&Arc<dyn Dialect>> {
        self.dialects.iter().find(|dialect| dialect.claims(head)).or_else(|| self.at(head.path()))
    }
}

/// A session and when it was last heard of.
struct Seat {
    session: Arc<Session>,
    heard: Instant,
}

impl Endpoints {
    /// Serves each dialect at its paths.
    pub fn new(desk: Arc<Desk>, dialects: Vec<Arc<dyn Dialect>>, bounds: SessionBounds) -> Self {
        Self { desk, routes: Routes::new(dialects), sessions: Mutex::default(), bounds }
    }

    async fn answer(&self, incoming: Incoming) -> Outgoing {
        let Incoming { frame, upgrade } = incoming;
        let Some(dialect) = self.routes.of(&frame.head) else {
            return Outgoing::Whole(Reply::empty(404));
        };
        if upgrade {
            return self.upgrade(dialect, &frame.head);
        }
        let (id, session) = match dialect.session(&frame.head) {
            Some(id) => match self.seated(id) {
                Some(session) => (Some(id.to_owned()), session),
                None => return Outgoing::Whole(dialect.unknown_session()),
            },
            None => {
                let caller = Caller::http();
                (None, Session::new(self.desk.clone(), dialect.clone(), caller))
            }
        };
        match session.read(&frame) {
            Reading::Reply(reply) => Outgoing::Whole(reply),
            // They come only to a frame whose head is a line.
            Reading::Replies(_) => Outgoing::Whole(Reply::empty(500)),
            Reading::Opened(reply) => Outgoing::Whole(self.seat(reply, session)),
            Reading::Closed(reply) => {
                id.map(|id| locked(&self.sessions).remove(&id));
                session.end("the session was ended");
                Outgoing::Whole(reply)
            }
            Reading::Cancel { key, reply } => {
                session.cancel(&key);
                Outgoing::Whole(reply)
            }
            Reading::Ask(ask) => self.work(&session, ask).await,
            batch @ Reading::Batch(_) => {
                let pending = Pending::of(batch, &session, &drop::<Bytes>);
                let work = tokio::spawn(async move { pending.answer(&session).await });
                Outgoing::Whole(joined(work.await))
            }
            Reading::Watch(job) => {
                let (words, mut told) = mpsc::channel(EVENTS_WAITING);
                session.watch(job, words);
                let events = Box::pin(poll_fn(move |cx| told.poll_recv(cx)));
                Outgoing::Events { events, style: EventStyle::Plain }
            }
        }
    }

    /// Opens a socket for what the dialect has one for.
    fn upgrade(&self, dialect: &Arc<dyn Dialect>, head: &Head) -> Outgoing {
        let upgrade = match dialect.upgrade(head) {
            Ok(upgrade) => upgrade,
            Err(refusal) => return Outgoing::Whole(refusal),
        };
        let session = Session::new(self.desk.clone(), dialect.clone(), Caller::http());
        Outgoing::Socket(match upgrade {
            Upgrade::Converse => {
                Box::new(Conversing { session, bounds: self.bounds.socket.clone() })
            }
            Upgrade::Watch(job) => Box::new(Viewing { session, job }),
        })
    }

    /// Runs one ask. A client that takes streams gets one as soon as there is an event to send or
    /// the answer is long in coming; else the answer is one message.
    async fn work(&self, session: &Arc<Session>, ask: Ask) -> Outgoing {
        let (say, mut events) = mpsc::channel(EVENTS_WAITING);
        let (on_leave, accepts) = (ask.on_leave, ask.events);
        let Begun { work, cancel } =
            match session.begin(ask, move |event| drop(say.try_send(event))) {
                Ok(begun) => begun,
                Err(refusal) => return Outgoing::Whole(refusal),
            };
        let presence = Presence::new(on_leave, cancel);
        let mut work = match now_or_spawned(work).await {
            Running::Done(answer) => return answered(answer.reply, events, accepts),
            Running::On(work) => work,
        };
        let first = match accepts {
            Accepts::Message => return Outgoing::Whole(joined((&mut work).await)),
            Accepts::Stream => tokio::select! {
                biased;
                answer = &mut work => {
                    return answered(answer.ok().and_then(|all| all.reply), events, accepts);
                }
                Some(event) = events.recv() => Some(event),
                () = tokio::time::sleep(self.bounds.stream_after) => None,
            },
        };
        let state = Told::Working(work);
        told(Telling { first, events, state, _presence: Some(presence) })
    }

    fn seated(&self, id: &str) -> Option<Arc<Session>> {
        let mut sessions = locked(&self.sessions);
        let seat = sessions.get_mut(id)?;
        seat.heard = Instant::now();
        Some(seat.session.clone())
    }

    /// Gives `session` an id nobody can guess, if there is room for one more.
    fn seat(&self, reply: Reply, session: Arc<Session>) -> Reply {
        let dialect = session.dialect.clone();
        let mut sessions = locked(&self.sessions);
        if sessions.len() >= self.bounds.sessions_max && !give_up_the_most_silent(&mut sessions) {
            let message = format!(
                "as many sessions as may are open ({}), and all are at work; come back later",
                self.bounds.sessions_max
            );
            return dialect.refuse(&Refused::Busy { message });
        }
        match random_id() {
            Ok(id) => {
                let reply = dialect.open_session(reply, &id);
                sessions.insert(id, Seat { session, heard: Instant::now() });
                reply
            }
            Err(err) => {
                let message = format!("no session could be opened: {err}");
                dialect.refuse(&Refused::Busy { message })
            }
        }
    }
}

impl Exchange for Endpoints {
    fn serves(&self, path: &str) -> bool {
        self.routes.at(path).is_some()
    }

    fn paths(&self) -> Vec<&str> {
        let below = self.routes.below.iter().map(|(path, _)| *path);
        let mut paths: Vec<_> = self.routes.exact.keys().copied().chain(below).collect();
        paths.sort_unstable();
        paths
    }

    fn exchange(&self, incoming: Incoming) -> BoxFuture<'_, Outgoing> {
        Box::pin(self.answer(incoming))
    }

    fn too_large(&self, path: &str, limit: usize) -> Reply {
        match self.routes.at(path) {
            Some(dialect) => dialect.refuse(&Refused::TooLarge { limit }),
            None => Reply::empty(413),
        }
    }
}

/// Ends the session that has been silent for longest, if any has nothing in flight. Its client is
/// told that it is gone and begins another.
fn give_up_the_most_silent(sessions: &mut HashMap<String, Seat>) -> bool {
    let idle = sessions.iter().filter(|(_, seat)| seat.session.is_idle());
    let silent = idle.min_by_key(|(_, seat)| seat.heard).map(|(id, _)| id.clone());
    silent
        .and_then(|id| sessions.remove(&id))
        .map(|seat| seat.session.end("the session was ended"))
        .is_some()
}

/// The client's being there. Dropped, it cancels what only that client wanted.
struct Presence(#[allow(dead_code, reason = "cancels on drop")] Option<DropGuard>);

impl Presence {
    fn new(on_leave: OnLeave, cancel: CancellationToken) -> Self {
        Self(match on_leave {
            OnLeave::Cancels => Some(cancel.drop_guard()),
            OnLeave::Continues => None,
        })
    }
}

/// An answer that is there at once: a message, or a stream if something was said before it.
fn answered(
    answer: Option<Reply>,
    mut events: mpsc::Receiver<Bytes>,
    accepts: Accepts,
) -> Outgoing {
    match (events.try_recv(), answer) {
        (Err(_), Some(reply)) => Outgoing::Whole(reply),
        (_, answer) if accepts == Accepts::Message => Outgoing::Whole(owed(answer)),
        // Nobody wants the answer; who waits for it all the same gets a stream that ends.
        (first, answer) => {
            let state = Told::Ended(answer.and_then(message));
            let first = first.ok();
            told(Telling { first, events, state, _presence: None })
        }
    }
}

/// What is said while the work goes on, then its answer.
struct Telling {
    first: Option<Bytes>,
    events: mpsc::Receiver<Bytes>,
    state: Told,
    _presence: Option<Presence>,
}

/// How much of it has been told.
enum Told {
    /// The work goes on.
    Working(JoinHandle<Answered>),
    /// It has ended; this is its answer, and events may come before it.
    Ended(Option<Bytes>),
}

impl Stream for Telling {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Told::Working(work) = &mut self.state
            && let Poll::Ready(answer) = Pin::new(work).poll(cx)
        {
            self.state = Told::Ended(answer.ok().and_then(|all| all.reply).and_then(message));
        }
        match (self.events.poll_recv(cx), &mut self.state) {
            (Poll::Ready(Some(event)), _) => Poll::Ready(Some(event)),
            (Poll::Ready(None) | Poll::Pending, Told::Ended(answer)) => Poll::Ready(answer.take()),
            (Poll::Ready(None) | Poll::Pending, Told::Working(_)) => Poll::Pending,
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
    Outgoing::Events { events: Box::pin(telling), style: EventStyle::Named }
}

/// HTTP owes every request an answer, even one that nobody wants any more.
fn owed(answer: Option<Reply>) -> Reply {
    answer.unwrap_or_else(|| Reply::empty(202))
}

/// 128 random bits in hex.
fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}
