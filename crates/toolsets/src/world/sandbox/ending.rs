//! How it is heard that a program has ended, and that nothing of it is left, from the process that
//! stays beside it.

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

/// What is said once nothing is left. That the pipe is closed says less: so it is, too, when who
/// would say it was killed, which is before the kernel kills what that was first of.
pub(super) const OVER: [u8; 1] = [0];

/// Our end of a pipe on which the status of the program comes, and then that it is over.
pub(super) struct Ending {
    pipe: OwnedFd,
    status: OnceLock<i32>,
    is_over: AtomicBool,
}

impl Ending {
    /// With the other end.
    pub(super) fn line() -> io::Result<(Self, OwnedFd)> {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { pipe, status: OnceLock::new(), is_over: AtomicBool::new(false) }, theirs))
    }

    /// Waits until it is said that nothing is left.
    #[allow(unsafe_code, reason = "tokio watches descriptors it is promised stay open")]
    pub(super) async fn over(&self) -> io::Result<()> {
        let pipe = self.pipe.as_fd();
        // SAFETY: the pipe is borrowed from `self`, which owns it and outlives this.
        let pipe = unsafe { AsyncFd::register_with_interest(pipe, Interest::READABLE) }?;
        loop {
            let mut ready = pipe.readable().await?;
            // Nothing has come yet, where that would block.
            if let Ok(heard) = ready.try_io(|_| self.hear())
                && heard?
            {
                break;
            }
        }
        match self.is_over() {
            true => Ok(()),
            // Nobody is left to say it.
            false => std::future::pending().await,
        }
    }

    /// Whether it was said that nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// How the program ended, if that was said.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        while let Ok(false) = self.hear() {}
        self.status.get().copied().map(ExitStatus::from_raw)
    }

    /// Hears what is said next; whether there is no more to come.
    fn hear(&self) -> io::Result<bool> {
        let mut told = [0; 5];
        match read(&self.pipe, &mut told) {
            Ok(0) => Ok(true),
            Ok(said) => {
                let (status, rest) = match told.get(..said) {
                    Some([a, b, c, d, rest @ ..]) => (Some([*a, *b, *c, *d]), rest),
                    rest => (None, rest.unwrap_or_default()),
                };
                // Only what is said first counts.
                if let Some(status) = status {
                    let _ = self.status.set(i32::from_ne_bytes(status));
                }
                let is_over = rest == OVER && self.status.get().is_some();
                self.is_over.fetch_or(is_over, Ordering::AcqRel);
                Ok(is_over)
            }
            Err(Errno::INTR) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }
}
