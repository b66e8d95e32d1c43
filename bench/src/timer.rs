//! A timer of the kernel's, which is late by microseconds: tokio's are by a millisecond, in which
//! all that fall due come at once.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

pub(crate) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    pub(crate) async fn sleep(&self, lasting: Duration) -> anyhow::Result<()> {
        let it_value = Timespec {
            tv_sec: i64::try_from(lasting.as_secs())?,
            // Nothing at all would be no timer.
            tv_nsec: i64::from(lasting.subsec_nanos().max(1)),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut times = [0; 8];
            match ready.try_io(|timer| Ok(read(timer, &mut times)?)) {
                Ok(read) => return Ok(read.map(drop)?),
                Err(_would_block) => {}
            }
        }
    }
}
