//! Writes lines into a pipe. If no line waits, the sender writes directly.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite;
use tokio::sync::Notify;
use toolgate_contract::lock_mutex;

/// Writer of whole lines into a program's input pipe, in order.
pub(super) struct PipeLineWriter {
    buffer: Mutex<LineWriteBuffer>,
    /// Number of queued lines that were not yet passed to the writer. No later line may overtake
    /// them.
    waiting: AtomicUsize,
    /// Signal that bytes of accepted lines remain to be written.
    has_rest: Notify,
}

/// Bytes that wait to be written to the input of a program.
struct LineWriteBuffer {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    /// Bytes of accepted lines. The first `written_bytes` of them are already written.
    rest: Vec<u8>,
    /// Number of bytes at the start of the buffer that are already written.
    written_bytes: usize,
}

impl PipeLineWriter {
    pub(super) fn new(input: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let buffer = LineWriteBuffer { input, rest: Vec::new(), written_bytes: 0 };
        Self { buffer: buffer.into(), waiting: AtomicUsize::new(0), has_rest: Notify::new() }
    }

    /// Writes `line` as far as the pipe allows, if no other line waits. Returns false if the line
    /// was not accepted.
    pub(super) fn try_write(&self, line: &[u8]) -> bool {
        let Ok(mut buffer) = self.buffer.try_lock() else { return false };
        if self.waiting.load(Ordering::Acquire) > 0 || !buffer.rest.is_empty() {
            return false;
        }
        buffer.add(line);
        // The background writer reports errors.
        let wrote = buffer.poll_write(&mut Context::from_waker(Waker::noop()));
        if !matches!(wrote, Poll::Ready(Ok(()))) {
            self.has_rest.notify_one();
        }
        true
    }

    /// Registers a queued line that will be passed to [`accept`](Self::accept) later.
    pub(super) fn add_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Accepts a line for writing that [`add_waiting`](Self::add_waiting) registered.
    pub(super) fn accept(&self, line: &[u8]) {
        lock_mutex(&self.buffer).add(line);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until there are bytes of accepted lines to write.
    pub(super) async fn wait_rest(&self) {
        self.has_rest.notified().await;
    }

    /// Writes all remaining bytes of accepted lines.
    pub(super) async fn write_rest(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| lock_mutex(&self.buffer).poll_write(cx)).await
    }
}

impl LineWriteBuffer {
    fn add(&mut self, line: &[u8]) {
        self.rest.extend_from_slice(line);
        self.rest.push(b'\n');
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written_bytes < self.rest.len() {
            let wrote = Pin::new(&mut self.input).poll_write(cx, &self.rest[self.written_bytes..]);
            match ready!(wrote)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.written_bytes += wrote,
            }
        }
        ready!(Pin::new(&mut self.input).poll_flush(cx))?;
        self.written_bytes = 0;
        self.rest.clear();
        self.rest.shrink_to(64 << 10);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn lines_written_to_a_full_pipe_stay_whole_and_in_order() {
        let (input, output) = tokio::io::duplex(7);
        let line_writer = Arc::new(PipeLineWriter::new(Box::new(input)));
        let lines = || (0..100).map(|at| format!("line {at} of a hundred"));
        let writer = line_writer.clone();
        let writing = tokio::spawn(async move {
            for line in lines() {
                if !writer.try_write(line.as_bytes()) {
                    writer.add_waiting();
                    assert!(!writer.try_write(b"before one that waits"));
                    writer.accept(line.as_bytes());
                    writer.write_rest().await.expect("it is read");
                }
            }
            writer.write_rest().await.expect("it is read");
        });
        let mut read = BufReader::new(output).lines();
        for line in lines() {
            assert_eq!(read.next_line().await.expect("a line"), Some(line));
        }
        writing.await.expect("all are written");
    }
}
