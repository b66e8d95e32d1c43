//! HTTP/1.1 client for tests that sends exactly the bytes of a test.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Deref;

use serde_json::Value;

use super::schemas::McpMessageChecker;
use super::{MODERN, PATIENCE, TestServerProcess, wait_until};

/// Running `toolgate serve`, and the address on which it listens.
pub(crate) struct HttpServerProcess {
    pub(crate) addr: SocketAddr,
    pub(crate) server: TestServerProcess,
}

impl HttpServerProcess {
    pub(crate) fn connect(&self) -> TestHttpConnection {
        TestHttpConnection::to(self.addr)
    }

    /// Sends one request on a new connection and returns the response.
    #[track_caller]
    pub(crate) fn send(&self, post: &TestHttpRequest) -> TestHttpResponse {
        let mut connection = self.connect();
        connection.post(post);
        connection.response()
    }

    /// Posts one MCP message and returns the answer.
    #[track_caller]
    pub(crate) fn ask(&self, message: &Value) -> Value {
        self.send(&TestHttpRequest::mcp(message)).message()
    }

    /// Opens an MCP session in `revision` and returns the session id.
    #[track_caller]
    pub(crate) fn session(&self, revision: &str) -> String {
        let response = self.send(&TestHttpRequest::mcp(&super::initialize(0, revision)));
        assert_eq!(response.status, 200, "{response:?}");
        response.header("mcp-session-id").unwrap().to_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }
}

impl Deref for HttpServerProcess {
    type Target = TestServerProcess;

    fn deref(&self) -> &TestServerProcess {
        &self.server
    }
}

/// HTTP request of a test, with methods that change its headers and target.
#[derive(Debug, Clone)]
pub(crate) struct TestHttpRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// True if the body should be a valid MCP message.
    valid: bool,
}

impl TestHttpRequest {
    /// Returns a POST request with `message` to `/mcp`, with the headers that the message's
    /// revision requires.
    pub(crate) fn mcp(message: &Value) -> Self {
        let post = Self { valid: true, ..Self::bytes(message.to_string().as_bytes()) };
        let version = "io.modelcontextprotocol/protocolVersion";
        if message["params"]["_meta"][version] != MODERN {
            return post;
        }
        let method = message["method"].as_str().unwrap_or_default();
        let post = post.with("mcp-protocol-version", MODERN).with("mcp-method", method);
        let named = match method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" => "uri",
            _ if method.starts_with("tasks/") => "taskId",
            _ => return post,
        };
        match message["params"][named].as_str() {
            Some(name) => post.with("mcp-name", name),
            None => post,
        }
    }

    /// Returns a POST request to `/mcp` with the bytes `body`.
    pub(crate) fn bytes(body: &[u8]) -> Self {
        let post = Self {
            method: "POST".to_owned(),
            target: "/mcp".to_owned(),
            headers: Vec::new(),
            body: body.to_owned(),
            valid: false,
        };
        post.with("content-type", "application/json")
            .with("accept", "application/json, text/event-stream")
            .with("content-length", &body.len().to_string())
    }

    /// Returns a request to `target` without a body.
    pub(crate) fn bare(method: &str, target: &str) -> Self {
        let method = method.to_owned();
        let target = target.to_owned();
        Self { method, target, headers: Vec::new(), body: Vec::new(), valid: false }
    }

    /// Sets a header and removes others of the same name.
    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        self.without(name).with_additional(name, value)
    }

    /// Adds a header and keeps others of the same name.
    pub(crate) fn with_additional(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    /// Marks the body as invalid on purpose. The server may still accept it.
    pub(crate) fn malformed(self) -> Self {
        Self { valid: false, ..self }
    }

    pub(crate) fn to(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }

    /// Passes the body to `checker` if it is an MCP message.
    #[track_caller]
    fn check_with(&self, checker: &mut McpMessageChecker) {
        let value = |name: &str| {
            let mut all = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            all.next().map(|(_, value)| value.as_str())
        };
        checker.use_session(value("mcp-session-id"));
        let is_mcps = self.method == "POST"
            && self.target.ends_with("/mcp")
            && !self.target.ends_with("/v1/mcp");
        // Larger messages test the size limit only.
        if is_mcps
            && self.body.len() < 4 << 20
            && let Ok(message) = serde_json::from_slice(&self.body)
        {
            checker.sent(&message, self.valid);
        }
        if self.method == "GET" && self.target == "/sse" {
            checker.use_http_sse();
        }
    }

    /// Returns the bytes of the request to the server at `addr`. Adds a `Host` header if there is
    /// none.
    pub(crate) fn to_bytes(&self, addr: SocketAddr) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            bytes += &format!("host: {addr}\r\n");
        }
        for (name, value) in &self.headers {
            bytes += &format!("{name}: {value}\r\n");
        }
        [bytes.as_bytes(), b"\r\n", &self.body].concat()
    }
}

/// HTTP connection to a server.
pub(crate) struct TestHttpConnection {
    pub(crate) stream: TcpStream,
    addr: SocketAddr,
    /// Bytes that were read from the connection but not yet returned.
    buffer: Vec<u8>,
    checker: McpMessageChecker,
}

/// Status and headers of an HTTP response.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponseHead {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

/// Complete HTTP response.
#[derive(Debug)]
pub(crate) struct TestHttpResponse {
    pub(crate) head: HttpResponseHead,
    pub(crate) body: Vec<u8>,
}

impl TestHttpConnection {
    pub(crate) fn to(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, addr, buffer: Vec::new(), checker: McpMessageChecker::default() }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Writes `bytes` to the connection, and ignores errors.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Returns true if there are unread bytes, or if the server has closed the connection.
    pub(crate) fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(err) if err.kind() == ErrorKind::WouldBlock)
    }

    #[track_caller]
    pub(crate) fn post(&mut self, post: &TestHttpRequest) {
        post.check_with(&mut self.checker);
        let bytes = post.to_bytes(self.addr);
        self.write(&bytes);
    }

    #[track_caller]
    pub(crate) fn response(&mut self) -> TestHttpResponse {
        let head = self.head();
        let body = self.body(&head);
        let response = TestHttpResponse { head, body };
        let opened = response.header("mcp-session-id");
        for message in response.messages() {
            self.checker.received(&message, opened);
        }
        response
    }

    #[track_caller]
    pub(crate) fn head(&mut self) -> HttpResponseHead {
        let text = self.read_until(b"\r\n\r\n");
        let text = String::from_utf8(text).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let status = lines.next().unwrap();
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        let headers: Vec<_> = headers.collect();
        HttpResponseHead { status: status.unwrap_or_else(|| panic!("no status: {text}")), headers }
    }

    #[track_caller]
    fn body(&mut self, head: &HttpResponseHead) -> Vec<u8> {
        if head.is_chunked() {
            let mut body = Vec::new();
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
            return body;
        }
        match head.header("content-length") {
            Some(length) => self.take(length.parse().unwrap()),
            None if matches!(head.status, 204 | 304) => Vec::new(),
            None => self.read_until_closed(),
        }
    }

    /// Returns the next message of an event stream, or `None` at the end of the stream.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Option<Value> {
        loop {
            let chunk = self.chunk()?;
            let text = String::from_utf8(chunk).unwrap();
            if let Some(message) = events(&text).pop() {
                self.checker.received(&message, None);
                return Some(message);
            }
        }
    }

    #[track_caller]
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = String::from_utf8(self.read_until(b"\r\n")).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let chunk = self.take(size);
        assert_eq!(self.take(2), b"\r\n");
        (size > 0).then_some(chunk)
    }

    /// Reads and returns all bytes up to and including `end`.
    #[track_caller]
    fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|window| window == end) {
                return self.buffer.drain(..at + end.len()).collect();
            }
            assert!(self.read_more(), "the connection closed after {:?}", self.text());
        }
    }

    #[track_caller]
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(self.read_more(), "the connection closed after {:?}", self.text());
        }
        self.buffer.drain(..count).collect()
    }

    /// Returns all bytes until the server closes the connection. Panics if the server keeps it
    /// open.
    #[track_caller]
    pub(crate) fn read_until_closed(&mut self) -> Vec<u8> {
        while self.read_more() {}
        std::mem::take(&mut self.buffer)
    }

    /// Waits for more bytes or the end of the connection. Returns true if there were bytes.
    #[track_caller]
    fn read_more(&mut self) -> bool {
        let mut bytes = [0; 8192];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                true
            }
            Err(err) if err.kind() == ErrorKind::ConnectionReset => false,
            Err(err) if err.kind() == ErrorKind::Interrupted => self.read_more(),
            Err(err) => panic!("no bytes within {PATIENCE:?} ({err}): {:?}", self.text()),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer).into_owned()
    }

    /// Closes the connection.
    pub(crate) fn close(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl HttpResponseHead {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(other, _)| other == name);
        let value = values.next()?;
        assert!(values.next().is_none(), "duplicate header `{name}`");
        Some(&value.1)
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }
}

impl Deref for TestHttpResponse {
    type Target = HttpResponseHead;

    fn deref(&self) -> &HttpResponseHead {
        &self.head
    }
}

impl TestHttpResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert!(self.is_stream(), "{self:?}");
        events(&self.text())
    }

    /// Returns all MCP messages in the response.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let is = |kind: &str| self.header("content-type").is_some_and(|value| value == kind);
        if self.is_stream() {
            return events(&self.text());
        }
        let message = is("application/json").then(|| serde_json::from_slice(&self.body).ok());
        let message: Option<Value> = message.flatten();
        message
            .into_iter()
            .filter(|message| message.is_array() || message["jsonrpc"] == "2.0")
            .collect()
    }

    /// Returns the MCP message in the response, or the last message if the response is an event
    /// stream.
    #[track_caller]
    pub(crate) fn message(&self) -> Value {
        if self.is_stream() { self.events().pop().unwrap() } else { self.json() }
    }
}

fn events(text: &str) -> Vec<Value> {
    let datas = text.lines().filter_map(|line| line.strip_prefix("data:"));
    // An event without data only has an id.
    let datas = datas.filter(|data| !data.trim().is_empty());
    datas.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Waits until the server at `addr` refuses connections.
#[track_caller]
pub(crate) fn wait_until_closed(addr: SocketAddr) {
    wait_until("connections are refused", || TcpStream::connect(addr).is_err());
}
