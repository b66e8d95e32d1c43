//! Client of the envelope dialect over HTTP and stdio, and validation of its answers in Python.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio as Pipe};

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, StdioServerProcess, TempWorkspace, TestHttpRequest,
    TestHttpResponse, binary, checkout, path, trust_config,
};

/// Returns the JSON Schema `name` of the repository.
pub(super) fn schema(name: &str) -> Value {
    let file = checkout().join("schemas").join(format!("{name}.schema.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Validates each request with Python's `jsonschema`, and returns the errors for each.
#[track_caller]
pub(super) fn python_errors(requests: &[Value]) -> Vec<Vec<String>> {
    let python = checkout().join(".tools/judges/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/contracts/s1/judge.py");
    let mut child = Command::new(python)
        .arg(program)
        .stdin(Pipe::piped())
        .stdout(Pipe::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text: String = requests.iter().map(|one| format!("{one}\n")).collect();
    let writing = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success(), "judge.py failed");
    let text = String::from_utf8(output.stdout).unwrap();
    let errors: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(errors.len(), requests.len());
    errors
}

/// Checks that `values` satisfy the schema `name`.
#[track_caller]
pub(super) fn check_schema(name: &str, values: &[Value]) {
    let schema = schema(name);
    let requests: Vec<_> =
        values.iter().map(|value| json!({ "schema": schema, "instance": value })).collect();
    for (value, errors) in values.iter().zip(python_errors(&requests)) {
        assert!(errors.is_empty(), "{errors:?}\n{value}");
    }
}

/// Starts toolgate with the options `launch` over standard streams, and returns its client.
#[track_caller]
pub(super) fn lines(launch: ServerLaunchOptions) -> StdioServerProcess {
    launch.arg("--dialect").arg("envelope").stdio()
}

/// Sends a GET request for `path` and returns the response.
#[track_caller]
pub(super) fn get(served: &HttpServerProcess, path: &str) -> TestHttpResponse {
    served.send(&TestHttpRequest::bare("GET", path))
}

/// Sends the bytes `body` by `POST /mcp/tool/ID` with the tool id `id`, and returns the response.
#[track_caller]
pub(super) fn post(served: &HttpServerProcess, id: &str, body: &[u8]) -> TestHttpResponse {
    let post = TestHttpRequest::bytes(body).without("accept").malformed();
    served.send(&post.to(&format!("/mcp/tool/{id}")))
}

/// Calls the tool `id` over HTTP.
#[track_caller]
pub(super) fn call(served: &HttpServerProcess, id: &str, arguments: &Value) -> TestHttpResponse {
    post(served, id, json!({ "arguments": arguments }).to_string().as_bytes())
}

/// Calls a tool, checks that it succeeds, and returns the envelope.
#[track_caller]
pub(super) fn call_ok(served: &HttpServerProcess, id: &str, arguments: &Value) -> Value {
    let response = call(served, id, arguments);
    let envelope = response.json();
    assert_eq!((response.status, &envelope["ok"]), (200, &json!(true)), "{envelope}");
    envelope
}

/// Sends a request over stdio and returns the complete response message.
#[track_caller]
pub(super) fn ask(stdio: &mut StdioServerProcess, id: u64, method: &str, params: &Value) -> Value {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    stdio.write(format!("{message}\n").as_bytes());
    stdio.answer(id)
}

/// Returns the envelope in a response message.
#[track_caller]
pub(super) fn envelope(message: &Value) -> Value {
    let envelope = match message.get("result") {
        Some(envelope) => envelope,
        None => &message["error"]["data"]["envelope"],
    };
    assert!(envelope.is_object(), "no envelope: {message}");
    envelope.clone()
}

/// Runs toolgate in `folder` and waits until it exits.
#[track_caller]
pub(super) fn run(folder: &Path, args: &[&str]) -> Output {
    run_with(folder, args, &[])
}

/// Runs toolgate in `folder` with environment variables, and waits until it exits.
#[track_caller]
pub(super) fn run_with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let home = tempfile::TempDir::with_prefix("toolgate-home-").unwrap();
    let mut command = Command::new(binary());
    command.args(args).current_dir(folder).env_clear().env("PATH", path());
    command.env("HOME", home.path()).envs(env.iter().copied());
    trust_config(&mut command, folder);
    command.stdin(Pipe::null()).output().unwrap()
}

pub(super) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a workspace with two documents.
pub(super) fn library() -> TempWorkspace {
    TempWorkspace::new()
        .file("docs/one.md", "# One\n\nIt is about herons.\n")
        .file("docs/two.md", "# Two\n\nIt is about otters.\n")
}

/// Returns the lines of the log of envelopes in `folder`.
#[track_caller]
pub(super) fn read_log(folder: &Path) -> Vec<Value> {
    let latest = folder.join("mcp_server/envelope_validation.latest.jsonl");
    let text = std::fs::read_to_string(latest).unwrap_or_default();
    let full = text.rfind('\n').map_or("", |end| &text[..end]);
    full.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
