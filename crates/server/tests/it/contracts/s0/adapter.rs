//! Starts the Synesthetic adapter as its clients do: in a folder, with environment variables, over
//! three standard streams.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{PATIENCE, binary, lines_of, path, wait_for};

/// Path of the schemas folder in a client's checkout that has `synesthetic-schemas` as a submodule.
pub(super) const SCHEMAS: &str = "libs/synesthetic-schemas/jsonschema";
pub(super) const EXAMPLES: &str = "libs/synesthetic-schemas/examples";

/// Returns the path of a folder with the layout of a client's checkout.
pub(super) fn fixture() -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/contracts/s0/fixture");
    fs::canonicalize(fixture).unwrap()
}

/// Returns a new temporary folder.
pub(super) fn folder() -> TempDir {
    TempDir::with_prefix("toolgate-s0-").unwrap()
}

/// Writes a file in `folder`, and creates its parent folders.
pub(super) fn put(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Returns a JSON-RPC request as one line, without the line feed.
pub(super) fn line(id: impl Into<Value>, method: &str, params: Value) -> String {
    let id = id.into();
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// Options with which a test starts the Synesthetic adapter.
pub(super) struct SynestheticAdapterOptions {
    folder: PathBuf,
    env: Vec<(String, OsString)>,
    home: TempDir,
}

impl SynestheticAdapterOptions {
    /// Prepares an adapter in `folder` with a temporary ready file. The environment has no other
    /// variable of the contract.
    pub(super) fn at(folder: &Path) -> Self {
        let home = TempDir::with_prefix("toolgate-s0-home-").unwrap();
        let ready = home.path().join("mcp.ready");
        Self { folder: folder.to_owned(), env: Vec::new(), home }.env("MCP_READY_FILE", ready)
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self
    }

    /// Returns a command that runs toolgate with `args` and these options.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).current_dir(&self.folder).env_clear().env("PATH", path());
        command.env("HOME", self.home.path()).envs(self.env.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Starts the adapter without waiting until it is ready.
    pub(super) fn start(self) -> SynestheticAdapterProcess {
        let mut command = self.command(&["stdio", "--dialect", "synesthetic"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = child.stdout.take();
        let log = Arc::<Mutex<String>>::default();
        copy(child.stderr.take().unwrap(), log.clone());
        let input = child.stdin.take();
        let ready_file = self.env.iter().find(|(name, _)| name == "MCP_READY_FILE");
        let ready_file = ready_file.map(|(_, path)| PathBuf::from(path));
        SynestheticAdapterProcess {
            child,
            input,
            output,
            lines: None,
            log,
            ready_file,
            _home: self.home,
        }
    }

    /// Starts the adapter and waits until it is ready.
    #[track_caller]
    pub(super) fn ready(self) -> SynestheticAdapterProcess {
        let adapter = self.start();
        adapter.wait_until_ready();
        adapter
    }
}

/// Running adapter of the Synesthetic contract. It is killed when dropped.
pub(super) struct SynestheticAdapterProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    lines: Option<Receiver<Vec<u8>>>,
    log: Arc<Mutex<String>>,
    pub(super) ready_file: Option<PathBuf>,
    _home: TempDir,
}

impl SynestheticAdapterProcess {
    #[track_caller]
    pub(super) fn wait_until_ready(&self) {
        wait_for("the adapter is ready", || self.log().contains("mcp:ready").then_some(()));
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything that the adapter has written to standard error so far.
    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Sends `bytes` unchanged to the adapter.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Sends one line to the adapter.
    pub(super) fn send(&mut self, line: &str) {
        self.write(format!("{line}\n").as_bytes());
    }

    /// Returns the next line that the adapter sent, without its line feed.
    #[track_caller]
    pub(super) fn receive(&mut self) -> String {
        self.receive_within(PATIENCE).expect("the adapter closed its end")
    }

    /// Receives the next frame within `bound`. Returns `None` if the adapter closed its output.
    #[track_caller]
    pub(super) fn receive_within(&mut self, bound: Duration) -> Option<String> {
        let line = match self.lines().recv_timeout(bound) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("no frame within {bound:?}; log: {}", self.log())
            }
        };
        let line = String::from_utf8(line).expect("a frame is UTF-8");
        let line = line.strip_suffix('\n').expect("a frame ends its line");
        is_frame(line);
        Some(line.to_owned())
    }

    /// Closes the reading end for good, so that the adapter's next write fails.
    pub(super) fn stop_reading(&mut self) {
        assert!(self.lines.is_none(), "a thread reads already");
        self.output = None;
    }

    /// Returns the receiver of output lines. Starts the thread that reads them on the first call.
    fn lines(&mut self) -> &Receiver<Vec<u8>> {
        let output = &mut self.output;
        self.lines.get_or_insert_with(|| lines_of(output.take().expect("standard output is open")))
    }

    /// Sends a line and returns the frame that answers it.
    #[track_caller]
    pub(super) fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        serde_json::from_str(&self.receive()).unwrap()
    }

    /// Calls a tool of the adapter and returns the result.
    #[track_caller]
    pub(super) fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(&line(1, method, params));
        assert_eq!(answer["id"], 1, "{answer}");
        assert!(answer.get("error").is_none(), "{method} returned an error: {answer}");
        answer["result"].clone()
    }

    /// Closes the adapter's input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the adapter has exited.
    #[track_caller]
    pub(super) fn wait_for_exit(&mut self) -> ExitStatus {
        wait_for("the adapter ends", || self.child.try_wait().unwrap())
    }

    /// Receives all remaining frames until the adapter closes its output.
    #[track_caller]
    pub(super) fn read_rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.receive_within(PATIENCE)).collect()
    }
}

impl Drop for SynestheticAdapterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the adapter's log:\n{}", self.log());
        }
    }
}

/// Checks that `line` is one frame of the Synesthetic contract, without superfluous spaces.
#[track_caller]
fn is_frame(line: &str) {
    let frame: Value = serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}"));
    let keys: Vec<_> = frame.as_object().expect("a frame").keys().map(String::as_str).collect();
    assert!(matches!(keys[..], ["jsonrpc", "id", "result" | "error"]), "{line}");
    assert_eq!(frame["jsonrpc"], "2.0", "{line}");
    // An id is returned as it was written, so only its spelling may differ from ours.
    let (_, after_id) = line.split_once(",\"id\":").expect("an id");
    let body = &after_id[after_id.find(",\"result\":").or(after_id.find(",\"error\":")).unwrap()..];
    let key = keys[2];
    assert_eq!(body, format!(",\"{key}\":{}}}", frame[key]), "the frame has superfluous spaces");
}

fn copy(stderr: impl Read + Send + 'static, log: Arc<Mutex<String>>) {
    thread::spawn(move || {
        let mut lines = BufReader::new(stderr);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            log.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
}
