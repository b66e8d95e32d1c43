//! Load over standard streams: a window of questions kept full, every answer checked.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use memchr::memchr;

use crate::child::Child;
use crate::question::{Question, id_of};

/// Opens a session.
pub(crate) fn initialize(child: &mut Child) -> anyhow::Result<()> {
    let hello = concat!(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
        r#""capabilities":{},"clientInfo":{"name":"bench","version":"0"}}}"#,
        "\n",
    );
    write(child, hello.as_bytes())?;
    let answer = line(child)?;
    ensure!(id_of(&answer)? == 0, "no session");
    write(child, b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")
}

/// Answers a second with `depth` questions in flight, each answer to one of them and right.
pub(crate) fn rate(
    child: &mut Child,
    depth: usize,
    time: Duration,
    question: &Question,
) -> anyhow::Result<f64> {
    let input = child.input.as_mut().context("no input")?;
    let output = child.output.as_mut().context("no output")?;
    let mut waiting = HashSet::new();
    let mut next = 1;
    let mut answered = 0;
    let mut out = Vec::new();
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut chunk = vec![0; 256 << 10];
    let begun = Instant::now();
    loop {
        // Looked at once: between two looks it may end, and nothing be waited for.
        let goes_on = begun.elapsed() < time;
        if !goes_on && waiting.is_empty() {
            break;
        }
        while goes_on && waiting.len() < depth {
            question.line(next, &mut out);
            waiting.insert(next);
            next += 1;
        }
        input.write_all(&out)?;
        out.clear();
        let read = output.read(&mut chunk)?;
        ensure!(read > 0, "the server closed its output");
        let mut looked = buffer.len();
        buffer.extend_from_slice(&chunk[..read]);
        let mut done = 0;
        while let Some(length) = memchr(b'\n', &buffer[looked..]) {
            let line = &buffer[done..looked + length];
            looked += length + 1;
            done = looked;
            // Some say other things, too, which are not counted.
            let Ok(id) = id_of(line) else { continue };
            ensure!(waiting.remove(&id), "a response without a request: {id}");
            question.check(line)?;
            answered += 1;
        }
        buffer.drain(..done);
    }
    Ok(f64::from(answered) / begun.elapsed().as_secs_f64())
}

/// How long each answer takes, in microseconds, one question after another.
pub(crate) fn micros(
    child: &mut Child,
    time: Duration,
    question: &Question,
) -> anyhow::Result<Vec<f64>> {
    let begun = Instant::now();
    let mut micros = Vec::new();
    while begun.elapsed() < time {
        let start = Instant::now();
        answer(child, question)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(micros)
}

/// Milliseconds from before `start` to the end of the answer to a first `question`.
pub(crate) fn first_answer(
    start: impl FnOnce() -> anyhow::Result<Child>,
    question: &Question,
) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let mut child = start()?;
    answer(&mut child, question)?;
    // What it takes to end is not waited for by whoever asked.
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

/// Asks one `question` and sees that the answer is right.
pub(crate) fn answer(child: &mut Child, question: &Question) -> anyhow::Result<()> {
    let mut out = Vec::new();
    question.line(1, &mut out);
    write(child, &out)?;
    question.check(&line(child)?)
}

fn write(child: &mut Child, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(child.input.as_mut().context("no input")?.write_all(bytes)?)
}

/// One line, behind which nothing has come yet.
fn line(child: &mut Child) -> anyhow::Result<Vec<u8>> {
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
