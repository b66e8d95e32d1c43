//! Load over WebSockets: conversations kept busy, every answer checked.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memmem::find;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::runtime;
use crate::question::{Question, id_of};

/// A client's half of a conversation.
pub(crate) struct Socket {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// How much of it was taken.
    taken: usize,
}

impl Socket {
    /// Opens one at `path`.
    pub(crate) async fn open(address: &str, path: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let hello = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(hello.as_bytes()).await?;
        let mut buffer = Vec::new();
        let end = loop {
            ensure!(stream.read_buf(&mut buffer).await? > 0, "the server closed");
            if let Some(end) = find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]);
        ensure!(head.starts_with("HTTP/1.1 101"), "no socket: {head}");
        Ok(Self { stream, buffer, taken: end })
    }

    /// Says `text`, masked with nothing.
    pub(crate) async fn say(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.stream.write_all(&framed(text)?).await?)
    }

    /// What is said next.
    pub(crate) async fn hear(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let rest = &self.buffer[self.taken..];
            if let Some((opcode, from, to)) = message(rest)
                && to <= rest.len()
            {
                let said = rest[from..to].to_vec();
                self.taken += to;
                if opcode == 1 {
                    return Ok(said);
                }
                ensure!(opcode != 8, "the server closed the WebSocket");
                continue;
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed");
        }
    }
}

/// `text` as a client's message.
fn framed(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut frame = vec![0x81];
    match u8::try_from(text.len()) {
        Ok(length @ ..126) => frame.push(0x80 | length),
        _ => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(text.len()).context("too long")?.to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    Ok(frame)
}

/// The kind of a server's message, and where what it says begins and ends.
fn message(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (&[kind, length], rest) = bytes.split_first_chunk()?;
    let (from, length) = match length {
        126 => (4, usize::from(u16::from_be_bytes(*rest.first_chunk()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(*rest.first_chunk()?)).ok()?),
        length => (2, usize::from(length)),
    };
    Some((kind & 0x0F, from, from + length))
}

/// Answers a second over `connections` conversations, each with `depth` questions in flight.
pub(crate) fn rate(
    (address, path): (&str, &str),
    question: &Question,
    connections: u8,
    depth: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    runtime()?.block_on(async {
        let mut sockets = Vec::new();
        for _ in 0..connections {
            sockets.push(Socket::open(address, path).await?);
        }
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for socket in sockets {
            let question = question.clone();
            tasks.push(tokio::spawn(keep_busy(socket, question, depth, begun + time)));
        }
        let mut answered = 0;
        for task in tasks {
            answered += task.await??;
        }
        Ok(answered as f64 / begun.elapsed().as_secs_f64())
    })
}

/// Asks with `depth` questions in flight, and says how many were answered.
async fn keep_busy(
    mut socket: Socket,
    question: Question,
    depth: usize,
    until: Instant,
) -> anyhow::Result<u64> {
    let mut id = 0;
    let mut answered = 0;
    let mut waiting = HashSet::new();
    while Instant::now() < until || !waiting.is_empty() {
        while Instant::now() < until && waiting.len() < depth {
            id += 1;
            waiting.insert(id);
            socket.say(&question.body(&id.to_string())).await?;
        }
        let answer = socket.hear().await?;
        ensure!(waiting.remove(&id_of(&answer)?), "a response without a request");
        question.check(&answer)?;
        answered += 1;
    }
    Ok(answered)
}
