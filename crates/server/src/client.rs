//! A client that stays connected: its messages in, its answers and what it watches out.

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
    Body, BoxFuture, CallError, Caller, Fault, Frame, Reply, Request, ToolError,
};
use toolgate_dialects::{Ask, Listening, OnLeave, Reading, Refused};

use crate::going::{Running, now_or_spawned};
use crate::session::{Answered, Out, Session, locked};

/// How many messages may wait to be written before calls wait to answer.
const OUTBOX: usize = 256;

/// How many KiB of answers may wait to be written before nothing more is begun.
const UNWRITTEN_KIB_MAX: usize = 16 << 10;

/// Up to this size an answer is not counted among them: as many as may wait come to little.
const UNCOUNTED_BYTES: usize = 4 << 10;

/// A client that stays connected.
pub(crate) struct Client {
    pub(crate) session: Arc<Session>,
    outbox: mpsc::Sender<Bytes>,
    places: Arc<Semaphore>,
    places_max: usize,
    /// Places of those who wait for what the client or a job does, and for nothing here.
    waiting: Arc<Semaphore>,
    /// Room for answers that wait to be written, in KiB.
    room: Arc<Semaphore>,
    answering: TaskTracker,
    /// Whether it is told what is told unasked.
    is_told: AtomicBool,
}

impl Client {
    /// A client with up to `in_flight_max` asks in flight, and what is to be written to it.
    pub(crate) fn new(
        session: Arc<Session>,
        in_flight_max: usize,
    ) -> (Arc<Self>, mpsc::Receiver<Bytes>) {
        let (outbox, queue) = mpsc::channel(OUTBOX);
        let client = Self {
            session,
            outbox,
            places: Arc::new(Semaphore::new(in_flight_max)),
            places_max: in_flight_max,
            waiting: Arc::new(Semaphore::new(in_flight_max)),
            room: Arc::new(Semaphore::new(UNWRITTEN_KIB_MAX)),
            answering: TaskTracker::new(),
            is_told: AtomicBool::new(false),
        };
        (Arc::new(client), queue)
    }

    /// Takes one message; waits while too much is in flight.
    pub(crate) async fn take(self: Arc<Self>, message: Bytes) {
        let caller = self.session.caller.clone();
        self.take_from(&caller, message).await;
    }

    /// The same from `caller`, who says with each message who they are.
    pub(crate) async fn take_from(self: Arc<Self>, caller: &Caller, message: Bytes) {
        let reading = self.session.read(&Frame::line(message));
        self.follow(reading, caller).await;
    }

    /// Answers a message that was not taken in.
    pub(crate) async fn refuse(self: &Arc<Self>, why: &Refused) {
        let reading = self.session.dialect.turn_away(&Frame::line(Bytes::new()), why);
        self.clone().follow(reading, &self.session.caller).await;
    }

    async fn follow(self: Arc<Self>, reading: Reading, caller: &Caller) {
        match reading {
            Reading::Reply(reply) | Reading::Closed(reply) => self.send(reply).await,
            Reading::Opened(reply) => {
                self.send(reply).await;
                // Some begin again on the same line.
                if !self.is_told.swap(true, Ordering::Relaxed) {
                    self.session.tell_tidings(self.outbox.clone());
                }
            }
            Reading::Replies(replies) => {
                for reply in replies {
                    self.send(reply).await;
                }
            }
            Reading::Cancel { key, reply } => {
                self.session.cancel(&key);
                self.send(reply).await;
            }
            Reading::Watch(job) => self.session.watch(job, self.outbox.clone()),
            Reading::Listen(listening) => self.listen(listening, caller).await,
            // Who is connected is told anyway.
            Reading::Tidings { .. } => {}
            Reading::Unwatch { uri, reply } => {
                self.session.unwatch(&uri);
                self.send(reply).await;
            }
            Reading::Told { id, heard, reply } => {
                self.session.told(&id, &heard);
                self.send(reply).await;
            }
            // Who only waits for a job has a place of its own, so that what would end the job is
            // still read.
            Reading::Ask(Ask { request: Request::AwaitJob { .. }, ref ticket, .. }) => {
                match self.waiting.clone().try_acquire_owned() {
                    Ok(place) => {
                        let place = Place::new(place, &self.waiting, &self.waiting);
                        self.answer(reading, place, caller).await;
                    }
                    Err(_) => self.send_some(ticket.reply(Err(self.too_much_waits()))).await,
                }
            }
            Reading::Ask(_) | Reading::Batch(_) => {
                let Ok(place) = self.place_for(&reading).await else { return };
                let place = Place::new(place, &self.places, &self.waiting);
                self.answer(reading, place, caller).await;
            }
        }
    }

    /// Does what `reading` asks, as far as it goes at once, and the rest in a task of its own.
    async fn answer(self: Arc<Self>, reading: Reading, place: Arc<Place>, caller: &Caller) {
        let out = Out::Connected(self.outbox.clone(), place.clone());
        let pending = Pending::of(reading, &self.session, &out, caller);
        let client = self.clone();
        let work = async move {
            let Answered { reply, follow } = pending.answer(&client.session).await;
            client.send_some(reply).await;
            if let Some(job) = follow {
                client.session.watch(job, client.outbox.clone());
            }
            place.leave();
        };
        let running = now_or_spawned(Box::pin(self.answering.track_future(work))).await;
        if let Running::On(work) = running
            && self.session.dialect.in_order()
        {
            // The next message is read when this one is answered.
            let _ = work.await;
        }
    }

    async fn listen(&self, listening: Listening, caller: &Caller) {
        let Ok(place) = self.waiting.clone().try_acquire_owned() else {
            return self.send_some(listening.ticket.refused(&self.too_much_waits())).await;
        };
        let listens = self.session.listen(listening, self.outbox.clone(), Some(place), caller);
        if let Err(refusal) = listens {
            self.send(refusal).await;
        }
    }

    fn too_much_waits(&self) -> CallError {
        let message = format!(
            "as much is listened to and waited for as may be ({}); cancel some of it",
            self.places_max
        );
        CallError::Unavailable { message }
    }

    /// Waits for room: for the answer, among those that nobody has read yet, and a place for each
    /// message.
    async fn place_for(&self, reading: &Reading) -> Result<OwnedSemaphorePermit, AcquireError> {
        // How large the answer will be is not known: it is enough that there is some, since it is
        // waited for in turn.
        drop(self.room.acquire().await?);
        let wanted = match reading {
            Reading::Batch(readings) => readings.len().min(self.places_max),
            Reading::Ask(_)
            | Reading::Reply(_)
            | Reading::Opened(_)
            | Reading::Closed(_)
            | Reading::Replies(_)
            | Reading::Watch(_)
            | Reading::Listen(_)
            | Reading::Tidings { .. }
            | Reading::Unwatch { .. }
            | Reading::Told { .. }
            | Reading::Cancel { .. } => 1,
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.places.clone().acquire_many_owned(wanted).await
    }

    async fn send_some(&self, reply: Option<Reply>) {
        if let Some(reply) = reply {
            self.send(reply).await;
        }
    }

    async fn send(&self, reply: Reply) {
        if let Body::Json(bytes) = reply.body {
            let bytes = self.owed(bytes).await;
            // The writer only ends when the client is gone, and then nobody is owed anything.
            let _ = self.outbox.send(bytes).await;
        }
    }

    /// The same `bytes`, which have their room until they are written.
    async fn owed(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES {
            return bytes;
        }
        let kib = u32::try_from((bytes.len() >> 10).min(UNWRITTEN_KIB_MAX)).unwrap_or(u32::MAX);
        match self.room.clone().acquire_many_owned(kib).await {
            Ok(room) => Bytes::from_owner(Owed { bytes, _room: room }),
            // It is never closed.
            Err(_) => bytes,
        }
    }

    /// Lets what is in flight finish within `patience`, then cancels it, and says `why`.
    pub(crate) async fn stop(&self, patience: Duration, why: &'static str) {
        self.session.hears_no_more();
        self.answering.close();
        if timeout(patience, self.answering.wait()).await.is_err() {
            self.session.end(why);
            self.answering.wait().await;
        }
        // Who watches a job would watch it for as long as it runs.
        self.session.end(why);
        self.session.is_over();
    }
}

/// An answer that waits to be written, and its room.
struct Owed {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Owed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A place among a client's calls in flight.
///
/// A call gives it up while it waits for the client's answer: else as many calls as may be in
/// flight could all wait for answers that nobody reads, since the next call waits for a place.
pub(crate) struct Place {
    held: Mutex<Held>,
    places: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

enum Held {
    /// It is taken.
    Here(#[allow(dead_code, reason = "taken until it is dropped")] OwnedSemaphorePermit),
    /// It was given up for a while.
    Aside,
    /// The call is over.
    Over,
}

impl Place {
    fn new(
        place: OwnedSemaphorePermit,
        places: &Arc<Semaphore>,
        waiting: &Arc<Semaphore>,
    ) -> Arc<Self> {
        let held = Mutex::new(Held::Here(place));
        Arc::new(Self { held, places: places.clone(), waiting: waiting.clone() })
    }

    /// Gives the place up for one of those who wait.
    ///
    /// # Errors
    /// When as many wait as may.
    pub(crate) fn step_aside(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        let mut held = locked(&self.held);
        if let Held::Here(_) = &*held {
            *held = Held::Aside;
        }
        self.waiting.clone().try_acquire_owned().map_err(|_| {
            let why = "as many questions as may be are open with this client; once some are answered, call again";
            ToolError::new(Fault::Unavailable, why)
        })
    }

    /// Waits for the place again.
    pub(crate) async fn step_back(&self) {
        if !matches!(&*locked(&self.held), Held::Aside) {
            return;
        }
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        let mut held = locked(&self.held);
        if let Held::Aside = &*held {
            *held = Held::Here(place);
        }
    }

    /// The call is over, whatever its tool keeps of it.
    fn leave(&self) {
        *locked(&self.held) = Held::Over;
    }
}

/// What a frame will be answered with.
pub(crate) enum Pending {
    Ready(Reply),
    Work(BoxFuture<'static, Answered>),
    All(Vec<Pending>),
}

impl Pending {
    /// Takes all that `reading` asks for `caller`; what is said meanwhile goes to `out`.
    pub(crate) fn of(reading: Reading, session: &Arc<Session>, out: &Out, caller: &Caller) -> Self {
        match reading {
            Reading::Ask(ask) => match session.begin(ask, out.clone(), caller) {
                Ok(begun) => Self::Work(begun.work),
                Err(refusal) => Self::Ready(refusal),
            },
            Reading::Batch(readings) => {
                let parts = readings.into_iter();
                let parts = parts.map(|reading| Self::of(reading, session, out, caller));
                Self::All(parts.collect())
            }
            Reading::Cancel { key, reply } => {
                session.cancel(&key);
                Self::Ready(reply)
            }
            Reading::Reply(reply) | Reading::Opened(reply) | Reading::Closed(reply) => {
                Self::Ready(reply)
            }
            // No wire we speak watches, or answers several times, from within a batch.
            Reading::Unwatch { uri, reply } => {
                session.unwatch(&uri);
                Self::Ready(reply)
            }
            Reading::Told { id, heard, reply } => {
                session.told(&id, &heard);
                Self::Ready(reply)
            }
            Reading::Watch(_)
            | Reading::Listen(_)
            | Reading::Tidings { .. }
            | Reading::Replies(_) => Self::Ready(Reply::empty(202)),
        }
    }

    /// The answer, once all work for it is done.
    pub(crate) async fn answer(self, session: &Session) -> Answered {
        match self {
            Self::Ready(reply) => Answered { reply: Some(reply), follow: None },
            Self::Work(work) => work.await,
            Self::All(parts) => {
                let parts = parts.into_iter().map(|part| Box::pin(part.answer(session)));
                let replies = join_all(parts).await.into_iter().filter_map(|part| part.reply);
                Answered { reply: Some(session.join(replies.collect())), follow: None }
            }
        }
    }
}

/// The client's being there. Dropped, it cancels what only that client wanted.
pub(crate) struct Presence(#[allow(dead_code, reason = "cancels on drop")] Option<DropGuard>);

impl Presence {
    pub(crate) fn new(on_leave: OnLeave, cancel: CancellationToken) -> Self {
        Self(match on_leave {
            OnLeave::Cancels => Some(cancel.drop_guard()),
            OnLeave::Continues => None,
        })
    }
}

/// 128 random bits in hex.
pub(crate) fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}
