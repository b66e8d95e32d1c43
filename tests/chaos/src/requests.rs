//! HTTP requests to the server, one connection each. The outcome of a request says whether it was
//! answered, not sent, or possibly sent.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// Time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a complete answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Outcome of an HTTP request to a server that may be killed at any time.
pub(super) enum ChaosRequestOutcome {
    /// A complete answer arrived.
    Answered(ChaosHttpAnswer),
    /// No connection could be opened, so nothing was sent.
    NotSent,
    /// The request may have been sent, and no complete answer arrived. The text is the reason.
    Unknown(String),
}

/// Complete HTTP response of a server.
pub(super) struct ChaosHttpAnswer {
    pub(super) status: u16,
    /// Status line and header lines.
    head: String,
    pub(super) body: Vec<u8>,
}

/// MCP revision in which clients open sessions.
const SESSION_REVISION: &str = "2025-11-25";

/// Submits a job that calls `tool` with the argument `number`, in the Zyra dialect.
pub(super) fn submit_job(addr: SocketAddr, tool: &str, number: u64) -> ChaosRequestOutcome {
    let call = json!({
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": { "name": tool, "arguments": { "n": number }, "mode": "async" },
    });
    exchange(addr, &post_request(addr, "/v1/mcp", "", &call.to_string()))
}

/// Sends a request to cancel the job `id`.
pub(super) fn cancel_job(addr: SocketAddr, id: &str) -> ChaosRequestOutcome {
    exchange(addr, &bodyless_request(addr, "DELETE", &format!("/jobs/{id}")))
}

/// Sends a GET request for `path`. Fails if no complete answer arrives.
pub(super) fn get(addr: SocketAddr, path: &str) -> anyhow::Result<ChaosHttpAnswer> {
    let outcome = exchange(addr, &bodyless_request(addr, "GET", path));
    require_answer(outcome).with_context(|| format!("GET {path}"))
}

/// Calls `tool` and returns the structured result. Uses MCP, because the Zyra dialect returns only
/// the output of programs.
pub(super) fn call_tool(addr: SocketAddr, tool: &str, arguments: &Value) -> anyhow::Result<Value> {
    let answer = require_answer(send_call(addr, tool, arguments))?;
    let mut message = answer.json().with_context(|| format!("a call of {tool}"))?;
    let result = message["result"]["structuredContent"].take();
    ensure!(result.is_object(), "a call of {tool} failed: {message}");
    Ok(result)
}

/// Calls `tool` without a job. Fails unless the call succeeds.
pub(super) fn call_plainly(addr: SocketAddr, tool: &str) -> anyhow::Result<()> {
    let message = require_answer(send_call(addr, tool, &json!({})))?.json()?;
    ensure!(message["result"]["isError"] == false, "a plain call failed: {message}");
    Ok(())
}

/// Calls `tool` in MCP without a session, and returns the outcome.
pub(super) fn send_call(addr: SocketAddr, tool: &str, arguments: &Value) -> ChaosRequestOutcome {
    exchange(addr, &call_request(addr, tool, arguments))
}

/// Returns the bytes of a request that calls `tool` in MCP without a session.
pub(super) fn call_request(addr: SocketAddr, tool: &str, arguments: &Value) -> Vec<u8> {
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
    post_request(addr, "/mcp", &headers, &call.to_string())
}

/// Opens an MCP session and returns the session id.
pub(super) fn open_session(addr: SocketAddr) -> anyhow::Result<String> {
    let params = json!({
        "protocolVersion": SESSION_REVISION,
        "capabilities": {},
        "clientInfo": { "name": "chaos", "version": "0" },
    });
    let message = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let answer = require_answer(post_in_session(addr, "", &message))?;
    let session = answer.header("mcp-session-id").map(str::to_owned);
    let session = session.with_context(|| format!("no session: {}", answer.head))?;
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    // Its answer has no content.
    drop(post_in_session(addr, &session_header(&session), &initialized));
    Ok(session)
}

/// Calls `tool` in the MCP session `session`, and returns the outcome.
pub(super) fn send_session_call(
    addr: SocketAddr,
    session: &str,
    tool: &str,
    arguments: &Value,
) -> ChaosRequestOutcome {
    let params = json!({ "name": tool, "arguments": arguments });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    post_in_session(addr, &session_header(session), &message)
}

/// Returns the bytes of a request for the notification stream of `session`, from the event after
/// `last_event`. The request asks to close the connection when the stream ends.
pub(super) fn stream_request(addr: SocketAddr, session: &str, last_event: Option<&str>) -> Vec<u8> {
    let last_event = last_event.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
    format!(
        "GET /mcp HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Accept: text/event-stream\r\nMCP-Protocol-Version: {SESSION_REVISION}\r\n\
         {}{last_event}\r\n",
        session_header(session)
    )
    .into_bytes()
}

/// Returns the bytes of a request for the event stream of the job `id`.
pub(super) fn event_request(addr: SocketAddr, id: &str) -> Vec<u8> {
    bodyless_request(addr, "GET", &format!("/v1/jobs/{id}/events"))
}

fn session_header(session: &str) -> String {
    format!("Mcp-Session-Id: {session}\r\n")
}

fn post_in_session(addr: SocketAddr, session_header: &str, message: &Value) -> ChaosRequestOutcome {
    let headers = format!(
        "Accept: application/json, text/event-stream\r\n\
         MCP-Protocol-Version: {SESSION_REVISION}\r\n{session_header}"
    );
    exchange(addr, &post_request(addr, "/mcp", &headers, &message.to_string()))
}

impl ChaosHttpAnswer {
    /// Returns the value of the header `name`, which must be in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = pairs.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim())
    }

    /// Parses the body as JSON. The error contains the body.
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        let describe = || format!("not JSON: {}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice(&self.body).with_context(describe)
    }
}

fn require_answer(outcome: ChaosRequestOutcome) -> anyhow::Result<ChaosHttpAnswer> {
    match outcome {
        ChaosRequestOutcome::Answered(answer) => Ok(answer),
        ChaosRequestOutcome::NotSent => anyhow::bail!("no connection"),
        ChaosRequestOutcome::Unknown(reason) => anyhow::bail!("no answer: {reason}"),
    }
}

fn bodyless_request(addr: SocketAddr, method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn post_request(addr: SocketAddr, path: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Content-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn exchange(addr: SocketAddr, request: &[u8]) -> ChaosRequestOutcome {
    let Ok(mut stream) = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT) else {
        return ChaosRequestOutcome::NotSent;
    };
    match send_and_receive(&mut stream, request) {
        Ok(Some(answer)) => ChaosRequestOutcome::Answered(answer),
        Ok(None) => ChaosRequestOutcome::Unknown("the answer is incomplete".to_owned()),
        Err(err) => ChaosRequestOutcome::Unknown(err.to_string()),
    }
}

/// Sends a request and returns its answer. Returns `None` if the connection closes before the
/// answer is complete.
fn send_and_receive(stream: &mut TcpStream, request: &[u8]) -> io::Result<Option<ChaosHttpAnswer>> {
    let started = Instant::now();
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request)?;
    let mut received = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some(answer) = parse_answer(&received) {
            return Ok(Some(answer));
        }
        let left = ANSWER_TIMEOUT.checked_sub(started.elapsed()).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(read) => received.extend_from_slice(&piece[..read]),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// Parses an HTTP response. Returns `None` unless it is complete; without a length and chunks it
/// never is. The body of a chunked response keeps its chunk sizes.
fn parse_answer(received: &[u8]) -> Option<ChaosHttpAnswer> {
    let head = received.windows(4).position(|four| four == b"\r\n\r\n")?;
    let original = std::str::from_utf8(&received[..head]).ok()?.to_owned();
    let text = original.to_ascii_lowercase();
    let status = text.split(' ').nth(1)?.parse().ok()?;
    // The slice starts with the line end of the head, in case the last chunk is the only one.
    if text.contains("\r\ntransfer-encoding: chunked") {
        let body = received[head + 4..].to_vec();
        return received[head + 2..].ends_with(b"\r\n0\r\n\r\n").then_some(ChaosHttpAnswer {
            status,
            head: original,
            body,
        });
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let length: usize = length.trim().parse().ok()?;
    let body = received[head + 4..].get(..length)?.to_vec();
    Some(ChaosHttpAnswer { status, head: original, body })
}
