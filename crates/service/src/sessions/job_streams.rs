//! Streams a job's events or status to a client, in the client's dialect.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until, timeout};
use toolgate_contract::{Caller, JobSnapshot, JobStreamItem};
use toolgate_dialects::{JobWatchRequest, JobWatchSchedule};
use toolgate_host::Host;

/// Sends the events or snapshots of a watched job to `out`, until the job ends or the receiver of
/// `out` is dropped.
///
/// A slow client delays only this function, never the job: events wait in the job store.
pub(crate) async fn stream_job(
    host: &Host,
    caller: &Caller,
    job: &JobWatchRequest,
    out: &Sender<Bytes>,
) {
    // `None` means that the client left, which ends the stream as well.
    let _ = match job.schedule {
        JobWatchSchedule::Events { quiet } => stream_events(host, caller, job, quiet, out).await,
        JobWatchSchedule::Snapshots { every, at_most } => {
            stream_snapshots(host, caller, job, every, at_most, out).await
        }
    };
}

/// Sends each event of a watched job to `out`, and a heartbeat after the time `quiet` without
/// events. Returns `None` if the receiver of `out` was dropped.
async fn stream_events(
    host: &Host,
    caller: &Caller,
    job: &JobWatchRequest,
    quiet: Duration,
    out: &Sender<Bytes>,
) -> Option<()> {
    let watch = match host.jobs() {
        Ok(jobs) => jobs.watch(Some(caller), &job.id, 0).await,
        Err(error) => Err(error),
    };
    let Ok((now, mut watch)) = watch else {
        return send_some(out, job.encoder.encode_start(None)).await;
    };
    send_some(out, job.encoder.encode_start(Some(&now))).await?;
    loop {
        match timeout(quiet, watch.next()).await {
            Ok(Some(item)) => {
                send_some(out, job.encoder.encode_item(&item)).await?;
                if let JobStreamItem::Ended(_) = item {
                    return Some(());
                }
            }
            Ok(None) => return Some(()),
            Err(_quiet) => send_some(out, job.encoder.encode_keep_alive()).await?,
        }
    }
}

async fn stream_snapshots(
    host: &Host,
    caller: &Caller,
    job: &JobWatchRequest,
    every: Duration,
    at_most: Duration,
    out: &Sender<Bytes>,
) -> Option<()> {
    let began = Instant::now();
    let end = began + at_most;
    let mut next = began;
    loop {
        let now = current_job(host, caller, &job.id).await;
        send_some(out, job.encoder.encode_snapshot(now.as_ref())).await?;
        if now.is_some_and(|job| job.state.is_terminal()) {
            return Some(());
        }
        next += every;
        sleep_until(next.min(end)).await;
        if Instant::now() >= end {
            return Some(());
        }
    }
}

async fn current_job(host: &Host, caller: &Caller, id: &str) -> Option<JobSnapshot> {
    host.jobs().ok()?.get(Some(caller), id).await.ok()
}

/// Sends `message` to the client if it is not `None`. Returns `None` if the client has
/// disconnected.
pub(super) async fn send_some(out: &Sender<Bytes>, message: Option<Bytes>) -> Option<()> {
    match message {
        Some(message) => out.send(message).await.ok(),
        None => Some(()),
    }
}
