//! Load test over standard streams: keeps a number of requests in flight and checks every answer.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memchr;

use crate::child::PipedProcess;
use crate::question::{BenchRequestTemplate, response_id};

/// Opens an MCP session with `child`, over its standard streams.
pub(crate) fn initialize(child: &mut PipedProcess) -> anyhow::Result<()> {
    let hello = concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#,
        "\n",
    );
    write(child, hello.as_bytes())?;
    let answer = read_line(child)?;
    ensure!(response_id(&answer)? == 0, "no session");
    write(child, b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")
}

/// Measures the answers per second of `child` with `depth` requests in flight, for the duration
/// `time`. Fails on a wrong answer.
pub(crate) fn rate(
    child: &mut PipedProcess,
    depth: usize,
    time: Duration,
    question: &BenchRequestTemplate,
) -> anyhow::Result<f64> {
    let input = child.input.as_mut().context("no input")?;
    let output = child.output.as_mut().context("no output")?;
    let mut waiting = HashSet::new();
    let mut next = 1;
    let mut answered = 0;
    let mut out = Vec::new();
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut chunk = vec![0; 256 << 10];
    let started = Instant::now();
    loop {
        // Read the clock once: at a second read the time may be over while nothing is waiting.
        let is_sending = started.elapsed() < time;
        if !is_sending && waiting.is_empty() {
            break;
        }
        while is_sending && waiting.len() < depth {
            question.write_line(next, &mut out);
            waiting.insert(next);
            next += 1;
        }
        input.write_all(&out)?;
        out.clear();
        let read = output.read(&mut chunk)?;
        ensure!(read > 0, "the server closed its output");
        let mut scanned = buffer.len();
        buffer.extend_from_slice(&chunk[..read]);
        let mut done = 0;
        while let Some(length) = memchr(b'\n', &buffer[scanned..]) {
            let line = &buffer[done..scanned + length];
            scanned += length + 1;
            done = scanned;
            // Servers may also send notifications, which are not counted.
            let Ok(id) = response_id(line) else { continue };
            ensure!(waiting.remove(&id), "a response without a request: {id}");
            question.check(line)?;
            answered += 1;
        }
        buffer.drain(..done);
    }
    Ok(f64::from(answered) / started.elapsed().as_secs_f64())
}

/// Measures the latency of each answer in microseconds, one request after another, for the duration
/// `time`.
pub(crate) fn micros(
    child: &mut PipedProcess,
    time: Duration,
    question: &BenchRequestTemplate,
) -> anyhow::Result<Vec<f64>> {
    let started = Instant::now();
    let mut micros = Vec::new();
    while started.elapsed() < time {
        let start = Instant::now();
        answer(child, question)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(micros)
}

/// Measures the time from the call of `start` to the end of the answer to `question`, in
/// milliseconds.
pub(crate) fn first_answer(
    start: impl FnOnce() -> anyhow::Result<PipedProcess>,
    question: &BenchRequestTemplate,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut child = start()?;
    answer(&mut child, question)?;
    // The child is dropped after the measurement: its exit does not count.
    Ok(started.elapsed().as_secs_f64() * 1000.0)
}

/// Sends the request `question` once and checks the answer.
pub(crate) fn answer(
    child: &mut PipedProcess,
    question: &BenchRequestTemplate,
) -> anyhow::Result<()> {
    let mut out = Vec::new();
    question.write_line(1, &mut out);
    write(child, &out)?;
    question.check(&read_line(child)?)
}

fn write(child: &mut PipedProcess, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(child.input.as_mut().context("no input")?.write_all(bytes)?)
}

/// Reads from the output of `child` up to a line break. The server must not have sent more yet.
fn read_line(child: &mut PipedProcess) -> anyhow::Result<Vec<u8>> {
    let output = child.output.as_mut().context("no output")?;
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    while !line.ends_with(b"\n") {
        let read = output.read(&mut chunk)?;
        ensure!(read > 0, "the server closed its output");
        line.extend_from_slice(&chunk[..read]);
    }
    Ok(line)
}
