//! A client of Zyra's wire, a connection a request, that knows what it was told and what not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(2);
/// How long the whole of an answer may take.
const ANSWER: Duration = Duration::from_secs(15);

/// What became of a request.
pub(super) enum Told {
    /// The answer came whole.
    Answer(Answer),
    /// Nothing was sent.
    NotSent,
    /// It was sent, and no answer came, or not all of it.
    Unknown(String),
}

/// An answer that came whole.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// Asks for `tool` to be called as a job with the number `n`.
pub(super) fn submit(to: SocketAddr, tool: &str, n: u64) -> Told {
    let call = json!({
        "jsonrpc": "2.0",
        "id": n,
        "method": "tools/call",
        "params": { "name": tool, "arguments": { "n": n }, "mode": "async" },
    });
    exchange(to, &post(to, "/v1/mcp", "", &call.to_string()))
}

/// Asks for the job `id` to be stopped.
pub(super) fn cancel(at: SocketAddr, id: &str) -> Told {
    exchange(at, &bare(at, "DELETE", &format!("/jobs/{id}")))
}

/// What is at `path`.
pub(super) fn get(at: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    whole(exchange(at, &bare(at, "GET", path))).with_context(|| format!("GET {path}"))
}

/// What a tool gives, called on MCP's wire: Zyra's tells only what a program prints.
pub(super) fn call(at: SocketAddr, tool: &str, arguments: &Value) -> anyhow::Result<Value> {
    let answer = whole(ask(at, tool, arguments))?;
    let mut message = answer.json().with_context(|| format!("a call of {tool}"))?;
    let result = message["result"]["structuredContent"].take();
    ensure!(result.is_object(), "a call of {tool} failed: {message}");
    Ok(result)
}

/// Calls `tool` on MCP's wire.
pub(super) fn ask(at: SocketAddr, tool: &str, arguments: &Value) -> Told {
    exchange(at, &asking(at, tool, arguments))
}

/// The request that calls `tool` on MCP's wire.
pub(super) fn asking(at: SocketAddr, tool: &str, arguments: &Value) -> Vec<u8> {
    const VERSION: &str = "2026-07-28";
    let call = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": VERSION,
                "io.modelcontextprotocol/clientInfo": { "name": "chaos", "version": "0" },
                "io.modelcontextprotocol/clientCapabilities": {},
            },
            "name": tool,
            "arguments": arguments,
        },
    });
    let headers = format!(
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {VERSION}\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"
    );
    post(at, "/mcp", &headers, &call.to_string())
}

impl Answer {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        let describe = || format!("not JSON: {}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice(&self.body).with_context(describe)
    }
}

fn whole(told: Told) -> anyhow::Result<Answer> {
    match told {
        Told::Answer(answer) => Ok(answer),
        Told::NotSent => anyhow::bail!("no connection"),
        Told::Unknown(why) => anyhow::bail!("no answer: {why}"),
    }
}

fn bare(to: SocketAddr, method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn post(to: SocketAddr, path: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\
         Content-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn exchange(with: SocketAddr, request: &[u8]) -> Told {
    let Ok(mut stream) = TcpStream::connect_timeout(&with, CONNECT) else { return Told::NotSent };
    match asked(&mut stream, request) {
        Ok(Some(answer)) => Told::Answer(answer),
        Ok(None) => Told::Unknown("the answer was cut short".to_owned()),
        Err(err) => Told::Unknown(err.to_string()),
    }
}

/// The answer to `request`, if it comes whole.
fn asked(stream: &mut TcpStream, request: &[u8]) -> io::Result<Option<Answer>> {
    let begun = Instant::now();
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(request)?;
    let mut received = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some(answer) = parsed(&received) {
            return Ok(Some(answer));
        }
        let left = ANSWER.checked_sub(begun.elapsed()).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            read => received.extend_from_slice(&piece[..read]),
        }
    }
}

/// The answer in `came`, once all of it is there. One of no length, and in no pieces, is never
/// whole; of one in pieces the body is as it came.
fn parsed(received: &[u8]) -> Option<Answer> {
    let head = received.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&received[..head]).ok()?.to_ascii_lowercase();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    // The end of the head stands before a first piece as that of a piece before the next.
    if text.contains("\r\ntransfer-encoding: chunked") {
        let body = received[head + 4..].to_vec();
        return received[head + 2..].ends_with(b"\r\n0\r\n\r\n").then_some(Answer { status, body });
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let length: usize = length.trim().parse().ok()?;
    let body = received[head + 4..].get(..length)?.to_vec();
    Some(Answer { status, body })
}
