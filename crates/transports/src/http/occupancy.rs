//! Counters of connections and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter of current connections and streams. Clones share the counts, also between listeners.
#[derive(Debug, Clone, Default)]
pub struct OpenConnectionCounter(Arc<OpenConnectionCounts>);

/// Counts of open connections and streams.
#[derive(Debug, Default)]
struct OpenConnectionCounts {
    connections: AtomicUsize,
    streams: AtomicUsize,
}

/// Guard that counts a connection or stream until it is dropped.
pub(super) struct OpenConnectionGuard {
    counts: Arc<OpenConnectionCounts>,
    counter: fn(&OpenConnectionCounts) -> &AtomicUsize,
}

impl OpenConnectionCounter {
    /// Returns the number of current connections, including WebSockets.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of current long-lived event streams and WebSockets.
    pub fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    pub(super) fn count_connection(&self) -> OpenConnectionGuard {
        self.increment(|counts| &counts.connections)
    }

    pub(super) fn count_stream(&self) -> OpenConnectionGuard {
        self.increment(|counts| &counts.streams)
    }

    fn increment(&self, which: fn(&OpenConnectionCounts) -> &AtomicUsize) -> OpenConnectionGuard {
        which(&self.0).fetch_add(1, Ordering::Relaxed);
        OpenConnectionGuard { counts: self.0.clone(), counter: which }
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        (self.counter)(&self.counts).fetch_sub(1, Ordering::Relaxed);
    }
}
