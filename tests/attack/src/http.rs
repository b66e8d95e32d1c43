//! HTTP/1.1 and WebSockets byte by byte, because attacks send malformed requests. Each request uses
//! a new connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Complete HTTP response that an attacking client received.
#[derive(Debug, Clone, Default)]
pub(super) struct AttackHttpResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// All bytes of the response, as they arrived.
    pub(super) raw: Vec<u8>,
}

/// HTTP request of an attack, with any headers.
#[derive(Debug, Clone)]
pub(super) struct AttackHttpRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl AttackHttpRequest {
    /// Returns a GET request for `path` without headers.
    pub(super) fn get(path: &str) -> Self {
        Self { method: "GET".into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// Returns a POST request to `path` with the JSON text `body`.
    pub(super) fn post(path: &str, body: Vec<u8>) -> Self {
        let headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { method: "POST".into(), path: path.into(), headers: headers.into(), body }
    }

    /// Sets the header `name`, and replaces any previous header of that name.
    pub(super) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the bytes of the request. Adds `Host`, `Content-Length` and `Connection: close` if
    /// they are missing.
    pub(super) fn bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let mut add = |name: &str, value: &str| head += &format!("{name}: {value}\r\n");
        let has = |name: &str| self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        if !has("host") {
            add("Host", &addr.to_string());
        }
        for (name, value) in &self.headers {
            add(name, value);
        }
        if !has("content-length") && (!self.body.is_empty() || self.method == "POST") {
            add("Content-Length", &self.body.len().to_string());
        }
        if !has("connection") {
            add("Connection", "close");
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }

    pub(super) fn send(
        &self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> anyhow::Result<AttackHttpResponse> {
        exchange(addr, &self.bytes(addr), timeout)
    }
}

/// Sends `bytes` over a new connection, and reads a response until the server closes the
/// connection.
pub(super) fn exchange(
    addr: SocketAddr,
    bytes: &[u8],
    timeout: Duration,
) -> anyhow::Result<AttackHttpResponse> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    // The server may refuse a request before all of it is sent.
    _ = stream.write_all(bytes);
    read_response(&mut stream)
}

/// Reads from `stream` until the server closes the connection, and parses the response.
fn read_response(stream: &mut TcpStream) -> anyhow::Result<AttackHttpResponse> {
    let mut raw = Vec::new();
    match stream.read_to_end(&mut raw) {
        Ok(_) => {}
        // The server may reset the connection after its response, if it did not read the request.
        Err(_) if raw.windows(4).any(|four| four == b"\r\n\r\n") => {}
        Err(err) => return Err(err).context("no answer"),
    }
    parse_response(raw)
}

/// Parses an HTTP response. Fails if its head is incomplete.
fn parse_response(raw: Vec<u8>) -> anyhow::Result<AttackHttpResponse> {
    if raw.is_empty() {
        bail!("the connection was closed without an answer");
    }
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").context("incomplete head")?;
    let head = String::from_utf8_lossy(&raw[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|s| s.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
    let body = if chunked { decode_chunks(&raw[end + 4..]) } else { raw[end + 4..].to_vec() };
    Ok(AttackHttpResponse { status: status.context("no status")?, headers, body, raw })
}

fn decode_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..line]).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let from = line + 2;
        let to = (from + size).min(rest.len());
        body.extend(&rest[from..to]);
        if size == 0 || to + 2 > rest.len() {
            break;
        }
        rest = &rest[to + 2..];
    }
    body
}

impl AttackHttpResponse {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let finding = self.headers.iter().find(|(own, _)| own == name);
        finding.map(|(_, value)| value.as_str())
    }

    /// Returns the data of each event if the body is an event stream, and the whole body otherwise.
    pub(super) fn messages(&self) -> Vec<Vec<u8>> {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let lines = self.body.split(|byte| *byte == b'\n');
            let data = lines.filter_map(|line| line.strip_prefix(b"data:"));
            let data = data.map(|data| data.trim_ascii().to_vec());
            return data.filter(|data| !data.is_empty()).collect();
        }
        vec![self.body.clone()]
    }
}

/// Open WebSocket of an attacking client.
pub(super) struct AttackWebSocket {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl AttackWebSocket {
    pub(super) fn open(addr: SocketAddr, path: &str, timeout: Duration) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )?;
        let mut socket = Self { stream, buffer: Vec::new() };
        loop {
            if let Some(end) = socket.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&socket.buffer[..end]).into_owned();
                ensure!(head.contains(" 101 "), "no WebSocket: {head}");
                socket.buffer.drain(..end + 4);
                return Ok(socket);
            }
            socket.read_more()?;
        }
    }

    pub(super) fn writer(&self) -> anyhow::Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Returns the next message of the server, or `None` after the server has closed the
    /// connection.
    pub(super) fn next_message(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        loop {
            let Some((last, kind, payload)) = self.next_frame()? else { return Ok(None) };
            match kind {
                8 => return Ok(None),
                9 => _ = self.stream.write_all(&client_frame(10, &payload)),
                10 => {}
                _ => {
                    message.extend(payload);
                    if last {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    /// Returns the next frame: true if the frame ends a message, its opcode, and its payload.
    fn next_frame(&mut self) -> anyhow::Result<Option<(bool, u8, Vec<u8>)>> {
        loop {
            if let Some((from, length)) = payload_span(&self.buffer)
                && self.buffer.len() >= from + length
            {
                let first = self.buffer[0];
                let payload = self.buffer[from..from + length].to_vec();
                self.buffer.drain(..from + length);
                return Ok(Some((first & 0x80 != 0, first & 0x0f, payload)));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    /// Reads bytes into the buffer. Returns false if the server has closed the connection.
    fn read_more(&mut self) -> anyhow::Result<bool> {
        let mut piece = [0; 65536];
        loop {
            match self.stream.read(&mut piece) {
                Ok(length) => {
                    self.buffer.extend(&piece[..length]);
                    return Ok(length > 0);
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err.into()),
            }
        }
    }
}

/// Returns the offset and length of the payload of the first frame in `buffer`, or `None` if the
/// head of the frame is incomplete.
fn payload_span(buffer: &[u8]) -> Option<(usize, usize)> {
    let bytes = |from: usize, to: usize| {
        let bytes = buffer.get(from..to)?;
        let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    match buffer.get(1)? & 0x7f {
        126 => Some((4, bytes(2, 4)?)),
        127 => Some((10, bytes(2, 10)?)),
        short => Some((2, usize::from(short))),
    }
}

/// Returns the bytes of a frame with the opcode `kind`. They are masked, as frames of clients must
/// be.
pub(super) fn client_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | kind];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | u8::try_from(short).unwrap_or(0)),
        middle @ 126..65536 => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(middle).unwrap_or(0).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    // A mask of zeros does not change the payload.
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}
