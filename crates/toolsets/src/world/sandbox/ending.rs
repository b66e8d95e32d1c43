//! How it is heard that a program has ended, and that nothing of it is left, from the process that
//! stays beside it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Our end of a pipe on which the status of the program comes, and which is closed once nothing of
/// it is left, however that came.
pub(super) struct Ending {
    pipe: OwnedFd,
    status: OnceLock<i32>,
}

impl Ending {
    /// With the other end.
    pub(super) fn line() -> io::Result<(Self, OwnedFd)> {
        let (pipe, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { pipe, status: OnceLock::new() }, theirs))
    }

    /// Waits until it is closed.
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
                return Ok(());
            }
        }
    }

    /// How the program ended, if the pipe is closed and that was said before.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        while !self.hear().ok()? {}
        self.status.get().copied().map(ExitStatus::from_raw)
    }

    /// Hears what comes next; whether that is the end.
    fn hear(&self) -> io::Result<bool> {
        let mut told = [0; 4];
        match read(&self.pipe, &mut told) {
            Ok(0) => Ok(true),
            Ok(4) => {
                // Only what is said first counts.
                let _ = self.status.set(i32::from_ne_bytes(told));
                Ok(false)
            }
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(Errno::INTR) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }
}
