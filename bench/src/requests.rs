//! What is asked, and load over HTTP: connections kept busy, every answer checked.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const META: &str = concat!(
    r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"bench","version":"0"},"#,
    r#""io.modelcontextprotocol/clientCapabilities":{}}"#
);

pub(crate) fn read_in_session(id: u64, out: &mut Vec<u8>) {
    let _ = writeln!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"files_read","arguments":{{"path":"one.txt"}}}}}}"#
    );
}

pub(crate) fn read_stateless(id: u64, out: &mut Vec<u8>) {
    let _ = writeln!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{{META},"name":"files_read","arguments":{{"path":"one.txt"}}}}}}"#
    );
}

pub(crate) fn run_true(id: u64, out: &mut Vec<u8>) {
    let _ = writeln!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"exec_run","arguments":{{"command":"true"}}}}}}"#
    );
}

pub(crate) fn list_jobs(id: u64, out: &mut Vec<u8>) {
    let _ = writeln!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{{META},"name":"jobs_list","arguments":{{}}}}}}"#
    );
}

/// One call of the echo tool in the stateless revision.
pub(crate) fn echo_stateless(address: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{META},"name":"example_echo","arguments":{{"text":"hello"}}}}}}"#
    );
    let headers =
        "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: example_echo\r\n";
    post(address, headers, &body)
}

/// One call of the echo tool in a session opened here.
pub(crate) fn echo_in_session(address: &str) -> anyhow::Result<Vec<u8>> {
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#;
    let opened = runtime()?.block_on(async {
        let mut stream = TcpStream::connect(address).await?;
        exchange(&mut stream, &post(address, "", hello), &mut Vec::new()).await
    })?;
    let opened = String::from_utf8(opened)?;
    let session = opened.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    let session = session.with_context(|| format!("no session: {opened}"))?;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"example_echo","arguments":{"text":"hello"}}}"#;
    // Each connection has the same id in flight, so each has a request of its own in `rate`.
    Ok(post(address, &format!("Mcp-Session-Id: {session}\r\n"), body))
}

fn post(address: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Answers a second over `connections` connections, each with one request in flight.
///
/// The id in `request` is 1; each connection asks with a digit of its own in its place.
pub(crate) fn rate(
    address: &str,
    request: &[u8],
    connections: u8,
    time: Duration,
) -> anyhow::Result<f64> {
    runtime()?.block_on(async {
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for connection in 0..connections {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let request = with_id(request, connection)?;
            tasks.push(tokio::spawn(async move {
                let (mut answered, mut buffer) = (0_u32, Vec::new());
                while begun.elapsed() < time {
                    let answer = exchange(&mut stream, &request, &mut buffer).await?;
                    ensure!(
                        answer.starts_with(b"HTTP/1.1 200")
                            && answer.windows(7).any(|w| w == b"\"hello\""),
                        "a wrong answer: {}",
                        String::from_utf8_lossy(&answer)
                    );
                    answered += 1;
                }
                Ok(answered)
            }));
        }
        let mut answered = 0;
        for task in tasks {
            answered += task.await??;
        }
        Ok(f64::from(answered) / begun.elapsed().as_secs_f64())
    })
}

/// The request with the id `a`, `b`, … as the connection's own.
fn with_id(request: &[u8], connection: u8) -> anyhow::Result<Vec<u8>> {
    let text = std::str::from_utf8(request)?;
    let id = char::from(b'a' + connection);
    let with_id = text.replacen("\"id\":1,", &format!("\"id\":\"{id}\","), 1);
    let (head, body) = with_id.split_once("\r\n\r\n").context("no body")?;
    let old = text.len() - text.find("\r\n\r\n").context("no body")? - 4;
    let head =
        head.replace(&format!("Content-Length: {old}"), &format!("Content-Length: {}", body.len()));
    Ok(format!("{head}\r\n\r\n{body}").into_bytes())
}

/// Sends one request and reads one answer whole.
pub(crate) async fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    buffer: &mut Vec<u8>,
) -> anyhow::Result<Vec<u8>> {
    stream.write_all(request).await?;
    buffer.clear();
    loop {
        ensure!(stream.read_buf(buffer).await? > 0, "the server closed the connection");
        let Some(head) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let headers = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let length = headers.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.context("no length")?.parse()?;
        if buffer.len() >= head + 4 + length {
            return Ok(std::mem::take(buffer));
        }
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
