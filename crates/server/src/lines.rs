//! Serves one client that speaks in lines: stdio, and memory in tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolgate_contract::{Body, BoxFuture, Caller, Frame, Reply};
use toolgate_dialects::{Dialect, Reading, Refused};
use toolgate_transports::stdio::{Line, read_lines, write_lines};

use crate::session::{Desk, Session, now_or_spawned};

/// How many messages may wait to be written before calls wait to answer.
const OUTBOX: usize = 256;

/// What a line-speaking client is borne.
#[derive(Debug, Clone)]
pub struct LineBounds {
    /// The longest line, in bytes.
    pub line_bytes_max: usize,
    /// The most asks in flight; beyond them the client is not read.
    pub in_flight_max: usize,
    /// How long calls in flight may take once the client has closed its end.
    pub eof_grace: Duration,
    /// How long calls in flight may take once the server is to stop.
    pub drain: Duration,
    /// How long cancelled calls may take to end and answers to be read after that.
    pub wrap_up: Duration,
}

/// Serves one client until it closes its end or `shutdown`, then lets calls in flight finish.
///
/// Ends at once when the client no longer reads.
pub async fn serve_lines(
    desk: Arc<Desk>,
    dialect: Arc<dyn Dialect>,
    (input, output): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin + Send + 'static),
    bounds: LineBounds,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (outbox, queue) = mpsc::channel(OUTBOX);
    let mut writing = tokio::spawn(write_lines(output, queue));
    let client = Arc::new(Client {
        session: Session::new(desk, dialect, Caller::local()),
        outbox,
        places: Arc::new(Semaphore::new(bounds.in_flight_max)),
        places_max: bounds.in_flight_max,
        answering: TaskTracker::new(),
    });

    let reading = read_lines(input, bounds.line_bytes_max, |line| {
        client.clone().take(line, bounds.line_bytes_max)
    });
    let (ended, patience, why) = tokio::select! {
        ended = reading => (ended, bounds.eof_grace, "the client has closed its end"),
        () = shutdown.cancelled() => (Ok(()), bounds.drain, "the server is stopping"),
        // Nobody reads the answers: what is in flight is for nobody.
        written = &mut writing => {
            client.stop(Duration::ZERO, "the client is gone").await;
            return gone(written);
        }
    };
    let wrap_up = async {
        client.stop(patience, why).await;
        drop(client);
        (&mut writing).await
    };
    // A client that does not read is not waited for: its answers would never be out.
    match timeout(patience.saturating_add(bounds.wrap_up), wrap_up).await {
        Ok(written) => ended.and(gone(written)),
        Err(_) => {
            writing.abort();
            ended
        }
    }
}

/// How writing ended; that the client went is no failure.
fn gone(written: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    match written.map_err(io::Error::other)? {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

struct Client {
    session: Arc<Session>,
    outbox: mpsc::Sender<Bytes>,
    places: Arc<Semaphore>,
    places_max: usize,
    answering: TaskTracker,
}

impl Client {
    async fn take(self: Arc<Self>, line: Line, line_bytes_max: usize) {
        match line {
            Line::Whole(bytes) => {
                let reading = self.session.read(&Frame::line(bytes));
                self.follow(reading).await;
            }
            Line::TooLong => {
                let why = Refused::TooLarge { limit: line_bytes_max };
                self.send(self.session.dialect.refuse(&why)).await;
            }
        }
    }

    async fn follow(self: Arc<Self>, reading: Reading) {
        match reading {
            Reading::Reply(reply) | Reading::Opened(reply) | Reading::Closed(reply) => {
                self.send(reply).await;
            }
            Reading::Cancel { key, reply } => {
                self.session.cancel(&key);
                self.send(reply).await;
            }
            Reading::Ask(_) | Reading::Batch(_) => {
                let Ok(place) = self.place_for(&reading).await else { return };
                let outbox = self.outbox.clone();
                // A client that does not keep up misses events, never answers.
                let say = move |event| drop(outbox.try_send(event));
                let pending = Pending::of(reading, &self.session, &say);
                let client = self.clone();
                let work = async move {
                    if let Some(reply) = pending.answer(&client.session).await {
                        client.send(reply).await;
                    }
                    drop(place);
                };
                now_or_spawned(Box::pin(self.answering.track_future(work))).await;
            }
        }
    }

    /// Waits for room: a place for each message.
    async fn place_for(&self, reading: &Reading) -> Result<OwnedSemaphorePermit, AcquireError> {
        let wanted = match reading {
            Reading::Batch(readings) => readings.len().min(self.places_max),
            Reading::Ask(_)
            | Reading::Reply(_)
            | Reading::Opened(_)
            | Reading::Closed(_)
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
    async fn stop(&self, patience: Duration, why: &'static str) {
        self.answering.close();
        if timeout(patience, self.answering.wait()).await.is_err() {
            self.session.end(why);
            self.answering.wait().await;
        }
    }
}

/// What a frame will be answered with.
pub(crate) enum Pending {
    Ready(Reply),
    Work(BoxFuture<'static, Option<Reply>>),
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
        }
    }

    /// The answer, once all work for it is done; `None` if none is owed.
    pub(crate) async fn answer(self, session: &Session) -> Option<Reply> {
        match self {
            Self::Ready(reply) => Some(reply),
            Self::Work(work) => work.await,
            Self::All(parts) => {
                let parts = parts.into_iter().map(|part| Box::pin(part.answer(session)));
                let replies = join_all(parts).await;
                Some(session.join(replies.into_iter().flatten().collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
