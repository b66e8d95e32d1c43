//! Asset backend as a separate process, whose answers a test can change.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Running asset backend. It is killed when dropped.
pub(super) struct AssetBackendProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl AssetBackendProcess {
    /// Starts a backend that accepts every asset with the id `xyz`.
    pub(super) fn start() -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/contracts/s0/backend.py");
        let mut command = Command::new("python3");
        command.args(["-u", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        output.read_line(&mut port).unwrap();
        let port = port.trim().parse().expect("the backend prints its port");
        Self { child, input, output, port }
    }

    /// Starts a backend that answers every request with `behaviour`.
    pub(super) fn with_behaviour(behaviour: Value) -> Self {
        let mut backend = Self::start();
        backend.behave(behaviour);
        backend
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the answer that the backend gives to each later request.
    pub(super) fn behave(&mut self, behaviour: Value) {
        self.ask(&json!({ "behave": behaviour }));
    }

    /// Returns the requests received since the last call of this method.
    pub(super) fn requests(&mut self) -> Vec<Value> {
        let requests = self.ask(&json!({ "requests": true }));
        requests.as_array().expect("requests").clone()
    }

    fn ask(&mut self, command: &Value) -> Value {
        writeln!(self.input, "{command}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for AssetBackendProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a URL where nothing listens.
pub(super) fn unreachable_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    format!("http://127.0.0.1:{port}")
}
