//! Receives the two reports of the reaper: the program's exit status, and the end of its last
//! process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The reaper's message that no process of the program is left. The end of the pipe does not prove
/// this. The pipe also closes if the reaper is killed, before the kernel kills the processes in its
/// namespace.
pub(super) const OVER_MESSAGE: [u8; 1] = [0];

/// The server's end of a pipe that carries the program's exit status, followed by [`OVER_MESSAGE`].
pub(super) struct ExitStatusPipe {
    pipe: OwnedFd,
    status: OnceLock<i32>,
    is_over: AtomicBool,
}

impl ExitStatusPipe {
    /// Creates a pipe for the exit status of a program. Returns the server's end and the reaper's
    /// end.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { pipe, status: OnceLock::new(), is_over: AtomicBool::new(false) }, theirs))
    }

    /// Waits for the reaper's message that no process of the program is left.
    #[allow(unsafe_code, reason = "tokio needs the promise that the descriptor stays open")]
    pub(super) async fn wait_until_over(&self) -> io::Result<()> {
        let pipe = self.pipe.as_fd();
        // SAFETY: the pipe is borrowed from `self`, which owns it and outlives this call.
        let pipe = unsafe { AsyncFd::register_with_interest(pipe, Interest::READABLE) }?;
        loop {
            let mut ready = pipe.readable().await?;
            // If the read would block, nothing has arrived yet.
            if let Ok(is_last) = ready.try_io(|_| self.read_report())
                && is_last?
            {
                break;
            }
        }
        match self.is_over() {
            true => Ok(()),
            // The sender is gone without the message.
            false => std::future::pending().await,
        }
    }

    /// Returns `true` if the reaper has sent the message that no process of the program is left.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns the program's exit status, if the reaper has reported it.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        while let Ok(false) = self.read_report() {}
        self.status.get().copied().map(ExitStatus::from_raw)
    }

    /// Reads the next message of the program's reaper and stores it. Returns `true` if no more
    /// messages will follow.
    fn read_report(&self) -> io::Result<bool> {
        let mut message = [0; 5];
        match read(&self.pipe, &mut message) {
            Ok(0) => Ok(true),
            Ok(length) => {
                let (status, rest) = match message.get(..length) {
                    Some([a, b, c, d, rest @ ..]) => (Some([*a, *b, *c, *d]), rest),
                    rest => (None, rest.unwrap_or_default()),
                };
                // Only the first status counts.
                if let Some(status) = status {
                    let _ = self.status.set(i32::from_ne_bytes(status));
                }
                let is_over = rest == OVER_MESSAGE && self.status.get().is_some();
                self.is_over.fetch_or(is_over, Ordering::AcqRel);
                Ok(is_over)
            }
            Err(Errno::INTR) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }
}
