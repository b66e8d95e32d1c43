//! Streams a job's events or status to a client, at its pace and in its dialect.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until, timeout};
use toolgate_contract::{Caller, Job, Watched};
use toolgate_dialects::{Pace, Watching};
use toolgate_host::Host;

/// Sends everything about the job to `out`, until the job ends or the receiver is gone.
///
/// A slow client delays only this function, never the job: events wait in the store.
pub(crate) async fn tell(host: &Host, caller: &Caller, job: &Watching, out: &Sender<Bytes>) {
    // `None` means that the client left, which ends the stream as well.
    let _ = match job.pace {
        Pace::Events { quiet } => events(host, caller, job, quiet, out).await,
        Pace::Snapshots { every, at_most } => {
            snapshots(host, caller, job, every, at_most, out).await
        }
    };
}

/// Sends each event, and a heartbeat after `quiet`. Returns `None` if the receiver is gone.
async fn events(
    host: &Host,
    caller: &Caller,
    job: &Watching,
    quiet: Duration,
    out: &Sender<Bytes>,
) -> Option<()> {
    let watch = match host.jobs() {
        Ok(jobs) => jobs.watch(Some(caller), &job.id, 0).await,
        Err(err) => Err(err),
    };
    let Ok((now, mut watch)) = watch else { return say(out, job.ticket.begin(None)).await };
    say(out, job.ticket.begin(Some(&now))).await?;
    loop {
        match timeout(quiet, watch.next()).await {
            Ok(Some(what)) => {
                say(out, job.ticket.told(&what)).await?;
                if let Watched::Ended(_) = what {
                    return Some(());
                }
            }
            Ok(None) => return Some(()),
            Err(_quiet) => say(out, job.ticket.alive()).await?,
        }
    }
}

async fn snapshots(
    host: &Host,
    caller: &Caller,
    job: &Watching,
    every: Duration,
    at_most: Duration,
    out: &Sender<Bytes>,
) -> Option<()> {
    let began = Instant::now();
    let end = began + at_most;
    let mut next = began;
    loop {
        let now = seen(host, caller, &job.id).await;
        say(out, job.ticket.snapshot(now.as_ref())).await?;
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

async fn seen(host: &Host, caller: &Caller, id: &str) -> Option<Job> {
    host.jobs().ok()?.get(Some(caller), id).await.ok()
}

async fn say(out: &Sender<Bytes>, message: Option<Bytes>) -> Option<()> {
    match message {
        Some(message) => out.send(message).await.ok(),
        None => Some(()),
    }
}
