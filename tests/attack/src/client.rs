//! One client of the server, by one dialect over one transport; it keeps every byte it hears.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::http::{Answer, Request, Socket, frame};
use super::server::{Launch, Server, put};
use super::spoken::{Asked, Over, Said, Spoken, Way};
use super::stage::Stage;

/// How long an answer may take that has no bound of its own.
pub(super) const PATIENCE: Duration = Duration::from_secs(40);

/// A client, connected.
pub(super) struct Client {
    pub(super) way: Way,
    pub(super) spoken: Box<dyn Spoken>,
    line: Line,
    /// Every byte that came.
    pub(super) heard: Vec<u8>,
    /// What came on a line and was no message.
    pub(super) impure: Vec<String>,
    /// Answers to others than who waited.
    early: BTreeMap<u64, Value>,
    /// What the server asked, or told unasked.
    pub(super) unasked: Vec<Value>,
    /// Which tools were called, in order.
    pub(super) called: Vec<String>,
    pub(super) patience: Duration,
    /// Headers that go with every request over HTTP.
    pub(super) headers: Vec<(String, String)>,
}

enum Line {
    /// Over standard streams, or in frames on a WebSocket.
    Stream {
        writer: Option<Box<dyn Write + Send>>,
        lines: Receiver<Vec<u8>>,
    },
    Http(SocketAddr),
}

/// Starts a server and connects to it.
pub(super) fn open(launch: &Launch, stage: &Stage, way: Way) -> anyhow::Result<(Server, Client)> {
    if way.over != Over::Stdio {
        let server = launch.serve(stage)?;
        let client = join(server.addr.context("no address")?, way)?;
        return Ok((server, client));
    }
    let (server, input, output) = launch.stdio(stage, way.dialect.flag())?;
    let (say, lines) = channel();
    spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if say.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    let line = Line::Stream { writer: Some(Box::new(input)), lines };
    let mut client = Client::new(way, line);
    client.begin()?;
    Ok((server, client))
}

/// Connects to a server that listens.
pub(super) fn join(addr: SocketAddr, way: Way) -> anyhow::Result<Client> {
    join_with(addr, way, Vec::new())
}

/// The same with headers beside every request.
pub(super) fn join_with(
    addr: SocketAddr,
    way: Way,
    headers: Vec<(String, String)>,
) -> anyhow::Result<Client> {
    let line = match way.over {
        Over::Http | Over::Stdio => Line::Http(addr),
        Over::Socket => {
            let mut socket = Socket::open(addr, way.dialect.socket(), PATIENCE)?;
            let writer = Framed(socket.writer()?);
            let (say, lines) = channel();
            spawn(move || {
                while let Ok(Some(mut message)) = socket.next() {
                    message.push(b'\n');
                    if say.send(message).is_err() {
                        return;
                    }
                }
            });
            Line::Stream { writer: Some(Box::new(writer)), lines }
        }
    };
    let mut client = Client::new(way, line);
    client.headers = headers;
    client.begin()?;
    Ok(client)
}

/// Writes each line as a frame.
struct Framed(std::net::TcpStream);

impl Write for Framed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(&frame(1, bytes.strip_suffix(b"\n").unwrap_or(bytes)))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Framed {
    fn drop(&mut self) {
        _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Client {
    fn new(way: Way, line: Line) -> Self {
        Self {
            way,
            spoken: way.spoken(),
            line,
            heard: Vec::new(),
            impure: Vec::new(),
            early: BTreeMap::new(),
            unasked: Vec::new(),
            called: Vec::new(),
            patience: PATIENCE,
            headers: Vec::new(),
        }
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        for (asked, answered) in self.spoken.opening() {
            if answered {
                self.ask(&asked)?;
            } else if let Line::Http(_) = self.line {
                // The session's id was not known when this was made.
                let body = asked.request.body.clone();
                let mut again = self.spoken.rpc("notifications/initialized", &Value::Null);
                again.request.body = body;
                self.post(&again.request)?;
            } else {
                self.send(&asked)?;
            }
        }
        Ok(())
    }

    /// Whether the wire can say this.
    pub(super) fn can_say(&self, tool: &str, input: &Value) -> bool {
        self.spoken.spell(tool, input).is_some()
    }

    /// Calls a tool of the catalog.
    pub(super) fn call(&mut self, tool: &str, input: &Value) -> anyhow::Result<Said> {
        let asked = self.calling(tool, input)?;
        self.ask(&asked)
    }

    /// The call of a tool of the catalog, to be sent.
    pub(super) fn calling(&mut self, tool: &str, input: &Value) -> anyhow::Result<Asked> {
        let spelled = self.spoken.spell(tool, input);
        let (name, input) =
            spelled.with_context(|| format!("{} cannot say {tool} {input}", self.way.name()))?;
        self.called.push(tool.to_owned());
        Ok(self.spoken.call(&name, &input))
    }

    /// Says something and waits for its answer.
    pub(super) fn ask(&mut self, asked: &Asked) -> anyhow::Result<Said> {
        if let Line::Http(_) = self.line {
            let answer = self.post(&asked.request)?;
            return Ok(self.said(&answer));
        }
        self.send(asked)?;
        let patience = self.patience;
        let said = self.answer(asked.id, patience)?;
        said.with_context(|| format!("no answer within {} s", patience.as_secs()))
    }

    /// What an answer over HTTP says.
    pub(super) fn said(&self, answer: &Answer) -> Said {
        let messages = answer.messages();
        let mut messages = messages.iter().filter_map(|one| serde_json::from_slice(one).ok());
        let last: Value = messages.next_back().unwrap_or_default();
        let mut said = self.spoken.decode(&last);
        if last.is_null() {
            said.error = true;
            said.text = String::from_utf8_lossy(&answer.body).into_owned();
        }
        Said { status: answer.status, raw: answer.body.clone(), ..said }
    }

    /// Sends a request over HTTP, whatever the way is.
    pub(super) fn post(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let Line::Http(addr) = self.line else { bail!("not over HTTP") };
        let mut request = request.clone();
        request.headers.extend(self.headers.iter().cloned());
        let answer = request.send(addr, self.patience)?;
        self.heard.extend(&answer.raw);
        if let Some(session) = answer.header("mcp-session-id") {
            self.spoken.in_session(session);
        }
        Ok(answer)
    }

    /// Says something on a line without waiting.
    pub(super) fn send(&mut self, asked: &Asked) -> anyhow::Result<()> {
        let mut line = asked.request.body.clone();
        line.push(b'\n');
        self.write(&line)
    }

    /// Writes bytes on the line.
    pub(super) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let Line::Stream { writer, .. } = &mut self.line else { bail!("not a line") };
        let writer = writer.as_mut().context("our end is closed")?;
        put(writer, bytes).context("it does not read any more")
    }

    /// The answer to `id` on the line; none if it does not come in time.
    pub(super) fn answer(&mut self, id: u64, patience: Duration) -> anyhow::Result<Option<Said>> {
        let begun = Instant::now();
        loop {
            if let Some(message) = self.early.remove(&id) {
                let said = self.spoken.decode(&message);
                return Ok(Some(Said { raw: message.to_string().into_bytes(), ..said }));
            }
            let left = patience.saturating_sub(begun.elapsed());
            let Some(message) = self.next(left)? else { return Ok(None) };
            let is_answer = message.get("method").is_none();
            match message["id"].as_u64().filter(|_| is_answer) {
                Some(id) => _ = self.early.insert(id, message),
                None => self.unasked.push(message),
            }
        }
    }

    /// The next message on the line; none if it does not come in time.
    pub(super) fn next(&mut self, patience: Duration) -> anyhow::Result<Option<Value>> {
        loop {
            let Line::Stream { lines, .. } = &mut self.line else { bail!("not a line") };
            let line = match lines.recv_timeout(patience) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("the server closed its end"),
            };
            if let Some(message) = self.heard_line(&line) {
                return Ok(Some(message));
            }
        }
    }

    fn heard_line(&mut self, line: &[u8]) -> Option<Value> {
        self.heard.extend(line);
        match serde_json::from_slice::<Value>(line) {
            Ok(message) if message.is_object() || message.is_array() => Some(message),
            Ok(_) | Err(_) => {
                let shown = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                self.impure.push(shown);
                None
            }
        }
    }

    /// Closes our end, if it is a line.
    pub(super) fn close(&mut self) {
        if let Line::Stream { writer, .. } = &mut self.line {
            *writer = None;
        }
    }

    /// Hears all that still comes, until the other end is closed.
    pub(super) fn rest(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            match self.next(Duration::from_secs(1)) {
                Ok(Some(message)) => self.unasked.push(message),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    pub(super) fn is_line(&self) -> bool {
        matches!(self.line, Line::Stream { .. })
    }

    /// How long the cheapest call takes, or how it failed.
    pub(super) fn ping(&mut self) -> anyhow::Result<Duration> {
        let asked = self.spoken.ping();
        let patience = std::mem::replace(&mut self.patience, Duration::from_secs(10));
        let begun = Instant::now();
        let said = self.ask(&asked);
        let took = begun.elapsed();
        self.patience = patience;
        said?;
        Ok(took)
    }

    /// The names of all tools on the wire.
    pub(super) fn tools(&mut self) -> anyhow::Result<Vec<Value>> {
        let mut tools = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let Some(asked) = self.spoken.list(cursor.as_deref()) else { return Ok(tools) };
            let said = self.ask(&asked)?;
            if said.error {
                bail!("its tools are not listed: {}", said.text);
            }
            let page = said.data["tools"].as_array().context("no list of tools")?;
            tools.extend(page.iter().cloned());
            let next = [&said.data["nextCursor"], &said.data["next_cursor"]];
            cursor = next.iter().find_map(|next| next.as_str().map(str::to_owned));
            if cursor.is_none() {
                return Ok(tools);
            }
        }
    }
}
