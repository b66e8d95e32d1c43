//! Prints progress and output as lines, for a pipe or a file.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{JoinHandle, spawn_blocking};
use toolgate_contract::Stream;

use super::Said;
use super::words::{Unfinished, plain, says_again};

/// Most updates that wait to be written.
const WAITING: usize = 256;

/// A thread that writes lines, with its queue.
pub(in crate::cli) struct Lines {
    mouth: Mouth,
    writing: JoinHandle<()>,
}

/// Sender of updates to the writing thread.
#[derive(Clone)]
pub(in crate::cli) struct Mouth {
    /// Queue of updates. `None` ends the thread.
    said: Sender<Option<Said>>,
    /// Number of updates that found the queue full.
    lost: Arc<AtomicUsize>,
}

impl Lines {
    pub(super) fn begin() -> Self {
        let (said, waiting) = channel(WAITING);
        let lost = Arc::new(AtomicUsize::new(0));
        let mouth = Mouth { said, lost: lost.clone() };
        let writing = spawn_blocking(move || {
            let mut writer = Writer::new(io::BufWriter::new(io::stderr()));
            // A closed pipe and a full disk are not errors of the call.
            let _ = writer.write_all_of(waiting, &lost);
        });
        Self { mouth, writing }
    }

    pub(super) fn mouth(&self) -> Mouth {
        self.mouth.clone()
    }

    pub(super) async fn say(&self, said: Said) {
        // A closed queue means that nobody reads any more.
        let _ = self.mouth.said.send(Some(said)).await;
    }

    pub(super) async fn end(self) {
        let _ = self.mouth.said.send(None).await;
        let _ = self.writing.await;
    }
}

impl Mouth {
    pub(super) fn try_say(&self, said: Said) {
        if self.said.try_send(Some(said)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer<W> {
    out: W,
    stdout: Unfinished,
    stderr: Unfinished,
    /// Last complete line of output. Progress that repeats it is not printed.
    last: String,
    /// Last progress line.
    told: String,
}

impl<W: Write> Writer<W> {
    fn new(out: W) -> Self {
        let (stdout, stderr) = <(Unfinished, Unfinished)>::default();
        Self { out, stdout, stderr, last: String::new(), told: String::new() }
    }

    /// Writes updates until the queue ends.
    fn write_all_of(
        &mut self,
        mut waiting: Receiver<Option<Said>>,
        lost: &AtomicUsize,
    ) -> io::Result<()> {
        loop {
            let next = match waiting.try_recv() {
                Ok(next) => next,
                Err(TryRecvError::Empty) => {
                    self.out.flush()?;
                    waiting.blocking_recv().flatten()
                }
                Err(TryRecvError::Disconnected) => None,
            };
            let Some(said) = next else { break };
            self.write(&said)?;
            let missed = lost.swap(0, Ordering::Relaxed);
            if missed > 0 {
                self.flush_unfinished()?;
                writeln!(
                    self.out,
                    "toolgate: {missed} pieces of output were left out here: they came faster than they were read"
                )?;
            }
        }
        self.flush_unfinished()?;
        self.out.flush()
    }

    fn write(&mut self, said: &Said) -> io::Result<()> {
        match said {
            Said::Begun { attempt: 0 | 1 } => Ok(()),
            Said::Begun { attempt } => {
                self.told.clear();
                writeln!(self.out, "begun again: attempt {attempt}")
            }
            Said::Progress { fraction, message } => self.progress(*fraction, message.as_deref()),
            Said::Printed { stream, text } => self.printed(*stream, text),
            Said::Log { level, message } => {
                writeln!(self.out, "{}: {}", word(*level), plain(message))
            }
            Said::Left { path } => writeln!(self.out, "left: {}", plain(path)),
        }
    }

    fn progress(&mut self, fraction: Option<f64>, message: Option<&str>) -> io::Result<()> {
        let seen = [self.last.as_str(), self.stdout.held(), self.stderr.held()];
        let message = message.filter(|message| !seen.iter().any(|line| says_again(message, line)));
        let message = message.map(plain).filter(|message| !message.is_empty());
        let percent = fraction.map(|fraction| format!("{:.0} %", fraction * 100.0));
        let line = match (percent, message) {
            (None, None) => return Ok(()),
            (Some(percent), None) => percent,
            (None, Some(message)) => message,
            (Some(percent), Some(message)) => format!("{percent} {message}"),
        };
        if line == self.told {
            return Ok(());
        }
        writeln!(self.out, "progress: {line}")?;
        self.told = line;
        Ok(())
    }

    fn printed(&mut self, stream: Stream, text: &str) -> io::Result<()> {
        let unfinished = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let out = &mut self.out;
        let last = &mut self.last;
        let mut done = Ok(());
        unfinished.take(text, |line| {
            if done.is_ok() {
                line.clone_into(last);
                done = writeln!(out, "{}: {}", name(stream), plain(line));
            }
        });
        done
    }

    fn flush_unfinished(&mut self) -> io::Result<()> {
        for (stream, unfinished) in
            [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)]
        {
            if !unfinished.held().is_empty() {
                writeln!(self.out, "{}: {}", name(stream), plain(unfinished.held()))?;
                unfinished.forget();
            }
        }
        Ok(())
    }
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

/// Returns the level as the prefix of a line.
pub(super) fn word(level: toolgate_contract::Level) -> &'static str {
    use toolgate_contract::Level;
    match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Notice => "notice",
        Level::Warning => "warning",
        Level::Error => "error",
        Level::Critical => "critical",
        Level::Alert => "alert",
        Level::Emergency => "emergency",
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::Level;

    use super::*;

    fn written(said: impl IntoIterator<Item = Said>) -> String {
        let mut writer = Writer::new(Vec::new());
        said.into_iter().for_each(|said| writer.write(&said).unwrap());
        writer.flush_unfinished().unwrap();
        String::from_utf8(writer.out).unwrap()
    }

    fn printed(stream: Stream, text: &str) -> Said {
        Said::Printed { stream, text: text.to_owned() }
    }

    #[test]
    fn each_thing_said_is_a_line_with_a_word_before_it() {
        let said = [
            printed(Stream::Stdout, "one\ntw"),
            printed(Stream::Stderr, "\u{1b}[31mbad\u{1b}[0m\n"),
            printed(Stream::Stdout, "o\n"),
            Said::Progress { fraction: Some(0.4), message: Some("linking".to_owned()) },
            Said::Log { level: Level::Warning, message: "odd\nthing".to_owned() },
            Said::Left { path: "out.png".to_owned() },
            Said::Begun { attempt: 2 },
            printed(Stream::Stdout, "no end"),
        ];
        let lines = "stdout: one\nstderr: bad\nstdout: two\nprogress: 40 % linking\n\
                     warning: odd thing\nleft: out.png\nbegun again: attempt 2\nstdout: no end\n";
        assert_eq!(written(said), lines);
    }

    #[test]
    fn progress_that_says_nothing_new_is_not_told() {
        let progress = |fraction, message: &str| Said::Progress {
            fraction,
            message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        };
        let said = [
            printed(Stream::Stdout, "50%\nhalf"),
            progress(None, "50%"),
            progress(Some(0.5), "50%"),
            progress(Some(0.502), ""),
            progress(None, ""),
            progress(None, "half"),
            progress(Some(0.6), ""),
        ];
        let lines = "stdout: 50%\nprogress: 50 %\nprogress: 60 %\nstdout: half\n";
        assert_eq!(written(said), lines);
    }
}
