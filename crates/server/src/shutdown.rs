//! When to stop: at a signal in order, at a second one at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled at the first SIGINT or SIGTERM.
///
/// Whoever sends a second one means it: the process ends there and then.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let mut signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        first(&mut signals).await;
        tracing::info!("stopping once calls in flight are done; again to stop now");
        told.cancel();
        first(&mut signals).await;
        std::process::exit(130);
    });
    Ok(stop)
}

async fn first([interrupt, terminate]: &mut [Signal; 2]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
