//! Stops, kills and reaps a program together with all the processes it started.

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

/// The interval at which a stopping family is checked.
const LOOK: Duration = Duration::from_millis(5);

/// The longest wait for killed processes to end.
const DEATH: Duration = Duration::from_secs(2);

/// Makes this process adopt orphans of its programs (child subreaper), so that they can be found
/// and reaped.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A program and all the processes it started.
///
/// The main process is reaped last: until then no other process can get its number, which is also
/// the group's. If dropped early, all processes are killed at once.
pub(super) struct Family {
    pub(super) child: Child,
    main: Pid,
    handle: OwnedFd,
    live: Live,
    status: Option<ExitStatus>,
    /// The confinement, if any.
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

    /// Waits until the main process has ended, or has nothing left to do but end. It is not reaped
    /// yet.
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

    /// Returns a future that waits for the end of the main process. It does not borrow the family.
    pub(super) fn ends(&self) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let handle = self.handle.try_clone()?;
        Ok(async move { exit(&handle).await })
    }

    /// Asks all processes to stop (SIGTERM).
    pub(super) async fn ask(&self) {
        self.signal_group(Signal::TERM);
        // A stopped process must continue to receive the signal.
        self.signal_group(Signal::CONT);
        // The sandbox helper passes the signal on to all processes in its namespace.
        if self.around.as_ref().is_some_and(Around::is_apart) {
            return;
        }
        for stray in self.strays().await {
            if !stray.is_in_group_of(self.main) {
                stray.signal(self.live.tag(), Signal::TERM);
            }
        }
    }

    /// Kills all processes (SIGKILL).
    pub(super) async fn kill(&self) {
        self.signal_group(Signal::KILL);
        for stray in self.strays().await {
            stray.signal(self.live.tag(), Signal::KILL);
        }
    }

    /// Ends all other processes after the main process has ended, and returns its exit status.
    ///
    /// The others are asked to stop, unless that was done at `asked`, and killed `grace` later.
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

    /// Stops all processes, and kills them after `grace`.
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
            // The kernel takes its namespaces down before it ends. Nobody has to wait for that.
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

    /// Returns `true` if another process than the main one is alive. Reaps the dead ones.
    fn is_anything_left(&self) -> bool {
        let tag = self.live.tag();
        let main = self.main;
        let strays = strays::adopted(tag, main).unwrap_or_else(|| strays::everywhere(tag, main));
        strays.iter().for_each(Stray::reap);
        // A process that removed its tag may belong to this run.
        let is_any_lost = strays::end_lost();
        is_any_lost || strays.iter().any(Stray::is_alive)
    }

    /// Returns the confinement that is in force.
    pub(super) fn held(&self) -> Arc<Held> {
        self.around.as_ref().map_or_else(|| Arc::new(Held::off()), |around| around.held.clone())
    }

    /// Returns the error that kept the program from starting. The main process must have ended.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.around.as_ref()?.failure()
    }

    async fn strays(&self) -> Vec<Stray> {
        let tag = self.live.tag();
        let main = self.main;
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
    // SAFETY: the handle is borrowed from its owner, who outlives this call.
    let handle = unsafe { AsyncFd::register_with_interest(handle.as_fd(), Interest::READABLE) }?;
    handle.readable().await.map(drop)
}

/// Reaps `main`, which is about to end by itself. Kills it after a time limit.
async fn bury_later(main: Pid, handle: OwnedFd, token: TaskTrackerToken) {
    if !matches!(timeout(DEATH, exit(&handle)).await, Ok(Ok(()))) {
        let _ = kill_process(main, Signal::KILL);
        let _ = timeout(DEATH, exit(&handle)).await;
        // From here on `close` does not wait for it. It is still reaped once possible.
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
