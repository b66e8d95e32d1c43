//! Shutdown signals: the first lets calls in flight finish, the second stops the server at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that is cancelled at the first SIGINT, SIGTERM or SIGHUP.
///
/// SIGHUP has no effect if it was ignored when the process started, for example by `nohup`. A
/// second SIGINT or SIGTERM exits at once with code 130.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    on_signal_with(|| {})
}

/// Returns the same token as [`on_signal`]. Runs `last` before an immediate exit.
///
/// # Errors
/// A signal handler cannot be installed.
pub fn on_signal_with(last: impl FnOnce() + Send + 'static) -> std::io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = wait_for(hangup.as_mut()) => {}
        }
        token.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        last();
        std::process::exit(130);
    });
    Ok(stop)
}

/// Logs that the server is stopping, once `stop` is cancelled.
pub(crate) fn log_when_stopping(stop: CancellationToken) {
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping after calls in flight; another signal stops at once");
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
