//! Connection stream that fails if the client stops reading.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use toolgate_net::InputBusyPollState;

use super::listener::ClientByteStream;
use super::unsent::UnsentBytesAccount;

/// Connection with a timeout for writes.
pub(crate) struct WriteTimeoutStream {
    stream: ClientByteStream,
    write_timeout: Duration,
    /// Time of the last read from the connection that returned data.
    last_read: Instant,
    /// Number of bytes that were read from the connection so far.
    bytes_read: u64,
    /// Timer that runs while a write to the connection waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Account of the connection's unsent bytes.
    unsent: Arc<UnsentBytesAccount>,
    busy_poll: InputBusyPollState,
}

impl WriteTimeoutStream {
    pub(super) fn new(
        stream: ClientByteStream,
        write_timeout: Duration,
        unsent: Arc<UnsentBytesAccount>,
    ) -> Self {
        Self {
            stream,
            write_timeout,
            last_read: Instant::now(),
            bytes_read: 0,
            timer: None,
            unsent,
            busy_poll: InputBusyPollState::for_client(),
        }
    }

    /// Returns the time of the last read from the connection that returned data.
    pub(crate) fn last_read(&self) -> Instant {
        self.last_read
    }

    /// Returns the number of bytes that were read from the connection so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Records the progress of a write for the timeout and the account of unsent bytes.
    fn record_write(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &progress {
            self.unsent.subtract(*bytes);
            self.busy_poll.note_wait();
        }
        self.with_timeout(cx, progress)
    }

    /// Returns the `progress` of a write to the connection.
    ///
    /// # Errors
    /// The write failed, or has waited longer than the timeout.
    fn with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.timer = None;
            return progress;
        }
        let timeout = self.write_timeout;
        let waiting = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, busy_poll, last_read, bytes_read, .. } = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut *stream).poll_read(cx, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => match stream {
                ClientByteStream::Plain(stream) if busy_poll.try_read(stream, cx, buffer) => {}
                ClientByteStream::Plain(_) | ClientByteStream::Tls(_) => return Poll::Pending,
            },
        }
        busy_poll.note_arrival();
        if buffer.filled().len() > before {
            *bytes_read += (buffer.filled().len() - before) as u64;
            *last_read = Instant::now();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_write(cx, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.record_write(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Encrypted data may wait here, after the write itself succeeded.
        let progress = Pin::new(&mut self.stream).poll_flush(cx);
        self.with_timeout(cx, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.with_timeout(cx, progress)
    }
}
