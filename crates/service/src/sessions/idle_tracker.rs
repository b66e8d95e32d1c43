//! Releases memory that an idle server does not need: pages of code, and freed heap memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use toolgate_net::{release_code_pages, spawn_blocking};

use crate::heap::trim_heaps;

/// Time after the start of the server at which the memory of startup code is released, even if the
/// server is busy.
const STARTUP_DELAY: Duration = Duration::from_millis(500);
/// Time without requests after which the memory of code is released.
const IDLE_DELAY: Duration = Duration::from_secs(5);

/// Tracks recent requests, and releases memory of code while the server is idle.
#[derive(Debug, Default)]
pub(crate) struct IdleTracker {
    is_busy: AtomicBool,
    activity: Notify,
}

impl IdleTracker {
    /// Records that a request has just begun.
    pub(crate) fn note_activity(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.activity.notify_one();
        }
    }

    /// Releases the memory of code once after startup. Each time the server becomes idle, releases
    /// this memory again, and also freed heap memory. Never returns.
    pub(crate) async fn release_when_idle(&self) {
        sleep(STARTUP_DELAY).await;
        // A blocking thread, because releasing tens of megabytes would delay current requests.
        let _ = spawn_blocking(release_code_pages).await;
        loop {
            self.activity.notified().await;
            while self.is_busy.swap(false, Ordering::Relaxed) {
                sleep(IDLE_DELAY).await;
            }
            release_code_pages();
            trim_heaps();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_tracker_is_idle_after_a_while_without_requests() {
        let tracker = IdleTracker::default();
        let mut releasing = std::pin::pin!(tracker.release_when_idle());
        let mut waits = async |time| tokio::time::timeout(time, &mut releasing).await.is_err();
        assert!(waits(STARTUP_DELAY).await);
        // The first release runs in a thread, and paused time waits for it.
        assert!(waits(IDLE_DELAY).await);
        tracker.note_activity();
        assert!(waits(IDLE_DELAY / 2).await);
        assert!(!tracker.is_busy.load(Ordering::Relaxed), "it checks for more requests");
        tracker.note_activity();
        assert!(waits(IDLE_DELAY * 3).await);
        assert!(!tracker.is_busy.load(Ordering::Relaxed), "it waits for the next request");
    }
}
