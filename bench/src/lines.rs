//! Load over standard streams: a window of requests kept full, every answer checked.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::child::Child;

/// Opens a session.
pub(crate) fn initialize(child: &mut Child) -> anyhow::Result<()> {
    let hello = concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        "\n",
    );
    child.input.as_mut().context("no input")?.write_all(hello.as_bytes())?;
    let mut byte = [0];
    while byte != *b"\n" {
        child.output.as_mut().context("no output")?.read_exact(&mut byte)?;
    }
    Ok(())
}

/// Answers a second with `depth` requests in flight.
///
/// `request` writes the request of an id. An answer must carry an id that is in
/// flight, and the file's text.
pub(crate) fn rate(
    child: &mut Child,
    depth: u64,
    time: Duration,
    request: &dyn Fn(u64, &mut Vec<u8>),
) -> anyhow::Result<f64> {
    let input = child.input.as_mut().context("no input")?;
    let output = child.output.as_mut().context("no output")?;
    let mut waiting = std::collections::HashSet::new();
    let (mut next, mut answered) = (1, 0);
    let mut out = Vec::new();
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut chunk = vec![0; 256 << 10];
    let begun = Instant::now();
    while begun.elapsed() < time || !waiting.is_empty() {
        while begun.elapsed() < time && (waiting.len() as u64) < depth {
            request(next, &mut out);
            waiting.insert(next);
            next += 1;
        }
        input.write_all(&out)?;
        out.clear();
        let read = output.read(&mut chunk)?;
        ensure!(read > 0, "the server ended");
        buffer.extend_from_slice(&chunk[..read]);
        let mut done = 0;
        while let Some(length) = buffer[done..].iter().position(|&b| b == b'\n') {
            let line = &buffer[done..done + length];
            done += length + 1;
            ensure!(waiting.remove(&id(line)?), "an answer to nothing: {}", shown(line));
            ensure!(
                line.windows(18).any(|w| w == b"toolgate toolgate "),
                "a wrong answer: {}",
                shown(line)
            );
            answered += 1;
        }
        buffer.drain(..done);
    }
    Ok(f64::from(answered) / begun.elapsed().as_secs_f64())
}

/// Milliseconds from before `start` to the end of the answer to a first `request`, which must hold
/// `expected`.
pub(crate) fn first_answer(
    start: impl FnOnce() -> anyhow::Result<Child>,
    request: &dyn Fn(u64, &mut Vec<u8>),
    expected: &[u8],
) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let line = answer(&mut start()?, request)?;
    let taken = begun.elapsed();
    let right = line.windows(expected.len()).any(|w| w == expected);
    ensure!(right, "a wrong answer: {}", shown(&line));
    Ok(taken.as_secs_f64() * 1000.0)
}

/// The answer to one `request`.
pub(crate) fn answer(
    child: &mut Child,
    request: &dyn Fn(u64, &mut Vec<u8>),
) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    request(1, &mut out);
    child.input.as_mut().context("no input")?.write_all(&out)?;
    let mut line = Vec::new();
    let mut byte = [0; 4096];
    while !line.ends_with(b"\n") {
        let read = child.output.as_mut().context("no output")?.read(&mut byte)?;
        ensure!(read > 0, "the server ended");
        line.extend_from_slice(&byte[..read]);
    }
    Ok(line)
}

fn id(line: &[u8]) -> anyhow::Result<u64> {
    let text = line.strip_prefix(b"{\"jsonrpc\":\"2.0\",\"id\":").context("no id")?;
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    Ok(std::str::from_utf8(&text[..digits])?.parse()?)
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned()
}
