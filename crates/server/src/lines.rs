//! Serves one client that speaks in lines: stdio, and memory in tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
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
        answering: TaskTracker::new(),
    });

    let reading = read_lines(input, bounds.line_bytes_max, |line| {
        client.clone().take(line, bounds.line_bytes_max)
    });
    let (ended, patience) = tokio::select! {
        ended = reading => (ended, bounds.eof_grace),
        () = shutdown.cancelled() => (Ok(()), bounds.drain),
        // Nobody reads the answers: what is in flight is for nobody.
        _ = &mut writing => {
            client.stop(Duration::ZERO).await;
            return Ok(());
        }
    };
    client.stop(patience).await;
    drop(client);
    let written = writing.await.map_err(io::Error::other)?;
    ended.and(written.or_else(|err| match err.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(err),
    }))
}

struct Client {
    session: Arc<Session>,
    outbox: mpsc::Sender<Bytes>,
    places: Arc<Semaphore>,
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
                let Ok(place) = self.places.clone().acquire_owned().await else { return };
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

    async fn send(&self, reply: Reply) {
        if let Body::Json(bytes) = reply.body {
            // The writer only ends when the client is gone, and then nobody is owed anything.
            let _ = self.outbox.send(bytes).await;
        }
    }

    /// Lets what is in flight finish within `patience`, then cancels it.
    async fn stop(&self, patience: Duration) {
        self.answering.close();
        if tokio::time::timeout(patience, self.answering.wait()).await.is_err() {
            self.session.cancel_all();
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
