//! When to stop: at a signal in order, at a second one at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled at the first SIGINT, SIGTERM or SIGHUP; the last unless whoever
/// started this process had it ignored, as `nohup` does.
///
/// Whoever sends SIGINT or SIGTERM again means it: the process ends there and then.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    on_signal_or(|| {})
}

/// The same; before the process ends there and then, it does `last`.
pub fn on_signal_or(last: impl FnOnce() + Send + 'static) -> std::io::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = received(hangup.as_mut()) => {}
        }
        told.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        last();
        std::process::exit(130);
    });
    Ok(stop)
}

/// Tells whoever watches a server that it is stopping.
pub(crate) fn tell(stop: CancellationToken) {
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping once calls in flight are done; again to stop now");
    });
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP, the first of the signals, is among those that this process ignores.
#[allow(clippy::disallowed_methods, reason = "the kernel's word on this process, not a file")]
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}
