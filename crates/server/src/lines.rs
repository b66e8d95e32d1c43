//! Serves one client that speaks in lines: stdio, and memory in tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;
use toolgate_dialects::{Dialect, Refused};
use toolgate_transports::stdio::{Line, read_lines, write_lines};

use crate::client::Client;
use crate::session::{Desk, Session};

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
    let session = Session::over("stdio", desk, dialect, Caller::local());
    let limit = dialect_limit(&session, bounds.line_bytes_max);
    let (client, queue) = Client::new(session, bounds.in_flight_max);
    let mut writing = tokio::spawn(write_lines(output, queue));

    let reading = read_lines(input, limit, |line| {
        let client = client.clone();
        async move {
            match line {
                Line::Whole(bytes) => client.take(bytes).await,
                Line::TooLong => client.refuse(&Refused::TooLarge { limit }).await,
            }
        }
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

/// The longest line that both the server and the wire bear.
fn dialect_limit(session: &Session, bytes_max: usize) -> usize {
    session.dialect.line_bytes_max().map_or(bytes_max, |limit| limit.min(bytes_max))
}

/// How writing ended; that the client went is no failure.
fn gone(written: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    match written.map_err(io::Error::other)? {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
