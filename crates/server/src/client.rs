//! A client that stays connected: its messages in, its answers and what it watches out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use toolgate_contract::{Body, BoxFuture, Frame, Reply, Request};
use toolgate_dialects::{Ask, Reading, Refused};

use crate::session::{Answered, Session, now_or_spawned};

/// How many messages may wait to be written before calls wait to answer.
const OUTBOX: usize = 256;

/// A client that stays connected.
pub(crate) struct Client {
    session: Arc<Session>,
    outbox: mpsc::Sender<Bytes>,
    places: Arc<Semaphore>,
    places_max: usize,
    waiting: Arc<Semaphore>,
    answering: TaskTracker,
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
            answering: TaskTracker::new(),
        };
        (Arc::new(client), queue)
    }

    /// Takes one message; waits while too much is in flight.
    pub(crate) async fn take(self: Arc<Self>, message: Bytes) {
        let reading = self.session.read(&Frame::line(message));
        self.follow(reading).await;
    }

    /// Answers a message that was not taken in.
    pub(crate) async fn refuse(&self, why: &Refused) {
        self.send(self.session.dialect.refuse(why)).await;
    }

    async fn follow(self: Arc<Self>, reading: Reading) {
        match reading {
            Reading::Reply(reply) | Reading::Opened(reply) | Reading::Closed(reply) => {
                self.send(reply).await;
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
            Reading::Ask(_) | Reading::Batch(_) => {
                let Ok(place) = self.place_for(&reading).await else { return };
                let outbox = self.outbox.clone();
                // A client that does not keep up misses events, never answers.
                let say = move |event| drop(outbox.try_send(event));
                let pending = Pending::of(reading, &self.session, &say);
                let client = self.clone();
                let work = async move {
                    let Answered { reply, follow } = pending.answer(&client.session).await;
                    if let Some(reply) = reply {
                        client.send(reply).await;
                    }
                    if let Some(job) = follow {
                        client.session.watch(job, client.outbox.clone());
                    }
                    drop(place);
                };
                now_or_spawned(Box::pin(self.answering.track_future(work))).await;
            }
        }
    }

    /// Waits for room: a place for each message. Who only waits for a job has one of its own, so
    /// that what would end the job is still read.
    async fn place_for(&self, reading: &Reading) -> Result<OwnedSemaphorePermit, AcquireError> {
        if matches!(reading, Reading::Ask(Ask { request: Request::AwaitJob { .. }, .. })) {
            return self.waiting.clone().acquire_owned().await;
        }
        let wanted = match reading {
            Reading::Batch(readings) => readings.len().min(self.places_max),
            Reading::Ask(_)
            | Reading::Reply(_)
            | Reading::Opened(_)
            | Reading::Closed(_)
            | Reading::Replies(_)
            | Reading::Watch(_)
            | Reading::Cancel { .. } => 1,
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.places.clone().acquire_many_owned(wanted).await
    }

    async fn send(&self, reply: Reply) {
        if let Body::Json(bytes) = reply.body {
            // The writer only ends when the client is gone, and then nobody is owed anything.
            let _ = self.outbox.send(bytes).await;
        }
    }

    /// Lets what is in flight finish within `patience`, then cancels it, and says `why`.
    pub(crate) async fn stop(&self, patience: Duration, why: &'static str) {
        self.answering.close();
        if timeout(patience, self.answering.wait()).await.is_err() {
            self.session.end(why);
            self.answering.wait().await;
        }
        // Who watches a job would watch it for as long as it runs.
        self.session.end(why);
    }
}

/// What a frame will be answered with.
pub(crate) enum Pending {
    Ready(Reply),
    Work(BoxFuture<'static, Answered>),
    All(Vec<Pending>),
}

impl Pending {
    /// Takes all that `reading` asks; what is said meanwhile goes to `say`.
    pub(crate) fn of(
        reading: Reading,
        session: &Arc<Session>,
        say: &(impl Fn(Bytes) + Clone + Send + Sync + 'static),
    ) -> Self {
        match reading {
            Reading::Ask(ask) => match session.begin(ask, say.clone()) {
                Ok(begun) => Self::Work(begun.work),
                Err(refusal) => Self::Ready(refusal),
            },
            Reading::Batch(readings) => {
                let parts = readings.into_iter().map(|reading| Self::of(reading, session, say));
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
            Reading::Watch(_) | Reading::Replies(_) => Self::Ready(Reply::empty(202)),
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
