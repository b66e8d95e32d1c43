//! Prints progress and output as lines, for a pipe or a file.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use toolgate_contract::OutputStreamKind;
use toolgate_net::{BlockingTask, spawn_blocking};

use super::ProgressUpdate;
use super::terminal_text::{IncompleteOutputLine, plain_line, repeats_line};

/// Maximum number of progress updates that wait to be written.
const WAITING: usize = 256;

/// Displays progress and output as lines. Contains the thread that writes the lines, and the sender
/// to its queue.
pub(in crate::cli) struct ProgressLineDisplay {
    sender: ProgressUpdateSender,
    writing: BlockingTask<()>,
}

/// Sender of progress updates to the thread that writes them.
#[derive(Clone)]
pub(in crate::cli) struct ProgressUpdateSender {
    /// Queue of progress updates. `None` ends the thread.
    queue: Sender<Option<ProgressUpdate>>,
    /// Number of updates that were dropped because the queue was full.
    lost: Arc<AtomicUsize>,
}

impl ProgressLineDisplay {
    pub(super) fn begin() -> Self {
        let (queue, waiting) = channel(WAITING);
        let lost = Arc::new(AtomicUsize::new(0));
        let sender = ProgressUpdateSender { queue, lost: lost.clone() };
        let writing = spawn_blocking(move || {
            let mut writer = ProgressLineWriter::new(io::BufWriter::new(io::stderr()));
            // A closed pipe and a full disk are not errors of the call.
            let _ = writer.write_all_of(waiting, &lost);
        });
        Self { sender, writing }
    }

    pub(super) fn sender(&self) -> ProgressUpdateSender {
        self.sender.clone()
    }

    pub(super) async fn send(&self, update: ProgressUpdate) {
        // A closed queue means that nobody reads any more.
        let _ = self.sender.queue.send(Some(update)).await;
    }

    pub(super) async fn end(self) {
        let _ = self.sender.queue.send(None).await;
        let _ = self.writing.await;
    }
}

impl ProgressUpdateSender {
    pub(super) fn try_send(&self, update: ProgressUpdate) {
        if self.queue.try_send(Some(update)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writer of progress and output as lines.
struct ProgressLineWriter<W> {
    out: W,
    stdout: IncompleteOutputLine,
    stderr: IncompleteOutputLine,
    /// Last complete line of the program's output. Progress that repeats this line is not printed.
    last_line: String,
    /// Last progress line that was printed.
    last_progress: String,
}

impl<W: Write> ProgressLineWriter<W> {
    fn new(out: W) -> Self {
        let (stdout, stderr) = <(IncompleteOutputLine, IncompleteOutputLine)>::default();
        Self { out, stdout, stderr, last_line: String::new(), last_progress: String::new() }
    }

    /// Writes the queued progress updates as lines, until the queue ends. After `lost` updates were
    /// dropped, also writes their number and resets it. Fails if the output cannot be written.
    fn write_all_of(
        &mut self,
        mut waiting: Receiver<Option<ProgressUpdate>>,
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
            let Some(update) = next else { break };
            self.write(&update)?;
            let missed = lost.swap(0, Ordering::Relaxed);
            if missed > 0 {
                self.flush_unfinished()?;
                let unit = if missed == 1 { "piece" } else { "pieces" };
                writeln!(
                    self.out,
                    "toolgate: left out {missed} {unit} of output here, because the reader is too slow"
                )?;
            }
        }
        self.flush_unfinished()?;
        self.out.flush()
    }

    fn write(&mut self, update: &ProgressUpdate) -> io::Result<()> {
        match update {
            ProgressUpdate::Restarted { attempt: 0 | 1 } => Ok(()),
            ProgressUpdate::Restarted { attempt } => {
                self.last_progress.clear();
                writeln!(self.out, "restarted: attempt {attempt}")
            }
            ProgressUpdate::Progress { fraction, message } => {
                self.progress(*fraction, message.as_deref())
            }
            ProgressUpdate::Printed { stream, text } => self.printed(*stream, text),
            ProgressUpdate::Log { level, message } => {
                writeln!(self.out, "{}: {}", level_name(*level), plain_line(message))
            }
            ProgressUpdate::LeftFile { path } => writeln!(self.out, "file: {}", plain_line(path)),
        }
    }

    fn progress(&mut self, fraction: Option<f64>, message: Option<&str>) -> io::Result<()> {
        let seen = [self.last_line.as_str(), self.stdout.text(), self.stderr.text()];
        let message =
            message.filter(|message| !seen.iter().any(|line| repeats_line(message, line)));
        let message = message.map(plain_line).filter(|message| !message.is_empty());
        let percent = fraction.map(|fraction| format!("{:.0} %", fraction * 100.0));
        let line = match (percent, message) {
            (None, None) => return Ok(()),
            (Some(percent), None) => percent,
            (None, Some(message)) => message,
            (Some(percent), Some(message)) => format!("{percent} {message}"),
        };
        if line == self.last_progress {
            return Ok(());
        }
        writeln!(self.out, "progress: {line}")?;
        self.last_progress = line;
        Ok(())
    }

    fn printed(&mut self, stream: OutputStreamKind, text: &str) -> io::Result<()> {
        let unfinished = match stream {
            OutputStreamKind::Stdout => &mut self.stdout,
            OutputStreamKind::Stderr => &mut self.stderr,
        };
        let out = &mut self.out;
        let last = &mut self.last_line;
        let mut done = Ok(());
        unfinished.take(text, |line| {
            if done.is_ok() {
                line.clone_into(last);
                done = writeln!(out, "{}: {}", stream_name(stream), plain_line(line));
            }
        });
        done
    }

    fn flush_unfinished(&mut self) -> io::Result<()> {
        for (stream, unfinished) in [
            (OutputStreamKind::Stdout, &mut self.stdout),
            (OutputStreamKind::Stderr, &mut self.stderr),
        ] {
            if !unfinished.text().is_empty() {
                writeln!(self.out, "{}: {}", stream_name(stream), plain_line(unfinished.text()))?;
                unfinished.clear();
            }
        }
        Ok(())
    }
}

fn stream_name(stream: OutputStreamKind) -> &'static str {
    match stream {
        OutputStreamKind::Stdout => "stdout",
        OutputStreamKind::Stderr => "stderr",
    }
}

/// Returns the name of `level`, as log lines show it.
pub(super) fn level_name(level: toolgate_contract::LogLevel) -> &'static str {
    use toolgate_contract::LogLevel;
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Notice => "notice",
        LogLevel::Warning => "warning",
        LogLevel::Error => "error",
        LogLevel::Critical => "critical",
        LogLevel::Alert => "alert",
        LogLevel::Emergency => "emergency",
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::LogLevel;

    use super::*;

    fn written(updates: impl IntoIterator<Item = ProgressUpdate>) -> String {
        let mut writer = ProgressLineWriter::new(Vec::new());
        updates.into_iter().for_each(|update| writer.write(&update).unwrap());
        writer.flush_unfinished().unwrap();
        String::from_utf8(writer.out).unwrap()
    }

    fn printed(stream: OutputStreamKind, text: &str) -> ProgressUpdate {
        ProgressUpdate::Printed { stream, text: text.to_owned() }
    }

    #[test]
    fn each_update_is_a_line_with_its_kind_before_it() {
        let updates = [
            printed(OutputStreamKind::Stdout, "one\ntw"),
            printed(OutputStreamKind::Stderr, "\u{1b}[31mbad\u{1b}[0m\n"),
            printed(OutputStreamKind::Stdout, "o\n"),
            ProgressUpdate::Progress { fraction: Some(0.4), message: Some("linking".to_owned()) },
            ProgressUpdate::Log { level: LogLevel::Warning, message: "odd\nthing".to_owned() },
            ProgressUpdate::LeftFile { path: "out.png".to_owned() },
            ProgressUpdate::Restarted { attempt: 2 },
            printed(OutputStreamKind::Stdout, "no end"),
        ];
        let lines = "stdout: one\nstderr: bad\nstdout: two\nprogress: 40 % linking\n\
                     warning: odd thing\nfile: out.png\nrestarted: attempt 2\nstdout: no end\n";
        assert_eq!(written(updates), lines);
    }

    #[test]
    fn progress_without_news_is_not_printed() {
        let progress = |fraction, message: &str| ProgressUpdate::Progress {
            fraction,
            message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        };
        let updates = [
            printed(OutputStreamKind::Stdout, "50%\nhalf"),
            progress(None, "50%"),
            progress(Some(0.5), "50%"),
            progress(Some(0.502), ""),
            progress(None, ""),
            progress(None, "half"),
            progress(Some(0.6), ""),
        ];
        let lines = "stdout: 50%\nprogress: 50 %\nprogress: 60 %\nstdout: half\n";
        assert_eq!(written(updates), lines);
    }
}
