//! Counters of connections and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter of current connections and streams. Clones share the counts, also between listeners.
#[derive(Debug, Clone, Default)]
pub struct OccupancyCounter(Arc<OccupancyCounts>);

/// Counts of open connections and streams.
#[derive(Debug, Default)]
struct OccupancyCounts {
    connections: AtomicUsize,
    streams: AtomicUsize,
}

/// Guard that counts a connection or stream until it is dropped.
pub(super) struct OccupancyGuard {
    counts: Arc<OccupancyCounts>,
    counter: fn(&OccupancyCounts) -> &AtomicUsize,
}

impl OccupancyCounter {
    /// Returns the number of current connections, including WebSockets.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of current long-lived event streams and WebSockets.
    pub fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    pub(super) fn count_connection(&self) -> OccupancyGuard {
        self.increment(|counts| &counts.connections)
    }

    pub(super) fn count_stream(&self) -> OccupancyGuard {
        self.increment(|counts| &counts.streams)
    }

    fn increment(&self, which: fn(&OccupancyCounts) -> &AtomicUsize) -> OccupancyGuard {
        which(&self.0).fetch_add(1, Ordering::Relaxed);
        OccupancyGuard { counts: self.0.clone(), counter: which }
    }
}

impl Drop for OccupancyGuard {
    fn drop(&mut self) {
        (self.counter)(&self.counts).fetch_sub(1, Ordering::Relaxed);
    }
}
