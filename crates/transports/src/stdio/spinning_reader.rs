//! Busy polling for the next input of a quick peer, instead of putting the thread to sleep.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::io::{AsyncRead, ReadBuf};

use crate::adaptive_spin::BusyPollHistory;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Reader of input that polls without sleeping while the peer is quick.
///
/// Other ready tasks run first, so that an answer is sent before the reader waits for the next
/// request.
pub(super) struct BusyPollingReader<R> {
    input: R,
    /// Time at which the reader started to wait for input.
    waiting_since: Option<Instant>,
    history: BusyPollHistory,
}

impl<R: AsyncRead + AsFd + Unpin> BusyPollingReader<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, waiting_since: None, history: BusyPollHistory::new() }
    }
}

/// Polls `input` until the time `end` and reads the data that arrives. Returns false if no data
/// arrived.
///
/// # Errors
/// Fails if polling or reading fails.
pub fn spin_read(input: &impl AsFd, end: Instant, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
    // `poll` needs no lock, whereas asking for the number of bytes needs one that the writer also
    // takes.
    while poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&NO_TIME))? == 0 {
        if Instant::now() >= end {
            return Ok(false);
        }
    }
    let available = usize::try_from(ioctl_fionread(input)?).unwrap_or(usize::MAX);
    let unfilled = buf.initialize_unfilled_to(available.min(buf.remaining()));
    let read = rustix::io::read(input, unfilled)?;
    buf.advance(read);
    Ok(read > 0)
}

impl<R: AsyncRead + AsFd + Unpin> AsyncRead for BusyPollingReader<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // This call also registers the waker.
        let read = Pin::new(&mut this.input).poll_read(cx, buf);
        if read.is_ready() {
            if let Some(since) = this.waiting_since.take() {
                this.history.record_arrival(since.elapsed());
            }
            return read;
        }
        let Some(since) = this.waiting_since else {
            this.waiting_since = Some(Instant::now());
            if this.history.is_quick() {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        if !this.history.is_quick() {
            return Poll::Pending;
        }
        // An error here occurs again at the next read, which reports it.
        if let Ok(true) = spin_read(&this.input, since + this.history.gap_max, buf) {
            this.waiting_since = None;
            return Poll::Ready(Ok(()));
        }
        this.history.record_miss();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::unix::pipe;

    use super::*;
    use crate::adaptive_spin::{GAP_MAX, QUICK_ARRIVALS_MIN};

    /// History of a peer that counts as quick. With this history, the reader always polls, even on
    /// a busy machine.
    const QUICK: BusyPollHistory = BusyPollHistory {
        is_enabled: true,
        gap_max: Duration::from_secs(20),
        quick_arrivals: QUICK_ARRIVALS_MIN,
    };

    #[tokio::test]
    async fn ready_tasks_run_before_the_reader_spins() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let mut input = BusyPollingReader { input: receiver, waiting_since: None, history: QUICK };
        sender.writable().await.expect("it is open");
        // On a single thread, the input can only arrive in time if the write runs before the spin.
        let writing = tokio::spawn(async move { sender.write_all(b"hello").await });
        let mut text = [0; 5];
        input.read_exact(&mut text).await.expect("it is sent");
        assert_eq!(&text, b"hello");
        assert!(input.history.is_quick(), "the spin found it");
        writing.await.expect("it does not panic").expect("it is taken");
    }

    #[tokio::test]
    async fn input_after_an_unsuccessful_spin_is_still_read() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let history = BusyPollHistory { gap_max: GAP_MAX, ..QUICK };
        let mut input = BusyPollingReader { input: receiver, waiting_since: None, history };
        let mut text = [0; 4];
        let nothing = tokio::time::timeout(20 * GAP_MAX, input.read(&mut text)).await;
        assert!(nothing.is_err() && !input.history.is_quick());
        sender.write_all(b"late").await.expect("it is taken");
        input.read_exact(&mut text).await.expect("it is sent");
        assert_eq!(&text, b"late");
        drop(sender);
        assert_eq!(input.read(&mut text).await.expect("it ends"), 0);
    }

    #[tokio::test]
    async fn input_that_does_not_fit_is_read_next() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let quick = || BusyPollHistory { gap_max: 20 * GAP_MAX, ..QUICK };
        let mut input =
            BusyPollingReader { input: receiver, waiting_since: None, history: quick() };
        let sent: Vec<u8> = (0..=255).cycle().take(60_000).collect();
        let all = sent.clone();
        let writing = tokio::spawn(async move { sender.write_all(&all).await });
        let mut got = Vec::new();
        let mut part = [0; 1000];
        loop {
            input.history = quick();
            match input.read(&mut part).await.expect("it is sent") {
                0 => break,
                read => got.extend_from_slice(&part[..read]),
            }
        }
        assert_eq!(got, sent);
        writing.await.expect("it does not panic").expect("it is taken");
    }
}
