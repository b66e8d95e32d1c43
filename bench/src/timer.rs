//! A timer that is late by microseconds and costs one system call: tokio's are late by a
//! millisecond, in which all that fall due come at once, and a thread that sleeps and tells takes
//! from the servers a good part of the processor that it would sleep on.

use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Tells when it is time, again and again.
pub(crate) struct Timer(Receiver);

impl Timer {
    /// Tells first at `first`, and each `apart` after that.
    pub(crate) fn start(first: Instant, apart: Duration) -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer: OwnedFd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // None at all would be never.
        let first = first.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let when = Itimerspec {
            it_interval: Timespec::try_from(apart)?,
            it_value: Timespec::try_from(first)?,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &when)?;
        // It is waited for and read as a pipe is.
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until it is `due`, which is a time that is told.
    pub(crate) async fn wait_until(&mut self, due: Instant) -> anyhow::Result<()> {
        // It may have been told before while nobody waited.
        while Instant::now() < due {
            self.0.read_exact(&mut [0; 8]).await?;
        }
        Ok(())
    }
}
