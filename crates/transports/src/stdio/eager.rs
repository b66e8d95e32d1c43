//! Busy polling for the next input of a quick peer, instead of sleeping.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use tokio::io::{AsyncRead, ReadBuf};

use crate::rhythm::Rhythm;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Reader that polls for the next input while the peer is quick.
///
/// Other ready tasks run first, so that an answer is out before the next request is awaited.
pub(super) struct Eager<R> {
    input: R,
    /// Time since which the reader waits for input.
    since: Option<Instant>,
    rhythm: Rhythm,
}

impl<R: AsyncRead + AsFd + Unpin> Eager<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, since: None, rhythm: Rhythm::new() }
    }
}

/// Polls `input` until `end` and reads what arrives. Returns false if nothing arrived.
///
/// # Errors
/// When polling or reading fails.
pub fn look(input: &impl AsFd, end: Instant, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
    // `poll` needs no lock, whereas asking for the number of bytes needs one that the writer also
    // takes.
    while poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&NO_TIME))? == 0 {
        if Instant::now() >= end {
            return Ok(false);
        }
    }
    let there = usize::try_from(ioctl_fionread(input)?).unwrap_or(usize::MAX);
    let unfilled = buf.initialize_unfilled_to(there.min(buf.remaining()));
    let read = rustix::io::read(input, unfilled)?;
    buf.advance(read);
    Ok(read > 0)
}

impl<R: AsyncRead + AsFd + Unpin> AsyncRead for Eager<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // This call also registers the waker.
        let read = Pin::new(&mut this.input).poll_read(cx, buf);
        if read.is_ready() {
            if let Some(since) = this.since.take() {
                this.rhythm.came_after(since.elapsed());
            }
            return read;
        }
        let Some(since) = this.since else {
            this.since = Some(Instant::now());
            if this.rhythm.is_quick() {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        if !this.rhythm.is_quick() {
            return Poll::Pending;
        }
        // An error here occurs again at the next read, which reports it.
        if let Ok(true) = look(&this.input, since + this.rhythm.within, buf) {
            this.since = None;
            return Poll::Ready(Ok(()));
        }
        this.rhythm.missed();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::unix::pipe;

    use super::*;
    use crate::rhythm::{OFTEN, SOON};

    /// Where everything that comes comes soon, however busy the machine is.
    const QUICK: Rhythm = Rhythm { can: true, within: Duration::from_secs(20), soon: OFTEN };

    #[tokio::test]
    async fn what_is_ready_runs_before_anything_is_looked_for() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let mut input = Eager { input: receiver, since: None, rhythm: QUICK };
        sender.writable().await.expect("it is open");
        // On this one thread it can only be there in time if it was written before the look.
        let writing = tokio::spawn(async move { sender.write_all(b"hello").await });
        let mut text = [0; 5];
        input.read_exact(&mut text).await.expect("it is sent");
        assert_eq!(&text, b"hello");
        assert!(input.rhythm.is_quick(), "it was found by looking");
        writing.await.expect("it does not panic").expect("it is taken");
    }

    #[tokio::test]
    async fn what_is_not_found_by_looking_is_waited_for() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let rhythm = Rhythm { within: SOON, ..QUICK };
        let mut input = Eager { input: receiver, since: None, rhythm };
        let mut text = [0; 4];
        let nothing = tokio::time::timeout(20 * SOON, input.read(&mut text)).await;
        assert!(nothing.is_err() && !input.rhythm.is_quick());
        sender.write_all(b"late").await.expect("it is taken");
        input.read_exact(&mut text).await.expect("it is sent");
        assert_eq!(&text, b"late");
        drop(sender);
        assert_eq!(input.read(&mut text).await.expect("it ends"), 0);
    }

    #[tokio::test]
    async fn what_does_not_fit_is_read_next() {
        let (mut sender, receiver) = pipe::pipe().expect("a pipe");
        let quick = || Rhythm { within: 20 * SOON, ..QUICK };
        let mut input = Eager { input: receiver, since: None, rhythm: quick() };
        let sent: Vec<u8> = (0..=255).cycle().take(60_000).collect();
        let all = sent.clone();
        let writing = tokio::spawn(async move { sender.write_all(&all).await });
        let mut got = Vec::new();
        let mut part = [0; 1000];
        loop {
            input.rhythm = quick();
            match input.read(&mut part).await.expect("it is sent") {
                0 => break,
                read => got.extend_from_slice(&part[..read]),
            }
        }
        assert_eq!(got, sent);
        writing.await.expect("it does not panic").expect("it is taken");
    }
}
