//! Client that speaks one dialect over one transport, and keeps every byte that it receives.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::dialects::{
    AttackDialectCodec, AttackResponse, AttackTransport, AttackWireRequest, DialectOverTransport,
};
use super::folders::AttackFolders;
use super::http::{AttackHttpRequest, AttackHttpResponse, AttackWebSocket, client_frame};
use super::server::{AttackServerLaunch, AttackedServer, write_all};

/// Default time limit of an answer. A case may set another limit.
pub(super) const TIMEOUT: Duration = Duration::from_secs(40);

/// Client of the attacked server, connected over one dialect and transport.
pub(super) struct AttackClient {
    pub(super) route: DialectOverTransport,
    pub(super) codec: Box<dyn AttackDialectCodec>,
    connection: AttackConnection,
    /// Every byte that the server sent to this client.
    pub(super) received: Vec<u8>,
    /// Start of each line from the server that is not a valid message.
    pub(super) non_messages: Vec<String>,
    /// Answers to other requests that arrived while the client waited for one answer, by request
    /// id.
    early_answers: BTreeMap<u64, Value>,
    pub(super) timeout: Duration,
    /// Names and values of headers that the client adds to each HTTP request.
    pub(super) headers: Vec<(String, String)>,
}

/// Connection of an attacking client to the server.
enum AttackConnection {
    /// Connection over standard streams or a WebSocket, on which messages are lines.
    Stream {
        writer: Option<Box<dyn Write + Send>>,
        lines: Receiver<Vec<u8>>,
    },
    Http(SocketAddr),
}

/// Starts a server and connects to it, over the dialect and transport `route`.
pub(super) fn start_and_connect(
    launch: &AttackServerLaunch,
    folders: &AttackFolders,
    route: DialectOverTransport,
) -> anyhow::Result<(AttackedServer, AttackClient)> {
    if route.transport != AttackTransport::Stdio {
        let server = launch.serve(folders)?;
        let client = connect(server.addr.context("no address")?, route)?;
        return Ok((server, client));
    }
    let (server, input, output) = launch.stdio(folders, route.dialect.flag())?;
    let (sender, lines) = channel();
    spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    let connection = AttackConnection::Stream { writer: Some(Box::new(input)), lines };
    let mut client = AttackClient::new(route, connection);
    client.shake_hands()?;
    Ok((server, client))
}

/// Connects to a listening server over the dialect and transport `route`.
pub(super) fn connect(
    addr: SocketAddr,
    route: DialectOverTransport,
) -> anyhow::Result<AttackClient> {
    connect_with(addr, route, Vec::new())
}

/// Connects to a listening server over `route`, and adds `headers` to every HTTP request.
pub(super) fn connect_with(
    addr: SocketAddr,
    route: DialectOverTransport,
    headers: Vec<(String, String)>,
) -> anyhow::Result<AttackClient> {
    let connection = match route.transport {
        AttackTransport::Http | AttackTransport::Stdio => AttackConnection::Http(addr),
        AttackTransport::WebSocket => {
            let mut socket = AttackWebSocket::open(addr, route.dialect.websocket_path(), TIMEOUT)?;
            let writer = WebSocketLineWriter(socket.writer()?);
            let (sender, lines) = channel();
            spawn(move || {
                while let Ok(Some(mut message)) = socket.next_message() {
                    message.push(b'\n');
                    if sender.send(message).is_err() {
                        return;
                    }
                }
            });
            AttackConnection::Stream { writer: Some(Box::new(writer)), lines }
        }
    };
    let mut client = AttackClient::new(route, connection);
    client.headers = headers;
    client.shake_hands()?;
    Ok(client)
}

/// Writer that sends each line as one frame of a WebSocket.
struct WebSocketLineWriter(std::net::TcpStream);

impl Write for WebSocketLineWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(&client_frame(1, bytes.strip_suffix(b"\n").unwrap_or(bytes)))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for WebSocketLineWriter {
    fn drop(&mut self) {
        _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl AttackClient {
    fn new(route: DialectOverTransport, connection: AttackConnection) -> Self {
        Self {
            route,
            codec: route.codec(),
            connection,
            received: Vec::new(),
            non_messages: Vec::new(),
            early_answers: BTreeMap::new(),
            timeout: TIMEOUT,
            headers: Vec::new(),
        }
    }

    fn shake_hands(&mut self) -> anyhow::Result<()> {
        for (request, has_answer) in self.codec.handshake() {
            if has_answer {
                self.send_and_wait(&request)?;
            } else if let AttackConnection::Http(_) = self.connection {
                // The id of the session was unknown when this request was made.
                let body = request.http.body.clone();
                let method = "notifications/initialized";
                let mut in_session = self.codec.method_request(method, &Value::Null);
                in_session.http.body = body;
                self.post(&in_session.http)?;
            } else {
                self.send(&request)?;
            }
        }
        Ok(())
    }

    /// Returns true if the client's dialect can express a call of `tool` with `input`.
    pub(super) fn can_send(&self, tool: &str, input: &Value) -> bool {
        self.codec.to_wire(tool, input).is_some()
    }

    /// Calls a tool and waits for the answer. `tool` is the name in toolgate's catalog.
    pub(super) fn call(&mut self, tool: &str, input: &Value) -> anyhow::Result<AttackResponse> {
        let request = self.call_request(tool, input)?;
        self.send_and_wait(&request)
    }

    /// Returns the request that calls a tool. `tool` is the name in toolgate's catalog.
    pub(super) fn call_request(
        &mut self,
        tool: &str,
        input: &Value,
    ) -> anyhow::Result<AttackWireRequest> {
        let wire_call = self.codec.to_wire(tool, input);
        let (name, input) = wire_call
            .with_context(|| format!("{} cannot express {tool} {input}", self.route.name()))?;
        Ok(self.codec.call_request(&name, &input))
    }

    /// Sends a request over the client's transport and waits for its answer.
    pub(super) fn send_and_wait(
        &mut self,
        request: &AttackWireRequest,
    ) -> anyhow::Result<AttackResponse> {
        if let AttackConnection::Http(_) = self.connection {
            let answer = self.post(&request.http)?;
            return Ok(self.decode_http(&answer));
        }
        self.send(request)?;
        let timeout = self.timeout;
        let response = self.wait_for_answer(request.id, timeout)?;
        response.with_context(|| format!("no answer within {} s", timeout.as_secs()))
    }

    /// Decodes an HTTP response in the client's dialect. If the body is an event stream, decodes
    /// its last message.
    pub(super) fn decode_http(&self, answer: &AttackHttpResponse) -> AttackResponse {
        let messages = answer.messages();
        let mut messages = messages.iter().filter_map(|one| serde_json::from_slice(one).ok());
        let last: Value = messages.next_back().unwrap_or_default();
        let mut response = self.codec.decode(&last);
        if last.is_null() {
            response.is_error = true;
            response.text = String::from_utf8_lossy(&answer.body).into_owned();
        }
        AttackResponse { status: answer.status, raw: answer.body.clone(), ..response }
    }

    /// Sends an HTTP request and returns the response. Fails if the client's transport is not HTTP.
    pub(super) fn post(
        &mut self,
        request: &AttackHttpRequest,
    ) -> anyhow::Result<AttackHttpResponse> {
        let AttackConnection::Http(addr) = self.connection else { bail!("not over HTTP") };
        let mut request = request.clone();
        request.headers.extend(self.headers.iter().cloned());
        let answer = request.send(addr, self.timeout)?;
        self.received.extend(&answer.raw);
        if let Some(session) = answer.header("mcp-session-id") {
            self.codec.set_session(session);
        }
        Ok(answer)
    }

    /// Sends a request on the client's stream, without waiting for its answer.
    pub(super) fn send(&mut self, request: &AttackWireRequest) -> anyhow::Result<()> {
        let mut line = request.http.body.clone();
        line.push(b'\n');
        self.write(&line)
    }

    /// Writes bytes to the client's stream. Fails if the client's transport is HTTP.
    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let AttackConnection::Stream { writer, .. } = &mut self.connection else {
            bail!("not a stream")
        };
        let writer = writer.as_mut().context("the client closed the stream")?;
        write_all(writer, bytes).context("the server no longer reads")
    }

    /// Waits for the answer to the request `id` on the client's stream. Returns `None` after
    /// `timeout`.
    pub(super) fn wait_for_answer(
        &mut self,
        id: u64,
        timeout: Duration,
    ) -> anyhow::Result<Option<AttackResponse>> {
        let started = Instant::now();
        loop {
            if let Some(message) = self.early_answers.remove(&id) {
                let response = self.codec.decode(&message);
                return Ok(Some(AttackResponse {
                    raw: message.to_string().into_bytes(),
                    ..response
                }));
            }
            let left = timeout.saturating_sub(started.elapsed());
            let Some(message) = self.next_message(left)? else { return Ok(None) };
            let is_answer = message.get("method").is_none();
            if let Some(id) = message["id"].as_u64().filter(|_| is_answer) {
                self.early_answers.insert(id, message);
            }
        }
    }

    /// Waits for the next message on the client's stream. Returns `None` after `timeout`.
    pub(super) fn next_message(&mut self, timeout: Duration) -> anyhow::Result<Option<Value>> {
        loop {
            let AttackConnection::Stream { lines, .. } = &mut self.connection else {
                bail!("not a stream")
            };
            let line = match lines.recv_timeout(timeout) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("the server closed the stream"),
            };
            if let Some(message) = self.parse_line(&line) {
                return Ok(Some(message));
            }
        }
    }

    fn parse_line(&mut self, line: &[u8]) -> Option<Value> {
        self.received.extend(line);
        match serde_json::from_slice::<Value>(line) {
            Ok(message) if message.is_object() || message.is_array() => Some(message),
            Ok(_) | Err(_) => {
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                self.non_messages.push(shown);
                None
            }
        }
    }

    /// Closes the client's side of its stream. Does nothing over HTTP.
    pub(super) fn close(&mut self) {
        if let AttackConnection::Stream { writer, .. } = &mut self.connection {
            *writer = None;
        }
    }

    /// Receives messages until the server closes the stream, but for at most 10 s.
    pub(super) fn drain(&mut self) {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) {
            if self.next_message(Duration::from_secs(1)).is_err() {
                return;
            }
        }
    }

    /// Returns true if the transport is a stream of messages, and false if it is HTTP requests.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.connection, AttackConnection::Stream { .. })
    }

    /// Sends the cheapest request of the dialect, and returns how long its answer took.
    pub(super) fn ping(&mut self) -> anyhow::Result<Duration> {
        let request = self.codec.ping_request();
        let timeout = std::mem::replace(&mut self.timeout, Duration::from_secs(10));
        let started = Instant::now();
        let response = self.send_and_wait(&request);
        let elapsed = started.elapsed();
        self.timeout = timeout;
        response?;
        Ok(elapsed)
    }

    /// Returns all tools that the server lists. Returns an empty list for a dialect without tool
    /// lists.
    pub(super) fn tools(&mut self) -> anyhow::Result<Vec<Value>> {
        let mut tools = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let Some(request) = self.codec.list_request(cursor.as_deref()) else {
                return Ok(tools);
            };
            let response = self.send_and_wait(&request)?;
            if response.is_error {
                bail!("the server does not list its tools: {}", response.text);
            }
            let page = response.data["tools"].as_array().context("no list of tools")?;
            tools.extend(page.iter().cloned());
            let next = [&response.data["nextCursor"], &response.data["next_cursor"]];
            cursor = next.iter().find_map(|next| next.as_str().map(str::to_owned));
            if cursor.is_none() {
                return Ok(tools);
            }
        }
    }
}
