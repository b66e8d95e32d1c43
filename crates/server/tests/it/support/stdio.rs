//! Client of a server over standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::schemas::McpMessageChecker;
use super::{PATIENCE, TestServerProcess};

/// Running `toolgate stdio` and its client. The client reads only when a test asks for a message.
pub(crate) struct StdioServerProcess {
    server: TestServerProcess,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    lines: Option<Receiver<Vec<u8>>>,
    /// Messages that arrived while the client waited for a different one.
    early: Vec<Value>,
    checker: McpMessageChecker,
}

impl StdioServerProcess {
    pub(crate) fn new(server: TestServerProcess) -> Self {
        let (input, output) = server.take_child(|child| (child.stdin.take(), child.stdout.take()));
        Self {
            server,
            input,
            output,
            lines: None,
            early: Vec::new(),
            checker: McpMessageChecker::default(),
        }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        // Larger messages test the size limit only.
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.len() < 4 << 20);
        for message in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
            self.checker.sent(&message, false);
        }
        self.put(bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Sends one message as a line.
    #[track_caller]
    pub(crate) fn send(&mut self, message: &Value) {
        self.checker.sent(message, true);
        self.put(format!("{message}\n").as_bytes());
    }

    /// Sends one message that violates its schema but that the server may accept.
    pub(crate) fn send_malformed(&mut self, message: &Value) {
        self.checker.sent(message, false);
        self.put(format!("{message}\n").as_bytes());
    }

    /// Closes the server's input. The server still answers requests that were already sent.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns the pipe to the server's input, so that another thread can write to it.
    pub(crate) fn take_input(&mut self) -> ChildStdin {
        self.input.take().unwrap()
    }

    /// Closes the reading end of the server's output for good, so that the server's next write
    /// fails.
    pub(crate) fn close_output(&mut self) {
        assert!(self.lines.is_none(), "a thread reads already");
        self.output = None;
    }

    /// Returns the next message.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Value {
        if !self.early.is_empty() {
            return self.early.remove(0);
        }
        self.line(PATIENCE).expect("the server closed its end")
    }

    /// Waits for the answer to the request `id` and returns it. Stores other messages for later.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        if let Some(at) = self.early.iter().position(|message| message["id"] == id) {
            return self.early.remove(at);
        }
        loop {
            let message = self.line(PATIENCE).expect("the server closed its end");
            if message["id"] == id {
                return message;
            }
            self.early.push(message);
        }
    }

    /// Sends a request and returns its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, message: &Value) -> Value {
        self.send(message);
        self.answer(message["id"].clone())
    }

    /// Returns all remaining messages until the server closes its output.
    #[track_caller]
    pub(crate) fn read_rest(&mut self) -> Vec<Value> {
        let mut rest = std::mem::take(&mut self.early);
        while let Some(message) = self.line(PATIENCE) {
            rest.push(message);
        }
        rest
    }

    #[track_caller]
    fn line(&mut self, bound: Duration) -> Option<Value> {
        let output = &mut self.output;
        let lines = self.lines.get_or_insert_with(|| lines_of(output.take().unwrap()));
        match lines.recv_timeout(bound) {
            Ok(line) => {
                let message = parse_line(&line);
                self.checker.received(&message, None);
                Some(message)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no message within {bound:?}"),
        }
    }
}

impl Deref for StdioServerProcess {
    type Target = TestServerProcess;

    fn deref(&self) -> &TestServerProcess {
        &self.server
    }
}

/// Reads the lines of `output` on a new thread, which sends them to the returned receiver.
pub(crate) fn lines_of(output: ChildStdout) -> Receiver<Vec<u8>> {
    let (say, lines) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if say.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    lines
}

/// Parses a line of output, which must be one JSON object or array.
#[track_caller]
fn parse_line(line: &[u8]) -> Value {
    assert_eq!(line.last(), Some(&b'\n'), "a line was cut: {}", String::from_utf8_lossy(line));
    let value: Value = serde_json::from_slice(line).unwrap_or_else(|err| {
        panic!("not a message ({err}): {}", String::from_utf8_lossy(line));
    });
    assert!(value.is_object() || value.is_array(), "not a message: {value}");
    value
}
