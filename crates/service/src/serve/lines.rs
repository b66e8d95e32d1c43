//! Serves one client that sends one message per line, over stdio or over memory in tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolgate_contract::Caller;
use toolgate_dialects::{Dialect, FrameRefusal};
use toolgate_transports::stdio::{StdioInputLine, read_lines, write_lines};

use crate::sessions::client::ConnectedClient;
use crate::sessions::server_state::ServerState;
use crate::sessions::session::ClientSession;

/// Limits of a client that sends one message per line.
#[derive(Debug, Clone)]
pub struct LineStreamLimits {
    /// Longest line that the client may send, in bytes.
    pub line_bytes_max: usize,
    /// Maximum number of the client's calls in flight. At this limit, the server stops reading the
    /// client's messages.
    pub in_flight_max: usize,
    /// Time for calls in flight to finish after the client closes its end of the stream.
    pub eof_grace: Duration,
    /// Time for calls in flight to finish after shutdown starts.
    pub drain: Duration,
    /// Time after `drain` in which cancelled calls must end and the client can read their answers.
    pub wrap_up: Duration,
}

/// Serves one client that sends one message per line, until the client closes its end or `shutdown`
/// is cancelled. Then lets calls in flight finish.
///
/// Ends at once if the client no longer reads.
///
/// # Errors
/// Fails if reading or writing the streams fails.
pub async fn serve_lines(
    state: Arc<ServerState>,
    dialect: Arc<dyn Dialect>,
    (input, output): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin + Send + 'static),
    bounds: LineStreamLimits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let session = ClientSession::with_transport("stdio", state, dialect, Caller::local());
    let limit = line_limit(&session, bounds.line_bytes_max);
    let (client, queue) = ConnectedClient::new(session, bounds.in_flight_max);
    let mut writing = toolgate_net::spawn_task(write_lines(output, queue));

    let reading = read_lines(input, limit, |line| {
        let client = client.clone();
        async move {
            match line {
                StdioInputLine::Whole(bytes) => client.receive(bytes).await,
                StdioInputLine::TooLong => {
                    let refusal = FrameRefusal::TooLarge { limit };
                    client.answer_refused(Bytes::new(), &refusal).await;
                }
            }
        }
    });
    let (ended, grace, why) = tokio::select! {
        ended = reading => (ended, bounds.eof_grace, "the client has closed the connection"),
        () = shutdown.cancelled() => (Ok(()), bounds.drain, "the server is stopping"),
        // The client no longer reads, so no answer can be delivered.
        written = &mut writing => {
            client.stop(Duration::ZERO, "the client has disconnected").await;
            return write_result(written);
        }
    };
    let wrap_up = async {
        client.stop(grace, why).await;
        drop(client);
        (&mut writing).await
    };
    // The wait is bounded, because a client that does not read would never get its answers.
    match timeout(grace.saturating_add(bounds.wrap_up), wrap_up).await {
        Ok(written) => ended.and(write_result(written)),
        Err(_) => {
            writing.abort();
            ended
        }
    }
}

/// Returns the longest line that both the server and the dialect accept, in bytes. `bytes_max` is
/// the limit of the server.
fn line_limit(session: &ClientSession, bytes_max: usize) -> usize {
    session.dialect.line_bytes_max().map_or(bytes_max, |limit| limit.min(bytes_max))
}

/// Converts `written`, the result of the task that writes to the client. A broken pipe is not an
/// error.
fn write_result(written: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    match written.map_err(io::Error::other)? {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
