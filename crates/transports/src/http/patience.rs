//! Connection stream that fails if the client stops reading.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::keen::{Keen, Lookout};
use super::secure::Wire;
use super::unsent::Owed;

/// Stream with a timeout for writes.
pub(crate) struct Patient {
    stream: Wire,
    patience: Duration,
    /// Time of the last read that returned data.
    heard: Instant,
    /// Timeout that runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Account of unsent bytes.
    owed: Arc<Owed>,
    keen: Keen,
}

impl Patient {
    pub(super) fn new(stream: Wire, patience: Duration, owed: Arc<Owed>, lookout: Lookout) -> Self {
        let keen = Keen::new(lookout);
        Self { stream, patience, heard: Instant::now(), waiting: None, owed, keen }
    }

    /// Returns the time of the last read that returned data.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// Records the progress of a write.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &progress {
            self.owed.took(*bytes);
            self.keen.answered();
        }
        self.bounded(cx, progress)
    }

    /// Passes `progress` on, or fails if a write has waited too long.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.waiting = None;
            return progress;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, keen, heard, .. } = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut *stream).poll_read(cx, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => match stream {
                Wire::Plain(stream) if keen.finds(stream, cx, buffer) => {}
                Wire::Plain(_) | Wire::Secure(_) => return Poll::Pending,
            },
        }
        keen.came();
        if buffer.filled().len() > before {
            *heard = Instant::now();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.written(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Encrypted data may wait here, after the write itself succeeded.
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(cx, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(cx, progress)
    }
}
