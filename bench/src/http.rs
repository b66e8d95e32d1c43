//! Load over HTTP: connections kept busy, every answer checked.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memmem::find;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::question::{Question, shown};
use crate::timer::Timer;

/// What is sent with each request to one server.
#[derive(Clone)]
pub(crate) struct Headers {
    address: String,
    /// Lines, each with its end.
    lines: String,
}

impl Headers {
    /// None but those that all need.
    pub(crate) fn of(address: &str) -> Self {
        Self { address: address.to_owned(), lines: String::new() }
    }

    /// Those of a call of `tool` in 2026-07-28.
    pub(crate) fn stateless(address: &str, tool: &str) -> Self {
        let lines = format!(
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        );
        Self { address: address.to_owned(), lines }
    }

    /// Those of a session, which is opened; a server that has none is asked without.
    pub(crate) fn session(address: &str) -> anyhow::Result<Self> {
        let plain = Self::of(address);
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
        let begun = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        runtime()?.block_on(async {
            let mut connection = Connection::open(address).await?;
            connection.send(&plain.post(hello)).await?;
            let (head, _) = connection.answer().await?;
            let head = String::from_utf8(head)?;
            ensure!(head.starts_with("HTTP/1.1 200"), "no session: {head}");
            let name = "mcp-session-id: ";
            let session = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            let session =
                session.map(|line| format!("Mcp-Session-Id: {}\r\n", &line[name.len()..]));
            let version = "MCP-Protocol-Version: 2025-11-25\r\n";
            let lines = session.unwrap_or_default() + version;
            let headers = Self { address: address.to_owned(), lines };
            let mut connection = Connection::open(address).await?;
            connection.send(&headers.post(begun)).await?;
            connection.answer().await?;
            Ok(headers)
        })
    }

    /// A request for a stream of what is told unasked.
    pub(crate) fn get(&self) -> Vec<u8> {
        let Self { address, lines } = self;
        let head = format!("GET /mcp HTTP/1.1\r\nHost: {address}\r\n");
        format!("{head}Accept: text/event-stream\r\n{lines}\r\n").into_bytes()
    }

    /// A request whole.
    pub(crate) fn post(&self, body: &str) -> Vec<u8> {
        let Self { address, lines } = self;
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{lines}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// One client's.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// Sends a request and sees that it is answered as `question` is to be.
    async fn ask(&mut self, request: &[u8], question: &Question) -> anyhow::Result<()> {
        self.send(request).await?;
        let (head, body) = self.answer().await?;
        ensure!(head.starts_with(b"HTTP/1.1 200"), "a wrong answer: {}", shown(&head));
        question.check(&body)
    }

    /// The head and the body of the next answer.
    pub(crate) async fn answer(&mut self) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let head = self.head().await?;
        match length_of(&self.buffer[..head])? {
            Length::Known(length) => {
                while self.buffer.len() < head + length {
                    self.more().await?;
                }
            }
            // The end of the head stands before a first chunk as that of a chunk before the next.
            Length::Chunked => {
                while !self.buffer[head - 2..].ends_with(b"\r\n0\r\n\r\n") {
                    self.more().await?;
                }
            }
        }
        let body = self.buffer.split_off(head);
        Ok((std::mem::take(&mut self.buffer), body))
    }

    /// Waits for the head of the next answer, and says how long it is.
    pub(crate) async fn head(&mut self) -> anyhow::Result<usize> {
        self.buffer.clear();
        loop {
            self.more().await?;
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let is_right = self.buffer.starts_with(b"HTTP/1.1 2");
                ensure!(is_right, "refused: {}", shown(&self.buffer));
                return Ok(end + 4);
            }
        }
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed");
        Ok(())
    }
}

enum Length {
    Known(usize),
    Chunked,
}

/// How it is known where a body ends.
fn length_of(head: &[u8]) -> anyhow::Result<Length> {
    let head = std::str::from_utf8(head)?;
    for line in head.split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(Length::Known(value.parse()?));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(Length::Chunked);
        }
    }
    // Nothing is said of a body where there is none.
    Ok(Length::Known(0))
}

/// How requests come.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// Each connection asks again when it was answered.
    Busy,
    /// So many a second over all connections, whenever they are answered.
    Rate(f64),
}

/// What came of a load.
pub(crate) struct Came {
    /// Answers a second.
    pub(crate) rate: f64,
    /// How long each answer took since it was to be asked, in microseconds, sorted.
    pub(crate) micros: Vec<f64>,
}

impl Came {
    /// What so many of a hundred answers took at most.
    pub(crate) fn percentile(&self, of_hundred: f64) -> f64 {
        let at = (self.micros.len() as f64 * of_hundred / 100.0) as usize;
        self.micros[at.min(self.micros.len() - 1)]
    }
}

/// Asks `question` over `connections` connections, each with one request in flight under an id of
/// its own.
pub(crate) fn load(
    headers: &Headers,
    question: &Question,
    connections: u8,
    pace: Pace,
    time: Duration,
) -> anyhow::Result<Came> {
    runtime()?.block_on(async {
        let begun = Instant::now();
        let mut timers = paced(pace, connections, begun)?.into_iter();
        let mut tasks = Vec::new();
        for number in 0..connections {
            let mut connection = Connection::open(&headers.address).await?;
            let request = headers.post(&question.body(&format!("\"{number}\"")));
            let question = question.clone();
            let mut paced = timers.next();
            tasks.push(tokio::spawn(async move {
                let mut micros = Vec::new();
                while begun.elapsed() < time {
                    let mut start = Instant::now();
                    if let Some((due, apart, timer)) = &mut paced {
                        // Who is late because the answer before was late has waited since it was
                        // due; that a timer is late is no server's fault.
                        if start < *due {
                            timer.wait_until(*due).await?;
                            start = Instant::now();
                        } else {
                            start = *due;
                        }
                        *due += *apart;
                    }
                    connection.ask(&request, &question).await?;
                    micros.push(start.elapsed().as_secs_f64() * 1e6);
                }
                anyhow::Ok(micros)
            }));
        }
        let mut micros = Vec::new();
        for task in tasks {
            micros.extend(task.await??);
        }
        let rate = micros.len() as f64 / begun.elapsed().as_secs_f64();
        micros.sort_by(f64::total_cmp);
        ensure!(!micros.is_empty(), "nothing was answered");
        Ok(Came { rate, micros })
    })
}

/// For each connection when it asks first, how far apart it asks, and what tells it; none where
/// each asks as soon as it can.
fn paced(
    pace: Pace,
    connections: u8,
    begun: Instant,
) -> anyhow::Result<Vec<(Instant, Duration, Timer)>> {
    let Pace::Rate(rate) = pace else { return Ok(Vec::new()) };
    let apart = Duration::from_secs_f64(f64::from(connections) / rate);
    let first = |number| begun + apart.mul_f64(f64::from(number) / f64::from(connections));
    let timer = |first| Ok((first, apart, Timer::start(first, apart)?));
    (0..connections).map(first).map(timer).collect()
}

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}
