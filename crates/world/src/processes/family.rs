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
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use toolgate_net::spawn_blocking;

use super::strays::{self, TaggedProcess, UnfinishedProgramRun};
use crate::forwarder::ProgramNetworkUsage;
use crate::programs::ChildProcess;
use crate::sandbox::{ConfinedProgramResources, SandboxCoverage};

/// The interval at which the processes of a stopping program are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest wait for the killed processes of a program to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes this process adopt the orphaned children of its programs (child subreaper), so that it can
/// find and reap them.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A program and all processes that it started.
///
/// The main process is reaped last. Until then no other process can get its number, which is also
/// the number of the process group. Dropping this value early kills all these processes at once.
pub(super) struct ProcessTree {
    pub(super) child: ChildProcess,
    main_pid: Pid,
    handle: OwnedFd,
    run: UnfinishedProgramRun,
    status: Option<ExitStatus>,
    /// The confinement of the program. `None` for a program without a sandbox.
    confinement: Option<ConfinedProgramResources>,
    /// A token that the program holds until it has ended.
    /// [`ProcessRunner::close`](super::ProcessRunner::close) waits for all tokens.
    token: TaskTrackerToken,
}

impl ProcessTree {
    pub(super) fn new(
        child: ChildProcess,
        live: UnfinishedProgramRun,
        around: Option<ConfinedProgramResources>,
        token: TaskTrackerToken,
    ) -> io::Result<Self> {
        let main = child.pid;
        match pidfd_open(main, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self {
                child,
                main_pid: main,
                handle,
                run: live,
                status: None,
                confinement: around,
                token,
            }),
            Err(err) => {
                child.kill_and_wait()?;
                Err(err.into())
            }
        }
    }

    /// Waits until the main process has ended or is about to end. Does not reap it.
    pub(super) async fn wait_for_exit(&self) -> io::Result<()> {
        match &self.confinement {
            Some(around) if around.has_reaper() => tokio::select! {
                biased;
                over = around.wait_until_over() => over,
                ended = wait_for_exit(&self.handle) => ended,
            },
            _ => wait_for_exit(&self.handle).await,
        }
    }

    /// Returns a future that waits for the end of the main process. The future does not borrow this
    /// value.
    pub(super) fn wait_for_exit_detached(
        &self,
    ) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let handle = self.handle.try_clone()?;
        Ok(async move { wait_for_exit(&handle).await })
    }

    /// Asks all processes of the program to stop (SIGTERM).
    pub(super) async fn request_stop(&self) {
        self.signal_group(Signal::TERM);
        // A stopped process must continue to receive the signal.
        self.signal_group(Signal::CONT);
        // The sandbox helper passes the signal on to all processes in its namespace.
        if self.confinement.as_ref().is_some_and(ConfinedProgramResources::has_reaper) {
            return;
        }
        for stray in self.find_strays().await {
            if !stray.is_in_group_of(self.main_pid) {
                stray.signal(self.run.tag(), Signal::TERM);
            }
        }
    }

    /// Kills all processes of the program (SIGKILL).
    pub(super) async fn kill(&self) {
        self.signal_group(Signal::KILL);
        for stray in self.find_strays().await {
            stray.signal(self.run.tag(), Signal::KILL);
        }
    }

    /// Ends the program's other processes after the main process has ended. Returns the exit status
    /// of the main process.
    ///
    /// Asks the other processes to stop, unless they were already asked at `stopped_at`. Kills them
    /// after the time `grace`.
    pub(super) async fn finish(
        &mut self,
        stopped_at: Option<Instant>,
        grace: Duration,
    ) -> io::Result<ExitStatus> {
        if self.reap_and_check_rest() {
            if stopped_at.is_none() {
                self.request_stop().await;
            }
            let kill_from = stopped_at.unwrap_or_else(Instant::now) + grace;
            let give_up = kill_from.max(Instant::now()) + KILL_TIMEOUT;
            while self.reap_and_check_rest() && Instant::now() < give_up {
                if Instant::now() >= kill_from {
                    self.kill().await;
                }
                sleep(POLL_INTERVAL).await;
            }
        }
        self.reap()
    }

    /// Asks all processes of the program to stop, and kills them after the time `grace`. Returns
    /// the exit status of the main process.
    pub(super) async fn stop(mut self, grace: Duration) -> io::Result<ExitStatus> {
        let stopped_at = Instant::now();
        self.request_stop().await;
        if timeout(grace, self.wait_for_exit()).await.is_err() {
            self.kill().await;
            timeout(KILL_TIMEOUT, self.wait_for_exit()).await.map_err(io::Error::from)??;
        }
        self.finish(Some(stopped_at), grace).await
    }

    fn reap(&mut self) -> io::Result<ExitStatus> {
        let mut ended = self.child.try_wait()?;
        let reported =
            self.confinement.as_ref().and_then(ConfinedProgramResources::reported_status);
        if ended.is_none() && reported.is_some() {
            // The kernel takes its namespaces down before it ends. Nobody has to wait for that.
            let handle = self.handle.try_clone()?;
            let runtime = Handle::try_current().map_err(io::Error::other)?;
            toolgate_net::spawn_task_on(
                &runtime,
                reap_later(self.main_pid, handle, self.token.clone()),
            );
            ended = reported;
        }
        let ended = ended.ok_or(io::ErrorKind::TimedOut)?;
        let status = self.confinement.as_mut().map_or(ended, |around| around.finish(ended));
        self.status = Some(status);
        Ok(status)
    }

    /// Reaps the dead processes of the program. Returns `true` if a process other than the main
    /// process is alive.
    fn reap_and_check_rest(&self) -> bool {
        let tag = self.run.tag();
        let main = self.main_pid;
        let strays =
            strays::adopted_orphans(tag, main).unwrap_or_else(|| strays::all_tagged(tag, main));
        strays.iter().for_each(TaggedProcess::reap);
        // A process that removed its tag may belong to this run.
        let is_any_lost = strays::kill_lost_orphans();
        is_any_lost || strays.iter().any(TaggedProcess::is_alive)
    }

    /// Returns the confinement of the program: its profile, and the sandbox layers that are
    /// missing.
    pub(super) fn coverage(&self) -> Arc<SandboxCoverage> {
        self.confinement.as_ref().map_or_else(
            || Arc::new(SandboxCoverage::unconfined()),
            |around| around.coverage.clone(),
        )
    }

    /// Returns the program's network use so far, such as the hosts that were refused.
    pub(super) fn network_use(&self) -> ProgramNetworkUsage {
        self.confinement.as_ref().map(ConfinedProgramResources::network_use).unwrap_or_default()
    }

    /// Returns the error that kept the program from starting. Call this after the main process has
    /// ended.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.confinement.as_ref()?.failure()
    }

    async fn find_strays(&self) -> Vec<TaggedProcess> {
        let tag = self.run.tag();
        let main = self.main_pid;
        let found = spawn_blocking(move || strays::all_tagged(tag, main));
        timeout(KILL_TIMEOUT, found).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn signal_group(&self, signal: Signal) {
        // The group may have ended by itself.
        let _ = kill_process_group(self.main_pid, signal);
    }
}

/// Waits until the process with the handle `handle` has ended.
#[allow(unsafe_code, reason = "tokio needs the promise that the descriptor stays open")]
async fn wait_for_exit(handle: &OwnedFd) -> io::Result<()> {
    // SAFETY: the handle is borrowed from its owner, who outlives this call.
    let handle = unsafe { AsyncFd::register_with_interest(handle.as_fd(), Interest::READABLE) }?;
    handle.readable().await.map(drop)
}

/// Waits for the end of the process `main`, which has the handle `handle`, and reaps the process.
/// Kills the process if it has not ended after 2 s.
async fn reap_later(main: Pid, handle: OwnedFd, token: TaskTrackerToken) {
    if !matches!(timeout(KILL_TIMEOUT, wait_for_exit(&handle)).await, Ok(Ok(()))) {
        let _ = kill_process(main, Signal::KILL);
        let _ = timeout(KILL_TIMEOUT, wait_for_exit(&handle)).await;
        // From here on `close` does not wait for it. It is still reaped once possible.
        drop(token);
        let _ = wait_for_exit(&handle).await;
    }
    let _ = waitpid(Some(main), WaitOptions::NOHANG);
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        let mut looks_left = KILL_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis();
        while looks_left > 0 {
            self.signal_group(Signal::KILL);
            let strays = strays::all_tagged(self.run.tag(), self.main_pid);
            for stray in &strays {
                stray.signal(self.run.tag(), Signal::KILL);
                stray.reap();
            }
            if !strays::kill_lost_orphans() && strays.is_empty() && self.reap().is_ok() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
            looks_left -= 1;
        }
    }
}
