//! Timer that fires only microseconds late and costs one system call.
//!
//! tokio's timers fire up to a millisecond late, and all timers that are due in that millisecond
//! fire together. A thread that sleeps and wakes the others takes much processor time from the
//! servers.

use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Timer that fires repeatedly at a fixed interval.
pub(crate) struct RepeatingTimer(Receiver);

impl RepeatingTimer {
    /// Starts a timer that fires at `first` and then every `interval`.
    pub(crate) fn start(first: Instant, interval: Duration) -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer: OwnedFd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Zero would disarm the timer.
        let first = first.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let schedule = Itimerspec {
            it_interval: Timespec::try_from(interval)?,
            it_value: Timespec::try_from(first)?,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &schedule)?;
        // The descriptor of a timer can be awaited and read like a pipe.
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until the time `due`, which must be one of the times at which the timer fires.
    pub(crate) async fn wait_until(&mut self, due: Instant) -> anyhow::Result<()> {
        // The timer may have fired before while nobody waited.
        while Instant::now() < due {
            self.0.read_exact(&mut [0; 8]).await?;
        }
        Ok(())
    }
}
