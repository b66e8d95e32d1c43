//! Load test over HTTP: keeps connections busy and checks every answer.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memmem::find;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::question::{BenchRequestTemplate, excerpt};
use crate::timer::RepeatingTimer;

/// Address of one server, and the HTTP headers of every request that the benchmark sends to it.
#[derive(Clone)]
pub(crate) struct BenchRequestHeaders {
    address: String,
    /// Additional HTTP header lines, each with its line break.
    lines: String,
}

impl BenchRequestHeaders {
    /// Returns only the headers that every request to the server at `address` needs.
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), lines: String::new() }
    }

    /// Returns the headers of a call of `tool` in MCP revision 2026-07-28.
    pub(crate) fn stateless(address: &str, tool: &str) -> Self {
        let lines = format!(
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
        );
        Self { address: address.to_owned(), lines }
    }

    /// Opens a session with the server at `address`, and returns the headers for it. A server
    /// without sessions sends no session id.
    pub(crate) fn session(address: &str) -> anyhow::Result<Self> {
        let plain = Self::new(address);
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        runtime()?.block_on(async {
            let mut connection = BenchHttpConnection::open(address).await?;
            connection.send(&plain.post(hello)).await?;
            let (head, _) = connection.read_response().await?;
            let head = String::from_utf8(head)?;
            ensure!(head.starts_with("HTTP/1.1 200"), "no session: {head}");
            let name = "mcp-session-id: ";
            let session = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            let session =
                session.map(|line| format!("Mcp-Session-Id: {}\r\n", &line[name.len()..]));
            let version = "MCP-Protocol-Version: 2025-11-25\r\n";
            let lines = session.unwrap_or_default() + version;
            let headers = Self { address: address.to_owned(), lines };
            let mut connection = BenchHttpConnection::open(address).await?;
            connection.send(&headers.post(initialized)).await?;
            connection.read_response().await?;
            Ok(headers)
        })
    }

    /// Returns the bytes of a GET request that opens an MCP session's stream of notifications.
    pub(crate) fn get(&self) -> Vec<u8> {
        let Self { address, lines } = self;
        let head = format!("GET /mcp HTTP/1.1\r\nHost: {address}\r\n");
        format!("{head}Accept: text/event-stream\r\n{lines}\r\n").into_bytes()
    }

    /// Returns the bytes of a POST request with `body`.
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

/// HTTP connection of one benchmark client.
pub(crate) struct BenchHttpConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl BenchHttpConnection {
    pub(crate) async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(request).await?)
    }

    /// Sends the bytes `request` and checks that the response contains the text that `question`
    /// expects.
    async fn request(
        &mut self,
        request: &[u8],
        question: &BenchRequestTemplate,
    ) -> anyhow::Result<()> {
        self.send(request).await?;
        let (head, body) = self.read_response().await?;
        ensure!(head.starts_with(b"HTTP/1.1 200"), "a wrong answer: {}", excerpt(&head));
        question.check(&body)
    }

    /// Reads the next response of the server and returns its head and its body.
    pub(crate) async fn read_response(&mut self) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let head = self.read_head().await?;
        match length_of(&self.buffer[..head])? {
            HttpBodyFraming::Known(length) => {
                while self.buffer.len() < head + length {
                    self.read_more().await?;
                }
            }
            // The line break of the head precedes the first chunk as that of a chunk precedes the
            // next.
            HttpBodyFraming::Chunked => {
                while !self.buffer[head - 2..].ends_with(b"\r\n0\r\n\r\n") {
                    self.read_more().await?;
                }
            }
        }
        let body = self.buffer.split_off(head);
        Ok((std::mem::take(&mut self.buffer), body))
    }

    /// Reads until the buffer has the head of the next response. Returns the length of the head in
    /// bytes.
    pub(crate) async fn read_head(&mut self) -> anyhow::Result<usize> {
        self.buffer.clear();
        loop {
            self.read_more().await?;
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let is_success = self.buffer.starts_with(b"HTTP/1.1 2");
                ensure!(is_success, "refused: {}", excerpt(&self.buffer));
                return Ok(end + 4);
            }
        }
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed");
        Ok(())
    }
}

/// Rule by which the client finds the end of an HTTP body.
enum HttpBodyFraming {
    Known(usize),
    Chunked,
}

/// Returns the rule for the end of the body that follows from the headers in `head`.
fn length_of(head: &[u8]) -> anyhow::Result<HttpBodyFraming> {
    let head = std::str::from_utf8(head)?;
    for line in head.split("\r\n").skip(1) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(HttpBodyFraming::Known(value.parse()?));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(HttpBodyFraming::Chunked);
        }
    }
    // Without these headers, there is no body.
    Ok(HttpBodyFraming::Known(0))
}

/// Decides when a load test sends its requests.
#[derive(Clone, Copy)]
pub(crate) enum RequestSchedule {
    /// Each connection sends its next request as soon as it has received an answer.
    Busy,
    /// Requests are sent at this rate per second over all connections together, independent of the
    /// answers.
    Rate(f64),
}

/// Results of a load test: rate and latencies.
pub(crate) struct LoadTestResult {
    /// Number of answers that the server gave per second.
    pub(crate) rate: f64,
    /// Latency of each answer in microseconds, sorted. It starts at the time at which the request
    /// was due.
    pub(crate) micros: Vec<f64>,
}

impl LoadTestResult {
    /// Returns the latency below which `percent` percent of the answers are, in microseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let index = (self.micros.len() as f64 * percent / 100.0) as usize;
        self.micros[index.min(self.micros.len() - 1)]
    }
}

/// Sends `question` again and again over `connections` connections until `time` has passed. Each
/// connection has one request in flight, with its own id.
pub(crate) fn load(
    headers: &BenchRequestHeaders,
    question: &BenchRequestTemplate,
    connections: u8,
    pace: RequestSchedule,
    time: Duration,
) -> anyhow::Result<LoadTestResult> {
    runtime()?.block_on(async {
        let started = Instant::now();
        let mut timers = start_timers(pace, connections, started)?.into_iter();
        let mut tasks = Vec::new();
        for number in 0..connections {
            let mut connection = BenchHttpConnection::open(&headers.address).await?;
            let request = headers.post(&question.body(&format!("\"{number}\"")));
            let question = question.clone();
            let mut schedule = timers.next();
            tasks.push(tokio::spawn(async move {
                let mut micros = Vec::new();
                while started.elapsed() < time {
                    let mut start = Instant::now();
                    if let Some((due, interval, timer)) = &mut schedule {
                        // If the previous answer was late, the next request has waited since it was
                        // due. If only the timer is late, the server is not to blame.
                        if start < *due {
                            timer.wait_until(*due).await?;
                            start = Instant::now();
                        } else {
                            start = *due;
                        }
                        *due += *interval;
                    }
                    connection.request(&request, &question).await?;
                    micros.push(start.elapsed().as_secs_f64() * 1e6);
                }
                anyhow::Ok(micros)
            }));
        }
        let mut micros = Vec::new();
        for task in tasks {
            micros.extend(task.await??);
        }
        let rate = micros.len() as f64 / started.elapsed().as_secs_f64();
        micros.sort_by(f64::total_cmp);
        ensure!(!micros.is_empty(), "nothing was answered");
        Ok(LoadTestResult { rate, micros })
    })
}

/// Returns for each connection the time of its first request, the interval between its requests,
/// and a timer. Returns an empty list for [`RequestSchedule::Busy`], which needs no timers.
fn start_timers(
    pace: RequestSchedule,
    connections: u8,
    started: Instant,
) -> anyhow::Result<Vec<(Instant, Duration, RepeatingTimer)>> {
    let RequestSchedule::Rate(rate) = pace else { return Ok(Vec::new()) };
    let interval = Duration::from_secs_f64(f64::from(connections) / rate);
    let first = |number| started + interval.mul_f64(f64::from(number) / f64::from(connections));
    let timer = |first| Ok((first, interval, RepeatingTimer::start(first, interval)?));
    (0..connections).map(first).map(timer).collect()
}

/// Creates a tokio runtime on the current thread.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no runtime")
}
