//! Writes lines into a pipe, directly from the sender if nothing else waits.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

/// A pipe that lines are written into, each whole and in order.
pub(super) struct Pen {
    page: Mutex<Page>,
    /// Number of lines that wait to be handed over.
    waiting: AtomicUsize,
    /// Signal that some bytes are left to write.
    left: Notify,
}

struct Page {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    /// Buffer of unwritten lines, and how many of its bytes are written.
    rest: Vec<u8>,
    done: usize,
}

impl Pen {
    pub(super) fn new(input: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let page = Page { input, rest: Vec::new(), done: 0 };
        Self { page: page.into(), waiting: AtomicUsize::new(0), left: Notify::new() }
    }

    /// Writes `line` if nothing waits. Returns false if it was not accepted.
    pub(super) fn writes(&self, line: &[u8]) -> bool {
        let Ok(mut page) = self.page.try_lock() else { return false };
        if self.waiting.load(Ordering::Acquire) > 0 || !page.rest.is_empty() {
            return false;
        }
        page.add(line);
        // The background writer reports errors.
        let wrote = page.poll_write(&mut Context::from_waker(Waker::noop()));
        if !matches!(wrote, Poll::Ready(Ok(()))) {
            self.left.notify_one();
        }
        true
    }

    /// Registers a line that will be handed over later.
    pub(super) fn waits(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Accepts a line that was registered.
    pub(super) fn takes(&self, line: &[u8]) {
        self.page.lock().unwrap_or_else(PoisonError::into_inner).add(line);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until bytes are left to write.
    pub(super) async fn is_left(&self) {
        self.left.notified().await;
    }

    /// Writes all remaining bytes.
    pub(super) async fn writes_all(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            self.page.lock().unwrap_or_else(PoisonError::into_inner).poll_write(cx)
        })
        .await
    }
}

impl Page {
    fn add(&mut self, line: &[u8]) {
        self.rest.extend_from_slice(line);
        self.rest.push(b'\n');
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.done < self.rest.len() {
            let wrote = Pin::new(&mut self.input).poll_write(cx, &self.rest[self.done..]);
            match ready!(wrote)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.done += wrote,
            }
        }
        ready!(Pin::new(&mut self.input).poll_flush(cx))?;
        self.done = 0;
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
    async fn lines_that_a_full_pipe_takes_in_pieces_are_whole_and_in_order() {
        let (input, output) = tokio::io::duplex(7);
        let pen = Arc::new(Pen::new(Box::new(input)));
        let lines = || (0..100).map(|at| format!("line {at} of a hundred"));
        let writer = pen.clone();
        let writing = tokio::spawn(async move {
            for line in lines() {
                if !writer.writes(line.as_bytes()) {
                    writer.waits();
                    assert!(!writer.writes(b"before one that waits"));
                    writer.takes(line.as_bytes());
                    writer.writes_all().await.expect("it is read");
                }
            }
            writer.writes_all().await.expect("it is read");
        });
        let mut read = BufReader::new(output).lines();
        for line in lines() {
            assert_eq!(read.next_line().await.expect("a line"), Some(line));
        }
        writing.await.expect("all are written");
    }
}
