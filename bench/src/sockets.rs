//! Load test over WebSockets: keeps connections busy and checks every answer.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memmem::find;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::runtime;
use crate::question::{BenchRequestTemplate, response_id};

/// Client side of a WebSocket connection to a measured server.
pub(crate) struct BenchWebSocket {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that were already returned in messages.
    consumed: usize,
}

impl BenchWebSocket {
    /// Opens a WebSocket to the server at `address`, at the URL path `path`.
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
        Ok(Self { stream, buffer, consumed: end })
    }

    /// Sends `text` as one message, with a mask of zeros.
    pub(crate) async fn send(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.stream.write_all(&frame(text)?).await?)
    }

    /// Waits for the next text message and returns its text.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let rest = &self.buffer[self.consumed..];
            if let Some((opcode, from, to)) = parse_header(rest)
                && to <= rest.len()
            {
                let text = rest[from..to].to_vec();
                self.consumed += to;
                if opcode == 1 {
                    return Ok(text);
                }
                ensure!(opcode != 8, "the server closed the WebSocket");
                continue;
            }
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed");
        }
    }
}

/// Returns the WebSocket frame in which a client sends `text`.
fn frame(text: &str) -> anyhow::Result<Vec<u8>> {
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

/// Returns the opcode of the first frame in `bytes`, and the start and end of its payload. Returns
/// `None` if the frame is incomplete.
fn parse_header(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let (&[kind, length], rest) = bytes.split_first_chunk()?;
    let (from, length) = match length {
        126 => (4, usize::from(u16::from_be_bytes(*rest.first_chunk()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(*rest.first_chunk()?)).ok()?),
        length => (2, usize::from(length)),
    };
    Some((kind & 0x0F, from, from + length))
}

/// Measures the answers per second over `connections` WebSockets, with `depth` requests in flight
/// on each, for the duration `time`.
pub(crate) fn rate(
    (address, path): (&str, &str),
    question: &BenchRequestTemplate,
    connections: u8,
    depth: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    runtime()?.block_on(async {
        let mut sockets = Vec::new();
        for _ in 0..connections {
            sockets.push(BenchWebSocket::open(address, path).await?);
        }
        let started = Instant::now();
        let mut tasks = Vec::new();
        for socket in sockets {
            let question = question.clone();
            tasks.push(tokio::spawn(keep_busy(socket, question, depth, started + time)));
        }
        let mut answered = 0;
        for task in tasks {
            answered += task.await??;
        }
        Ok(answered as f64 / started.elapsed().as_secs_f64())
    })
}

/// Keeps `depth` requests in flight on `socket` until `deadline`, and returns the number of
/// answers.
async fn keep_busy(
    mut socket: BenchWebSocket,
    question: BenchRequestTemplate,
    depth: usize,
    deadline: Instant,
) -> anyhow::Result<u64> {
    let mut id = 0;
    let mut answered = 0;
    let mut waiting = HashSet::new();
    while Instant::now() < deadline || !waiting.is_empty() {
        while Instant::now() < deadline && waiting.len() < depth {
            id += 1;
            waiting.insert(id);
            socket.send(&question.body(&id.to_string())).await?;
        }
        let answer = socket.receive().await?;
        ensure!(waiting.remove(&response_id(&answer)?), "a response without a request");
        question.check(&answer)?;
        answered += 1;
    }
    Ok(answered)
}
