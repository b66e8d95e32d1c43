//! The floors: the least a program could do and still answer.
//!
//! `floor stdio FILE` reads a line, opens and reads FILE, and writes a canned
//! frame around it. `floor http` answers every POST with a canned body.
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a floor is bare by intent")]

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};

use axum::Router;
use axum::routing::post;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["stdio", file] => stdio(file),
        ["http"] => http(),
        _ => anyhow::bail!("floor stdio FILE | floor http"),
    }
}

/// Answers with the file's bytes, which need no escaping; flushes when nothing more has come.
fn stdio(file: &str) -> anyhow::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, std::io::stdin().lock());
    let mut output = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    let (mut line, mut bytes) = (Vec::new(), Vec::new());
    while input.read_until(b'\n', &mut line)? > 0 {
        let id = line.split(|&b| b == b':').nth(2).unwrap_or_default();
        let id = id.split(|&b| b == b',').next().unwrap_or_default();
        File::open(file)?.read_to_end(&mut bytes)?;
        output.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":")?;
        output.write_all(id)?;
        output.write_all(b",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"")?;
        output.write_all(&bytes)?;
        output.write_all(b"\"}],\"isError\":false}}\n")?;
        line.clear();
        bytes.clear();
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    Ok(())
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
