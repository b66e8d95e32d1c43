//! One connected client: reads its messages and writes its answers and notifications.

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

/// Messages that may wait to be written before calls wait to answer.
const OUTBOX: usize = 256;

/// Answers that may wait to be written before no new call begins, in KiB.
const UNWRITTEN_KIB_MAX: usize = 16 << 10;

/// Largest answer that does not count against [`UNWRITTEN_KIB_MAX`], in bytes.
const UNCOUNTED_BYTES: usize = 4 << 10;

/// Client that stays connected, over stdio, a WebSocket or a duplex conversation.
pub(crate) struct Client {
    pub(crate) session: Arc<Session>,
    outbox: mpsc::Sender<Bytes>,
    places: Arc<Semaphore>,
    places_max: usize,
    /// Permits for requests that only wait for a job, a subscription or the client's own answer.
    waiting: Arc<Semaphore>,
    /// Permits for answers that wait to be written, one per KiB.
    room: Arc<Semaphore>,
    answering: TaskTracker,
    /// Set once notifications are sent to the client.
    is_told: AtomicBool,
}

impl Client {
    /// Creates a client with up to `in_flight_max` calls in flight. Returns it with the queue of
    /// messages to write.
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

    /// Handles one message from the session's own caller. Waits while too much is in flight.
    pub(crate) async fn take(self: Arc<Self>, message: Bytes) {
        let caller = self.session.caller.clone();
        self.take_from(&caller, message).await;
    }

    /// Handles one message that `caller` sent. Waits while too much is in flight.
    pub(crate) async fn take_from(self: Arc<Self>, caller: &Caller, message: Bytes) {
        let reading = self.session.read(&Frame::line(message));
        self.follow(reading, caller).await;
    }

    /// Answers a message that was refused unread.
    pub(crate) async fn refuse(self: &Arc<Self>, why: &Refused) {
        let reading = self.session.dialect.turn_away(&Frame::line(Bytes::new()), why);
        self.clone().follow(reading, &self.session.caller).await;
    }

    async fn follow(self: Arc<Self>, reading: Reading, caller: &Caller) {
        match reading {
            Reading::Reply(reply) | Reading::Closed(reply) => self.send(reply).await,
            Reading::Opened(reply) => {
                self.send(reply).await;
                // Some clients initialize twice on one connection.
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
            // A connected client gets notifications anyway.
            Reading::Tidings { .. } => {}
            Reading::Unwatch { uri, reply } => {
                self.session.unwatch(&uri);
                self.send(reply).await;
            }
            Reading::Told { id, heard, reply } => {
                self.session.told(&id, &heard);
                self.send(reply).await;
            }
            // Waiting for a job uses a separate permit, so that the message that ends the job can
            // still be read.
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

    /// Starts the work of `reading` in place and finishes it in a task if it has to wait.
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
            // This dialect needs answers in order, so the next message waits.
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

    /// Waits for room for the answer, and for one permit per message of a batch.
    async fn place_for(&self, reading: &Reading) -> Result<OwnedSemaphorePermit, AcquireError> {
        // The size of the answer is unknown yet. It waits for its own room later, so some free room
        // is enough.
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
            // The writer ends only after the client has left. Nobody needs the answer then.
            let _ = self.outbox.send(bytes).await;
        }
    }

    /// Attaches permits for the size of `bytes`, released after they are written.
    async fn owed(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES {
            return bytes;
        }
        let kib = u32::try_from((bytes.len() >> 10).min(UNWRITTEN_KIB_MAX)).unwrap_or(u32::MAX);
        match self.room.clone().acquire_many_owned(kib).await {
            Ok(room) => Bytes::from_owner(Owed { bytes, _room: room }),
            // The semaphore is never closed.
            Err(_) => bytes,
        }
    }

    /// Waits up to `patience` for calls in flight, then cancels them and answers with `why`.
    pub(crate) async fn stop(&self, patience: Duration, why: &'static str) {
        self.session.hears_no_more();
        self.answering.close();
        if timeout(patience, self.answering.wait()).await.is_err() {
            self.session.end(why);
            self.answering.wait().await;
        }
        // A watched job would keep its watcher running for as long as the job does.
        self.session.end(why);
        self.session.is_over();
    }
}

/// Answer that waits to be written, with its permits.
struct Owed {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Owed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Permit for one of a client's calls in flight.
///
/// A call returns it while it waits for the client's answer. Otherwise all calls in flight could
/// wait for answers that nobody reads, because the reader waits for a permit.
pub(crate) struct Place {
    held: Mutex<Held>,
    places: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

enum Held {
    /// The call holds its permit.
    Here(#[allow(dead_code, reason = "taken until it is dropped")] OwnedSemaphorePermit),
    /// The call returned its permit while it waits for the client.
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

    /// Returns the permit while the call waits for the client, and takes one for waiting instead.
    ///
    /// # Errors
    /// When too many questions are open with this client.
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

    /// Takes the permit again, and waits for it if necessary.
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

    /// Releases the permit for good, even if the tool keeps a reference to it.
    fn leave(&self) {
        *locked(&self.held) = Held::Over;
    }
}

/// Answer to a frame: ready, or still to be computed.
pub(crate) enum Pending {
    Ready(Reply),
    Work(BoxFuture<'static, Answered>),
    All(Vec<Pending>),
}

impl Pending {
    /// Begins everything that `reading` requests for `caller`. Events go to `out` meanwhile.
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
            // No dialect of ours watches, or answers several times, within a batch.
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

    /// Waits for all work and returns the answer.
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

/// Presence of a client. Dropping it cancels the call if the dialect demands that.
pub(crate) struct Presence(#[allow(dead_code, reason = "cancels on drop")] Option<DropGuard>);

impl Presence {
    pub(crate) fn new(on_leave: OnLeave, cancel: CancellationToken) -> Self {
        Self(match on_leave {
            OnLeave::Cancels => Some(cancel.drop_guard()),
            OnLeave::Continues => None,
        })
    }
}

/// Returns 128 random bits in hexadecimal.
pub(crate) fn random_id() -> Result<String, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}
