//! Client with an MCP session behind a load balancer, which follows the notifications of the
//! session.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::requests::stream_request;

/// Time limit for a connection, and for the head of the response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest accepted silence of a notification stream. Servers send comments more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Follower of the notifications of a session. It opens the stream again whenever the stream
/// breaks.
pub(super) struct NotificationFollower {
    address: SocketAddr,
    session: String,
    last_event: Option<String>,
}

/// Open notification stream of a session.
pub(super) struct NotificationStream {
    reader: BufReader<TcpStream>,
}

impl NotificationFollower {
    pub(super) fn new(address: SocketAddr, session: &str) -> Self {
        Self { address, session: session.to_owned(), last_event: None }
    }

    /// Opens the notification stream of the session, from the event after the last received one.
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

    /// Reads `stream` until it breaks, and remembers the id of the last event.
    pub(super) fn follow(&mut self, stream: NotificationStream) {
        for line in stream.reader.lines() {
            let Ok(line) = line else { return };
            if let Some(id) = line.strip_prefix("id:") {
                self.last_event = Some(id.trim().to_owned());
            }
        }
    }
}

/// Opens the notification stream of the session. Tries again for a moment if the stream breaks at
/// once.
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
