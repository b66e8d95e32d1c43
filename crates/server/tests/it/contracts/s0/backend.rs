//! A backend, as a process of its own that behaves as a test tells it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A backend that runs. Killed when dropped.
pub(super) struct Backend {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Backend {
    /// One that takes every asset and calls it `xyz`.
    pub(super) fn start() -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/contracts/s0/backend.py");
        let mut command = Command::new("python3");
        command.args(["-u", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        output.read_line(&mut port).unwrap();
        let port = port.trim().parse().expect("the backend says its port");
        Self { child, input, output, port }
    }

    /// One that meets every request so.
    pub(super) fn that(behaviour: Value) -> Self {
        let mut backend = Self::start();
        backend.behave(behaviour);
        backend
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// How it meets the requests that come from now on.
    pub(super) fn behave(&mut self, behaviour: Value) {
        self.ask(&json!({ "behave": behaviour }));
    }

    /// The requests that came since this was asked last.
    pub(super) fn came(&mut self) -> Vec<Value> {
        let came = self.ask(&json!({ "told": true }));
        came.as_array().expect("requests").clone()
    }

    fn ask(&mut self, word: &Value) -> Value {
        writeln!(self.input, "{word}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where nobody listens.
pub(super) fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    format!("http://127.0.0.1:{port}")
}
