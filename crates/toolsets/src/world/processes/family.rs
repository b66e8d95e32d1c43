//! A program and all it started: told to stop, killed and buried together.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    set_child_subreaper, waitpid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::image::Child;
use super::strays::{self, Live, Stray};
use crate::world::sandbox::{Around, Held};

/// How often a family that was told to stop is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long the kernel may take to end what was killed.
const DEATH: Duration = Duration::from_secs(2);

/// Makes orphans of our programs fall to us, so that they can be found and buried.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A program and all it started.
///
/// Its main process is buried last: until then its number, which is the group's
/// too, cannot pass to another. Dropped before its end, all of it is killed at once.
pub(super) struct Family {
    pub(super) child: Child,
    main: Pid,
    handle: OwnedFd,
    live: Live,
    status: Option<ExitStatus>,
    /// What confines it, if anything does.
    around: Option<Around>,
    /// Keeps [`close`](super::Processes::close) waiting.
    token: TaskTrackerToken,
}

impl Family {
    pub(super) fn of(
        child: Child,
        live: Live,
        around: Option<Around>,
        token: TaskTrackerToken,
    ) -> io::Result<Self> {
        let main = child.pid;
        match pidfd_open(main, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self { child, main, handle, live, status: None, around, token }),
            Err(err) => {
                child.end()?;
                Err(err.into())
            }
        }
    }

    /// Waits until the main process has ended, or has nothing left to do but that. It is not yet
    /// buried.
    pub(super) async fn exit(&self) -> io::Result<()> {
        match &self.around {
            Some(around) if around.is_apart() => tokio::select! {
                biased;
                over = around.over() => over,
                ended = exit(&self.handle) => ended,
            },
            _ => exit(&self.handle).await,
        }
    }

    /// Waits until the main process has ended, however long the family is held.
    pub(super) fn ends(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let handle = self.handle.try_clone()?;
        Ok(async move { exit(&handle).await })
    }

    /// Asks all of it to stop.
    pub(super) async fn ask(&self) {
        self.signal_group(Signal::TERM);
        // What is stopped must go on to hear it.
        self.signal_group(Signal::CONT);
        // The helper passes it on to all there is.
        if self.around.as_ref().is_some_and(Around::is_apart) {
            return;
        }
        for stray in self.strays().await {
            if !stray.is_in_group_of(self.main) {
                stray.signal(self.live.tag(), Signal::TERM);
            }
        }
    }

    /// Kills all of it.
    pub(super) async fn kill(&self) {
        self.signal_group(Signal::KILL);
        for stray in self.strays().await {
            stray.signal(self.live.tag(), Signal::KILL);
        }
    }

    /// Once the main process has ended: sees to it that nothing is left, and how it ended.
    ///
    /// What is left is asked to stop, unless it was at `asked`, and killed `grace` later.
    pub(super) async fn end(
        &mut self,
        asked: Option<Instant>,
        grace: Duration,
    ) -> io::Result<ExitStatus> {
        if self.is_anything_left() {
            if asked.is_none() {
                self.ask().await;
            }
            let kill_from = asked.unwrap_or_else(Instant::now) + grace;
            let give_up = kill_from.max(Instant::now()) + DEATH;
            while self.is_anything_left() && Instant::now() < give_up {
                if Instant::now() >= kill_from {
                    self.kill().await;
                }
                sleep(LOOK).await;
            }
        }
        self.bury()
    }

    /// Ends all of it, with `grace` between asking and killing.
    pub(super) async fn stop(mut self, grace: Duration) -> io::Result<ExitStatus> {
        let asked = Instant::now();
        self.ask().await;
        if timeout(grace, self.exit()).await.is_err() {
            self.kill().await;
            timeout(DEATH, self.exit()).await.map_err(io::Error::from)??;
        }
        self.end(Some(asked), grace).await
    }

    fn bury(&mut self) -> io::Result<ExitStatus> {
        let mut ended = self.child.try_wait()?;
        let told = self.around.as_ref().and_then(Around::told);
        if ended.is_none() && told.is_some() {
            // Its namespaces are taken down before it ends, which is nobody's to wait for.
            let handle = self.handle.try_clone()?;
            let runtime = Handle::try_current().map_err(io::Error::other)?;
            runtime.spawn(bury_later(self.main, handle, self.token.clone()));
            ended = told;
        }
        let ended = ended.ok_or(io::ErrorKind::TimedOut)?;
        let status = self.around.as_mut().map_or(ended, |around| around.ended(ended));
        self.status = Some(status);
        Ok(status)
    }

    /// Whether anything but the main process lives, once that has ended.
    fn is_anything_left(&self) -> bool {
        let (tag, main) = (self.live.tag(), self.main);
        let strays = strays::adopted(tag, main).unwrap_or_else(|| strays::everywhere(tag, main));
        strays.iter().for_each(Stray::reap);
        // What took its tag off may be of this run.
        let is_any_lost = strays::end_lost();
        is_any_lost || strays.iter().any(Stray::is_alive)
    }

    /// How it is confined.
    pub(super) fn held(&self) -> Arc<Held> {
        self.around.as_ref().map_or_else(|| Arc::new(Held::off()), |around| around.held.clone())
    }

    /// Why the program did not begin, of which the main process has ended.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.around.as_ref()?.failure()
    }

    async fn strays(&self) -> Vec<Stray> {
        let (tag, main) = (self.live.tag(), self.main);
        let found = spawn_blocking(move || strays::everywhere(tag, main));
        timeout(DEATH, found).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn signal_group(&self, signal: Signal) {
        // The group may have ended by itself.
        let _ = kill_process_group(self.main, signal);
    }
}

/// Waits until the process of `handle` has ended.
#[allow(unsafe_code, reason = "tokio watches descriptors it is promised stay open")]
async fn exit(handle: &OwnedFd) -> io::Result<()> {
    // SAFETY: the handle is borrowed from its owner, who outlives this.
    let handle = unsafe { AsyncFd::register_with_interest(handle.as_fd(), Interest::READABLE) }?;
    handle.readable().await.map(drop)
}

/// Buries `main`, which is about to end by itself; else it is killed.
async fn bury_later(main: Pid, handle: OwnedFd, token: TaskTrackerToken) {
    if !matches!(timeout(DEATH, exit(&handle)).await, Ok(Ok(()))) {
        let _ = kill_process(main, Signal::KILL);
        let _ = timeout(DEATH, exit(&handle)).await;
        // Who closes waits no longer; what is left is still buried once it can be.
        drop(token);
        let _ = exit(&handle).await;
    }
    let _ = waitpid(Some(main), WaitOptions::NOHANG);
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        let mut looks_left = DEATH.as_millis() / LOOK.as_millis();
        while looks_left > 0 {
            self.signal_group(Signal::KILL);
            let strays = strays::everywhere(self.live.tag(), self.main);
            for stray in &strays {
                stray.signal(self.live.tag(), Signal::KILL);
                stray.reap();
            }
            if !strays::end_lost() && strays.is_empty() && self.bury().is_ok() {
                return;
            }
            thread::sleep(LOOK);
            looks_left -= 1;
        }
    }
}
