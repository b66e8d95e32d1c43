//! Minimal programs, called floors. Each does the least work with which a program can still answer,
//! and is compared with toolgate.
//!
//! - `floor canned` writes a fixed answer for each line that it reads.
//! - `floor lines` also writes a fixed answer for each line, but reads the lines through tokio.
//! - `floor stdio FILE` answers each line with the content of FILE, which it opens and reads each
//!   time.
//! - `floor list FOLDER` answers each line with the names, kinds, sizes and times of the entries of
//!   FOLDER.
//! - `floor http` answers every POST with a fixed body.
//! - `floor mcp` and `floor mcp-http` are the least possible MCP servers, over pipes and over HTTP.
//!   Gateways are measured in front of them.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a floor uses no layers above the system"
)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use memchr::memchr;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// Bytes of an answer between the request id and the text of the result.
const BEFORE_TEXT: &[u8] = b",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"";
/// Bytes of an answer after the text of the result.
const AFTER_TEXT: &[u8] = b"\"}],\"isError\":false}}\n";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["canned"] => canned(),
        ["lines"] => lines(),
        ["stdio", file] => stdio(|out| Ok(File::open(file)?.read_to_end(out).map(drop)?)),
        ["list", folder] => stdio(|out| list(folder, out)),
        ["http"] => http(),
        ["mcp"] => mcp(),
        ["mcp-http"] => mcp_http(),
        _ => {
            anyhow::bail!("floor canned | lines | stdio FILE | list FOLDER | http | mcp | mcp-http")
        }
    }
}

/// Answers each line of standard input with `hello`. If one read returns several lines, writes all
/// their answers at once.
fn canned() -> anyhow::Result<()> {
    answer_lines(|line, answers| answer(line, b"hello", answers))
}

/// Answers MCP messages over pipes. If one read returns several messages, writes all their answers
/// at once.
fn mcp() -> anyhow::Result<()> {
    answer_lines(|line, answers| {
        if let Some(answer) = mcp_answer(line) {
            answers.extend_from_slice(answer.as_bytes());
            answers.push(b'\n');
        }
    })
}

/// Returns the answer of an MCP server with the tool `echo` to `request`. Returns `None` for a
/// notification.
fn mcp_answer(request: &[u8]) -> Option<String> {
    /// Members of a JSON-RPC request that the minimal MCP server reads.
    #[derive(Deserialize)]
    struct MinimalServerRequest<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        method: Option<&'a str>,
    }
    let MinimalServerRequest { id, method } = serde_json::from_slice(request).ok()?;
    let id = id?;
    let result = match method? {
        "tools/call" => r#"{"content":[{"type":"text","text":"hello"}],"isError":false}"#,
        "initialize" => {
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"floor","version":"0"}}"#
        }
        "tools/list" => {
            r#"{"tools":[{"name":"echo","description":"Return the text.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]}"#
        }
        "ping" => "{}",
        _ => {
            return Some(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"unknown"}}}}"#
            ));
        }
    };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// Answers each line of standard input: `answer` appends the answer to a line to a buffer. If one
/// read returns several lines, writes all their answers at once.
fn answer_lines(answer: impl Fn(&[u8], &mut Vec<u8>)) -> anyhow::Result<()> {
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    let mut buffer = vec![0; 64 << 10];
    let mut filled = 0;
    let mut answers = Vec::new();
    loop {
        let read = input.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut done = 0;
        while let Some(length) = memchr(b'\n', &buffer[done..filled]) {
            answer(&buffer[done..done + length], &mut answers);
            done += length + 1;
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
        output.write_all(&answers)?;
        output.flush()?;
        answers.clear();
    }
}

/// Answers each line of standard input with `hello`, through tokio's reader of lines.
#[tokio::main(flavor = "current_thread")]
async fn lines() -> anyhow::Result<()> {
    let mut input = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    let mut answers = Vec::new();
    while let Some(line) = input.next_line().await? {
        answer(line.as_bytes(), b"hello", &mut answers);
        output.write_all(&answers).await?;
        output.flush().await?;
        answers.clear();
    }
    Ok(())
}

/// Answers each line of standard input with the text that `text` appends. The text must be escaped
/// for JSON already. Flushes the output if no more input is waiting.
fn stdio(text: impl Fn(&mut Vec<u8>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, std::io::stdin().lock());
    let mut output = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let mut line = Vec::new();
    let mut bytes = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        text(&mut bytes)?;
        output.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
        output.write_all(id(&line))?;
        output.write_all(BEFORE_TEXT)?;
        output.write_all(&bytes)?;
        output.write_all(AFTER_TEXT)?;
        line.clear();
        bytes.clear();
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    Ok(())
}

/// Appends a line with name, size and time for each entry of `folder` to `out`, sorted by name.
/// Also tells whether an entry is a folder.
fn list(folder: &str, out: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let meta = entry.metadata()?;
        let name = entry.file_name();
        let size = meta.size();
        let modified = meta.mtime();
        write!(out, "{} {} {size} {modified}\\n", name.display(), meta.is_dir())?;
    }
    Ok(())
}

/// Appends the answer to the request `line` to `answers`. The result of the answer is `text`.
fn answer(line: &[u8], text: &[u8], answers: &mut Vec<u8>) {
    answers.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    answers.extend_from_slice(id(line));
    answers.extend_from_slice(BEFORE_TEXT);
    answers.extend_from_slice(text);
    answers.extend_from_slice(AFTER_TEXT);
}

/// Returns the bytes of the id in `line`, a JSON-RPC request as the benchmark client writes it.
fn id(line: &[u8]) -> &[u8] {
    let id = line.split(|&b| b == b':').nth(2).unwrap_or_default();
    id.split(|&b| b == b',').next().unwrap_or_default()
}

#[tokio::main]
async fn http() -> anyhow::Result<()> {
    const BODY: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}],"isError":false}}"#;
    let json = [("content-type", "application/json")];
    let app = Router::new().route("/mcp", post(move || async move { (json, BODY) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

#[tokio::main]
async fn mcp_http() -> anyhow::Result<()> {
    let json = [("content-type", "application/json")];
    let post = post(move |body: Bytes| async move {
        match mcp_answer(&body) {
            Some(answer) => (json, answer).into_response(),
            None => StatusCode::ACCEPTED.into_response(),
        }
    });
    let app = Router::new().route("/mcp", post);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
