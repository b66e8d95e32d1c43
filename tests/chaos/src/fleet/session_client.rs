//! A client with an MCP session behind a load balancer: it makes calls, and follows the session's
//! notifications.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::requests::stream_request;

/// The time limit of a connection, and of the head of its answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest silence of a stream. Servers send comments more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The notification stream of a session, which the client opens again whenever it breaks.
pub(super) struct NotificationFollower {
    address: SocketAddr,
    session: String,
    last_event: Option<String>,
}

/// An open notification stream.
pub(super) struct NotificationStream {
    reader: BufReader<TcpStream>,
}

impl NotificationFollower {
    pub(super) fn new(address: SocketAddr, session: &str) -> Self {
        Self { address, session: session.to_owned(), last_event: None }
    }

    /// Opens the notification stream again, from the event after the last received one.
    pub(super) fn open(&self) -> anyhow::Result<NotificationStream> {
        let mut stream = TcpStream::connect_timeout(&self.address, HEAD_TIMEOUT)?;
        stream.set_read_timeout(Some(HEAD_TIMEOUT))?;
        let last_event = self.last_event.as_deref();
        stream.write_all(&stream_request(self.address, &self.session, last_event))?;
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status).context("no answer to the request for the stream")?;
        ensure!(status.starts_with("HTTP/1.1 200 "), "the stream is refused: {status:?}");
        reader.get_ref().set_read_timeout(Some(SILENCE_MAX))?;
        Ok(NotificationStream { reader })
    }

    /// Reads `stream` until it breaks.
    pub(super) fn follow(&mut self, stream: NotificationStream) {
        for line in stream.reader.lines() {
            let Ok(line) = line else { return };
            if let Some(id) = line.strip_prefix("id:") {
                self.last_event = Some(id.trim().to_owned());
            }
        }
    }
}

/// Opens the notification stream, and tries again for a moment if it breaks at once.
pub(super) fn reopen(follower: &NotificationFollower) -> anyhow::Result<NotificationStream> {
    let started = Instant::now();
    loop {
        match follower.open() {
            Ok(stream) => return Ok(stream),
            Err(err) if started.elapsed() > HEAD_TIMEOUT => return Err(err),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
