//! Shutdown signals: the first signal lets calls in flight finish, the second stops the server at
//! once.
//!
//! A separate thread waits for the signals, so that they work while every other thread is busy.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Time after the drain time within which a stopping server exits, even if calls still run.
const EXIT_AFTER_DRAIN: Duration = Duration::from_millis(1900);

/// Returns a token that is cancelled at the first SIGINT, SIGTERM or SIGHUP, which asks the process
/// to stop.
///
/// SIGHUP has no effect if it was ignored when the process started, for example by `nohup`. A
/// second SIGINT or SIGTERM exits at once with code 130.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn on_signal() -> io::Result<CancellationToken> {
    watch_signals(None, || {})
}

/// Returns a token that is cancelled at the first signal to stop, as in [`on_signal`]. After that,
/// the server's calls have the time `drain` to finish. If anything still runs 2 s after that time,
/// the process exits with code 1. Runs `last` before such an exit, and before the exit at a second
/// signal.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn on_server_signal(
    drain: Duration,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<CancellationToken> {
    watch_signals(Some(drain.saturating_add(EXIT_AFTER_DRAIN)), last)
}

/// Starts the thread that waits for signals, and returns a token that is cancelled at the first
/// signal. The process exits at a second signal, or `time_max` after the first, and runs `last`
/// before. Fails if a signal handler cannot be installed.
fn watch_signals(
    time_max: Option<Duration>,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let token = stop.clone();
    let (installed, result) = mpsc::sync_channel(1);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(err) => return drop(installed.send(Err(err))),
        };
        let code = runtime.block_on(async move {
            let mut signals = match ShutdownSignals::install() {
                Ok(signals) => signals,
                Err(err) => {
                    let _ = installed.send(Err(err));
                    return None;
                }
            };
            let _ = installed.send(Ok(()));
            signals.wait_first().await;
            token.cancel();
            tokio::select! {
                () = signals.wait_second() => Some(130),
                () = wait_at_most(time_max) => Some(1),
            }
        });
        if let Some(code) = code {
            if code == 1 {
                tracing::error!(
                    "some work did not end in time; the server exits without waiting for it"
                );
            }
            last();
            std::process::exit(code);
        }
    })?;
    result.recv().map_err(io::Error::other)??;
    Ok(stop)
}

/// Handlers of the signals that stop the process.
struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
    /// Handler of SIGHUP, or `None` if this process ignores that signal.
    hangup: Option<Signal>,
}

impl ShutdownSignals {
    fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    async fn wait_first(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = wait_for(self.hangup.as_mut()) => {}
        }
    }

    async fn wait_second(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for the time `limit`, or forever if `limit` is `None`.
async fn wait_at_most(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Spawns a task that logs that the server is stopping, once `stop` is cancelled.
pub(crate) fn log_when_stopping(stop: CancellationToken) {
    toolgate_net::spawn_task(async move {
        stop.cancelled().await;
        tracing::info!(
            "the server waits for calls in flight and then stops; another signal stops \
             the server at once"
        );
    });
}

async fn wait_for(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns true if this process ignores SIGHUP (signal 1).
#[allow(
    clippy::disallowed_methods,
    reason = "the state of this process from the kernel, not a file"
)]
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
